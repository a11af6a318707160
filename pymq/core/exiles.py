"""Who was given up for a topic that was deleted, so that it is told why whatever it asks."""

from __future__ import annotations

from pymq.core.membership import Member
from pymq.errors import FencedMember

EXILES_MAX = 10_000  # former members that are still told that their topic was deleted


class Exiles:
    """Members that were given up because their topic was deleted: whatever they ask, they are told.

    As many as there is room for; who was given up first is forgotten first.
    """

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}  # by member

    def add(self, member: Member) -> None:
        """It is given up, for its topic was deleted."""
        self._topics[member.id] = member.topic
        if len(self._topics) > EXILES_MAX:
            del self._topics[next(iter(self._topics))]

    def fenced(self, group: str, member: str) -> FencedMember:
        """What somebody is told who is no member of *group*."""
        topic = self._topics.get(member)
        if topic is None:
            return FencedMember(f"{member} is no member of group {group!r} any more")
        why = f"{member} is no member of group {group!r} any more: topic {topic!r} was deleted"
        return FencedMember(why, deleted=topic)
