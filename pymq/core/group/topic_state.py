"""A topic as a group consumes it: which one of its name, what partitions, and how far they reach.

A topic that is deleted and made again is another one, with a greater id (docs/decisions/0101). Its
offsets begin anew, so nothing that a group has, or was told, of the one before may pass for word of
it, and nothing that comes late for word of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pymq.core.message import BEGIN
from pymq.core.values import Factory, define
from pymq.errors import StaleEpoch


@define
class TopicState:
    """The topic of one name, as members have told of it and offsets are about it.

    As soon as a member has told its id, all of it is about that one topic: what was kept of earlier
    ones is forgotten before it joins, and it is refused if a later one is known.
    """

    name: str
    topic_id: str = ""  # of the one that members have joined for; "": none has told
    partitions: tuple[str, ...] = ()  # as members have told
    reach: dict[str, tuple[int, int]] = Factory(dict)  # log start, high watermark; by partition
    _ids: dict[str, str] = Factory(dict)  # of the topic that each offset is about, if that is known
    ordered: bool | None = None  # see Join; the strictest of what its members say
    # Partitions that may have records which any member may lease, and the members that wait for
    # such, in the order in which they asked.
    open: dict[str, None] = Factory(dict)
    idle: dict[str, None] = Factory(dict)
    _added: dict[str, None] = Factory(dict)  # partitions that came after the group had begun

    @property
    def is_blank(self) -> bool:
        """Whether nothing is known of it."""
        return not (self.topic_id or self.partitions or self.reach or self._ids)

    # --- which one ------------------------------------------------------------------------------

    def check(self, topic_id: str) -> None:
        """Whether a member may join for the topic with that id.

        Raises:
            StaleEpoch: there has been a later one since.
        """
        if max([self.topic_id, *self._ids.values()]) > topic_id:
            raise StaleEpoch(f"topic {self.name!r} was deleted and made again; ask for it anew")

    def adopt(self, topic_id: str, offsets: Iterable[str]) -> None:
        """A member has told which one it means; *offsets* are the partitions that have any.

        Those of which nobody has told what topic they are about are about this one.
        """
        self.topic_id = topic_id
        for partition in offsets:
            self._ids.setdefault(partition, topic_id)

    def id_of(self, partition: str) -> str:
        """The id of the topic that a partition's offset is about, or ""."""
        return self._ids.get(partition, "")

    def begin(self, partition: str, topic_id: str) -> None:
        """A partition has an offset; *topic_id* is that of the topic that it is about, or ""."""
        if topic_id:
            self._ids.setdefault(partition, topic_id)

    def begin_anew(self, partition: str, topic_id: str) -> None:
        """A partition's offset is another one than before."""
        self._ids.pop(partition, None)  # If it is not told now, who joins next does.
        self.reach.pop(partition, None)  # Else its start would be no news.
        self.begin(partition, topic_id)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """The topics of this name with such ids were deleted."""
        self._ids = {name: id for name, id in self._ids.items() if not is_gone(id)}
        self.reach.clear()  # Members tell it again.
        if is_gone(self.topic_id):
            self._added.clear()
            self.partitions = ()  # until a member tells of what was made anew
            self.topic_id = ""

    # --- its partitions -------------------------------------------------------------------------

    def grow(self, partitions: tuple[str, ...], *, has_members: bool) -> bool:
        """Learn of partitions that a member has seen; those who know less say nothing new."""
        known = self.partitions
        if len(partitions) <= len(known):
            return False
        self.partitions = partitions
        if self._ids or (known and has_members):
            # Who takes over knows no partitions but those that the group has begun.
            old = {*self._ids, *known}
            self._added.update((name, None) for name in partitions if name not in old)
        return True

    def learn(self, partition: str, start: int, end: int) -> bool:
        """Learn from a member how far a partition reaches; whether that is news."""
        before = self.reach.get(partition, (-1, -1))
        after = max(before[0], start), max(before[1], end)
        self.reach[partition] = after
        return after != before

    def is_from_start(self, partition: str, reset: int) -> bool:
        """Whether a partition without an offset is consumed from its first record."""
        # What is added to a topic that the group consumes is new from its first record.
        return reset == BEGIN or partition in self._added
