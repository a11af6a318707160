"""A topic as a group consumes it: its id, its partitions and their ends.

A topic that is deleted and created again is another topic, with a greater id
(docs/decisions/0101). Its offsets begin anew. So the group must not apply what it knows of the old
topic, or late requests about it, to the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pymq.core.message import BEGIN
from pymq.core.values import Factory, define
from pymq.errors import StaleEpoch


@define
class TopicState:
    """The state of the topic of one name, from what members report and offsets belong to.

    Once a member has named the topic's id, all of the state is about that topic: the state of
    earlier topics is dropped before the member joins, and a member of an earlier one is refused.
    """

    name: str
    topic_id: str = ""  # the id that members have named; "": none has
    partitions: tuple[str, ...] = ()  # as members have reported
    reach: dict[str, tuple[int, int]] = Factory(dict)  # log start, high watermark; by partition
    _ids: dict[str, str] = Factory(dict)  # the topic id of each offset, if known
    ordered: bool | None = None  # see Join; the strictest of all members
    # Partitions that may have unordered records, and the idle members that wait for
    # them, in the order of their requests.
    open: dict[str, None] = Factory(dict)
    idle: dict[str, None] = Factory(dict)
    has_priorities: bool = False  # a record had one, at any time
    _added: dict[str, None] = Factory(dict)  # partitions that were added after the group had begun

    @property
    def is_blank(self) -> bool:
        """Whether there is no state."""
        return not (self.topic_id or self.partitions or self.reach or self._ids)

    # --- which one ------------------------------------------------------------------------------

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
        """Take in the id that a member has named; *offsets* are the partitions that have any.

        Offsets without a topic id belong to this topic.
        """
        self.topic_id = topic_id
        for partition in offsets:
            self._ids.setdefault(partition, topic_id)

    def id_of(self, partition: str) -> str:
        """The id of the topic that a partition's offset belongs to, or ""."""
        return self._ids.get(partition, "")

    def begin(self, partition: str, topic_id: str) -> None:
        """Note a partition's offset; *topic_id* is the topic that it belongs to, or ""."""
        if topic_id:
            self._ids.setdefault(partition, topic_id)

    def begin_anew(self, partition: str, topic_id: str) -> None:
        """Note that a partition's offset has changed."""
        self._ids.pop(partition, None)  # If no id is known, the next member that joins names it.
        self.reach.pop(partition, None)  # Else the start would not count as a change.
        self.begin(partition, topic_id)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Take in that the topics of this name with such ids were deleted."""
        self._ids = {name: id for name, id in self._ids.items() if not is_gone(id)}
        self.reach.clear()  # Members report it again.
        if is_gone(self.topic_id):
            self._added.clear()
            self.partitions = ()  # until a member names the new topic
            self.topic_id = ""

    # --- its partitions -------------------------------------------------------------------------

    def grow(self, partitions: tuple[str, ...], *, has_members: bool) -> bool:
        """Take in the partitions that a member knows; a member that knows fewer changes nothing."""
        known = self.partitions
        if len(partitions) <= len(known):
            return False
        self.partitions = partitions
        if self._ids or (known and has_members):
            # A coordinator that took over knows only the partitions that the group has begun.
            old = {*self._ids, *known}
            self._added.update((name, None) for name in partitions if name not in old)
        return True

    def learn(self, partition: str, start: int, end: int) -> bool:
        """Take in a partition's start and end from a member; returns whether they changed."""
        before = self.reach.get(partition, (-1, -1))
        after = max(before[0], start), max(before[1], end)
        self.reach[partition] = after
        return after != before

    def is_from_start(self, partition: str, reset: int) -> bool:
        """Whether a partition without an offset is consumed from its first record."""
        # A partition added to a topic that the group consumes is new from its first record.
        return reset == BEGIN or partition in self._added
