"""Watches the ends of a member's assigned partitions.

The member sends a fetch without data for each partition; the broker answers when the partition has
grown.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import islice

from pymq.client.base import Outbox
from pymq.client.fetching.consumer_machine import wait_ms
from pymq.client.fetching.partition_route import RETRY_MAX_MS, PartitionRoute
from pymq.client.group.membership import Key, Membership
from pymq.client.router import Router
from pymq.core.batch.header import Header
from pymq.core.batch.offset_ranges import RUNS_MAX, Ranges, has_keys
from pymq.core.batch.priority import RUNS_MAX as PRIORITY_RUNS_MAX
from pymq.core.batch.priority import PriorityRuns
from pymq.core.message import END, Fetch, Fetched
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.values import Factory, define
from pymq.errors import OffsetOutOfRange, PymqError, ReplicaNotAvailable


@define
class WatermarkWatch:
    """One assigned partition, and its end as far as known."""

    partition: str
    route: PartitionRoute
    log_start: int = 0
    end: int = -1  # -1: not known yet
    request: int = 0
    unkeyed: Ranges = Factory(lambda: Ranges(RUNS_MAX))  # records without a key, if known
    priorities: PriorityRuns = Factory(PriorityRuns)
    told: int = 0  # the coordinator knows the priorities of records before this offset


class WatermarkWatches:
    """All assigned partitions of one member."""

    def __init__(
        self, membership: Membership, router: Router, outbox: Outbox, timers: TimerHeap[Key]
    ) -> None:
        self._membership = membership
        self._topic = membership.topic
        self._router = router
        self._outbox = outbox
        self._timers = timers
        self._watches: dict[str, WatermarkWatch] = {}

    def __iter__(self) -> Iterator[WatermarkWatch]:
        return iter(self._watches.values())

    def change(self, lost: tuple[str, ...], gained: tuple[str, ...]) -> None:
        """Adopt a changed assignment."""
        for partition in lost:
            self._watches.pop(partition, None)
            # The partition may be assigned again before the request is answered.
            self._timers.drop(("watch", partition))
        for partition in gained:
            self._watches[partition] = self._new(partition)

    def forget(self) -> None:
        """Note that the topic was deleted; a new topic of that name is read from its start."""
        for partition in self._watches:
            # Otherwise no new request would be sent until the old one is answered or times out.
            self._timers.drop(("watch", partition))
        self._watches = {partition: self._new(partition) for partition in self._watches}

    def _new(self, partition: str) -> WatermarkWatch:
        return WatermarkWatch(partition, PartitionRoute(self._topic, partition))

    @property
    def know_ends(self) -> bool:
        """Whether the ends of all partitions are known."""
        return all(watch.end >= 0 for watch in self._watches.values())

    def known(self, but: Container[str]) -> tuple[tuple[str, int, int], ...]:
        """Return the known starts and ends of partitions, except those in *but*."""
        return tuple(
            (w.partition, w.log_start, w.end)
            for w in self._watches.values()
            if w.end >= 0 and w.partition not in but
        )

    def unkeyed(self) -> tuple[tuple[str, int, int], ...]:
        """The known ranges of records without a key."""
        return tuple(
            (w.partition, start, end) for w in self._watches.values() for start, end in w.unkeyed
        )

    def priorities(self) -> tuple[tuple[str, int, int, int], ...]:
        """The priorities that the coordinator may not know yet, as many as fit into a message."""
        found = (
            (watch.partition, *run)
            for watch in self._watches.values()
            if watch.priorities and watch.told < watch.end
            for run in watch.priorities.between(watch.told, watch.end)
        )
        return tuple(islice(found, PRIORITY_RUNS_MAX))

    def told(self, runs: Iterable[tuple[str, int, int, int]]) -> None:
        """Note that the coordinator knows these priorities."""
        for partition, _, end, _ in runs:
            if (watch := self._watches.get(partition)) is not None:
                watch.told = max(watch.told, end)

    def untold(self) -> None:
        """Report all priorities again, because a new coordinator knows none."""
        for watch in self._watches.values():
            watch.told = 0

    def saw(self, partition: str, header: Header) -> None:
        """Note the end of a fetched batch; the leader may not have reported this end yet."""
        watch = self._watches.get(partition)
        if watch is not None and not has_keys(header):
            watch.unkeyed.put(header.base_offset, header.end_offset)

    def end(self, partition: str) -> int:
        """Return the known end of a partition."""
        watch = self._watches.get(partition)
        return watch.end if watch is not None else -1

    def begins(self, partition: str, log_start: int) -> None:
        """Note the log start of a partition."""
        watch = self._watches.get(partition)
        if watch is not None:
            watch.log_start = max(watch.log_start, log_start)
            if watch.end >= 0:  # The coordinator refuses a partition that ends before it starts.
                watch.end = max(watch.end, watch.log_start)

    def look(self, now: int) -> None:
        """Send a request for each partition without a request, or with one to a former leader."""
        for watch in self._watches.values():
            if watch.request and watch.route.has_moved(self._router):
                watch.request = 0
                self._timers.drop(("watch", watch.partition))
            self.ask(watch, now)

    def ask(self, watch: WatermarkWatch, now: int) -> None:
        """Send a fetch that the leader answers when the partition grows."""
        if watch.request or ("watch", watch.partition) in self._timers:
            return
        is_new = watch.end < 0
        # A follower may report an earlier end than the leader, and a new group would wrongly begin
        # there.
        at_end = is_new and self._membership.config.reset == END
        peer = watch.route.find(self._router, of_leader=at_end)
        if peer is None:
            return
        watch.request = self._outbox.number()
        offset, wait = (END, 0) if is_new else (watch.end, wait_ms(len(self._watches)))
        # Offsets of a new topic of that name would confuse the group.
        id = self._membership.topic_id
        is_elsewhere = watch.route.is_elsewhere
        if is_elsewhere:
            wait = 0
        fetch = Fetch(
            watch.request,
            self._topic,
            watch.partition,
            offset,
            0,
            wait,
            topic_id=id,
            any_replica=is_elsewhere,
        )
        self._outbox.post(peer, fetch)
        due = now + wait + watch.route.patience_ms
        self._timers.set(("watch", watch.partition), due)

    def over(self, partition: str, now: int) -> None:
        """Send a request again: a retry is due, or an answer is overdue."""
        watch = self._watches.get(partition)
        if watch is None:
            return
        if watch.request:
            watch.request = 0
            watch.route.silent(self._router)
        self.ask(watch, now)

    def answered(self, m: Fetched) -> WatermarkWatch | None:
        """Return the partition to which an answer belongs; None if the answer is not awaited."""
        watch = self._watches.get(m.partition)
        if watch is None or watch.request != m.id:
            return None
        watch.request = 0
        self._timers.drop(("watch", watch.partition))
        return watch

    def refused(self, watch: WatermarkWatch, error: PymqError, now: int) -> bool:
        """Handle an error; returns whether the error is final."""
        if isinstance(error, (OffsetOutOfRange, ReplicaNotAvailable)) and watch.end >= 0:
            watch.end = -1  # The topic was created again, or its open block has moved.
            watch.unkeyed, watch.priorities = Ranges(RUNS_MAX), PriorityRuns()
            watch.told = 0
            self.ask(watch, now)
            return False
        pause = watch.route.refused(self._router, error)
        due = now + (RETRY_MAX_MS if pause is None else pause)
        self._timers.set(("watch", watch.partition), due)
        return pause is None

    def came(self, watch: WatermarkWatch, m: Fetched, now: int) -> tuple[bool, bool]:
        """Handle an answer.

        Returns whether the end was unknown before, and whether it has grown.
        """
        if watch.route.is_elsewhere:
            # A follower answers at once, so wait before the next request, which goes to the leader
            # if any.
            self._timers.set(("watch", watch.partition), now + RETRY_MAX_MS)
            watch.route.leave()
        else:
            watch.route.came()
        is_new, has_more = watch.end < 0, m.high_watermark > watch.end
        watch.log_start = m.log_start if is_new else max(watch.log_start, m.log_start)
        for start, end in m.unkeyed:
            watch.unkeyed.put(start, end)
        for run in m.priorities:
            watch.priorities.put(*run)
        watch.end = max(watch.end, m.high_watermark)  # A new leader may not know the end at once.
        return is_new, has_more
