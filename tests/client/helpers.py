"""Helpers of the consumers' tests: produce, poll and wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pymq
from pymq.client.router import Router
from pymq.core.message import Answer, GetMetadata
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode

WAIT_S = 10.0  # the limit of any wait, for a busy machine


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[pymq.Client]:
    """Open a queue: ``memory`` or ``folder`` in this process, or ``zmq`` over sockets."""
    if kind != "zmq":
        with pymq.open("memory:" if kind == "memory" else folder) as client:
            yield client
        return
    with pymq.ZkServer(offsets_partitions=1, offsets_replicas=1).start() as zkserver:
        broker = pymq.Broker("broker-0", zkservers=[zkserver.endpoint], data=folder)
        with broker.start(), pymq.open("zmq+" + zkserver.endpoint) as client:
            yield client


def router_to(leader: str) -> Router:
    """Return a router that knows *leader* as leader of the only partition of topic ``t``."""
    router = Router("client", ["zk"], lambda: None)
    router.refresh("t")
    ready = router.ready(0)
    assert ready is not None
    ((_, asked),) = ready.send
    assert isinstance(asked, GetMetadata)
    known = PartitionLeader("0", 0, AckMode.LEADER, 1, leader, None)
    found = TopicMetadata("t", "id", TopicConfig(), (known,))
    router.step("zk", Answer(asked.id, found), 0)
    return router


def produce(
    mq: pymq.Client,
    topic: str,
    values: Iterable[int | bytes],
    *,
    partition: str | int | None = None,
    key: bytes | None = None,
    timestamp_ms: int | None = None,
) -> list[pymq.RecordMetadata]:
    """Send *values* and wait until they are acknowledged; a number is sent as its digits."""
    with mq.producer(linger_ms=0) as producer:
        sent = [
            producer.send(
                topic,
                b"%d" % value if isinstance(value, int) else value,
                key=key,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
            for value in values
        ]
        return [delivery.result(WAIT_S) for delivery in sent]


def polled(consumer: pymq.Consumer, count: int, timeout: float = WAIT_S) -> list[pymq.Record]:
    """Poll until there are *count* records."""
    return list(_polled(consumer, count, timeout))


def _polled(consumer: pymq.Consumer, count: int, timeout: float) -> Iterator[pymq.Record]:
    until = time.monotonic() + timeout
    while count > 0:
        records = consumer.poll(count, 0.1)
        count -= len(records)
        yield from records
        assert records or time.monotonic() < until, f"{count} records are missing"


def wait_until(what: Callable[[], object], timeout: float = WAIT_S) -> None:
    """Poll until *what* is true; another thread makes it true.

    The queues of these tests run in real threads and real time. No event signals a state of the
    group or an expired lease, so this function polls. The result does not depend on the length of
    the pause, which leaves the processor to the other thread. Tests that can run in virtual time
    use the simulated cluster.
    """
    until = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.002)


def values(records: Iterable[pymq.Record]) -> list[int]:
    """Return the numbers that were sent."""
    return [int(record.value) for record in records]


def places(records: Iterable[pymq.Record]) -> list[tuple[str, int]]:
    """Return the partition and the offset of each record."""
    return [(record.partition, record.offset) for record in records]
