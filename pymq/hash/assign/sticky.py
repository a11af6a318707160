"""Assignor ``sticky``: level, and what a member has it keeps."""

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
    """Balanced, with as little movement away from *previous* as balance allows.

    *previous* may be stale: members and partitions that are gone are ignored, and a partition that
    several claim, where it needs one owner, goes to the claimant with the least.

    Here ``c`` joins; one partition moves, from the member that had most.

    >>> assign(["a", "b", "c"], [("t", i) for i in range(4)],
    ...        {"a": [("t", 0), ("t", 3)], "b": [("t", 1), ("t", 2)]})
    {'a': (('t', 0),), 'b': (('t', 1), ('t', 2)), 'c': (('t', 3),)}

    More members than partitions: the spare ones share, and keep what they share.

    >>> assign(["a", "b", "c"], [("t", 0), ("t", 1)], {"a": [("t", 1)], "c": [("t", 1)]})
    {'a': (('t', 1),), 'b': (('t', 0),), 'c': (('t', 1),)}
    """
    group = AssignmentGroup.of(members, partitions, subscriptions)
    if group.is_uniform and len(group.members) > len(group.takers) > 0:
        # Seen the other way round it is one levelling of members over partitions. Owners first and
        # spares second, as below, would move more: who is spare depends on who sits where.
        everything = tuple(group.takers)
        seats = level(dict.fromkeys(group.members, everything), previous)
        return {member: (seats[member],) for member in group.members}
    owner = level(group.takers, group.claimants(previous))
    return group.share(owner, previous)
