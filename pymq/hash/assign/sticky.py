"""Assignor ``sticky``: evenly many partitions, and members keep partitions as far as possible."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pymq.hash.assign.base import NONE, Assignment, AssignmentGroup, Partition, register
from pymq.hash.assign.level import level

__all__ = ["assign"]


@register("sticky")
def assign(
    members: Sequence[str],
    partitions: Sequence[Partition],
    previous: Mapping[str, Sequence[Partition]] = NONE,
    *,
    subscriptions: Mapping[str, Collection[str]] | None = None,
) -> Assignment:
    """Assign evenly, with as few moves from *previous* as possible.

    *previous* may be outdated: members and partitions that no longer exist are ignored. If several
    members claim a partition that needs one owner, the member with the fewest partitions gets it.

    In this example ``c`` joins, and one partition moves:

    >>> assign(["a", "b", "c"], [("t", i) for i in range(4)],
    ...        {"a": [("t", 0), ("t", 3)], "b": [("t", 1), ("t", 2)]})
    {'a': (('t', 0),), 'b': (('t', 1), ('t', 2)), 'c': (('t', 3),)}

    With more members than partitions, the spare members share partitions, and keep the same ones.

    >>> assign(["a", "b", "c"], [("t", 0), ("t", 1)], {"a": [("t", 1)], "c": [("t", 1)]})
    {'a': (('t', 1),), 'b': (('t', 0),), 'c': (('t', 1),)}
    """
    group = AssignmentGroup.of(members, partitions, subscriptions)
    if group.is_uniform and len(group.members) > len(group.takers) > 0:
        # Assign members to partitions in one step. The code below first chooses the owners, and
        # then places the other members; here that would move more partitions than necessary.
        everything = tuple(group.takers)
        seats = level(dict.fromkeys(group.members, everything), previous)
        return {member: (seats[member],) for member in group.members}
    owner = level(group.takers, group.claimants(previous))
    return group.share(owner, previous)
