"""Distributes items over bins, as evenly as the rules allow, with as few moves as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Any, TypeVar

__all__ = ["level"]

# Items and bins are member names or partitions; Any stands for types that can be ordered.
Item = TypeVar("Item", bound=Any)
Bin = TypeVar("Bin", bound=Any)


def level(
    allowed: Mapping[Item, Sequence[Bin]], claims: Mapping[Item, Sequence[Bin]]
) -> dict[Item, Bin]:
    """Return a bin for every item of *allowed*, which maps an item to its permitted bins.

    An item stays in one of the bins that it *claims*, unless that bin would be fuller than
    necessary. In the result, no chain of moves could make the fullest bins less full. If all items
    may go everywhere, the sizes of bins differ by at most one, and no other equally even answer
    moves fewer items out of the only bin that they claim. The result depends only on the arguments
    and the order of *allowed*.

    >>> level({1: "AB", 2: "AB", 3: "AB", 4: "AB"}, {1: "A", 2: "A", 3: "A"})
    {1: 'A', 2: 'A', 4: 'B', 3: 'B'}
    """
    held: dict[Bin, list[Item]] = {}
    # Many items share the same list of bins, so visit each list once.
    for bins in {id(bins): bins for bins in allowed.values()}.values():
        for b in bins:
            held.setdefault(b, [])
    fresh = _keep_claims(held, allowed, claims)
    _fill(held, allowed, fresh)
    while _drain(held, allowed):
        pass
    return {item: b for b, items in held.items() for item in items}


def _keep_claims(
    held: dict[Bin, list[Item]],
    allowed: Mapping[Item, Sequence[Bin]],
    claims: Mapping[Item, Sequence[Bin]],
) -> list[Item]:
    """Put items into claimed bins; return the items without a claim."""
    wanted = {
        item: [b for b in claims.get(item, ()) if b in bins] for item, bins in allowed.items()
    }
    # Items with one claim have no choice; other items then take the emptiest claimed bin.
    for item in sorted(wanted, key=lambda item: len(wanted[item])):
        if wanted[item]:
            held[min(wanted[item], key=lambda b: len(held[b]))].append(item)
    return [item for item in allowed if not wanted[item]]


def _fill(
    held: dict[Bin, list[Item]], allowed: Mapping[Item, Sequence[Bin]], fresh: list[Item]
) -> None:
    """Put each item into its emptiest permitted bin; items with the fewest bins come first."""
    heaps: dict[int, list[tuple[int, int, Bin]]] = {}
    for item in sorted(fresh, key=lambda item: len(allowed[item])):
        bins = allowed[item]
        heap = heaps.get(id(bins))  # the mapping keeps the list alive, so the list's id is unique
        if heap is None:
            heap = heaps[id(bins)] = [(len(held[b]), i, b) for i, b in enumerate(bins)]
            heapify(heap)
        # Bins only get fuller here, so an outdated entry is too low, never too high. Refresh the
        # entry.
        while heap[0][0] != len(held[heap[0][2]]):
            _, i, b = heap[0]
            heapreplace(heap, (len(held[b]), i, b))
        held[heap[0][2]].append(item)


def _drain(held: dict[Bin, list[Item]], allowed: Mapping[Item, Sequence[Bin]]) -> bool:
    """Move one item out of each of the fullest bins, if possible; return whether one moved."""
    drained = -1
    for start in sorted(held, key=lambda b: -len(held[b])):
        size = len(held[start])
        if size < drained:
            # Start again, because draining bins that are no longer the fullest would move too many
            # items.
            break
        if path := _path(held, allowed, start):
            drained = size
            for item, source, target in path:
                held[source].remove(item)
                held[target].append(item)
    return drained >= 0


def _path(
    held: dict[Bin, list[Item]], allowed: Mapping[Item, Sequence[Bin]], start: Bin
) -> list[tuple[Item, Bin, Bin]]:
    """Return moves (item, from, to) that shift one item from *start* to a bin at least two below.

    This is a breadth-first search for a cost-reducing path. There is no such path exactly if the
    assignment is optimal (Harvey et al., "Semi-matchings for bipartite graphs and load balancing").
    """
    room = len(held[start]) - 2
    lowest = min(map(len, held.values()))
    if lowest > room:
        return []
    came: dict[Bin, tuple[Item, Bin]] = {}
    seen: set[int] = set()
    queue = [start]
    for source in queue:
        # the last items are new in this bin, so they move first
        for item in reversed(held[source]):
            bins = allowed[item]
            if id(bins) in seen:
                continue
            seen.add(id(bins))
            for target in bins:
                if target != start and target not in came:
                    came[target] = (item, source)
                    if len(held[target]) == lowest:
                        return _back(came, target, start)
                    queue.append(target)
    # the nearest one of the emptiest bins
    best = min(came, key=lambda b: len(held[b]), default=start)
    return _back(came, best, start) if len(held[best]) <= room else []


def _back(
    came: Mapping[Bin, tuple[Item, Bin]], target: Bin, start: Bin
) -> list[tuple[Item, Bin, Bin]]:
    """Return the moves that the search found, from *target* back to *start*."""
    path = []
    while target != start:
        item, source = came[target]
        path.append((item, source, target))
        target = source
    return path
