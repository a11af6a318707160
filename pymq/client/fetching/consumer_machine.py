"""The base class of the consumers' state machines.

The machine prefetches batches while the application works. It does not decode records; the consumer
decodes them in the application's thread.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable
from itertools import takewhile

from pymq.client.base import ClientDriver, Outbox, Waitable
from pymq.client.router import Router
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Message, Range
from pymq.errors import PymqError

FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 30_000  # longest time that a broker holds a fetch without records ...
FETCH_WAIT_MIN_MS = 1_000  # ... and the shortest; more partitions make it longer
FETCHES_PER_S = 20  # fetches of one consumer while no records arrive


class ConsumerMachine(Outbox, ABC):
    """A consumer's state machine, as :class:`pymq.Consumer` uses it."""

    def __init__(
        self, name: str, topic: str, router: Router, driver: ClientDriver, group: str | None
    ) -> None:
        super().__init__()
        self.name = name
        self.topic = topic
        self.group = group
        self.chunks: deque[RecordBatch] = deque()  # fetched views for the application
        # A thread holds this lock while it takes out or drops views, so that two threads do not do
        # so at the same time. A signal handler may close the consumer in the middle of a poll, so
        # the lock is reentrant.
        self.chunks_lock = threading.RLock()
        self.problem: PymqError | None = None  # the error that the next poll raises
        self.final_problem: PymqError | None = None  # the error that each poll raises from now on
        self._told: list[RecordBatch] = []  # unreadable views whose error was already raised
        self.started = Waitable()  # done when the start offsets are known
        self.paused: dict[str, None] = {}
        self.is_awaited = False  # whether a poll waits for records
        # the application has dropped the handle without closing the consumer
        self.is_abandoned = False
        self.is_buried = False
        self._router = router
        self._driver = driver
        self._arrival: Waitable | None = None
        self._has_news = False  # whether new metadata has arrived
        router.metadata.listen(name, self._on_metadata)

    @property
    def has_chunks(self) -> bool:
        """Whether a poll can return records, or raise an error."""
        return self.has_readable() or self.problem is not None

    def has_readable(self) -> bool:
        """Whether a poll can return records, or raise the error of unreadable records."""
        if not self._told:
            return bool(self.chunks)  # the usual case
        stuck = self.stuck()
        return any(view.partition not in stuck for view in self.chunks.copy())

    def stuck(self) -> dict[str, RecordBatch]:
        """The unreadable views by partition whose error was raised, but which were not skipped."""
        if not self._told:
            return {}  # the usual case
        chunks = self.chunks.copy()
        self._told = [view for view in self._told if view in chunks]
        return {view.partition: view for view in self._told}

    def arrival(self) -> Waitable:
        """Return a waitable for the next records or error; the caller holds the driver."""
        self._arrival = Waitable()
        self._arrived()
        return self._arrival

    def _arrived(self) -> None:
        if self._arrival is not None and self.has_chunks:
            self._arrival.finish()

    def fail(self, error: PymqError) -> None:
        """Let the next poll raise *error*."""
        self.problem = error
        self.started.finish()
        self._arrived()

    def take_problem(self) -> PymqError | None:
        """Return the error to raise; an error that is not final is returned only once."""
        problem, self.problem = self.problem, self.final_problem
        return problem

    def take(self, max_records: int, max_bytes: int) -> list[RecordBatch]:
        """Take out fetched views for the application, or raise the error of an unreadable one.

        Returns at most *max_records*, and about *max_bytes*; the last view is cut to fit. An
        unreadable view stays in the buffer: its error is raised when the view is the next one, and
        it holds back only the later views of its own partition (:meth:`stuck`).
        """
        if not self.chunks and (problem := self.take_problem()) is not None:
            raise problem
        views: list[RecordBatch] = []
        with self.chunks_lock:
            stuck = self.stuck()
            while max_records > 0 and max_bytes > 0:
                at = self._first(stuck)
                if at < 0:
                    break
                view = self.chunks[at]
                if (fault := view.fault()) is not None:
                    if views:
                        break
                    self._told.append(view)
                    raise fault
                del self.chunks[at]
                if len(view) > max_records:
                    view, rest = view.cut(max_records)
                    self.chunks.insert(at, rest)
                if len(view := self.handed_out(view)):
                    views.append(view)
                max_records -= len(view)
                max_bytes -= view.size
        if not views and stuck and (problem := self.take_problem()) is not None:
            raise problem
        return views

    def _first(self, stuck: Collection[str]) -> int:
        """The index of the first view of a partition that is not *stuck*, or -1.

        The loop may append views at the same time. That would break an iterator, but not an index.
        """
        if not stuck:
            return 0 if self.chunks else -1
        views = enumerate(self.chunks.copy())
        return next((at for at, view in views if view.partition not in stuck), -1)

    def unreadable(self, partition: str, end: int) -> list[RecordBatch]:
        """The unreadable views of *partition* before *end*."""
        views = [v for v in self.chunks.copy() if v.partition == partition and v.end_offset <= end]
        return list(takewhile(lambda view: view.fault() is not None, views))

    def pass_over(self, view: RecordBatch) -> None:
        """Skip a view of :meth:`unreadable`, on behalf of the application; the caller holds the
        driver.
        """
        with self.chunks_lock:
            if view in self.chunks:
                self.chunks.remove(view)
                self.handed_out(view)

    @abstractmethod
    def want(self, records: int, now: int) -> None:
        """Note that the application waits for records, and fetch records."""

    @abstractmethod
    def handed_out(self, chunk: RecordBatch) -> RecordBatch:
        """Note that the application gets a view; returns the records that it really gets."""

    @abstractmethod
    def pause(self, partitions: Iterable[str], unread: list[tuple[str, Range]], now: int) -> None:
        """Stop fetching some partitions; *unread* are fetched records that the consumer has
        dropped.
        """

    @abstractmethod
    def resume(self, partitions: Iterable[str], now: int) -> None:
        """Undo :meth:`pause`."""

    def abandon(self) -> None:
        """Note that the application has dropped the consumer without closing it.

        The garbage collector may call this at any moment, in any thread.
        """
        # Let the next tick close the machine, because a tick runs while the thread holds the
        # driver.
        self.is_abandoned = True
        self._driver.loop.rearm(self.name)

    def bury(self) -> None:
        """Close the machine of a consumer that was dropped without ``close()``."""
        self.is_abandoned, self.is_buried = False, True
        self.close([])
        self.chunks.clear()

    @abstractmethod
    def trouble(self) -> str | None:
        """The reason why no records arrive, as text for users; None if nothing is wrong."""

    @abstractmethod
    def step(self, source: str, message: Message, now: int) -> None:
        """Handle an answer."""

    @abstractmethod
    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""

    def close(self, unread: list[tuple[str, tuple[int, int]]]) -> None:
        """End all requests and leave the group, if any; the caller holds the driver."""
        self._router.metadata.ignore(self.name)

    def _on_metadata(self) -> None:
        self._has_news = True
        self._driver.loop.touch(self.name)


def located(error: PymqError, topic: str, partition: str, offset: int) -> PymqError:
    """Return the error with its place in ``details``; *offset* is the next offset to read."""
    details = {**error.details, "topic": topic, "partition": partition, "offset": offset}
    return type(error)(f"{topic}/{partition}: {error.message}", **details)


def wait_ms(partitions: int) -> int:
    """Return how long a broker holds each fetch if there are no records, for this many
    *partitions*.

    A short wait detects a dead broker soon. A long wait costs fewer requests, so with many
    partitions each fetch waits longer.
    """
    return min(FETCH_WAIT_MS, max(FETCH_WAIT_MIN_MS, partitions * 1000 // FETCHES_PER_S))


def abandon(found: weakref.ref[ConsumerMachine]) -> None:
    """Leave the group of a consumer that was garbage-collected."""
    machine = found()
    if machine is not None:
        machine.abandon()
