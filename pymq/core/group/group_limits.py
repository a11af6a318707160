"""Limits on the members, groups and offsets of a group coordinator.

Clients choose the names of members and groups, so their numbers need a bound. A member takes some
KB and makes each assignment of its group slower; an offset is a record that stays. Existing
members, groups and offsets are never refused, nor are those that a log holds from a time with
higher limits.
"""

from __future__ import annotations

from typing import Self

from pymq.core.counts import plural
from pymq.core.pending.fetch_limits import at_least
from pymq.core.values import value
from pymq.errors import GroupLimitReached


@value
class GroupLimits:
    """The limits of each coordinator. Each partition of the offsets topic has one."""

    members: int = 1_000  # members of a group, as Kafka's group.max.size
    groups: int = 10_000  # groups of a coordinator
    offsets: int = 100_000  # partitions in which a group may have an offset
    heartbeat_ms: int = 2_000  # interval of heartbeats that members of Kafka's new groups get

    @classmethod
    def of(cls, members: int | None) -> Self:
        """Make limits from an operator's option; None is the default.

        Raises:
            ConfigError: no member could join.
        """
        return cls() if members is None else cls(at_least("group_max_members", members, 1))

    def check_members(self, group: str, count: int) -> None:
        """Check that a group of *count* members may have one more.

        Raises:
            GroupLimitReached: it may not.
        """
        if count >= self.members:
            raise GroupLimitReached(
                f"group {group!r} has {plural(count, 'member')}, and no group may have more than "
                f"{self.members} (--group-max-members of the brokers); close some consumers",
                limit=self.members,
            )

    def check_groups(self, count: int) -> None:
        """Check that a coordinator of *count* groups may have one more.

        Raises:
            GroupLimitReached: it may not.
        """
        if count >= self.groups:
            raise GroupLimitReached(
                f"this coordinator has {count} groups already; delete unused ones",
                limit=self.groups,
            )

    def check_offsets(self, group: str, count: int) -> None:
        """Check that a group may have *count* offsets.

        Raises:
            GroupLimitReached: it may not.
        """
        if count > self.offsets:
            raise GroupLimitReached(
                f"group {group!r} would have more than {self.offsets} offsets; "
                "consume some of its topics with another group",
                limit=self.offsets,
            )
