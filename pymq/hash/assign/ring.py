"""Assignor ``ring``: consistent hashing with a bounded load; needs no memory of the past."""

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
    """Each partition goes to the first member on the ring that has not its fair share yet.

    *previous* is not used: a coordinator that starts anew gives the same answer. The price is that
    a member that joins moves more partitions than it must: so many times the least there is, on
    average (single cases up to twice that), by members before and partitions a member:

    ==========  ============  ============  ============  ============
    members     2 partitions  4             10            50
    ==========  ============  ============  ============  ============
    2 to 3      1.5 to 2.0    1.3 to 1.6    1.2           1.1
    4 to 8      2.4 to 3.7    1.4 to 2.2    1.3 to 1.7    1.1 to 1.3
    10 to 12    4.0 to 4.2    2.5 to 2.6    1.7 to 1.8    1.3 to 1.4
    50          7.2           4.1           3.0           2.1
    ==========  ============  ============  ============  ============

    ``sticky`` is at 1.0 everywhere, ``range`` at 1.3 to 11, and at 18 to 59 with 50 members.

    >>> assign(["c", "a", "b"], [("t", i) for i in range(4)])
    {'a': (('t', 3),), 'b': (('t', 0), ('t', 2)), 'c': (('t', 1),)}

    More members than partitions: the spare ones share.

    >>> assign(["a", "b", "c"], [("t", 0), ("t", 1)])
    {'a': (('t', 0),), 'b': (('t', 0),), 'c': (('t', 1),)}
    """
    group = AssignmentGroup.of(members, partitions, subscriptions)
    ring = Ring(group.members)
    able = {takers: frozenset(takers) for takers in group.by_takers()}
    active = frozenset[str]().union(*able.values())
    # The bound is exactly the fair share. A slack of 25 % moves less but leaves the poorest member
    # a quarter of its share or, with few partitions, nothing.
    share, extra = divmod(len(group.takers), len(active) or 1)
    load = Counter(dict.fromkeys(group.members, 0))
    owner: dict[Partition, str] = {}
    # Partitions that few may take come first, before others fill those few.
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
    """The first of *takers* on the *walk* below *bound*; none when other topics filled them all."""
    return next((member for member in walk if load[member] < bound and member in takers), None)


def _nearest(group: AssignmentGroup, load: Mapping[str, int]) -> dict[str, list[Partition]]:
    """For each spare member the partition that it would share by rendezvous hashing."""
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
