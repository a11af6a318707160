"""From a queue to Kafka, at least once: the queue that plays Kafka has no transactions."""

from __future__ import annotations

from typing import Any

import pytest

import pymq
from pymq.errors import ConfigError, InvalidRequest, UnknownTopic
from pymq.mirror.progress import MirrorProgress
from pymq.mirror.start import mirror
from pymq.testing.kafka import KafkaForTests
from tests.mirror.conftest import inward, rows, url


def outward(mq: pymq.Client, kafka: KafkaForTests, topics: str, **options: Any) -> MirrorProgress:
    """Mirror to Kafka all that is there."""
    made = mirror(mq, url(kafka), topics, once=True, exactly_once=False, **options)
    try:
        return made.run(lambda: False)
    finally:
        made.close()


def send(
    mq: pymq.Client, topic: str, count: int, *, partitions: int = 1, keyed: bool = False
) -> None:
    with mq.producer() as producer:
        for number in range(count):
            headers = [("n", b"%d" % number)] if number % 2 else []
            if number % 5 == 0:
                headers.append(("pymq.tombstone", b""))
            producer.send(
                topic,
                b"value %d" % number if number % 5 else b"",
                b"key %d" % (number % 7) if number % 3 or keyed else None,
                headers,
                partition=number % partitions,
                timestamp_ms=1_000_000_000_000 + number,
            )


def test_records_keep_everything(kafka: KafkaForTests, mq: pymq.Client) -> None:
    mq.create_topic("orders", 3, cleanup_policy="compact", block_bytes=1 << 20)
    mq.create_topic("bills")
    send(mq, "orders", 500, partitions=3, keyed=True)
    send(mq, "bills", 20)
    done = outward(mq, kafka, "orders,bills", records=64)
    assert (done.records, done.lag) == (520, 0)
    assert rows(kafka.mq, "orders") == rows(mq, "orders")
    assert rows(kafka.mq, "bills") == rows(mq, "bills")
    config = kafka.mq.describe_topic("orders").config
    assert (config.cleanup_policy, config.block_bytes) == ("compact", 1 << 20)

    send(mq, "bills", 7)
    assert outward(mq, kafka, "*").records == 7
    assert outward(mq, kafka, "*").records == 0
    assert rows(kafka.mq, "bills") == rows(mq, "bills")


def test_a_record_that_kafka_would_refuse_is_named(kafka: KafkaForTests, mq: pymq.Client) -> None:
    mq.create_topic("orders", cleanup_policy="compact")
    with mq.producer() as producer:
        for key in (b"a", None, b"b"):
            producer.send("orders", b"tea", key)
    with pytest.raises(InvalidRequest, match="orders/0 at offset 1"):
        outward(mq, kafka, "orders")
    done = outward(mq, kafka, "orders", on_error="skip")
    assert (done.records, done.skipped, done.lag) == (2, 1, 0)
    assert [row[1] for row in rows(kafka.mq, "orders")["0"]] == [b"a", b"b"]
    assert kafka.mq.describe_topic("orders").config.cleanup_policy == "compact"


def test_a_dry_run_changes_nothing(kafka: KafkaForTests, mq: pymq.Client) -> None:
    mq.create_topic("orders", route="canary:5%")
    send(mq, "orders", 10)
    made = mirror(mq, url(kafka), "orders", exactly_once=False)
    ((copy, left),) = made.dry_run()
    assert (copy.topic, left, copy.dropped) == ("orders", 10, ("route=canary:5%",))
    assert kafka.mq.topics() == []
    with pytest.raises(UnknownTopic):
        mirror(mq, url(kafka), "others", exactly_once=False).dry_run()


def test_no_loop(kafka: KafkaForTests, mq: pymq.Client) -> None:
    mq.create_topic("a")
    outward(mq, kafka, "a", name="out")
    with pytest.raises(ConfigError, match=r"topic 'a' is mirrored to Kafka by 'pymq\.mirror\.out'"):
        inward(kafka, mq, "a", name="in")
    kafka.mq.create_topic("b")
    inward(kafka, mq, "b", name="in")
    with pytest.raises(ConfigError, match=r"from Kafka by 'pymq\.mirror\.in'"):
        outward(mq, kafka, "b", name="out")
    assert outward(mq, kafka, "a", name="out").records == 0


def test_a_kafka_without_transactions_is_told(kafka: KafkaForTests, mq: pymq.Client) -> None:
    mq.create_topic("a")
    made = mirror(mq, url(kafka), "a", once=True)
    with pytest.raises(ConfigError, match="--at-least-once"):
        made.run(lambda: False)
    made.close()
    with pytest.raises(ConfigError, match="groups"):
        mirror(mq, url(kafka), "a", groups="*")
