"""``pymq explain`` shows where a record is, who holds it, and its state in each group."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import attrs
import pytest

import pymq
from pymq.cli.commands.records.explain import where
from pymq.cli.offset_args import offsets_of, parse_place
from pymq.core.metadata.descriptions import PartitionDescription
from pymq.errors import RequestTimeout
from tests.cli.conftest import BROKERS, Queue
from tests.client.helpers import polled, wait_until


def fate(queue: Queue, topic: str, offset: int, group: str) -> dict[str, Any]:
    """Return the reported state of a record for one group."""
    (found,) = queue.json("explain", topic, 0, offset, "--group", group)["groups"]
    assert isinstance(found, dict)
    return found


def test_a_record(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    with queue.open() as mq, mq.producer(producer_id="writer") as producer:
        producer.send_many(topic, [b"x", b"y\n" * 50], [b"k", b"l"]).wait(60)
        producer.send(topic, b"z", headers=[("h", b"1")], timestamp_ms=1_000).result(60)
    told = queue.run("explain", topic, 0, 1)
    lines = told.out.splitlines()
    assert lines[0] == f"{topic}/0 offset 1: visible; it is committed: the high watermark is 3"
    fields = dict(line.split(None, 1) for line in lines[1:])
    assert fields["block"].startswith("NowBlock, from offset 0, open; it was opened 2")
    assert fields["held"].endswith(" (in sync, leads)")
    assert fields["key"] == "l"
    assert fields["value"] == "100 B: " + "y\\n" * 19 + "..."
    assert fields["batch"].startswith("offsets 0 to 1, 2 records, ")
    assert fields["producer"].endswith(", its record 1")
    assert lines[-1] == "no group consumes this partition"
    found = queue.json("explain", topic, 0, 2)
    assert found["state"] == "visible"
    assert found["record"]["headers"] == [{"name": "h", "value": "1"}]
    assert found["record"]["timestamp_ms"] == 1_000
    assert found["batch"]["base_offset"] == 2
    assert found["batch"]["base_sequence"] == 2
    assert found["block"]["replicas"] == [found["log"]["leader"]]
    assert found["groups"] == []


def test_what_is_not_there(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic)
    queue.put(topic, range(3))
    told = queue.call("explain", topic, 0, 3)
    assert told.code == 1
    assert told.out.startswith(f"{topic}/0 offset 3: not written; the partition ends at 3\n")
    assert queue.json("explain", topic, 0, 3, code=1)["state"] == "not written"
    assert queue.fails("explain", topic, 7, 0)["code"] == "UNKNOWN_PARTITION"
    assert queue.fails("explain", f"{topic}x", 0, 0)["code"] == "UNKNOWN_TOPIC"
    assert queue.fails("explain", topic, 0, 0, "--group", "nobody")["code"] == "UNKNOWN_GROUP"
    assert queue.call("explain", topic, 0, "first").code == 2


def test_what_retention_has_taken(queue: Queue, topic: str) -> None:
    config = ("--config", "block_bytes=4KiB", "--config", "retention_bytes=1")
    queue.run("topic", "create", topic, *config)
    with queue.open() as mq, mq.producer() as producer:

        def is_removed() -> bool:
            producer.send(topic, bytes(3_000)).result(60)
            return mq.describe_topic(topic).partitions[0].start_offset > 0

        wait_until(is_removed, 60)
    told = queue.call("explain", topic, 0, 0)
    assert told.code == 1
    assert f"{topic}/0 offset 0: removed; retention has deleted all records before " in told.out


def test_blocks_and_their_brokers(remote: Queue, topic: str) -> None:
    """Each record is shown with its block: ack mode, epoch and replicas."""
    remote.run("topic", "create", topic, "--replicas", 1)
    (older,) = remote.put(topic, ["old"])
    (first,) = remote.json("topic", "describe", topic)["partitions"][0]["replicas"]
    others = [name for name in BROKERS if name != first]
    remote.run("topic", "set-state", topic, 0, "raft")
    # Do this last: a roll that names no replicas may move a replica to a broker with less load.
    remote.run("cluster", "reassign", topic, 0, *others)
    (newer,) = remote.put(topic, ["new"])
    old = remote.json("explain", topic, 0, older)
    assert (old["block"]["name"], old["block"]["acks"]) == ("Block_0", "leader")
    assert old["block"]["in_sync"] == [first]
    assert f"held by   {first} (has all records)" in remote.run("explain", topic, 0, older).out
    new = remote.json("explain", topic, 0, newer)
    assert (new["block"]["name"], new["block"]["acks"]) == ("NowBlock", "raft")
    assert new["record"]["value"] == "new"
    assert new["batch"]["leader_epoch"] > old["batch"]["leader_epoch"]
    assert set(new["block"]["replicas"]) == set(others)


def test_an_offset_that_is_pymqs_own(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic, "--replicas", 3, "--acks", "raft")
    (only,) = remote.put(topic, ["x"])
    remote.run("cluster", "reassign", topic, 0, "broker-1", "broker-2")
    found = remote.json("explain", topic, 0, only + 1, code=1)
    assert found["state"] == "no record"
    assert "control record of pymq" in found["why"]
    assert found["record"] is None


def test_a_record_that_is_not_committed() -> None:
    """The command shows the state of a record while the other replicas lag, and while there is no
    leader.
    """
    part = PartitionDescription(
        *("0", 0, pymq.AckMode.RAFT, "a", 1, ("a", "b"), ("a",), 0, 5, 3, ())
    )
    assert where(part, 2)[0] == "visible"
    assert where(part, 4) == (
        "not committed",
        "a has written it, and too few replicas have it yet: consumers read up to 3; b lag",
    )
    stuck = attrs.evolve(part, leader=None, problem="waits for b")
    assert where(stuck, 5) == ("not written", "and no record can be written: waits for b")


def test_an_end_that_no_replica_has_reported() -> None:
    """If no replica has reported the end, a record beyond it counts as "not known", and `group
    reset` to `latest` fails.
    """
    part = PartitionDescription(
        *("0", 0, pymq.AckMode.RAFT, "a", 1, ("a", "b"), ("a",), 0, 5, 5, ()), is_reported=False
    )
    assert where(part, 4)[0] == "visible"
    assert where(part, 5)[0] == "not known"
    with pytest.raises(RequestTimeout, match="t: the end of partition 0 is not known"):
        offsets_of(cast(pymq.Client, None), "t", parse_place("latest"), {"0": part})


# --- groups -------------------------------------------------------------------------------------


def test_done_and_next(queue: Queue, topic: str) -> None:
    queue.run("topic", "create", topic, "--partitions", 2)
    queue.put(topic, range(10))
    group = f"{topic}.g"
    queue.run("consume", topic, "--group", group, "--max", 4)
    assert fate(queue, topic, 3, group)["state"] == "acked"
    following = fate(queue, topic, 4, group)
    assert following["state"] == "not delivered"
    assert following["why"] == "it is the next record; the group has no consumer: start one"
    assert fate(queue, topic, 6, group)["why"].startswith("2 records come before it")
    (found,) = queue.json("explain", topic, 0, 10, code=1)["groups"]
    assert found["why"] == "no record is ready for delivery"
    told = queue.run("explain", topic, 0, 0)
    assert told.out.splitlines()[-1].startswith(f"group {group}: acked; all records before 4 are ")


@contextmanager
def holding(queue: Queue, topic: str, count: int, **options: Any) -> Iterator[pymq.Consumer]:
    with queue.open() as mq, mq.consumer(topic, group=f"{topic}.g", **options) as consumer:
        records = polled(consumer, count)
        consumer.ack(records[2])
        consumer.nack(records[3:4], delay=600)
        consumer.commit()
        yield consumer


def test_leased_and_given_back(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic)
    remote.put(topic, range(6))
    group = f"{topic}.g"
    with holding(remote, topic, 5, ack_wait_s=600, max_deliver=4) as consumer:
        (member,) = remote.json("group", "describe", group)["consumers"]
        leased = fate(remote, topic, 0, group)
        assert (leased["state"], leased["member"]) == ("leased", member["name"])
        assert f"delivered to {member['name']} ({consumer.name}), delivery 1 of 4" in leased["why"]
        acked = fate(remote, topic, 2, group)
        assert (acked["state"], acked["why"]) == (
            "acked",
            "the record itself is acknowledged; one before it is not",
        )
        back = fate(remote, topic, 3, group)
        assert (back["state"], back["delivery_count"]) == ("to be redelivered", 1)
        assert back["until_ms"] > 0
        assert "it can be delivered from 2" in back["why"]


def test_why_the_next_record_does_not_come(remote: Queue, topic: str) -> None:
    """The reason is shown: the application is at work, has paused the partition, or waits and gets
    the record at once.
    """
    remote.run("topic", "create", topic)
    remote.put(topic, range(6))
    group = f"{topic}.g"
    with holding(remote, topic, 5, ack_wait_s=600) as consumer:
        consumer.pause("0")
        waiting = threading.Thread(target=consumer.poll, kwargs={"timeout": 60})
        waiting.start()
        try:
            wait_until(
                lambda: "has paused the partition" in fate(remote, topic, 5, group)["why"], 60
            )
        finally:
            consumer.resume("0")
            waiting.join()
        assert fate(remote, topic, 5, group)["state"] == "leased"


def test_a_partition_that_a_group_has_not_begun(remote: Queue, topic: str) -> None:
    remote.run("topic", "create", topic)
    remote.put(topic, [1])
    remote.run("consume", topic, "--group", f"{topic}.g")
    remote.run("topic", "alter", topic, "--add-partition", "new")
    remote.put(topic, [2], "new")
    (found,) = remote.json("explain", topic, "new", 0, "--group", f"{topic}.g")["groups"]
    assert found["state"] == "not begun"
    # Without a group argument the command shows the same.
    assert remote.json("explain", topic, "new", 0)["groups"] == [found]
    assert found["why"].endswith("the group has no consumer: start one")
