"""Assignor ``range``: every member takes a run of neighbouring partitions."""

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
    """Contiguous runs, over all topics together; the first members take one more where needed.

    *previous* is not used: adding a member shifts most runs. Choose it when neighbouring partitions
    belong together, or to see at a glance who has what.

    >>> assign(["b", "a"], [("t", 0), ("t", 1), ("t", 2)])
    {'a': (('t', 0), ('t', 1)), 'b': (('t', 2),)}

    More members than partitions: the spare ones share.

    >>> assign(["a", "b", "c"], [("t", 0), ("t", 1)])
    {'a': (('t', 0),), 'b': (('t', 1),), 'c': (('t', 0),)}
    """
    group = AssignmentGroup.of(members, partitions, subscriptions)
    owner: dict[Partition, str] = {}
    load = dict.fromkeys(group.members, 0)
    for takers, run in group.by_takers().items():
        each, extra = divmod(len(run), len(takers))
        # The remainder goes to those with the least so far, or the same members would take one
        # more of every set of topics.
        favoured = set(sorted(takers, key=lambda member: load[member])[:extra])
        at = 0
        for member in takers:
            size = each + (member in favoured)
            owner |= dict.fromkeys(run[at : at + size], member)
            load[member] += size
            at += size
    return group.share(owner)
