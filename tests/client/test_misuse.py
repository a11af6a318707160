"""Calls that would have no effect, or a wrong effect, raise at once."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.errors import CommitFailed, ConfigError, InvalidName
from pymq.testing import Cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mq() -> Iterator[pymq.Client]:
    with pymq.open("memory:") as client:
        client.create_topic("t")
        yield client


@pytest.mark.parametrize("name", ["t", "bad name", "..", "", "n" * 250, "__consumer_offsets"])
def test_a_dead_letter_topic_that_cannot_be_one_is_refused(mq: pymq.Client, name: str) -> None:
    """A dead-letter topic cannot be its own source, because records would be delivered forever."""
    with pytest.raises(InvalidName):
        mq.consumer("t", group="g", dead_letter=name)


def test_a_topic_whose_name_is_too_long_for_its_dead_letters_is_told_so(mq: pymq.Client) -> None:
    name = "n" * 246
    mq.create_topic(name)
    with pytest.raises(InvalidName, match="choose another with dead_letter="):
        mq.consumer(name, group="g")
    mq.consumer(name, group="g", dead_letter="short").close()
    mq.consumer(name, group="g", max_deliver=0).close()
    with pytest.raises(ConfigError, match="max_deliver"):
        mq.consumer("t", group="g", max_deliver=0, dead_letter="short")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"group": "g", "offset": 3}, "offset= goes with mode='psb'"),
        ({"offset": "begin"}, "offset= goes with mode='psb'"),
        ({"credit": 5}, "credit goes with delivery='push'"),
        *(
            ({"mode": "psb", name: value}, f"{name} is for groups")
            for name, value in [
                ("auto_ack", True),
                ("ack_wait_s", 5.0),
                ("max_deliver", 0),
                ("dead_letter", "d"),
                ("auto_offset_reset", "end"),
                ("assignor", "ring"),
                ("on_assigned", print),
                ("on_revoked", print),
                ("max_poll_interval_s", 1.0),
            ]
        ),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    mq: pymq.Client, given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        mq.consumer("t", **given)


def test_more_in_sync_than_there_are_replicas_is_refused() -> None:
    """An impossible ``min_in_sync`` is refused at once, so that acks="all" requests do not all
    fail.
    """
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        with pytest.raises(ConfigError, match="min_in_sync=2 is more than 1 replica:"):
            mq.create_topic("t", replicas=1, min_in_sync=2)
        mq.create_topic("t", replicas=2, min_in_sync=2)
        with pytest.raises(ConfigError, match="min_in_sync=3"):
            mq.alter_topic("t", min_in_sync=3)
        with pytest.raises(ConfigError, match="min_in_sync=2"):
            mq.set_partition_state("t", "0", "leader", replicas=1)
        with pytest.raises(ConfigError, match="min_in_sync=2"):
            mq.reassign("t", "0", replicas=["broker-0"])
        mq.alter_topic("t", min_in_sync=1)
        mq.set_partition_state("t", "0", "leader", replicas=1)


def test_commit_tells_what_it_did_not_commit() -> None:
    """commit raises when acknowledgements were refused, since those records are delivered again."""
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send_many("t", [b"%d" % number for number in range(5)]).result()
        with mq.consumer("t", group="g", ack_wait_s=1) as consumer:
            records = consumer.poll(3, timeout=5)
            cluster.run(seconds=2)
            consumer.ack(records)
            with pytest.raises(CommitFailed, match="0 to 2") as caught:
                consumer.commit()
            assert caught.value.details["count"] == 3
            assert caught.value.details["ranges"] == (("0", 0, 3),)
            assert consumer.committed() == {"0": 0}
            consumer.commit()  # commit reports the error once.
            again = list(consumer.until_end())
            consumer.ack(again)
            consumer.ack(again)  # A record may be acknowledged twice.
            consumer.commit()
            assert sorted(record.offset for record in again) == [0, 1, 2, 3, 4]
            assert consumer.committed() == {"0": 5}


def test_commit_tells_it_also_if_the_acknowledgement_was_sent_twice() -> None:
    """The first request is lost; commit reports the refusals from the answer to the second."""
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send_many("t", [b"%d" % number for number in range(5)]).result()
        with mq.consumer("t", group="g", ack_wait_s=1) as consumer:
            records = consumer.poll(3, timeout=5)
            cluster.run(seconds=2)
            cut = cluster.cut(mq.name)
            consumer.ack(records)
            cluster.run(seconds=0.1)
            cluster.heal(cut)
            cluster.run(seconds=3)
            with pytest.raises(CommitFailed, match="0 to 2") as caught:
                consumer.commit()
            assert caught.value.details["count"] == 3


def test_an_acknowledgement_that_was_carried_out_and_sent_twice_is_committed() -> None:
    """The answer to the first request is lost, and the second request counts as done."""
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send_many("t", [b"%d" % number for number in range(5)]).result()
        with mq.consumer("t", group="g") as consumer:
            records = consumer.poll(3, timeout=5)
            cut = cluster.cut("broker-0", mq.name, one_way=True)
            consumer.ack(records)
            cluster.run(seconds=0.1)
            cluster.heal(cut)
            cluster.run(seconds=3)
            consumer.commit()
            assert consumer.committed() == {"0": 3}


def test_a_record_that_came_again_may_be_acknowledged_by_either_delivery() -> None:
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send("t", b"x").result()
        with mq.consumer("t", group="g", ack_wait_s=1) as consumer:
            (first,) = consumer.poll(1, timeout=5)
            cluster.run(seconds=2)
            (second,) = consumer.poll(1, timeout=5)
            assert second.delivery_count == 2
            consumer.ack(first)
            consumer.ack(second)
            consumer.commit()
            assert consumer.committed() == {"0": 1}


def test_without_pyzmq_a_url_says_what_to_install() -> None:
    script = """
import sys
sys.modules["zmq"] = None
import pymq
for call in (
    lambda: pymq.open("zmq+tcp://127.0.0.1:1"),
    lambda: pymq.ZkServer(listen="tcp://127.0.0.1:0", coordinator="memory:"),
):
    try:
        call()
    except pymq.errors.MissingExtra as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (
        done.stdout.splitlines()
        == ["clusters need pyzmq: pip install 'pymq-log[zmq]', or in a clone pip install '.[zmq]'"]
        * 2
    ), done.stderr


def test_readers_and_groups_are_names_of_the_modes(mq: pymq.Client) -> None:
    mq.create_topic("modes")
    with mq.producer() as producer:
        producer.send("modes", b"x").result()
    with mq.consumer("modes", mode="reader", offset="begin") as reader:
        assert [record.value for record in reader.until_end()] == [b"x"]
    with mq.consumer("modes", "g", mode="group") as member:
        (record,) = member.poll()
        member.ack(record)
    with pytest.raises(ConfigError, match="mode='queue' must be"):
        mq.consumer("modes", mode="queue")  # type: ignore[arg-type] # on purpose


def test_what_cannot_be_copied_says_so(mq: pymq.Client) -> None:
    """A handle cannot be copied to another process either, for example as an argument of a pool's
    task.
    """
    mq.create_topic("t", exist_ok=True)
    with mq.producer() as producer, mq.consumer("t", mode="reader") as consumer:
        for handle in (mq, producer, consumer):
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="cannot be pickled or copied"):
                    copied(handle)
