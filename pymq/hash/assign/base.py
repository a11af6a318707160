"""The signature and the registry of assignors, and their input in canonical order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pymq.errors import ConfigError
from pymq.hash.assign.level import level

__all__ = [
    "NONE",
    "Assignment",
    "AssignmentGroup",
    "Assignor",
    "Partition",
    "assignor",
    "names",
    "register",
]

Partition = tuple[str, int]  # topic, and index of the partition in it
Assignment = dict[str, tuple[Partition, ...]]  # the partitions of each member, in order

NONE: Mapping[str, Sequence[Partition]] = {}


class Assignor(Protocol):
    """Divides the partitions of a group's topics among its members.

    An assignor is pure: the same arguments give the same answer in any process, in any order of
    members and partitions. The answer contains every member. Every partition that a member may take
    has an owner. A partition has exactly one owner, unless there are too few partitions: members
    that would get none are spare, and share partitions evenly.
    """

    def __call__(
        self,
        members: Sequence[str],
        partitions: Sequence[Partition],
        previous: Mapping[str, Sequence[Partition]] = NONE,
        *,
        subscriptions: Mapping[str, Collection[str]] | None = None,
    ) -> Assignment:
        """Assign *partitions*; *previous* is the last answer, which an assignor may preserve.

        *subscriptions* limits a member to some topics; a member without an entry may take all.
        """
        ...


_ASSIGNORS: dict[str, Assignor] = {}

F = TypeVar("F", bound=Assignor)


def register(name: str) -> Callable[[F], F]:
    """Register the decorated function as assignor *name*; raises ConfigError if *name* exists."""

    def decorate(function: F) -> F:
        if name in _ASSIGNORS:
            raise ConfigError(f"there is an assignor {name!r} already; choose another name")
        _ASSIGNORS[name] = function
        return function

    return decorate


def assignor(name: str) -> Assignor:
    """Return the assignor *name*; raises ConfigError, with the known names, if there is none."""
    try:
        return _ASSIGNORS[name]
    except KeyError:
        raise ConfigError(
            f"no assignor {name!r}; known are {', '.join(names())}", known=names()
        ) from None


def names() -> tuple[str, ...]:
    """Return the names of all assignors, sorted."""
    return tuple(sorted(_ASSIGNORS))


@dataclass(frozen=True, slots=True)
class AssignmentGroup:
    """The input of an assignor in canonical order, so that the caller's order does not matter."""

    members: tuple[str, ...]
    takers: dict[Partition, tuple[str, ...]]  # members that may take a partition; at least one

    @classmethod
    def of(
        cls,
        members: Sequence[str],
        partitions: Sequence[Partition],
        subscriptions: Mapping[str, Collection[str]] | None,
    ) -> AssignmentGroup:
        """Sort the input, drop duplicates and find the takers of each partition."""
        everyone = tuple(sorted(set(members)))
        limits = subscriptions or {}
        takers: dict[Partition, tuple[str, ...]] = {}
        # One tuple object for each set of takers, so that most comparisons are by identity.
        shared: dict[tuple[str, ...], tuple[str, ...]] = {}
        of_topic: dict[str, tuple[str, ...]] = {}
        for topic in sorted({topic for topic, _ in partitions}):
            able = tuple(m for m in everyone if m not in limits or topic in limits[m])
            of_topic[topic] = shared.setdefault(able, able)
        for partition in sorted(set(partitions)):
            if able := of_topic[partition[0]]:
                takers[partition] = able
        return cls(everyone, takers)

    @property
    def is_uniform(self) -> bool:
        """Whether every member may take every partition."""
        return all(len(able) == len(self.members) for able in self.takers.values())

    def by_takers(self) -> dict[tuple[str, ...], list[Partition]]:
        """Group partitions by the members that may take them, in the order of the partitions."""
        found: dict[tuple[str, ...], list[Partition]] = {}
        for partition, able in self.takers.items():
            found.setdefault(able, []).append(partition)
        return found

    def claimants(self, previous: Mapping[str, Sequence[Partition]]) -> dict[Partition, list[str]]:
        """Return the previous owners of each partition, sorted by name."""
        found: dict[Partition, list[str]] = {}
        for member in self.members:
            for partition in dict.fromkeys(previous.get(member, ())):
                found.setdefault(partition, []).append(member)
        return found

    def share(
        self,
        owner: Mapping[Partition, str],
        claims: Mapping[str, Sequence[Partition]] = NONE,
    ) -> Assignment:
        """Return the assignment by *owner*, in which every spare member shares one partition.

        A spare member gets a partition that it owned before, if the spares remain evenly spread.
        """
        owned: dict[str, list[Partition]] = {member: [] for member in self.members}
        for partition, member in owner.items():
            owned[member].append(partition)
        allowed: dict[str, tuple[Partition, ...]] = {}
        for able, partitions in self._reach().items():
            allowed |= {m: partitions for m in able if not owned[m]}
        # Each partition has one owner here, so evenly spread spares mean evenly shared partitions.
        for member, partition in level(dict(sorted(allowed.items())), claims).items():
            owned[member].append(partition)
        return {member: tuple(sorted(partitions)) for member, partitions in owned.items()}

    def _reach(self) -> dict[tuple[str, ...], tuple[Partition, ...]]:
        """Return the partitions that members may take, for each set of members with the same
        partitions.
        """
        sets = self.by_takers()
        of_member: dict[tuple[int, ...], list[str]] = {}
        able_sets = [frozenset(able) for able in sets]
        for member in self.members:
            held = tuple(i for i, able in enumerate(able_sets) if member in able)
            of_member.setdefault(held, []).append(member)
        lists = list(sets.values())
        return {
            tuple(members): tuple(sorted(p for i in held for p in lists[i]))
            for held, members in of_member.items()
            if held
        }
