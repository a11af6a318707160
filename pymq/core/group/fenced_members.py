"""Members that were removed for good, and the error that each of their requests gets."""

from __future__ import annotations

from pymq.core.group.membership import Member
from pymq.errors import FencedMember, NotSubscribed, PymqError

EXILES_MAX = 10_000  # former members that are remembered


class FencedMembers:
    """Members that were removed because their topic was deleted or their group unsubscribed.

    The oldest is forgotten first when there are too many.
    """

    def __init__(self) -> None:
        # topic, and whether it was deleted; by member
        self._topics: dict[str, tuple[str, bool]] = {}

    def add(self, member: Member, *, is_deleted: bool) -> None:
        """Add a member whose topic was deleted, or whose group is no longer subscribed to it."""
        self._topics[member.id] = member.topic, is_deleted
        if len(self._topics) > EXILES_MAX:
            del self._topics[next(iter(self._topics))]

    def reason(self, group: str, member: str) -> PymqError:
        """Return the error for a request of a member that *group* does not have."""
        why = f"{member} is no member of group {group!r} any more"
        if member not in self._topics:
            return FencedMember(why)
        topic, is_deleted = self._topics[member]
        if is_deleted:
            return FencedMember(f"{why}: topic {topic!r} was deleted", deleted=topic)
        return not_subscribed(group, topic)


def not_subscribed(group: str, topic: str) -> NotSubscribed:
    """Return the error for a group without a subscription to the topic."""
    return NotSubscribed(
        f"group {group!r} is not subscribed to topic {topic!r} any more; "
        "a consumer that is opened anew subscribes it again"
    )
