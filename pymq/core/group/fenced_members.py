"""Who was given up for good, so that it is told why whatever it asks."""

from __future__ import annotations

from pymq.core.group.membership import Member
from pymq.errors import FencedMember, NotSubscribed, PymqError

EXILES_MAX = 10_000  # former members that are still told why they are none


class FencedMembers:
    """Members that were given up because their topic was deleted, or their group unsubscribed.

    As many as there is room for; who was given up first is forgotten first.
    """

    def __init__(self) -> None:
        self._topics: dict[str, tuple[str, bool]] = {}  # and whether it was deleted; by member

    def add(self, member: Member, *, is_deleted: bool) -> None:
        """It is given up: its topic was deleted, or its group is not subscribed to it any more."""
        self._topics[member.id] = member.topic, is_deleted
        if len(self._topics) > EXILES_MAX:
            del self._topics[next(iter(self._topics))]

    def reason(self, group: str, member: str) -> PymqError:
        """What somebody is told who is no member of *group*."""
        why = f"{member} is no member of group {group!r} any more"
        if member not in self._topics:
            return FencedMember(why)
        topic, is_deleted = self._topics[member]
        if is_deleted:
            return FencedMember(f"{why}: topic {topic!r} was deleted", deleted=topic)
        return not_subscribed(group, topic)


def not_subscribed(group: str, topic: str) -> NotSubscribed:
    """The error of a group that consumes a topic without a subscription."""
    return NotSubscribed(
        f"group {group!r} is not subscribed to topic {topic!r} any more; "
        "a consumer that is opened anew subscribes it again"
    )
