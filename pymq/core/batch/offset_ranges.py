"""Sorted ranges of offsets, apart from each other: which records of a partition have no key.

The header of a batch says whether any record in it has a key. The replicas of an open block note
the runs of batches without one, and the leader tells them to who watches the partition. Members of
a group pass that on to their coordinator, which sees no records itself. What is not in a range is
not known to be without a key, and is treated as if it had one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from pymq.core.batch.columns import KEYS
from pymq.core.batch.header import COLUMNS_FORMAT, Header

Range = tuple[int, int]

RUNS_MAX = 16  # that a log keeps and tells: where keys come and go, only the last ones
OFFSET_END = 1 << 62  # behind every offset


def insert(found: list[Range], start: int, end: int) -> None:
    """Add a range to sorted ones that do not touch, and join it with those that it touches."""
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
    """As few ranges as have the same offsets, in their order."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


class Ranges:
    """Ranges of offsets in their order; of more than *most* the lowest are forgotten."""

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
        """Add the offsets from *start* up to *end*; whether any of them is new."""
        found = self._found
        if found and start < end:  # as nearly always it goes on where the last one ends
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
        """Whether all offsets from *start* up to *end* are in one range."""
        part = self.first(start, end)
        return part == (start, end)

    def first(self, start: int, end: int) -> Range | None:
        """The first part of [*start*, *end*) that is in a range."""
        found = self._found
        index = max(0, bisect_right(found, start, key=_start) - 1)
        for low, high in found[index : index + 2]:
            if high > start and low < end:
                return max(low, start), min(high, end)
        return None

    def count(self, start: int, end: int) -> int:
        """How many of the offsets from *start* up to *end* are in a range."""
        index = max(0, bisect_right(self._found, start, key=_start) - 1)
        count = 0
        while index < len(self._found) and (span := self._found[index])[0] < end:
            count += max(0, min(span[1], end) - max(span[0], start))
            index += 1
        return count

    def cut(self, end: int) -> None:
        """Forget all from *end* on."""
        while self._found and self._found[-1][1] > end:
            start, _ = self._found.pop()
            if start < end:
                self._found.append((start, end))

    def forget(self, before: int) -> None:
        """Forget all before an offset."""
        while self._found and self._found[0][1] <= before:
            del self._found[0]

    def below(self, end: int) -> tuple[Range, ...]:
        """All of them, as far as they lie before *end*."""
        return tuple((low, min(high, end)) for low, high in self._found if low < end)


def has_keys(header: Header) -> bool:
    """Whether a record of the batch may have a key, or one had that compaction has removed since.

    A consumer may be at work on such a record: another one is not to get a later one of its key.
    """
    if header.is_control:
        return False  # Consumers never see it.
    if header.count < header.span:
        return True
    return header.body_format != COLUMNS_FORMAT or bool(header.columns & KEYS)


def _start(span: Range) -> int:
    return span[0]


NOTHING = Ranges(0)
EVERYTHING = Ranges(1, [(0, OFFSET_END)])
