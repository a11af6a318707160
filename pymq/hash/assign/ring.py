"""Assignor ``ring``: consistent hashing with a bounded load, without the previous assignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from pymq.hash.assign.base import NONE, Assignment, AssignmentGroup, Partition, register
from pymq.hash.ring import Ring, key_point

__all__ = ["assign"]


@register("ring")
def assign(
    members: Sequence[str],
    partitions: Sequence[Partition],
    previous: Mapping[str, Sequence[Partition]] = NONE,
    *,
    subscriptions: Mapping[str, Collection[str]] | None = None,
) -> Assignment:
    """Assign each partition to the first member on the ring that has less than its fair share.

    The assignor ignores *previous*, so a new coordinator gives the same answer. In exchange, a new
    member moves more partitions than necessary. The table shows the average number of moves as a
    multiple of the minimum (single cases: up to twice as many), by the number of members before the
    join and of partitions per member:

    ==========  ============  ============  ============  ============
    members     2 partitions  4             10            50
    ==========  ============  ============  ============  ============
    2 to 3      1.5 to 2.0    1.3 to 1.6    1.2           1.1
    4 to 8      2.4 to 3.7    1.4 to 2.2    1.3 to 1.7    1.1 to 1.3
    10 to 12    4.0 to 4.2    2.5 to 2.6    1.7 to 1.8    1.3 to 1.4
    50          7.2           4.1           3.0           2.1
    ==========  ============  ============  ============  ============

    For comparison, ``sticky`` has 1.0 everywhere, ``range`` 1.3 to 11, or 18 to 59 with 50 members.

    >>> assign(["c", "a", "b"], [("t", i) for i in range(4)])
    {'a': (('t', 3),), 'b': (('t', 0), ('t', 2)), 'c': (('t', 1),)}

    With more members than partitions, the spare members share.

    >>> assign(["a", "b", "c"], [("t", 0), ("t", 1)])
    {'a': (('t', 0),), 'b': (('t', 0),), 'c': (('t', 1),)}
    """
    group = AssignmentGroup.of(members, partitions, subscriptions)
    ring = Ring(group.members)
    able = {takers: frozenset(takers) for takers in group.by_takers()}
    active = frozenset[str]().union(*able.values())
    # The bound is exactly the fair share. With a slack of 25 %, fewer partitions would move, but
    # the last member would get only three quarters of its share, or nothing if there are few
    # partitions.
    share, extra = divmod(len(group.takers), len(active) or 1)
    load = Counter(dict.fromkeys(group.members, 0))
    owner: dict[Partition, str] = {}
    # Partitions with few takers come first, before other partitions fill up these takers.
    for partition in sorted(group.takers, key=lambda p: len(group.takers[p])):
        takers = group.takers[partition]
        walk = ring.order(_name(partition))
        room = _first_with_room(walk, able[takers], load, share + (extra > 0))
        member = room or min(takers, key=lambda taker: load[taker])
        extra -= load[member] == share
        load[member] += 1
        owner[partition] = member
    return group.share(owner, _nearest(group, load))


def _first_with_room(
    walk: Iterable[str], takers: Collection[str], load: Mapping[str, int], bound: int
) -> str | None:
    """Return the first of *takers* on the *walk* below *bound*; None if all are full."""
    return next((member for member in walk if load[member] < bound and member in takers), None)


def _nearest(group: AssignmentGroup, load: Mapping[str, int]) -> dict[str, list[Partition]]:
    """Return the partition that each spare member shares, by rendezvous hashing."""
    reach: dict[str, list[Partition]] = {m: [] for m in group.members if not load[m]}
    for partition, takers in group.takers.items():
        for member in takers:
            if member in reach:
                reach[member].append(partition)
    return {
        member: [min(reachable, key=lambda p: key_point(f"{member} {_name(p)}"))]
        for member, reachable in reach.items()
        if reachable
    }


def _name(partition: Partition) -> str:
    return f"{partition[0]}/{partition[1]}"
