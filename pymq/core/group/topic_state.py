"""A consumer group's state of a topic: the topic's id, its partitions and their ends.

If a topic is deleted and created again, the new topic has a greater id (docs/decisions/0101). The
group starts the new topic with new offsets. So the group must not apply state of the old topic, or
late requests about the old topic, to the new topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pymq.core.message import BEGIN
from pymq.core.values import Factory, define
from pymq.errors import StaleEpoch


@define
class TopicState:
    """The state of a topic, from members' reports and stored offsets.

    After a member has named the topic's id, all state belongs to that id: state of earlier topics
    is dropped before the member joins, and members of an earlier topic are refused.
    """

    name: str
    topic_id: str = ""  # the id that members have named; "": no member has named one
    partitions: tuple[str, ...] = ()  # the partitions that members have reported
    reach: dict[str, tuple[int, int]] = Factory(dict)  # log start, high watermark; by partition
    _ids: dict[str, str] = Factory(dict)  # the topic id of each partition's offset, if known
    ordered: bool | None = None  # the strictest order that a member requires; see Join
    # Partitions that may have unordered records for idle members, in the order of the tries.
    open: dict[str, None] = Factory(dict)
    idle: dict[str, None] = Factory(dict)
    has_priorities: bool = False  # whether any record so far had a priority
    _added: dict[str, None] = Factory(dict)  # partitions that were added after the group had begun

    @property
    def is_blank(self) -> bool:
        """Whether there is no state."""
        return not (self.topic_id or self.partitions or self.reach or self._ids)

    # --- identity of the topic --------------------------------------------------------------------

    def check(self, topic_id: str) -> None:
        """Check that a member may join for the topic with that id.

        Raises:
            StaleEpoch: a later topic of that name exists.
        """
        if max([self.topic_id, *self._ids.values()]) > topic_id:
            raise StaleEpoch(
                f"topic {self.name!r} was deleted and created again; send the request again"
            )

    def adopt(self, topic_id: str, offsets: Iterable[str]) -> None:
        """Adopt the id that a member has named; *offsets* are the partitions with an offset.

        Offsets without a topic id belong to this topic.
        """
        self.topic_id = topic_id
        for partition in offsets:
            self._ids.setdefault(partition, topic_id)

    def id_of(self, partition: str) -> str:
        """The topic id of a partition's offset, or ""."""
        return self._ids.get(partition, "")

    def begin(self, partition: str, topic_id: str) -> None:
        """Note a partition's offset; *topic_id* is the id of the offset's topic, or ""."""
        if topic_id:
            self._ids.setdefault(partition, topic_id)

    def begin_anew(self, partition: str, topic_id: str) -> None:
        """Note that a partition's offset was reset."""
        # If the topic's id is unknown, the next member to join provides it.
        self._ids.pop(partition, None)
        # Otherwise the next report of this partition would not count as a change.
        self.reach.pop(partition, None)
        self.begin(partition, topic_id)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Drop the state of deleted topics of this name: those whose ids *is_gone* accepts."""
        self._ids = {name: id for name, id in self._ids.items() if not is_gone(id)}
        self.reach.clear()  # Members report the ends again.
        if is_gone(self.topic_id):
            self._added.clear()
            self.partitions = ()  # unknown until a member names the new topic
            self.topic_id = ""

    # --- its partitions -------------------------------------------------------------------------

    def grow(self, partitions: tuple[str, ...], *, has_members: bool) -> bool:
        """Adopt a member's list of partitions if that list is longer; returns whether it is."""
        known = self.partitions
        if len(partitions) <= len(known):
            return False
        self.partitions = partitions
        if self._ids or (known and has_members):
            # A new coordinator knows only the partitions in which the group has an offset.
            old = {*self._ids, *known}
            self._added.update((name, None) for name in partitions if name not in old)
        return True

    def learn(self, partition: str, start: int, end: int) -> bool:
        """Store the start and end of a partition that a member reports.

        Returns whether the known start or end has changed.
        """
        before = self.reach.get(partition, (-1, -1))
        after = max(before[0], start), max(before[1], end)
        self.reach[partition] = after
        return after != before

    def is_from_start(self, partition: str, reset: int) -> bool:
        """Whether a partition without an offset is consumed from its first record."""
        # A partition that is added to a consumed topic is read from its first record.
        return reset == BEGIN or partition in self._added
