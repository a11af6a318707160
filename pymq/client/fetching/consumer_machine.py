"""What the machines behind consumers have in common.

A machine keeps fetched batches ready and asks for more while the application works. It never makes
records: the handle does that, in the thread that asks for them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable
from itertools import takewhile

from pymq.client.base import Driver, Outbox, Waitable
from pymq.client.router import Router
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Message, Range
from pymq.errors import PymqError

FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 30_000  # how long a fetch waits for something to come, at most ...
FETCH_WAIT_MIN_MS = 1_000  # ... and at least; with many partitions there are many to wait for
FETCHES_PER_S = 20  # of one consumer, when nothing comes


class ConsumerMachine(Outbox, ABC):
    """What a consumer's machine is to its handle."""

    def __init__(
        self, name: str, topic: str, router: Router, driver: Driver, group: str | None
    ) -> None:
        super().__init__()
        self.name = name
        self.topic = topic
        self.group = group
        self.chunks: deque[RecordBatch] = deque()  # ready to be handed out
        # Held by who hands some of them out, and by who takes them away: nothing is in between. A
        # signal handler that closes the consumer may do the one in the midst of the other.
        self.chunks_lock = threading.RLock()
        self.problem: PymqError | None = None  # to be raised by the next poll
        self._told: list[RecordBatch] = []  # chunks that cannot be read, and were raised
        self.started = Waitable()  # done once it is known where to begin
        self.paused: dict[str, None] = {}
        self.is_awaited = False  # somebody waits for records
        self.is_abandoned = False  # the application has dropped the handle without closing it
        self.is_buried = False
        self._router = router
        self._driver = driver
        self._arrival: Waitable | None = None
        self._has_news = False  # of metadata
        router.listen(name, self._on_metadata)

    @property
    def has_chunks(self) -> bool:
        """Whether there is something to hand out, or a problem to raise."""
        return self.has_readable() or self.problem is not None

    def has_readable(self) -> bool:
        """Whether there are records to hand out, or some that cannot be read and were not told."""
        if not self._told:
            return bool(self.chunks)  # as nearly always
        stuck = self.stuck()
        return any(view.partition not in stuck for view in self.chunks.copy())

    def stuck(self) -> dict[str, RecordBatch]:
        """By partition what cannot be read, was raised, and is not gone past yet."""
        if self._told:
            chunks = self.chunks.copy()
            self._told = [view for view in self._told if view in chunks]
        return {view.partition: view for view in self._told}

    def arrival(self) -> Waitable:
        """What is done as soon as :attr:`has_chunks` is true; the caller holds the driver."""
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
        """The problem to raise; it is raised once."""
        problem, self.problem = self.problem, None
        return problem

    def take(self, max_records: int, max_bytes: int) -> list[RecordBatch]:
        """Take what is at hand for the application, or raise what stands in the way.

        Batches up to *max_records*, which the last one is cut for, and about *max_bytes*. What
        cannot be read stays at hand. It is raised when its turn comes, and then keeps back what is
        behind it in its partition, and nothing else (:meth:`stuck`).
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
                self.handed_out(view)
                views.append(view)
                max_records -= len(view)
                max_bytes -= view.size
        if not views and stuck and (problem := self.take_problem()) is not None:
            raise problem
        return views

    def _first(self, stuck: Collection[str]) -> int:
        """Where the first view is that is of no *stuck* partition, or -1.

        The loop appends meanwhile, which an iteration over the views themselves would not survive.
        """
        if not stuck:
            return 0 if self.chunks else -1
        views = enumerate(self.chunks.copy())
        return next((at for at, view in views if view.partition not in stuck), -1)

    def unreadable(self, partition: str, end: int) -> list[RecordBatch]:
        """What of *partition* is at hand, comes before *end* and cannot be read."""
        views = [v for v in self.chunks.copy() if v.partition == partition and v.end_offset <= end]
        return list(takewhile(lambda view: view.fault() is not None, views))

    def pass_over(self, view: RecordBatch) -> None:
        """The application has seen to a view of :meth:`unreadable`; the caller holds the driver."""
        with self.chunks_lock:
            if view in self.chunks:
                self.chunks.remove(view)
                self.handed_out(view)

    @abstractmethod
    def want(self, records: int, now: int) -> None:
        """The application asks for records: see that they come."""

    @abstractmethod
    def handed_out(self, chunk: RecordBatch) -> None:
        """The application has got these records."""

    @abstractmethod
    def pause(self, partitions: Iterable[str], unread: list[tuple[str, Range]], now: int) -> None:
        """Fetch nothing more of some partitions; *unread* was fetched and is not wanted now."""

    @abstractmethod
    def resume(self, partitions: Iterable[str], now: int) -> None:
        """Undo :meth:`pause`."""

    def abandon(self) -> None:
        """The handle is gone. Called by the garbage collector, at any moment, in any thread."""
        self.is_abandoned = True  # The next tick does the rest: it holds the driver.
        self._driver.loop.rearm(self.name)

    def bury(self) -> None:
        """Close, since nobody else does."""
        self.is_abandoned, self.is_buried = False, True
        self.close([])
        self.chunks.clear()

    @abstractmethod
    def trouble(self) -> str | None:
        """What keeps records from coming, for people; None if nothing does."""

    @abstractmethod
    def step(self, source: str, message: Message, now: int) -> None:
        """Take in an answer."""

    @abstractmethod
    def tick(self, now: int) -> None:
        """Do what is due."""

    def close(self, unread: list[tuple[str, tuple[int, int]]]) -> None:
        """Say good-bye; the caller holds the driver."""
        self._router.ignore(self.name)

    def _on_metadata(self) -> None:
        self._has_news = True
        self._driver.loop.touch(self.name)


def located(error: PymqError, topic: str, partition: str, offset: int) -> PymqError:
    """The error with the place that it was met in: *offset* is the next one to be read."""
    details = {**error.details, "topic": topic, "partition": partition, "offset": offset}
    return type(error)(f"{topic}/{partition}: {error.message}", **details)


def wait_ms(partitions: int) -> int:
    """How long each of so many fetches waits for something to come.

    A broker that has died is noticed when the wait is over; and each wait that is over costs a
    request, so with many partitions they wait longer.
    """
    return min(FETCH_WAIT_MS, max(FETCH_WAIT_MIN_MS, partitions * 1000 // FETCHES_PER_S))
