"""The machines behind a consumer: what they have in common, and the one that reads alone (PSB).

A machine keeps fetched batches ready and asks for more while the application works. It never makes
records: the handle does that, in the thread that asks for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable

from pymq.client.base import NEVER, Driver, Outbox, Waitable
from pymq.client.router import Router
from pymq.core.message import BEGIN, Fetch, Fetched, FindOffset, Message, OffsetFound, Range
from pymq.core.ready import Ready
from pymq.core.record import split
from pymq.core.values import define
from pymq.core.view import BatchView
from pymq.errors import NotLeader, PymqError, UnknownTopic

FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 30_000
RETRY_MS = 50
LOOK_MS = 5_000  # how often those that read a whole topic look for new partitions


class Intake(Outbox, ABC):
    """What a consumer's machine is to its handle."""

    def __init__(
        self, name: str, topic: str, router: Router, driver: Driver, group: str | None
    ) -> None:
        super().__init__()
        self.name = name
        self.topic = topic
        self.group = group
        self.chunks: deque[BatchView] = deque()  # ready to be handed out
        self.problem: PymqError | None = None  # to be raised by the next poll
        self.started = Waitable()  # done once it is known where to begin
        self.paused: dict[str, None] = {}
        self.is_abandoned = False  # the application has dropped the handle without closing it
        self.is_buried = False
        self._router = router
        self._driver = driver
        self._requests = 0
        self._arrival: Waitable | None = None
        self._has_news = False  # of metadata
        router.listen(name, self._on_metadata)

    @property
    def has_chunks(self) -> bool:
        """Whether there is something to hand out, or a problem to raise."""
        return bool(self.chunks) or self.problem is not None

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

    @abstractmethod
    def want(self, records: int, now: int) -> None:
        """The application asks for records: see that they come."""

    @abstractmethod
    def handed_out(self, chunk: BatchView) -> None:
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

    def bury(self) -> None:
        """Close, since nobody else does."""
        self.is_abandoned, self.is_buried = False, True
        self.close([])
        self.chunks.clear()

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

    def _request(self) -> int:
        self._requests += 1
        return self._requests


def located(error: PymqError, topic: str, partition: str) -> PymqError:
    """The error with the partition that it was met in."""
    details = {**error.details, "topic": topic, "partition": partition}
    return type(error)(f"{topic}/{partition}: {error.message}", **details)


@define
class Cursor:
    """One partition as a PSB consumer reads it."""

    partition: str
    position: int  # of the next fetch; BEGIN or END until it is known
    handed: int = -1  # of the next record to be handed out
    request: int = 0  # the fetch under way
    log_start: int = 0
    end: int = 0  # high watermark, as last heard
    bytes: int = 0  # fetched and not handed out
    retry_at: int = 0


