"""Producers and consumers that work during all faults, and record their results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import pymq
from pymq.client.consumer.consumer import Consumer
from pymq.client.producer.delivery import Delivery
from pymq.errors import FencedMember, PymqError, StoreFull
from tests.simulator.history import Delivered, Part, RecordedHistory, RecordedSend

GROUP = "workers"
EVERY_S = 0.02  # time between two records to each partition
DRAIN_S = 120.0  # time for the last records, on a machine with other load
COMMIT_S = 60.0


class Load:
    """A producer for each topic, and two members of a group and a reader on the first topic.

    *topics* are names and their partitions; the first has ack mode ``raft``.
    """

    def __init__(self, url: str, topics: dict[str, Sequence[str]]) -> None:
        self.history = RecordedHistory()
        self.topics = topics
        self.parts: list[Part] = [(t, p) for t, parts in topics.items() for p in parts]
        self.consumers: dict[str, Consumer] = {}
        self._url = url
        self._shared = next(iter(topics))
        self._is_sending = threading.Event()
        self._is_sending.set()
        # the ends of the shared topic, once no more records are sent
        self._ends: dict[str, int] | None = None
        self._is_over = threading.Event()
        self._threads = [
            *self._senders(),
            *(self._thread(self._work, f"worker-{i}") for i in range(2)),
            self._thread(self._read, "reader"),
        ]

    def _senders(self) -> list[threading.Thread]:
        return [self._thread(self._send, topic) for topic in self.topics]

    def _thread(self, run: Callable[[str], None], name: str) -> threading.Thread:
        def guarded() -> None:
            try:
                run(name)
            except Exception as error:
                self.history.errors.append(f"{name} died of {error!r}")

        return threading.Thread(target=guarded, name=name)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_sending.clear()
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def finish(self) -> None:
        """Stop sending, and wait until all records are answered and delivered."""
        self._is_sending.clear()
        for thread in self._threads[: len(self.topics)]:
            thread.join()
        with pymq.open(self._url) as mq, mq.consumer(self._shared, mode="psb") as consumer:
            self._ends = consumer.end_offsets()
        for thread in self._threads:
            thread.join()

    def _send(self, topic: str) -> None:
        number = 0
        with (
            pymq.open(self._url) as mq,
            mq.producer(linger_ms=0, delivery_timeout_s=DRAIN_S) as producer,
        ):
            while self._is_sending.is_set():
                for partition in self.topics[topic]:
                    self._send_one(producer, topic, partition, number)
                number += 1
                time.sleep(EVERY_S)  # this pause sets the pace of sending
            self._flush(producer)

    def _send_one(self, producer: pymq.Producer, topic: str, partition: str, number: int) -> None:
        sent = RecordedSend(topic, (topic, partition), number, time.monotonic())
        self.history.sent.append(sent)

        def answered(delivery: Delivery) -> None:
            error = delivery.exception()
            if error is not None:
                sent.error = repr(error)
            else:
                sent.offset = delivery.result().offset
                sent.answered_at = time.monotonic()

        producer.send(topic, sent.payload, partition=partition).add_done_callback(answered)

    def _flush(self, producer: pymq.Producer) -> None:
        try:
            producer.flush(DRAIN_S)
        except PymqError as error:
            self.history.errors.append(f"flush: {error!r}")

    def _work(self, name: str) -> None:
        with (
            pymq.open(self._url) as mq,
            mq.consumer(self._shared, group=GROUP, max_deliver=1_000) as consumer,
        ):
            self.consumers[name] = consumer
            while not self._is_worked(consumer):
                self._work_once(name, consumer)

    def _work_once(self, name: str, consumer: Consumer) -> None:
        asked_at = time.monotonic()
        try:
            records = consumer.poll(timeout=0.25)
        except StoreFull:
            return  # the new coordinator's disk is full, so it could not save its members
        at = time.monotonic()
        for r in records:
            part = (r.topic, r.partition)
            given = Delivered(name, part, r.offset, bytes(r.value), asked_at, at)
            self.history.delivered.append(given)
        if not records:
            return
        refused = consumer.status().unacknowledged_refused
        try:
            consumer.ack(records)
            consumer.commit(timeout=COMMIT_S)
        except FencedMember:
            # A new coordinator knows no members: they join again, and get all unsettled records
            # again.
            return
        except StoreFull:
            return  # The disk of the group's offsets is full; the commit is retried.
        at = time.monotonic()
        # Acknowledgements of an expired lease, or by a removed member, have no effect.
        if consumer.status().unacknowledged_refused == refused:
            self.history.settled += [((r.topic, r.partition), r.offset, at) for r in records]

    def _is_worked(self, consumer: Consumer) -> bool:
        """Return whether the load has ended or the group has settled all records."""
        if self._is_over.is_set() or self._ends is None:
            return self._is_over.is_set()
        committed = consumer.committed()
        return all(committed.get(p, 0) >= end for p, end in self._ends.items())

    def _read(self, name: str) -> None:
        with pymq.open(self._url) as mq, mq.consumer(self._shared, mode="psb") as consumer:
            self.consumers[name] = consumer
            while not (self._is_over.is_set() or self._is_read(consumer)):
                for record in consumer.poll(timeout=0.25):
                    seen = self.history.read.setdefault((record.topic, record.partition), [])
                    seen.append((record.offset, bytes(record.value)))

    def _is_read(self, consumer: Consumer) -> bool:
        return self._ends is not None and all(
            consumer.position(p) >= end for p, end in self._ends.items()
        )


def whole_log(url: str, topics: dict[str, Sequence[str]]) -> dict[Part, list[pymq.Record]]:
    """Read all records of all partitions, as a new reader does from the beginning."""
    found: dict[Part, list[pymq.Record]] = {(t, p): [] for t, ps in topics.items() for p in ps}
    with pymq.open(url) as mq:
        for topic in topics:
            with mq.consumer(topic, mode="psb", offset="begin") as consumer:
                for record in consumer.until_end():
                    found[topic, record.partition].append(record)
    return found
