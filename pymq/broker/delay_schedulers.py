"""The delay schedulers of a broker: one for each partition with delayed records that it leads.

A turn handles at most one fetched part of a log for all schedulers: see
:mod:`pymq.broker.group_coordinators`.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from pymq.core.block.idempotence import DELAYS
from pymq.core.delay.delay_scheduler import DelayScheduler
from pymq.core.message import CancelDelayed, Cancelled, Fetch, Fetched, Message, Produce, Produced
from pymq.core.observe.coverage import mark
from pymq.core.partition.context import DelayBounds
from pymq.core.partition.partition import Partition
from pymq.core.pending.pending_produces import DelayedAppended
from pymq.core.types import NEVER, TopicPartition
from pymq.errors import InvalidRequest, NotLeader, ReplicaNotAvailable, not_written

DELAY_SOURCE = "#delay/"  # source prefix of a scheduler's requests; the partition's name follows
FIRST_REQUEST = 1 << 61
LIFE_BITS = 20  # each incarnation has 2**LIFE_BITS request ids of its own


class SchedulerHost(Protocol):
    """The interface of the broker to its schedulers."""

    @property
    def me(self) -> str:
        """The broker's name."""
        ...

    @property
    def incarnation(self) -> int:
        """The broker's incarnation."""
        ...

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        ...

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        ...

    def send(self, peer: str, message: Message) -> None:
        """Send a message to another broker."""
        ...

    def hosted(self, topic: str, partition: str) -> Partition | None:
        """Return a partition that the broker hosts."""
        ...

    def to_partition(self, source: str, partition: Partition, m: Fetch | Produce, now: int) -> None:
        """Pass a request of this broker to a partition."""
        ...


