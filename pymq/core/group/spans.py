"""Ranges of offsets with their states: available, leased or acknowledged.

A change of state applies to a range of offsets, which becomes a span of its own. So the cost of an
operation depends on the number of spans, not of records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from pymq.core.message import Range
from pymq.core.types import NEVER
from pymq.core.values import define

AVAILABLE = 0  # may be delivered from ``due`` on
LEASED = 1  # delivered to ``owner``, until ``due``
DONE = 2


Counted = tuple[int, int, int]  # a range of offsets, and how often it was delivered
# a range of offsets, and the error with which a member last returned it
Failed = tuple[int, int, str]
# a range of offsets, and the time from which it may be delivered again
Delayed = tuple[int, int, int]


@define
class Span:
    """Offsets with the same state."""

    start: int
    end: int
    state: int
    owner: str | None = None
    count: int = 0  # deliveries so far
    due: int = NEVER
    dead: bool = False  # leased to be moved to the dead-letter topic; this is not a delivery
    error: str = ""  # the error with which a member last returned the records
    priority: int = 0


class Spans:
    """The spans of one partition, sorted; each begins at the end of the previous span."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[Span] = []

    def __iter__(self) -> Iterator[Span]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    # --- questions ------------------------------------------------------------------------------

    def next_due(self, now: int) -> int:
        """The first time after *now* when a lease expires or a delayed record is due."""
        return min((s.due for s in self._found if s.state != DONE and s.due > now), default=NEVER)

    @property
    def in_flight(self) -> int:
        """The number of leased records."""
        return sum(span.end - span.start for span in self._found if span.state == LEASED)

    @property
    def waiting(self) -> int:
        """The number of records that wait for redelivery."""
        return sum(span.end - span.start for span in self._found if span.state == AVAILABLE)

    @property
    def holders(self) -> tuple[str, ...]:
        """The members that hold leases."""
        return tuple(dict.fromkeys(s.owner for s in self._found if s.owner is not None))

    def done_ranges(self) -> tuple[Range, ...]:
        """The acknowledged ranges."""
        return tuple((span.start, span.end) for span in self._found if span.state == DONE)

    def counts(self) -> tuple[Counted, ...]:
        """The delivery counts of unacknowledged ranges, for a coordinator that takes over.

        Only deliveries that have ended count. If the coordinator changes during a delivery, the
        application may never have seen the records, so this delivery must not count towards
        ``max_deliver``.
        """
        found = (
            (span.start, span.end, span.count - (span.state == LEASED and not span.dead))
            for span in self._found
            if span.state != DONE
        )
        return tuple(each for each in found if each[2] > 0)

    def errors(self) -> tuple[Failed, ...]:
        """The errors of unacknowledged ranges, for a coordinator that takes over."""
        return tuple((span.start, span.end, span.error) for span in self._found if span.error)

    def delays(self, now: int) -> tuple[Delayed, ...]:
        """The times from which returned ranges may be delivered again, for a coordinator that takes
        over.
        """
        return tuple(
            (span.start, span.end, span.due)
            for span in self._found
            if span.state == AVAILABLE and span.due > now
        )

    def from_offset(self, offset: int) -> Iterator[Span]:
        """The spans that end after *offset*; earlier spans are not visited."""
        index = max(0, bisect_right(self._found, offset, key=_start) - 1)
        while index < len(self._found):
            if (span := self._found[index]).end > offset:
                yield span
            index += 1

    # --- changes --------------------------------------------------------------------------------

    def append(self, span: Span) -> None:
        """Add a span, which must begin at the end of the last span."""
        self._found.append(span)

    def lease(self, start: int, end: int, member: str, until: int, priority: int) -> None:
        """Add the first lease of some records; extend the last span if its lease is equal."""
        last = self._found[-1] if self._found else None
        if last and _fate(last) == (LEASED, member, 1, until, False, "", priority):
            last.end = end
        else:
            self._found.append(Span(start, end, LEASED, member, 1, until, priority=priority))

    def begin_at(self, offset: int) -> None:
        """Drop everything before *offset*."""
        self._found = [span for span in self._found if span.end > offset]
        if self._found:
            self._found[0].start = max(self._found[0].start, offset)

    def within(self, start: int, end: int, state: int, owner: str | None = None) -> Iterator[Span]:
        """Return the spans of a range with a state and an owner, split at the ends of the range."""
        if start >= end:
            return
        index = max(0, bisect_right(self._found, start, key=_start) - 1)
        while index < len(self._found) and self._found[index].start < end:
            span = self._found[index]
            if span.state == state and span.owner == owner and span.end > start:
                span = self._cut(span, max(start, span.start), min(end, span.end))
                index = bisect_right(self._found, span.start, key=_start) - 1
                yield span
            index += 1

    def _cut(self, span: Span, start: int, end: int) -> Span:
        """Split *span* so that [start, end) is a span of its own; return this span."""
        index = bisect_right(self._found, span.start, key=_start) - 1
        if end < span.end:
            rest = Span(end, span.end, *_fate(span))
            self._found.insert(index + 1, rest)
            span.end = end
        if start > span.start:
            before = Span(span.start, start, *_fate(span))
            self._found.insert(index, before)
            span.start = start
        return span

    def join_done(self, committed: int, fresh: int) -> int:
        """Join acknowledged spans; returns the lowest offset that is not acknowledged.

        Args:
            committed: the lowest unacknowledged offset so far.
            fresh: the first offset that was never leased.
        """
        joined: list[Span] = []
        for span in self._found:
            last = joined[-1] if joined else None
            if span.state == DONE and last is not None and last.state == DONE:
                last.end = span.end
            else:
                joined.append(span)
        if joined and joined[0].state == DONE and joined[0].start <= committed:
            committed = joined.pop(0).end
        elif not joined:
            committed = fresh
        elif joined[0].start > committed:
            committed = joined[0].start
        self._found = joined
        return committed


def _fate(span: Span) -> tuple[int, str | None, int, int, bool, str, int]:
    return (
        *(span.state, span.owner, span.count, span.due),
        *(span.dead, span.error, span.priority),
    )


def _start(span: Span) -> int:
    return span.start
