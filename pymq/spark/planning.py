"""Plans offset ranges: where a batch ends, and which task reads which range. Pure arithmetic."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

Place = tuple[str, str]  # (topic, partition)
TASK_ROWS = 1_000_000  # about Spark's 128 MiB of files per task


class Range(NamedTuple):
    """Offsets of one partition, from *start* up to, not including, *end*."""

    topic: str
    partition: str
    start: int
    end: int
    topic_id: str = ""  # empty for the present topic of that name

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.end - self.start

    def is_before(self, other: Range) -> bool:
        """Whether *other* continues this range."""
        return other == self._replace(start=self.end, end=other.end)


def limit(
    start: Mapping[Place, int], end: Mapping[Place, int], most: int | None
) -> dict[Place, int]:
    """Return the ends of a batch of at most *most* offsets between *start* and *end*.

    A partition's share is proportional to its waiting offsets. Each partition with waiting offsets
    gets at least one, so that none starves. The result is deterministic.
    """
    waiting = {place: max(0, end[place] - start.get(place, 0)) for place in end}
    total = sum(waiting.values())
    if most is None or total <= most:
        return {place: max(end[place], start.get(place, 0)) for place in end}
    # Subtract the guaranteed offset of each partition first, so that it does not add to the shares.
    some = sum(count > 0 for count in waiting.values())
    found = {}
    left, rest = max(0, most - some), total - some
    for place in sorted(waiting):  # Later partitions get the rounding remainders.
        more = max(0, waiting[place] - 1)
        share = left * more // rest if rest else 0
        found[place] = start.get(place, 0) + share + (1 if waiting[place] else 0)
        left, rest = left - share, rest - more
    return found


def split(
    ranges: Sequence[Range], *, at_least: int | None = None, longest: int | None = None
) -> list[Range]:
    """Cut ranges to at most *longest* offsets, and into about *at_least* parts."""
    found = []
    for each in ranges:
        parts = -(-each.size // longest) if longest else 1
        found += _cut(each, parts)
    if at_least and found and len(found) < at_least:
        total = sum(part.size for part in found)
        found = [
            part
            for each in found
            for part in _cut(each, max(1, min(each.size, round(each.size * at_least / total))))
        ]
    return found


def _cut(each: Range, parts: int) -> list[Range]:
    size = each.size
    edges = [each.start + size * number // parts for number in range(parts + 1)]
    return [each._replace(start=low, end=high) for low, high in pairwise(edges) if high > low]


def enough(ranges: Sequence[Range], slots: int) -> int:
    """Return the default number of tasks for *ranges*: one per slot, more if they are long."""
    return max(slots, -(-sum(each.size for each in ranges) // TASK_ROWS))


def pack(ranges: Sequence[Range], most: int | None) -> list[list[Range]]:
    """Group ranges into *most* tasks of about the same length; a task costs about 15 ms overhead.

    A task's ranges stay in their order.
    """
    if most is None or len(ranges) <= most:
        return [[each] for each in ranges]
    bins: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(most)]
    heapq.heapify(bins)
    by_length = sorted(range(len(ranges)), key=lambda i: (-ranges[i].size, ranges[i]))
    for index in by_length:
        size, number, mine = heapq.heappop(bins)
        mine.append(index)
        heapq.heappush(bins, (size + ranges[index].size, number, mine))
    return [
        [ranges[i] for i in sorted(mine)] for _, _, mine in sorted(bins, key=lambda b: b[1]) if mine
    ]
