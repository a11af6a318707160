"""A queue that serves Kafka's clients, as the Kafka of a mirror, and a queue to mirror to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pymq
from pymq.mirror.progress import MirrorProgress
from pymq.mirror.start import mirror
from pymq.testing.kafka import KafkaForTests

S = 30
Row = tuple[str, bytes | None, bytes, tuple[tuple[str, bytes], ...], int]


@pytest.fixture
def kafka() -> Iterator[KafkaForTests]:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    with KafkaForTests() as found:
        yield found


@pytest.fixture
def mq() -> Iterator[pymq.Client]:
    with pymq.open("memory:") as found:
        yield found


def url(kafka: KafkaForTests) -> str:
    return f"kafka://{kafka.bootstrap}"


def inward(kafka: KafkaForTests, mq: pymq.Client, topics: str, **options: Any) -> MirrorProgress:
    """Mirror from Kafka all that is there."""
    made = mirror(url(kafka), mq, topics, once=True, **options)
    try:
        return made.run(lambda: False)
    finally:
        made.close()


def rows(mq: pymq.Client, topic: str) -> dict[str, list[Row]]:
    """All records of a topic, by partition."""
    found: dict[str, list[Row]] = {}
    with mq.consumer(topic, mode="reader") as consumer:
        for r in consumer.until_end():
            row = (r.partition, r.key, r.value, tuple(r.headers), r.timestamp_ms)
            found.setdefault(r.partition, []).append(row)
    return found


def produce(kafka: KafkaForTests, topic: str, count: int, *, partitions: int = 1) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce(
            topic,
            b"value %d" % number if number % 5 else None,
            b"key %d" % (number % 7) if number % 3 else None,
            partition=number % partitions,
            timestamp=1_000_000_000_000 + number,
            headers=[("n", b"%d" % number)] if number % 2 else None,
        )
    assert producer.flush(S) == 0


def commit(kafka: KafkaForTests, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit offsets of a group of Kafka's clients."""
    import confluent_kafka

    conf = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0}
    consumer = confluent_kafka.Consumer(conf)
    parts = [confluent_kafka.TopicPartition(topic, n, at) for n, at in offsets.items()]
    consumer.commit(offsets=parts, asynchronous=False)
    consumer.close()
