"""confluent-kafka against librdkafka's own mock broker: C on both sides, in memory, no durability.

No package index has a Kafka broker, so this measures the most that Kafka's fastest Python client
can reach, with a server that costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from benchmarks.model import random_values

# A partition of the mock broker keeps only the last 5 MiB, and a topic has four.
TOPICS = [f"records-{number}" for number in range(16)]
PARTITIONS = 4
SETTINGS = {"linger.ms": 5, "batch.num.messages": 10_000, "batch.size": 1_000_000}


def mock() -> tuple[Any, str]:
    """Start a mock broker in this process.

    Returns the server's address, and the object that keeps the server alive.
    """
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    broker = next(iter(admin.list_topics(timeout=10).brokers.values()))
    return admin, f"{broker.host}:{broker.port}"


def produce(address: str, count: int, size: int) -> Generator[None, None, None]:
    """``produce`` for each record, then ``flush``; ``acks=-1``, linger of 5 ms."""
    from confluent_kafka import Producer

    values = random_values(count, size)
    settings = {"bootstrap.servers": address, "queue.buffering.max.messages": 10_000_000}
    producer = Producer({**settings, **SETTINGS, "queue.buffering.max.kbytes": 2_000_000})
    producer.produce("warm", b"")
    producer.flush()
    for topic in TOPICS:
        producer.list_topics(topic, 10)  # creates the topic
    yield
    produce = producer.produce
    places = [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
    for start in range(0, count, 1000):
        topic, partition = places[start // 1000 % len(places)]
        for value in values[start : start + 1000]:
            produce(topic, value, partition=partition)
        producer.poll(0)
    producer.flush()


def consume(address: str, count: int) -> Generator[None, None, int]:
    """``consume`` of 1,000 records, and ``value`` of each."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = Consumer({"bootstrap.servers": address, **settings})
    for topic in TOPICS:
        consumer.list_topics(topic, 10)
    places = [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
    consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
    yield
    seen = total = 0
    while seen < count:
        values = [m.value() for m in consumer.consume(1000, 1.0) if m.error() is None]
        seen += len(values)
        total += sum([len(value or b"") for value in values])
    return total
