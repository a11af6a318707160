"""How much a coordinator of groups keeps: whoever may use a group chooses how many members it has.

A member costs a broker some KB, and every assignment of its group a look at it; an offset is a
record for good. What is there already is never refused, nor is what a log holds that was written
under other bounds.
"""

from __future__ import annotations

from typing import Self

from pymq.core.partition.fetch_limits import at_least
from pymq.core.values import value
from pymq.errors import GroupLimitReached


@value
class GroupLimits:
    """The bounds of each coordinator; there is one for every partition of the offsets topic."""

    members: int = 1_000  # of a group, as Kafka's group.max.size
    groups: int = 10_000  # of a coordinator
    offsets: int = 100_000  # of a group: partitions in which it has one

    @classmethod
    def of(cls, members: int | None) -> Self:
        """The limits that somebody has chosen; None is the usual one.

        Raises:
            ConfigError: nobody could join.
        """
        return cls() if members is None else cls(at_least("group_max_members", members, 1))

    def check_members(self, group: str, count: int) -> None:
        """Whether a group of *count* members may have one more.

        Raises:
            GroupLimitReached: it may not.
        """
        if count >= self.members:
            raise GroupLimitReached(
                f"group {group!r} has {count} members, and no group may have more than "
                f"{self.members} (--group-max-members of the brokers); close some consumers",
                limit=self.members,
            )

    def check_groups(self, count: int) -> None:
        """Whether a coordinator of *count* groups may have one more.

        Raises:
            GroupLimitReached: it may not.
        """
        if count >= self.groups:
            raise GroupLimitReached(
                f"this coordinator has {count} groups already; delete those that nobody uses",
                limit=self.groups,
            )

    def check_offsets(self, group: str, count: int) -> None:
        """Whether a group may come to have *count* offsets.

        Raises:
            GroupLimitReached: it may not.
        """
        if count > self.offsets:
            raise GroupLimitReached(
                f"group {group!r} would have more than {self.offsets} offsets; "
                "consume some of its topics with another group",
                limit=self.offsets,
            )
