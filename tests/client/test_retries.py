"""Failed records are delivered again after a backoff, with their error.

Dead letters have the error, too.
"""

from __future__ import annotations

import asyncio

import pytest

import pymq
from pymq import aio
from pymq.errors import ConfigError
from pymq.testing import Cluster
from tests.client.helpers import polled, produce


def told(record: pymq.Record) -> tuple[int, bytes | None, bytes | None]:
    headers = dict(record.headers)
    return record.delivery_count, headers.get("pymq.error"), headers.get("pymq.deliveries")


def test_a_redelivered_record_carries_its_last_error(mq: pymq.Client) -> None:
    mq.create_topic("t")
    produce(mq, "t", range(3))
    with mq.consumer("t", group="g") as consumer:
        first, second, third = polled(consumer, 3)
        assert told(first) == (1, None, None)
        consumer.nack(first, error=ValueError("no price"))
        consumer.nack(second)
        consumer.ack(third)
        again = {record.offset: record for record in polled(consumer, 2)}
        assert told(again[0]) == (2, b"ValueError: no price", b"2")
        assert told(again[1]) == (2, None, None)
        consumer.nack([again[0]])  # this time the record is returned without an error
        consumer.nack([again[1]], error="later")
        again = {record.offset: record for record in polled(consumer, 2)}
        assert told(again[0]) == (3, b"ValueError: no price", b"3")
        assert told(again[1]) == (3, b"later", b"3")


def test_batches_carry_it_too(mq: pymq.Client) -> None:
    mq.create_topic("t")
    produce(mq, "t", range(3))
    with mq.consumer("t", group="g") as consumer:
        consumer.nack(polled(consumer, 3), error="later")
        found = list[bytes]()
        while len(found) < 3:
            for view in consumer.poll_batches(timeout=30):
                found += [dict(headers)["pymq.error"] for headers in view.headers]
        assert found == [b"later"] * 3


def test_a_dead_letter_says_where_when_and_why(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        headers = [("mine", b"1"), ("pymq.topic", b"an earlier death")]
        producer.send("t", b"v", key=b"k", headers=headers, timestamp_ms=7).result(30)
    with mq.consumer("t", group="g", max_deliver=2) as consumer:
        for _ in range(2):
            consumer.nack(polled(consumer, 1), error="no price")
        while "t.dlq" not in mq.topics():
            assert consumer.poll(timeout=0.05) == []
        consumer.commit()
    with mq.consumer("t.dlq", mode="reader") as letters:
        (letter,) = letters.until_end()
    assert (letter.key, letter.value) == (b"k", b"v")
    assert letter.timestamp_ms > 7
    assert letter.headers == (
        ("mine", b"1"),
        ("pymq.topic", b"t"),
        ("pymq.partition", b"0"),
        ("pymq.offset", b"0"),
        ("pymq.timestamp", b"7"),
        ("pymq.group", b"g"),
        ("pymq.delivery_count", b"2"),
        ("pymq.deliveries", b"2"),
        ("pymq.error", b"no price"),
    )


def test_what_a_push_consumer_raises_is_the_error(mq: pymq.Client) -> None:
    mq.create_topic("t")
    produce(mq, "t", [1])
    seen: list[pymq.Record] = []

    def on_record(record: pymq.Record) -> None:
        seen.append(record)
        if len(seen) == 1:
            raise ValueError("no price")

    with mq.consumer("t", group="g", delivery="push", on_record=on_record, auto_ack=True):
        while len(seen) < 2:
            mq.describe_group("g")  # virtual time passes with each call
    assert told(seen[1]) == (2, b"ValueError: no price", b"2")


def test_a_coroutine_says_why_too() -> None:
    async def main() -> tuple[int, bytes | None, bytes | None]:
        async with aio.open("memory:") as mq:
            await mq.create_topic("t")
            async with mq.producer() as producer:
                await producer.send("t", b"v")
            backoff = pymq.Backoff(first_s=0.01)
            async with await mq.consumer("t", group="g", retry=backoff) as consumer:
                async for record in consumer:
                    if record.delivery_count > 1:
                        return told(record)
                    consumer.nack(record, error=ValueError("no price"))
        raise AssertionError("the iteration has ended")

    assert asyncio.run(main()) == (2, b"ValueError: no price", b"2")


def test_the_group_waits_longer_each_time() -> None:
    """In virtual time: a record is delivered again when its backoff has passed, and not before."""
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3)
        produce(mq, "t", [1])
        backoff = pymq.Backoff(first_s=1, factor=3, max_s=20, jitter=0)
        with mq.consumer("t", group="g", retry=backoff, max_deliver=0) as consumer:
            waits = list[float]()
            (record,) = polled(consumer, 1)
            for _ in range(5):
                consumer.nack(record)
                at = cluster.now
                (record,) = polled(consumer, 1)
                waits.append(cluster.now - at)
        for wait, wanted in zip(waits, [1, 3, 9, 20, 20], strict=True):
            assert wanted <= wait < wanted + 0.5


def test_a_delay_of_its_own_is_not_the_backoff() -> None:
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        produce(mq, "t", [1])
        backoff = pymq.Backoff(first_s=1_000, max_s=1_000)
        with mq.consumer("t", group="g", retry=backoff) as consumer:
            at = cluster.now
            consumer.nack(polled(consumer, 1), delay=0)
            polled(consumer, 1)
            assert cluster.now - at < 1


def test_the_next_coordinator_waits_as_long_and_knows_the_error() -> None:
    """The delay, the error and the count are kept with the offset."""
    with Cluster(brokers=3, seed=2) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3)
        produce(mq, "t", [1])
        with mq.consumer("t", group="g") as consumer:
            consumer.nack(polled(consumer, 1), delay=20, error="no price")
            at = cluster.now
            consumer.commit()
            leader = mq.describe_topic("__consumer_offsets").partitions[0].leader
            assert leader is not None
            cluster.crash(leader)
            (record,) = polled(consumer, 1, timeout=60)
            assert told(record) == (2, b"no price", b"2")
            assert 20 <= cluster.now - at < 21
        cluster.check()


@pytest.mark.parametrize("wrong", [2.0, "1s", {"first_s": 1}])
def test_what_is_no_backoff_is_refused(mq: pymq.Client, wrong: object) -> None:
    mq.create_topic("t")
    with pytest.raises(ConfigError, match=r"must be a pymq\.Backoff"):
        mq.consumer("t", group="g", retry=wrong)  # type: ignore[arg-type] # on purpose
    with pytest.raises(ConfigError, match="retry is for groups"):
        mq.consumer("t", mode="reader", retry=pymq.Backoff())