class Reader(Intake):
    """Reads partitions from positions of its own; each consumer sees every record (PSB)."""

    def __init__(
        self,
        name: str,
        topic: str,
        router: Router,
        driver: Driver,
        partitions: list[str],
        offset: int,
        *,
        is_whole: bool = False,
        now: int = 0,
    ) -> None:
        """Read *partitions* from *offset* on; with *is_whole* those that are added, too."""
        super().__init__(name, topic, router, driver, None)
        # Replaced when it grows: the application goes through it while the loop turns.
        self.cursors = {partition: Cursor(partition, offset) for partition in partitions}
        self._look_at = now + LOOK_MS if is_whole else NEVER
        self._searches: dict[int, tuple[Cursor, Waitable]] = {}
        self._ahead_bytes = FETCH_BYTES
        self._is_wanted = False

    # --- the handle -----------------------------------------------------------------------------

    def want(self, records: int, now: int) -> None:
        """Fetch wherever nothing is at hand and nothing is under way."""
        self._is_wanted = True
        for cursor in self.cursors.values():
            self._fetch(cursor, now)

    def seek(self, partition: str, offset: int) -> None:
        """Go on at *offset* (or BEGIN, END); what was fetched before is dropped."""
        self._rewind(self.cursors[partition], offset)
        self.problem = None  # It was met where the application does not want to read any more.

    def pause(self, partitions: Iterable[str], unread: list[tuple[str, Range]], now: int) -> None:
        """Fetch nothing more of some partitions; what was not handed out is fetched again."""
        for partition in partitions:
            self.paused[partition] = None
            cursor = self.cursors[partition]
            if cursor.handed >= 0:
                self._rewind(cursor, cursor.handed)

    def resume(self, partitions: Iterable[str], now: int) -> None:
        """Undo :meth:`pause`."""
        for partition in partitions:
            self.paused.pop(partition, None)
        if self._is_wanted:
            self.want(1, now)

    def _rewind(self, cursor: Cursor, offset: int) -> None:
        self.chunks = deque(c for c in self.chunks if c.partition != cursor.partition)
        cursor.position, cursor.handed, cursor.bytes, cursor.request = offset, offset, 0, 0

    def find(self, partition: str, timestamp_ms: int) -> Waitable:
        """Seek to the first record that is not older than a time, once the broker has found it."""
        cursor, done = self.cursors[partition], Waitable()
        leader = self._router.leader(self.topic, partition)
        if leader is None or leader.leader is None:
            raise NotLeader(f"{self.topic}/{partition} has no leader now; try again")
        request = self._request()
        self._searches[request] = (cursor, done)
        find = FindOffset(request, self.topic, partition, timestamp_ms)
        self.out.send.append((leader.leader, find))
        return done

    def handed_out(self, chunk: BatchView) -> None:
        """The application has got these records."""
        cursor = self.cursors[chunk.partition]
        cursor.handed = chunk.end_offset
        cursor.bytes = max(0, cursor.bytes - chunk.size)

    # --- the machine ----------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in an answer."""
        if self.is_buried:
            return
        if isinstance(message, Fetched):
            cursor = self.cursors.get(message.partition)
            if cursor is not None and cursor.request == message.id:
                cursor.request = 0
                self._fetched(cursor, message, now)
        elif isinstance(message, OffsetFound):
            cursor, done = self._searches.pop(message.id)
            if message.error is not None:
                self.fail(message.error)
            else:
                self.seek(cursor.partition, message.offset)
            done.finish()

    def _fetched(self, cursor: Cursor, m: Fetched, now: int) -> None:
        if m.error is not None:
            self._refused(cursor, m.error, now)
            return
        cursor.log_start, cursor.end = m.log_start, m.high_watermark
        if cursor.position < 0:
            cursor.position = m.offset
        if cursor.handed < 0:
            cursor.handed = cursor.position
            if all(other.handed >= 0 for other in self.cursors.values()):
                self.started.finish()
        try:
            for batch in split(m.data):
                view = BatchView(batch.verify().at(self.topic, cursor.partition), cursor.position)
                cursor.position = batch.end_offset
                if len(view) and not view.is_control:
                    self.chunks.append(view)
                    cursor.bytes += view.size
                elif not cursor.bytes:
                    cursor.handed = cursor.position  # There is nothing to hand out before it.
        except PymqError as error:
            self.fail(located(error, self.topic, cursor.partition))
            return
        if self._is_wanted or not m.data:
            self._fetch(cursor, now)
        if self.chunks:
            self._is_wanted = False
        self._arrived()

    def _refused(self, cursor: Cursor, error: PymqError, now: int) -> None:
        if error.retriable:
            self._router.refresh(self.topic)
            cursor.retry_at = now + RETRY_MS
            self.due = min(self.due, cursor.retry_at)
        else:
            self.fail(error)

    def _fetch(self, cursor: Cursor, now: int) -> None:
        if cursor.request or cursor.bytes >= self._ahead_bytes or now < cursor.retry_at:
            return
        if self.topic in self._router.gone:
            self.fail(UnknownTopic(f"topic {self.topic!r} was deleted"))
            return
        leader = self._router.leader(self.topic, cursor.partition)
        if leader is None or leader.leader is None:
            return
        is_new = cursor.handed < 0  # first of all find out where to begin
        if cursor.partition in self.paused and not is_new:
            return
        cursor.request = self._request()
        fetch = Fetch(
            cursor.request,
            self.topic,
            cursor.partition,
            cursor.position,
            0 if is_new else FETCH_BYTES,
            0 if is_new else FETCH_WAIT_MS,
        )
        self.out.send.append((leader.leader, fetch))

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work; metadata may have come that was waited for."""
        if self._has_news and not self.is_buried:
            self._has_news = False
            self._grow()
            for cursor in self.cursors.values():
                if cursor.handed < 0 or self._is_wanted:
                    self._fetch(cursor, now)
        return super().ready(now)

    def _grow(self) -> None:
        """Read the partitions that were added to the topic, from their beginning."""
        known = self._router.topics.get(self.topic)
        if self._look_at == NEVER or known is None:
            return
        names = [found.partition for found in known.partitions]
        if added := {p: Cursor(p, BEGIN) for p in names if p not in self.cursors}:
            self.cursors = {**self.cursors, **added}

    @property
    def deadline(self) -> int:
        """When something is due."""
        return 0 if self.is_abandoned else min(self.due, self._look_at)

    def tick(self, now: int) -> None:
        """Try again what was refused."""
        if self.is_abandoned:
            self.bury()
            self.due = self._look_at = NEVER
            return
        if now >= self._look_at:
            self._look_at = now + LOOK_MS
            self._router.refresh(self.topic)
        self.due = NEVER
        for cursor in self.cursors.values():
            if cursor.retry_at:
                if cursor.retry_at <= now:
                    cursor.retry_at = 0
                    self._fetch(cursor, now)
                else:
                    self.due = min(self.due, cursor.retry_at)
