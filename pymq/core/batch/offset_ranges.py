"""Sorted, disjoint ranges of offsets, for the records of a partition without a key.

1. The header of a batch says whether any of its records has a key.
2. Replicas of an open block collect the ranges of batches without keys.
3. The leader sends these ranges to group members that watch the partition.
4. The members forward these ranges to their group coordinator, which sees no records itself.

Records outside of these ranges count as records with a key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from pymq.core.batch.columns import KEYS
from pymq.core.batch.header import COLUMNS_FORMAT, CONTROL, Header

Range = tuple[int, int]

RUNS_MAX = 16  # number of ranges that a log keeps and reports; the last ones are kept
OFFSET_END = 1 << 62  # after every offset


def insert(found: list[Range], start: int, end: int) -> None:
    """Insert a range into sorted, disjoint ranges, and join the ranges that touch."""
    first = bisect_left(found, (start,))
    if first and found[first - 1][1] >= start:
        first -= 1
        start = found[first][0]
    last = first
    while last < len(found) and found[last][0] <= end:
        end = max(end, found[last][1])
        last += 1
    found[first:last] = [(start, end)]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the fewest sorted ranges with the same offsets."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


class Ranges:
    """Sorted ranges of offsets, at most *most*; if there are more, the lowest are dropped."""

    __slots__ = ("_found", "_most")

    def __init__(self, most: int, found: Iterable[Range] = ()) -> None:
        self._most = most
        self._found: list[Range] = []
        for start, end in found:
            self.put(start, end)

    def __iter__(self) -> Iterator[Range]:
        return iter(self._found)

    def __bool__(self) -> bool:
        return bool(self._found)

    def put(self, start: int, end: int) -> bool:
        """Add the offsets in [*start*, *end*); return whether any of them is new."""
        found = self._found
        if found and start < end:  # in the usual case the range extends the last one
            low, high = found[-1]
            if low <= start <= high:
                if end > high:
                    found[-1] = low, end
                return end > high
        if start >= end or self.covers(start, end):
            return False
        insert(found, start, end)
        if len(found) > self._most:
            del found[0]
        return True

    def covers(self, start: int, end: int) -> bool:
        """Whether all offsets in [*start*, *end*) are in one range."""
        part = self.first(start, end)
        return part == (start, end)

    def first(self, start: int, end: int) -> Range | None:
        """Return the first part of [*start*, *end*) that is in a range."""
        found = self._found
        index = max(0, bisect_right(found, start, key=_start) - 1)
        for low, high in found[index : index + 2]:
            if high > start and low < end:
                return max(low, start), min(high, end)
        return None

    def count(self, start: int, end: int) -> int:
        """Return how many offsets in [*start*, *end*) are in a range."""
        index = max(0, bisect_right(self._found, start, key=_start) - 1)
        count = 0
        while index < len(self._found) and (span := self._found[index])[0] < end:
            count += max(0, min(span[1], end) - max(span[0], start))
            index += 1
        return count

    def cut(self, end: int) -> None:
        """Remove all offsets from *end* on."""
        while self._found and self._found[-1][1] > end:
            start, _ = self._found.pop()
            if start < end:
                self._found.append((start, end))

    def forget(self, before: int) -> None:
        """Drop the ranges that end at or before an offset."""
        while self._found and self._found[0][1] <= before:
            del self._found[0]

    def below(self, end: int) -> tuple[Range, ...]:
        """Return all ranges, cut at *end*."""
        return tuple((low, min(high, end)) for low, high in self._found if low < end)


def has_keys(header: Header) -> bool:
    """Whether a record of the batch may have a key, or had one before compaction removed it.

    A consumer may still hold a removed record, so no other consumer may get a later record with the
    same key.
    """
    if header.attributes & CONTROL:
        return False  # Consumers never see the batch.
    if header.count < header.span:
        return True
    return header.body_format != COLUMNS_FORMAT or bool(header.columns & KEYS)


def _start(span: Range) -> int:
    return span[0]


NOTHING = Ranges(0)
EVERYTHING = Ranges(1, [(0, OFFSET_END)])
