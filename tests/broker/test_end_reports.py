"""The brokers' reports of their replicas' ends, and the zkserver's use of them."""

from __future__ import annotations

import pytest

import pymq
from pymq.broker import end_reports
from pymq.core import message as msg
from pymq.core.message import ReplicaEnds
from pymq.testing import Cluster


def put(mq: pymq.Client, count: int, partition: int = 0) -> None:
    with mq.producer(linger_ms=1) as producer:
        producer.send_many("t", [b"x"] * count, partition=partition).result()


def located(mq: pymq.Client, offset: int) -> str:
    with mq.consumer("t", mode="psb", partition=0) as consumer:
        (found,) = mq.questions.ask(lambda r: msg.Locate(r, consumer.name, "t", (("0", offset),)))
        return str(found.broker)


def test_without_a_leader_the_replica_is_found_that_knows_most() -> None:
    with Cluster(brokers=5, seed=31) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=5, acks="raft")
        put(mq, 10)
        cluster.run(seconds=2)
        part = mq.describe_topic("t").partitions[0]
        others = [name for name in part.replicas if name != part.leader]
        # The first two brokers in the block's order fall behind; either of the two others could
        # lead.
        cut = cluster.cut(others[:2], [str(part.leader), *others[2:]])
        put(mq, 10)
        cluster.run(seconds=2.5)
        for name in (str(part.leader), others[2]):
            cluster.crash(name)
        cluster.heal(cut)
        cluster.cut(others[3:], others[:2])
        cluster.run(seconds=5)
        assert located(mq, 15) == others[3]
        with mq.consumer("t", mode="psb", offset=0) as consumer:
            found = 0
            while found < 20:
                found += len(consumer.poll(timeout=2.0))


@pytest.mark.slow
def test_it_is_told_once_a_second_and_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_reports, "TOLD_MAX", 2)
    told: list[tuple[float, ReplicaEnds]] = []
    with Cluster(brokers=3, seed=32) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=5, replicas=3, acks="raft")
        cluster.run(seconds=3)
        broker = cluster.host("broker-0").broker  # type: ignore[attr-defined] # a BrokerHost
        tell = broker._environment.tell_controller

        def noted(message: msg.Message) -> None:
            if isinstance(message, ReplicaEnds):
                told.append((cluster.now, message))
            tell(message)

        broker._environment.tell_controller = noted
        before = cluster.now
        while cluster.now < before + 4:
            for partition in range(5):
                put(mq, 1, partition)
        assert 3 <= len(told) <= 5
        assert all(len(message.ends) <= 2 for _, message in told)
        cluster.run(seconds=5)
        count = len(told)
        cluster.run(seconds=60)
        assert len(told) == count, "nothing has changed"
