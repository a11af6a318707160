"""confluent-kafka, the Python client of librdkafka, in C: against a Kafka, and against the client's
own mock broker.

The mock broker keeps a few records in memory and costs next to nothing, so it shows the most that
Kafka's fastest Python client can reach.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, NamedTuple

from benchmarks.model import random_values
from benchmarks.network.roles import paced

TOPIC = "records"
BATCHES = {"linger.ms": 5, "batch.num.messages": 10_000, "batch.size": 1_000_000}
# The client's queue has room for all records of a run, so that ``produce`` never waits.
ROOM = {"queue.buffering.max.messages": 10_000_000, "queue.buffering.max.kbytes": 2_000_000}
# With a full queue the client does not fetch for a second.
AHEAD = {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1_000_000}
SINGLE = {"linger.ms": 0, "socket.nagle.disable": True}


class Place(NamedTuple):
    """Topics of a broker that all have the same number of partitions."""

    bootstrap: str
    topics: tuple[str, ...] = (TOPIC,)
    partitions: int = 1
    acks: int = 1

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Each topic with each of its partitions."""
        return [(topic, number) for topic in self.topics for number in range(self.partitions)]


def mock() -> tuple[Any, Place]:
    """Start a mock broker in this process.

    Returns the object that keeps it alive, and the place for records. A partition of the mock
    broker keeps only the last 5 MiB, and a topic has four.
    """
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    broker = next(iter(admin.list_topics(timeout=10).brokers.values()))
    topics = tuple(f"records-{number}" for number in range(16))
    return admin, Place(f"{broker.host}:{broker.port}", topics, 4, -1)


def records(there: Place) -> int:
    """Return how many records there are, of topics from which none was deleted."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": there.bootstrap, "group.id": "bench"})
    ends = [consumer.get_watermark_offsets(TopicPartition(*part), 10)[1] for part in there.parts]
    consumer.close()
    return sum(ends)


def _producer(there: Place, **settings: Any) -> Any:
    """Connect a producer; it knows the leaders of all partitions."""
    from confluent_kafka import Producer

    base = {"bootstrap.servers": there.bootstrap, "acks": there.acks}
    producer = Producer({**base, **ROOM, **settings})
    for topic in there.topics:
        producer.list_topics(topic, 10)  # creates the topic
    producer.produce(there.topics[0], b"", partition=0)
    producer.flush()
    return producer


def produce(there: Place, count: int, size: int) -> Generator[None, None, None]:
    """``produce`` for each record, then ``flush``; linger of 5 ms, batches of 10,000 or 1 MB.

    With several partitions, each gets 1,000 records in turn.
    """
    values = random_values(count, size)
    producer = _producer(there, **BATCHES)
    yield
    produce = producer.produce
    parts = there.parts
    for start in range(0, count, 1000):
        topic, partition = parts[start // 1000 % len(parts)]
        for value in values[start : start + 1000]:
            produce(topic, value, partition=partition)
        producer.poll(0)
    _flush(producer)


def _flush(producer: Any) -> None:
    if left := producer.flush(120):
        raise TimeoutError(f"{left} records were not acknowledged")


def produce_each(there: Place, count: int, window: int) -> Generator[None, None, None]:
    """A request for each record of 100 B, *window* in flight."""
    values = random_values(count, 100)
    producer = _producer(there, **SINGLE, **{"batch.num.messages": 1, "max.in.flight": window})
    yield
    produce, topic = producer.produce, there.topics[0]
    for value in values:
        produce(topic, value, partition=0)
    _flush(producer)


def _consumer(there: Place) -> Any:
    """Connect a consumer that begins with the first record of each partition."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = Consumer({"bootstrap.servers": there.bootstrap, **settings, **AHEAD})
    for topic in there.topics:
        consumer.list_topics(topic, 10)
    consumer.assign([TopicPartition(*part, OFFSET_BEGINNING) for part in there.parts])
    return consumer


def consume(there: Place, count: int) -> Generator[None, None, int]:
    """``consume`` of 1,000 records, and ``value`` of each."""
    consumer = _consumer(there)
    yield
    seen = total = 0
    while seen < count:
        values = [m.value() for m in consumer.consume(1000, 1.0) if m.error() is None]
        seen += len(values)
        total += sum([len(value or b"") for value in values])
    return total


def produce_paced(there: Place, count: int, pause_s: float) -> Generator[None, None, list[int]]:
    """Send one record at a time; returns the time of each acknowledgement."""
    producer = _producer(there, **SINGLE)
    topic, done = there.topics[0], 0

    def delivered(error: Any, _: Any) -> None:
        nonlocal done
        if error is not None:
            raise RuntimeError(f"a record was not acknowledged: {error}")
        done += 1

    def send(value: bytes) -> None:
        due = done + 1
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        while done < due:
            producer.poll(1.0)

    yield
    return paced(count, pause_s, send)


def consume_paced(there: Place, count: int) -> Generator[None, None, list[int]]:
    """Return the age of each record at its arrival."""
    consumer = _consumer(there)
    consumer.poll(0.5)  # fetches from now on
    yield
    found: list[int] = []
    while len(found) < count:
        message = consumer.poll(1.0)
        now = time.monotonic_ns()
        if message is not None and message.error() is None:
            value = message.value()
            if len(value) == 100:
                found.append(now - int.from_bytes(value[:8], "big"))
    return found
