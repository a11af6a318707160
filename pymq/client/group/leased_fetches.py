"""Fetches of leased records.

A member fetches several leases at a time. Batches may arrive in any order; the member delivers the
records of a partition in the order of the leases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator

from pymq.client.base import Outbox
from pymq.client.fetching.consumer_machine import FETCH_BYTES, located
from pymq.client.fetching.damage import DamageCheck, sound
from pymq.client.fetching.offset_spans import Span
from pymq.client.fetching.partition_route import CONFIRMED, PartitionRoute
from pymq.client.fetching.replica_preference import BEHIND_RECORDS, Preference
from pymq.client.group.acknowledgements import Acknowledger
from pymq.client.group.membership import Key, Membership
from pymq.client.group.watches import WatermarkWatches
from pymq.client.router import Router
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Fetch, Fetched, Lease
from pymq.core.observe.coverage import mark
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.values import Factory, define
from pymq.errors import (
    CorruptBatch,
    CorruptBlock,
    OffsetOutOfRange,
    PymqError,
    ReplicaNotAvailable,
)

# extra wait of a fetch, since a new leader may not know yet that the leased records are committed
LEASE_WAIT_MS = 500
STUCK_MS = 1_000  # how long other partitions wait for a partition whose fetch is slow


@define
class LeasedFetch:
    """A lease whose records are being fetched."""

    lease: Lease
    route: PartitionRoute
    handed: int  # records before this offset were queued for delivery
    position: int  # records before this offset were fetched
    end: int  # end of the lease
    since: int  # when the last records of this lease arrived; at first, the time of the lease
    # findings about the batch at the position, if a damaged copy has arrived
    damage: DamageCheck = Factory(DamageCheck)
    # fetched records that wait for the records of earlier leases
    views: list[RecordBatch] = Factory(list)


class LeasedFetches:
    """The leases of one member whose records are not delivered yet."""

    def __init__(
        self,
        membership: Membership,
        watches: WatermarkWatches,
        settler: Acknowledger,
        router: Router,
        outbox: Outbox,
        timers: TimerHeap[Key],
        paused: Container[str],
        preference: Preference,
    ) -> None:
        self._topic = membership.topic
        self._membership = membership
        self._watches = watches
        self._settler = settler
        self._router = router
        self._outbox = outbox
        self._timers = timers
        self._paused = paused
        self._preference = preference
        self._lines: dict[str, deque[LeasedFetch]] = {}  # by partition, in the order of the leases
        self._fetching: dict[int, LeasedFetch] = {}  # fetches in flight, by request
        self._to_fetch: list[LeasedFetch] = []  # leases that wait for a leader
        self._last: dict[str, RecordBatch] = {}  # the last fetched batch, by partition
        # views for the application, each with a flag for dead letters
        self._lined_up: list[tuple[RecordBatch, bool]] = []

    def __bool__(self) -> bool:
        return bool(self._lined_up) or any(self._lines.values())

    def is_coming(self, stuck: Container[str]) -> bool:
        """Whether records are being fetched, not counting those of stuck partitions."""
        lines = self._lines.items()
        return bool(self._lined_up) or any(line and name not in stuck for name, line in lines)

    def stuck(self, now: int) -> set[str]:
        """The partitions whose records do not arrive; other partitions need not wait for these."""
        return {
            partition
            for partition, line in self._lines.items()
            if line and now - line[0].since >= STUCK_MS
        }

    def routes(self) -> Iterator[PartitionRoute]:
        """The routes of the fetches in flight."""
        return (fetching.route for line in self._lines.values() for fetching in line)

    def take(self, leases: Iterable[Lease], now: int) -> None:
        """Fetch leased records."""
        for lease in leases:
            if lease.partition in self._paused and not lease.dead:
                self._settler.give_back([(lease.partition, (lease.start, lease.end))])
            else:
                route = PartitionRoute(self._topic, lease.partition, preference=self._preference)
                end = self._watches.end(lease.partition)
                route.is_behind = end - lease.end >= BEHIND_RECORDS
                fetching = LeasedFetch(lease, route, lease.start, lease.start, lease.end, now)
                self._lines.setdefault(lease.partition, deque()).append(fetching)
                self._fetch(fetching, now)

    def forget(self) -> None:
        """Drop leases that were lost."""
        self._lines.clear()
        self._lined_up.clear()
        for request in self._fetching:
            self._timers.drop(("lease", request))
        self._fetching.clear()
        self._to_fetch.clear()

    def close(self) -> None:
        """Stop all fetches."""
        self._last.clear()

    def coming(self) -> list[Span]:
        """The leased records that will be delivered after their fetch."""
        # Leave out dead letters, because returning them would lower their delivery count.
        found = [
            (view.partition, (view.base_offset, view.end_offset))
            for view, is_dead in self._lined_up
            if not is_dead
        ]
        return found + [
            (partition, (fetching.handed, fetching.end))
            for partition, line in self._lines.items()
            for fetching in line
            if not fetching.lease.dead
        ]

    def lined_up(self) -> list[tuple[RecordBatch, bool]]:
        """Take out the views that may be delivered now, each with a flag for dead letters."""
        found, self._lined_up = self._lined_up, []
        return found

    # --- fetching -------------------------------------------------------------------------------

    def look(self, now: int) -> None:
        """Send the fetches that have waited for a leader or a time."""
        waiting, self._to_fetch = self._to_fetch, []
        for fetching in waiting:
            self._fetch(fetching, now)

    def _fetch(self, fetching: LeasedFetch, now: int) -> None:
        lease, route = fetching.lease, fetching.route
        peer = route.find(self._router)
        if peer is None:
            self._to_fetch.append(fetching)
            return
        request = self._outbox.number()
        self._fetching[request] = fetching
        at, end = fetching.position, fetching.end
        wait = 0 if route.is_elsewhere else LEASE_WAIT_MS
        topic, id = self._topic, self._membership.topic_id
        any_replica = route.is_elsewhere
        fetch = Fetch(
            request,
            topic,
            lease.partition,
            at,
            FETCH_BYTES,
            wait,
            end,
            id,
            any_replica,
            fetching.damage.is_met,
        )
        self._outbox.post(peer, fetch)
        self._timers.set(("lease", request), now + wait + route.patience_ms)

    def over(self, request: int, now: int) -> None:
        """Handle a fetch that was not answered in time: send the fetch again."""
        fetching = self._fetching.pop(request, None)
        if fetching is not None:
            fetching.route.silent(self._router)
            self._fetch(fetching, now)

    def _fetch_later(self, fetching: LeasedFetch, pause: int, now: int) -> None:
        if pause:
            self._to_fetch.append(fetching)
            self._membership.retry(now, pause)
        else:
            self._fetch(fetching, now)

    def answered(self, m: Fetched) -> LeasedFetch | None:
        """Return the lease to which an answer belongs, if any."""
        fetching = self._fetching.pop(m.id, None)
        if fetching is not None:
            self._timers.drop(("lease", m.id))
        return fetching

    def came(self, fetching: LeasedFetch, m: Fetched, now: int) -> tuple[bool, PymqError | None]:
        """Handle an answer; returns whether it contains records, and the error to raise."""
        partition, route = fetching.lease.partition, fetching.route
        problem: PymqError | None = None
        start = fetching.position
        if m.error is not None:
            fetching.damage.heard(route.asked, m.error)
        if partition in self._paused and not fetching.lease.dead:
            fetching.position = fetching.end  # The rest of the lease is given up.
        elif (
            isinstance(m.error, OffsetOutOfRange)
            and m.log_start > fetching.position
            and not route.is_elsewhere
        ):
            # Retention has removed these records. The coordinator drops the lease when it learns
            # the new start of the log.
            self._watches.begins(partition, m.log_start)
            fetching.position = min(m.log_start, fetching.end)
        elif m.error is not None and (pause := self._pause(route, m.error)) is not None:
            self._fetch_later(fetching, pause, now)
            return False, None
        elif m.error is None and not m.data:
            # The broker does not have the record yet; it may be a new leader, or a follower that
            # lags.
            self._fetch_later(fetching, route.refused(self._router, _NOTHING) or 0, now)
            return False, None
        else:
            try:
                if m.error is not None:
                    raise m.error
                self._read(fetching, m.data)
                fetching.since = now
            except (CorruptBatch, CorruptBlock) as error:
                if m.error is None:
                    has_come = fetching.position > start
                    pause = self._pause_damaged(fetching, error, has_come=has_come)
                    if pause is not None:
                        self._fetch_later(fetching, pause, now)
                        self._line_up(partition)
                        return has_come, None
                # The error replaces the records up to *end*, and is raised until they are
                # acknowledged.
                behind = error.details.get("end")
                end = fetching.end if type(behind) is not int else min(behind, fetching.end)
                self._replace(fetching, max(end, fetching.position + 1), error)
            except PymqError as error:
                problem = located(error, self._topic, partition, fetching.position)
                # The rest of the lease is not fetched; the lease expires.
                fetching.end = fetching.position
        if fetching.position < fetching.end:
            self._fetch(fetching, now)
        self._line_up(partition)
        return True, problem

    def _pause_damaged(
        self, fetching: LeasedFetch, error: PymqError, *, has_come: bool
    ) -> int | None:
        """Return the wait in ms before a damaged batch is fetched again, or None.

        The result is None if each replica has a damaged copy.

        *has_come* is true if the answer held sound records before the damaged batch.
        """
        mark("leased.damaged")
        is_first, fetching.damage.is_met = not fetching.damage.is_met, True
        if has_come:
            fetching.route.came()
            return 0
        pause = fetching.route.refused(self._router, error)
        return 0 if pause is None and is_first else pause

    def _pause(self, route: PartitionRoute, error: PymqError) -> int | None:
        """Return the milliseconds until a refused fetch is sent again.

        The result is None if a retry cannot help.
        """
        is_leader = not route.is_elsewhere
        pause = route.refused(self._router, error)
        if isinstance(error, OffsetOutOfRange) and is_leader and route.tries < CONFIRMED:
            self._router.refresh(self._topic)
            return route.patience_ms // 2
        return pause

    def _read(self, fetching: LeasedFetch, data: bytes) -> None:
        lease = fetching.lease
        for batch in split(data):
            self._watches.saw(lease.partition, batch.header)
            whole = self._whole(batch, lease.partition)
            view = whole.part(fetching.position, fetching.end, lease.delivery_count)
            view.error = lease.error
            fetching.views.append(view)
            fetching.position = view.end_offset
            if fetching.damage.is_met:
                fetching.damage = DamageCheck()
        fetching.route.came()

    def _replace(self, fetching: LeasedFetch, end: int, error: PymqError) -> None:
        """Replace leased records up to *end*, which cannot be read, by *error*."""
        lease, start = fetching.lease, fetching.position
        why = fetching.damage.judged(error)
        view = RecordBatch.broken(self._topic, lease.partition, start, end, why)
        view.delivery_count, view.error = lease.delivery_count, lease.error
        fetching.views.append(view)
        fetching.position, fetching.damage = end, DamageCheck()

    def _line_up(self, partition: str) -> None:
        """Queue fetched records for delivery, in the order of the leases."""
        line = self._lines.get(partition)
        while line:
            first = line[0]
            is_complete, is_dead = first.position >= first.end, first.lease.dead
            if partition not in self._paused or is_dead:
                self._lined_up += [(view, is_dead) for view in first.views]
                first.views.clear()
                first.handed = first.position
            elif is_complete:
                self._settler.give_back([(partition, (first.handed, first.end))])
            if not is_complete:
                return
            line.popleft()

    def _whole(self, batch: EncodedBatch, partition: str) -> RecordBatch:
        """Return the view of a fetched batch; reuse the last batch, since leases are often parts of
        it.
        """
        last = self._last.get(partition)
        if (
            last is None
            or last.batch_crc != batch.header.batch_crc
            or (last.base_offset != batch.base_offset)
        ):
            last = sound(batch.at(self._topic, partition))
            self._last[partition] = last
        return last


_NOTHING = ReplicaNotAvailable("the broker lacks records that it should have")
