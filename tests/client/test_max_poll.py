"""A consumer that does not poll for max_poll_interval_s loses its records until it polls again."""

from __future__ import annotations

import pytest

import pymq
from pymq.testing import Cluster


def filled(cluster: Cluster, count: int) -> pymq.Client:
    mq = cluster.client()
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send_many("t", [b"%d" % number for number in range(count)]).result()
    return mq


def values(records: list[pymq.Record]) -> list[int]:
    return [int(record.value) for record in records]


def test_others_get_what_it_does_not_work_on() -> None:
    with Cluster(brokers=1, seed=1) as cluster:
        mq = filled(cluster, 10)
        lost: list[tuple[str, ...]] = []
        with (
            mq.consumer("t", group="g", max_poll_interval_s=20, on_revoked=lost.append) as hangs,
            mq.consumer("t", group="g") as other,
        ):
            records = iter(hangs)
            assert int(next(records).value) == 0
            cluster.run(seconds=15)
            assert other.poll(timeout=0) == []
            cluster.run(seconds=11)
            assert values(other.poll(timeout=40)) == list(range(10))
            assert hangs.assignment() == ()
            other.ack(other.poll(timeout=0))
            assert hangs.poll(timeout=5) == []
            assert lost == [("0",)]


def test_it_joins_again_when_it_asks() -> None:
    with Cluster(brokers=1, seed=2) as cluster:
        mq = filled(cluster, 10)
        with mq.consumer("t", group="g", max_poll_interval_s=20) as consumer:
            before = consumer.poll(5)
            assert values(before) == [0, 1, 2, 3, 4]
            cluster.run(seconds=60)
            consumer.ack(before)
            again: list[pymq.Record] = []
            while len(again) < 10:
                again += consumer.poll(timeout=40)
            assert values(again) == list(range(10))
            assert [record.delivery_count for record in again[5:]] == [1] * 5
            with pytest.raises(pymq.errors.FencedMember):
                consumer.commit()
            consumer.ack(again)
            consumer.commit()
            assert consumer.committed() == {"0": 10}


def test_whoever_waits_for_records_does_not_hang() -> None:
    with Cluster(brokers=1, seed=3) as cluster:
        mq = filled(cluster, 1)
        with mq.consumer("t", group="g", max_poll_interval_s=10) as consumer:
            consumer.ack(consumer.poll())
            assert consumer.poll(timeout=100) == []
            assert consumer.assignment() == ("0",)
