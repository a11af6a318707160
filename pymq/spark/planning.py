"""What a batch reads, and which task reads what of it. Pure arithmetic."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

Place = tuple[str, str]  # (topic, partition)
TASK_ROWS = 1_000_000  # about the 128 MiB of files that Spark gives to a task


class Range(NamedTuple):
    """Offsets of one partition, from *start* up to, not including, *end*."""

    topic: str
    partition: str
    start: int
    end: int
    topic_id: str = ""  # which topic of that name is meant; "": whichever there is

    @property
    def size(self) -> int:
        """How many offsets it has."""
        return self.end - self.start


def limit(
    start: Mapping[Place, int], end: Mapping[Place, int], most: int | None
) -> dict[Place, int]:
    """Where a batch ends that takes *most* offsets of what lies between *start* and *end*.

    Each partition gets its share in proportion to how much waits in it, and one that has anything
    at least one offset, so that none waits for ever. The same question has the same answer.
    """
    waiting = {place: max(0, end[place] - start.get(place, 0)) for place in end}
    total = sum(waiting.values())
    if most is None or total <= most:
        return {place: max(end[place], start.get(place, 0)) for place in end}
    # One each comes first: what several are given to get on must not come on top of the shares.
    some = sum(count > 0 for count in waiting.values())
    found = {}
    left, rest = max(0, most - some), total - some
    for place in sorted(waiting):  # What was rounded off goes to those that come later.
        more = max(0, waiting[place] - 1)
        share = left * more // rest if rest else 0
        found[place] = start.get(place, 0) + share + (1 if waiting[place] else 0)
        left, rest = left - share, rest - more
    return found


def split(
    ranges: Sequence[Range], *, at_least: int | None = None, longest: int | None = None
) -> list[Range]:
    """Cut long ranges, so that none is longer than *longest* and there are about *at_least*."""
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
    """How many tasks to read *ranges* in, where nobody says: one a slot, more if they are long."""
    return max(slots, -(-sum(each.size for each in ranges) // TASK_ROWS))


def pack(ranges: Sequence[Range], most: int | None) -> list[list[Range]]:
    """Put ranges into *most* tasks, of about the same length; each task costs some 15 ms by itself.

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
