"""Lag counts records only, not the offsets of pymq's own batches."""

from __future__ import annotations

import pytest

import pymq
from pymq.cli.diagnosis.health import group_checks, topic_checks
from pymq.client.admin import record_counts
from pymq.client.admin.record_counts import records_of
from pymq.testing import Cluster


def leader(mq: pymq.Client) -> str:
    found = mq.describe_topic("t").partitions[0].leader
    assert found is not None
    return found


def end(mq: pymq.Client) -> int:
    return mq.describe_topic("t").partitions[0].high_watermark


def put(mq: pymq.Client, count: int) -> None:
    with mq.producer(linger_ms=0) as producer:
        for _ in range(count):
            producer.send("t", b"x").result()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(brokers=3, seed=5).start()


def lead_anew(cluster: Cluster, mq: pymq.Client) -> None:
    """Make another broker the leader; its first batch takes one offset."""
    before, was = leader(mq), end(mq)
    cluster.crash(before)
    cluster.run_until(lambda: end(mq) > was)
    cluster.restart(before)
    cluster.run(seconds=5)


def test_nothing_waits_in_an_idle_partition_whose_leader_has_changed(cluster: Cluster) -> None:
    """After a change of leader, ``doctor`` reports no lag in a partition whose records were all
    read.
    """
    mq = cluster.client()
    mq.create_topic("t", replicas=3, acks="raft")
    put(mq, 3)
    with mq.consumer("t", group="g") as consumer:
        consumer.ack(list(consumer.until_end()))
        consumer.commit()
    lead_anew(cluster, mq)
    found = mq.describe_group("g")
    assert found.end["t", "0"] > found.committed["t", "0"]
    assert found.lag == {("t", "0"): 0}
    (check, *others) = group_checks(mq, None, "g")
    assert (check.state, check.found) == ("ok", "it has no consumer, and no record waits")
    assert not others
    assert all(each.state == "ok" for each in topic_checks(mq, None))
    with mq.consumer("t", mode="psb", offset="begin") as reader:
        assert reader.lag() == {"0": 3}
    cluster.check()


@pytest.mark.parametrize("round_bytes", [1, record_counts.ROUND_BYTES])
def test_what_lies_between_records_is_not_counted(
    cluster: Cluster, round_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_counts, "ROUND_BYTES", round_bytes)
    mq = cluster.client()
    mq.create_topic("t", replicas=3, acks="raft")
    put(mq, 1)
    mq.reset_group("g", "t", 0)
    lead_anew(cluster, mq)
    put(mq, 1)
    lead_anew(cluster, mq)
    topic = mq.describe_topic("t")
    assert end(mq) > 2
    assert records_of(mq.questions, topic) == 2
    assert mq.describe_group("g").lag == {("t", "0"): 2}
    put(mq, record_counts.FEW)
    # With so many records pymq's few offsets do not matter, so the lag counts all offsets.
    topic = mq.describe_topic("t")
    assert records_of(mq.questions, topic) == topic.partitions[0].high_watermark
    cluster.check()