class DelaySchedulers:
    """The delay schedulers of one broker."""

    def __init__(self, host: SchedulerHost) -> None:
        self.by_name: dict[TopicPartition, DelayScheduler] = {}
        self.deadline = NEVER
        self._host = host
        # The ids are higher than those of batch copies and of earlier starts of this broker,
        # because incarnations come from the clock.
        self._requests = FIRST_REQUEST + (host.incarnation << LIFE_BITS)
        # fetched parts that wait for their turn
        self._parts: deque[tuple[TopicPartition, Fetched]] = deque()
        self._part_at = 0  # earliest time for the next part

    # --- the broker -----------------------------------------------------------------------------

    def role_changed(self, partition: Partition, now: int) -> None:
        """Take over or hand over the delayed records of a partition."""
        scheduler = self.by_name.get(partition.name)
        if not partition.leads:
            partition.delays = None
            if scheduler is not None:
                del self.by_name[partition.name]
                scheduler.resign(NotLeader.of(partition.name, partition.opened.leader), now)
        elif scheduler is None and (last := _last_note(partition)) is not None:
            self._begin(partition, last, now)

    def _begin(self, partition: Partition, last: tuple[int, int], now: int) -> None:
        partition.delays = DelayBounds()
        scheduler = self.by_name[partition.name] = DelayScheduler(partition.name, self)
        scheduler.begin(last, now)
        self._rearm()

    def answered(self, source: str, message: Message, now: int) -> None:
        """Handle an answer to a scheduler's request."""
        name = TopicPartition(*source.removeprefix(DELAY_SOURCE).split("/", 1))
        if isinstance(message, Fetched):
            self.fetched(name, message, now)
        elif isinstance(message, Produced):
            self.step(name, message, now)

    def fetched(self, name: TopicPartition, m: Fetched, now: int) -> None:
        """Queue a part of a log that was fetched from this broker or another broker."""
        if name in self.by_name:
            self._parts.append((name, m))
            if now >= self._part_at:
                self._take_part(now)
            self._rearm()

    def _take_part(self, now: int) -> None:
        name, part = self._parts.popleft()
        self._part_at = now + 1
        self.step(name, part, now)

    def step(
        self, name: TopicPartition, message: Fetched | Produced | DelayedAppended, now: int
    ) -> None:
        """Handle an event for a scheduler; the first delayed record of a partition creates one."""
        scheduler, partition = self.by_name.get(name), self._host.hosted(*name)
        last = _last_note(partition) if partition is not None and partition.leads else None
        if last is None or partition is None:
            return
        if scheduler is None:
            self._begin(partition, last, now)  # the first delayed record of the partition
        elif scheduler.step(message, now):
            scheduler.restart(last, now)
        self._rearm()

    def cancel(self, source: str, m: CancelDelayed, now: int) -> None:
        """Cancel a delayed record of a partition that the broker leads."""
        name = TopicPartition(m.topic, m.partition)
        partition, scheduler = self._host.hosted(*name), self.by_name.get(name)
        if partition is None or not partition.leads:
            leader = partition.opened.leader if partition is not None else None
            self._host.reply(source, Cancelled(m.id, error=NotLeader.of(name, leader)), now)
        elif m.topic_id not in ("", topic_id := partition.state.topic_id):
            another = f"{name} belongs to another topic of that name, not to {m.topic_id}"
            error = NotLeader(another, leader=None, topic_id=topic_id)
            self._host.reply(source, Cancelled(m.id, error=error), now)
        elif scheduler is None or not 0 <= m.offset < self.end(name):
            why = InvalidRequest(f"the record at offset {m.offset} of {name} is not delayed")
            self._host.reply(source, Cancelled(m.id, error=why), now)
        else:
            scheduler.cancel(source, m, now)
        self._rearm()

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        if self._parts and now >= self._part_at:
            self._take_part(now)
        for scheduler in list(self.by_name.values()):
            if scheduler.deadline <= now:
                scheduler.tick(now)
        self._rearm()

    def _rearm(self) -> None:
        due = self._part_at if self._parts else NEVER
        for scheduler in self.by_name.values():
            due = min(due, scheduler.deadline)
        self.deadline = due

    def pending(self) -> int:
        """The number of delayed records that are not due yet, in all partitions that this broker
        leads.
        """
        return sum(len(scheduler.index) for scheduler in self.by_name.values())

    # --- for schedulers -------------------------------------------------------------------------

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        return self._host.wall_ms(now)

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        self._host.reply(source, message, now)

    def next_request(self) -> int:
        """Return a new request number."""
        self._requests += 1
        return self._requests

    def to_partition(
        self, name: TopicPartition, message: Fetch | Produce, now: int, holder: str | None
    ) -> None:
        """Pass a request to this broker's partition, or to the broker *holder*."""
        partition = self._host.hosted(*name)
        if holder is not None:
            self._host.send(holder, message)
        elif partition is None:
            return
        elif isinstance(message, Produce) and partition.produces.would_park():
            # A parked batch may be appended after the next scheduler has read the log.
            mark("delays.would_park")
            error = not_written(ReplicaNotAvailable(f"{name} cannot be written now"))
            self.step(name, Produced(message.id, error=error), now)
        else:
            self._host.to_partition(f"{DELAY_SOURCE}{name[0]}/{name[1]}", partition, message, now)

    def start(self, name: TopicPartition) -> int:
        """The offset of the first record that is not deleted."""
        partition = self._host.hosted(*name)
        return partition.state.log_start if partition is not None else 0

    def end(self, name: TopicPartition) -> int:
        """The end offset of the partition's log, including batches that are not committed yet."""
        partition = self._host.hosted(*name)
        log = partition.opened.log if partition is not None else None
        return log.end if log is not None else 0

    def sequence(self, name: TopicPartition) -> int:
        """The sequence for the scheduler's next note."""
        partition = self._host.hosted(*name)
        log = partition.opened.log if partition is not None else None
        return log.producers.next_sequence(DELAYS) if log is not None else 0

    def keep_from(self, name: TopicPartition, offset: int, *, is_full: bool = False) -> int:
        """Protect *offset* from retention; returns the first offset that retention wants to keep.

        If *is_full* is set, the partition refuses further delayed records.
        """
        partition = self._host.hosted(*name)
        if partition is None or (bounds := partition.delays) is None:
            return 0
        bounds.pending_from, bounds.is_full = offset, is_full
        return bounds.wanted_from


def _last_note(partition: Partition) -> tuple[int, int] | None:
    log = partition.opened.log
    return log.producers.last_note() if log is not None else None
