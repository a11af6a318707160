"""Assignor ``range``: every member gets a range of neighbouring partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pymq.hash.assign.base import NONE, Assignment, AssignmentGroup, Partition, register

__all__ = ["assign"]


@register("range")
def assign(
    members: Sequence[str],
    partitions: Sequence[Partition],
    previous: Mapping[str, Sequence[Partition]] = NONE,
    *,
    subscriptions: Mapping[str, Collection[str]] | None = None,
) -> Assignment:
    """Assign contiguous ranges over all topics together; the first members get the remainder.

    The assignor ignores *previous*: a new member shifts most ranges. Choose this assignor if
    neighbouring partitions belong together, or for an assignment that is easy to read.

    >>> assign(["b", "a"], [("t", 0), ("t", 1), ("t", 2)])
    {'a': (('t', 0), ('t', 1)), 'b': (('t', 2),)}

    With more members than partitions, the spare members share partitions.

    >>> assign(["a", "b", "c"], [("t", 0), ("t", 1)])
    {'a': (('t', 0),), 'b': (('t', 1),), 'c': (('t', 0),)}
    """
    group = AssignmentGroup.of(members, partitions, subscriptions)
    owner: dict[Partition, str] = {}
    load = dict.fromkeys(group.members, 0)
    for takers, run in group.by_takers().items():
        each, extra = divmod(len(run), len(takers))
        # The members with the fewest partitions so far get the remainder; otherwise the same
        # members would get one more partition of every set of topics.
        favoured = set(sorted(takers, key=lambda member: load[member])[:extra])
        at = 0
        for member in takers:
            size = each + (member in favoured)
            owner |= dict.fromkeys(run[at : at + size], member)
            load[member] += size
            at += size
    return group.share(owner)
