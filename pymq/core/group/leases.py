"""The state of one partition's records in a group: acknowledged, leased or neither.

Offsets are kept as adjoining spans from ``committed``, the lowest unacknowledged offset, to
``next``, the first offset that was never leased. So the cost depends on the number of spans, not of
records; if records are acknowledged in order, there is at most one span. Acknowledged ranges above
``committed`` are kept too, so that one slow record does not cause redelivery of later records.

The rules are those of Kafka's share groups (KIP-932). Only the member that holds a lease can settle
it. Records are available again when their lease expires. Deliveries are counted. No new records are
leased while there are too many spans (Kafka's ``group.share.partition.max.record.locks``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from pymq.core.batch.offset_ranges import EVERYTHING, Ranges
from pymq.core.batch.priority import PriorityRuns, Run
from pymq.core.group.spans import AVAILABLE, DONE, LEASED, Counted, Delayed, Failed, Span, Spans
from pymq.core.message import Lease, LeaseSpan, Range
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER

# spans; with this many, no new records are leased until the lowest offsets are acknowledged
SPANS_OPEN = 4_096
UNKEYED_MAX = 256  # ranges of records without a key that are remembered
RUNS_AT_ONCE = 64  # most runs of one priority in one lease, since each run becomes a span
LEASED_MAX = 1 << 16  # most leased records, since each may become its own span
STATES = ("available", "leased", "acked")  # names of the states in descriptions


class Leases:
    """The state of one group in one partition."""

    __slots__ = (
        "_has_levels",
        "committed",
        "has_counted",
        "next",
        "priorities",
        "spans",
        "unkeyed",
    )

    def __init__(
        self,
        committed: int,
        done: Iterable[Range] = (),
        counts: Iterable[Counted] = (),
        errors: Iterable[Failed] = (),
        delays: Iterable[Delayed] = (),
    ) -> None:
        """Begin with the state that the former coordinator has stored.

        Args:
            committed: the lowest offset that is not acknowledged.
            done: acknowledged ranges above *committed*.
            counts: delivered but unacknowledged ranges, with their numbers of deliveries.
            errors: unacknowledged ranges that a member has returned, with the error.
            delays: unacknowledged ranges that a member has returned with a delay, and their due
                times.
        """
        self.committed = committed
        self.next = committed
        # delivery counts have changed, and must be stored for the next coordinator
        self.has_counted = False
        self.spans = Spans()
        self.unkeyed = Ranges(UNKEYED_MAX)  # records without a key, which need no order
        self.priorities = PriorityRuns()  # priorities of records that were never leased
        self._has_levels = False  # whether any record so far had a priority
        known = [*((a, b, DONE, 0) for a, b in done), *((a, b, AVAILABLE, n) for a, b, n in counts)]
        for start, end, state, count in sorted(known):
            low = max(start, self.next)
            if low >= end:
                continue
            if low > self.next:
                self.spans.append(Span(self.next, low, AVAILABLE, due=0))
            due = NEVER if state == DONE else 0
            self.spans.append(Span(low, end, state, count=count, due=due))
            self.next = end
        for start, end, error in errors:
            for span in self.spans.within(start, end, AVAILABLE):
                span.error = error
        for start, end, due in delays:
            for span in self.spans.within(start, end, AVAILABLE):
                span.due = due

    # --- questions ------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether there are too many spans or leases to lease new records."""
        return len(self.spans) >= SPANS_OPEN or self.spans.in_flight >= LEASED_MAX

    def held_by_others(self, members: Iterable[str], loose: Ranges) -> bool:
        """Whether a member other than *members* holds a lease on records outside of *loose*."""
        allowed = set(members)
        return any(
            s.state == LEASED and s.owner not in allowed and not loose.covers(s.start, s.end)
            for s in self.spans
        )

    def holds(self, member: str, start: int, end: int) -> bool:
        """Whether *member* holds leases on all records of a range."""
        reached = start
        for span in self.spans.from_offset(start):
            if span.start >= end:
                break
            if span.start > reached or span.state != LEASED or span.owner != member:
                return False
            reached = span.end
        return reached >= end

    def describe(self, offset: int, limit: int, now: int) -> tuple[LeaseSpan, ...]:
        """Return the states of the records from *offset* on, in at most *limit* spans."""
        found = islice(self.spans.from_offset(offset), limit)
        return tuple(_described(span, now) for span in found)

    def available(self, end: int, now: int) -> Iterator[Range]:
        """The ranges before *end* that may be leased, in the order of their offsets."""
        for span in self.spans:
            if span.state == AVAILABLE and span.due <= now:
                yield span.start, span.end
        if self.next < end:
            yield self.next, end

    def has_available(self, end: int, now: int, among: Ranges = EVERYTHING) -> bool:
        """Whether records before *end* with offsets in *among* can be leased."""
        if self.next < end and among.first(self.next, end) is not None and not self.is_full:
            return True
        return any(
            s.state == AVAILABLE and s.due <= now and among.first(s.start, s.end) is not None
            for s in self.spans
        )

    def open_before(self, end: int, among: Ranges = EVERYTHING) -> int:
        """Count the records before *end*, with offsets in *among*, that are neither leased nor
        acknowledged.
        """
        spans = ((s.start, s.end) for s in self.spans if s.state == AVAILABLE)
        return sum(among.count(start, stop) for start, stop in (*spans, (self.next, end)))

    def levels(self, end: int, now: int) -> set[int]:
        """The priorities of the leasable records before *end*."""
        found = {run[2] for run in self.priorities.between(self.next, end)}
        found.update(s.priority for s in self.spans if s.state == AVAILABLE and s.due <= now)
        return found

    # --- changes --------------------------------------------------------------------------------

    def prioritize(self, runs: Iterable[Run]) -> None:
        """Store the priorities of records that were never leased."""
        for start, end, priority in runs:
            self._has_levels = True
            for span in self.spans.within(start, min(end, self.next), AVAILABLE):
                span.priority = priority
            self.priorities.put(max(start, self.next), end, priority)

    def begin_at(self, log_start: int) -> bool:
        """Skip records that retention has removed; returns whether there were such records."""
        if log_start <= self.committed:
            return False
        mark("leases.overtaken")  # retention removed records before the group consumed them
        self.spans.begin_at(log_start)
        self.committed = log_start
        self.next = max(self.next, log_start)
        self._advance()
        return True

    def acquire(
        self,
        member: str,
        end: int,
        limit: int,
        until: int,
        now: int,
        max_deliver: int,
        among: Ranges = EVERYTHING,
        least: int = 0,
    ) -> list[Lease]:
        """Lease up to *limit* records before *end* of a priority of at least *least*.

        Records of a higher priority come first. At equal priority, records for redelivery and
        records that were passed over come before new records. Only offsets in *among* are leased;
        other records wait for a member that may have them. Records with *max_deliver* earlier
        deliveries (0: no limit) are leased as dead letters.
        """
        leases: list[Lease] = []
        levels = sorted(self.levels(end, now) | {0}, reverse=True) if self._has_levels else [0]
        for level in levels:
            if level < least or limit <= 0:
                break
            again = self._acquire_again(member, limit, until, now, max_deliver, among, level)
            limit -= sum(lease.end - lease.start for lease in again)
            leases += again
            for count, part in enumerate(self._new(end, among, level)):
                if limit <= 0 or self.is_full:
                    break
                if count == RUNS_AT_ONCE:
                    return leases
                lease = self._acquire_new(member, *part, limit, until, level)
                limit -= lease.end - lease.start
                leases.append(lease)
        return leases

    def _acquire_again(
        self,
        member: str,
        limit: int,
        until: int,
        now: int,
        max_deliver: int,
        among: Ranges,
        level: int,
    ) -> list[Lease]:
        """Lease records that were returned or passed over."""
        leases: list[Lease] = []
        for span in list(self.spans):
            if limit <= 0:
                break
            if span.state != AVAILABLE or span.due > now or span.priority != level:
                continue
            for part in list(_parts(among, span.start, span.end, level)):
                if limit <= 0:
                    break
                for taken in self.spans.within(part[0], min(part[1], part[0] + limit), AVAILABLE):
                    dead = 0 < max_deliver <= taken.count
                    mark("leases.dead" if dead else "leases.again")
                    taken.state, taken.owner, taken.due = LEASED, member, until
                    taken.count += not dead
                    taken.dead = dead
                    leases.append(Lease("", taken.start, taken.end, taken.count, dead, taken.error))
                    limit -= taken.end - taken.start
        return leases

    def _new(self, end: int, among: Ranges, level: int) -> Iterator[Range]:
        """Return the ranges of a priority that were neither leased nor passed over."""
        if level == 0:
            runs: tuple[Run, ...] = ((self.next, end, 0),) if self.next < end else ()
        else:
            runs = self.priorities.between(self.next, end)
        for start, stop, priority in runs:
            if priority == level:
                yield from _parts(among, start, stop, level)

    def _acquire_new(
        self, member: str, start: int, end: int, limit: int, until: int, level: int
    ) -> Lease:
        if start > self.next:
            mark("leases.passed_over")
            self._pass_over(start)
        self.next = min(end, start + min(limit, LEASED_MAX - self.spans.in_flight))
        self.spans.lease(start, self.next, member, until, level)
        self.priorities.forget(self.next)
        return Lease("", start, self.next, 1)

    def _pass_over(self, until: int) -> None:
        """Note new records before *until* as available but not leased, by priority."""
        for start, end, priority in (*self.priorities.between(self.next, until), (until, until, 0)):
            if start > self.next:
                self.spans.append(Span(self.next, start, AVAILABLE, due=0))
            if end > start:
                self.spans.append(Span(start, end, AVAILABLE, due=0, priority=priority))
            self.next = end

    def acknowledge(self, member: str, ranges: Iterable[Range]) -> int:
        """Acknowledge records; returns how many are refused because *member* has no lease."""
        refused = 0
        for start, end in ranges:
            held = 0
            for span in self.spans.within(start, end, LEASED, member):
                held += span.end - span.start
                span.state, span.owner, span.due, span.error = DONE, None, NEVER, ""
            refused += end - start - held
        self._advance()
        return refused

    def open_in(self, ranges: Iterable[Range]) -> int:
        """Count the unacknowledged records in some ranges, which will be delivered again."""
        count = 0
        for start, end in ranges:
            low = max(start, self.committed)
            count += max(0, end - low)
            for span in self.spans.from_offset(low):
                if span.start >= end:
                    break
                if span.state == DONE:
                    count -= max(0, min(end, span.end) - max(low, span.start))
        return count

    def reject(self, member: str, ranges: Iterable[Range], due: int, error: str = "") -> None:
        """Make records available for redelivery from *due* on; *error* is the reason."""
        for start, end in ranges:
            for span in self.spans.within(start, end, LEASED, member):
                span.state, span.owner, span.due = AVAILABLE, None, due
                span.error = error or span.error
                self.has_counted = True

    def renew(self, member: str, ranges: Iterable[Range], until: int) -> None:
        """Renew the leases of a member that still works on its records."""
        for start, end in ranges:
            for span in self.spans.within(start, end, LEASED, member):
                span.due = until

    def give_back(self, member: str, ranges: Iterable[Range], now: int) -> None:
        """Make records available that the application never saw; their delivery does not count."""
        for start, end in ranges:
            for span in self.spans.within(start, end, LEASED, member):
                span.state, span.owner, span.due = AVAILABLE, None, now
                span.count = max(0, span.count - (not span.dead))

    def release(self, member: str, now: int) -> None:
        """Make all records available that were leased to a departed member."""
        for span in self.spans:
            if span.state == LEASED and span.owner == member:
                span.state, span.owner, span.due = AVAILABLE, None, now
                self.has_counted = True

    def expire(self, now: int) -> int:
        """End the leases that have expired; returns how many records they covered."""
        records = 0
        for span in self.spans:
            if span.state == LEASED and span.due <= now:
                mark("leases.expired")
                span.state, span.owner = AVAILABLE, None
                self.has_counted = True
                records += span.end - span.start
        return records

    def _advance(self) -> None:
        """Advance ``committed`` past the acknowledged records."""
        before = self.committed
        self.committed = self.spans.join_done(before, self.next)
        if self.committed > before:
            self.unkeyed.forget(self.committed)


def _parts(among: Ranges, start: int, end: int, level: int) -> Iterator[Range]:
    """Return the parts of [*start*, *end*) in *among*; at the lowest priority only the first part.

    All records of a higher priority must be leased before those of a lower priority. At the lowest
    priority any part will do, and few large leases cost less than many small leases.
    """
    while start < end and (part := among.first(start, end)) is not None:
        yield part
        if level == 0:
            return
        start = part[1]


def _described(span: Span, now: int) -> LeaseSpan:
    due = max(0, span.due - now) if span.state != DONE else 0
    return LeaseSpan(span.start, span.end, STATES[span.state], span.owner, span.count, due)
