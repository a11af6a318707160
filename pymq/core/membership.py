"""A consumer group and its members: who there is, what each is to consume, how far each got."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pymq.core.leases import Leases
from pymq.core.message import (
    BEGIN,
    Acquire,
    GetLeases,
    GroupLeases,
    GroupMember,
    GroupOffset,
    GroupState,
)
from pymq.core.types import NEVER
from pymq.core.values import Factory, define

SPANS_MAX = 1_000  # that one answer tells

TopicIndex = tuple[str, int]
Assign = Callable[
    [Sequence[str], Sequence[TopicIndex], Mapping[str, Sequence[TopicIndex]]],
    dict[str, tuple[TopicIndex, ...]],
]
Assignors = Callable[[str], Assign]


@define
class Member:
    """A consumer in a group."""

    id: str
    source: str
    topic: str
    assignor: str
    session_ms: int
    ack_wait_ms: int
    max_deliver: int
    reset: int
    gone_at: int
    partitions: tuple[str, ...]  # assigned
    told: int = 0  # the last generation that it was told of
    waiting: Acquire | None = None
    waits_until: int = NEVER
    topic_id: str = ""  # those of later topics are greater; "": not told

    def describe(self, now: int) -> GroupMember:
        """All about it, for people."""
        waiting = self.waiting
        return GroupMember(
            self.id,
            self.topic,
            self.partitions,
            self.source,
            self.assignor,
            self.ack_wait_ms,
            self.max_deliver,
            max(0, now + self.session_ms - self.gone_at),
            None if waiting is None else tuple(partition for partition, _, _ in waiting.known),
        )


@define
class Group:
    """A consumer group."""

    name: str
    generation: int = 0
    members: dict[str, Member] = Factory(dict)
    leases: dict[tuple[str, str], Leases] = Factory(dict)  # by topic and partition
    known: dict[tuple[str, str], tuple[int, int]] = Factory(dict)  # log start, high watermark
    # Which topics the leases are about, by their ids: a name may have had several.
    ids: dict[tuple[str, str], str] = Factory(dict)
    topics: dict[str, tuple[str, ...]] = Factory(dict)  # partitions, as members have told
    added: dict[tuple[str, str], None] = Factory(dict)  # partitions that came after it had begun
    meant: dict[str, str] = Factory(dict)  # of which topics that is told, by their ids
    _owners: dict[tuple[str, str], tuple[str, ...]] = Factory(dict)  # as of the last assignment
    turn: int = 0  # so that no partition is always asked first

    @property
    def is_empty(self) -> bool:
        """A group without members and without offsets is none."""
        return not self.members and not self.leases

    def owners(self, topic: str, partition: str) -> tuple[str, ...]:
        """The members that the partition is assigned to."""
        return self._owners.get((topic, partition), ())

    def grow(self, topic: str, partitions: tuple[str, ...]) -> bool:
        """Learn of partitions that a member has seen; those who know less say nothing new."""
        known = self.topics.get(topic, ())
        if len(partitions) <= len(known):
            return False
        self.topics[topic] = partitions
        begun = {name[1] for name in self.ids if name[0] == topic}
        if begun or (known and self.members):
            # Who takes over knows no partitions but those that the group has begun.
            old = begun.union(known)
            self.added.update(((topic, p), None) for p in partitions if p not in old)
        return True

    def learn(self, member: Member, partition: str, start: int, end: int) -> bool:
        """Learn from *member* how far a partition reaches; whether that is news."""
        name = member.topic, partition
        before = self.known.get(name, (-1, -1))
        after = max(before[0], start), max(before[1], end)
        self.known[name] = after
        return after != before

    def release(self, member: Member, now: int) -> None:
        """What *member* held is for others."""
        for leases in self.leases.values():
            leases.release(member.id, now)

    def assign(self, assignors: Assignors) -> None:
        """Compute who consumes what: a new generation."""
        self.generation += 1
        by_topic: dict[str, list[Member]] = {}
        for member in self.members.values():
            by_topic.setdefault(member.topic, []).append(member)
        for topic, members in by_topic.items():
            names = self.topics.get(topic, ())
            place = {name: index for index, name in enumerate(names)}
            previous = {
                m.id: [(topic, place[p]) for p in m.partitions if p in place] for m in members
            }
            assign = assignors(members[0].assignor)
            given = assign([m.id for m in members], [(topic, i) for i in place.values()], previous)
            for member in members:
                member.partitions = tuple(names[i] for _, i in given.get(member.id, ()))
        self._owners = {}
        for member in self.members.values():
            for partition in member.partitions:
                name = member.topic, partition
                self._owners[name] = (*self._owners.get(name, ()), member.id)

    def newest(self, topic: str) -> str:
        """The id of the latest topic of that name that it knows of, or ""."""
        ids = [id for name, id in self.ids.items() if name[0] == topic]
        ids.append(self.meant.get(topic, ""))
        return max([*ids, *(m.topic_id for m in self.members.values() if m.topic == topic)])

    def adopt(self, topic: str, topic_id: str) -> None:
        """Offsets of which nobody has told what topic they are about are about this one."""
        if not topic_id:
            return
        self.meant[topic] = topic_id
        for name in self.leases:
            if name[0] == topic:
                self.ids.setdefault(name, topic_id)

    def forget(self, topic: str, is_gone: Callable[[str], bool]) -> list[tuple[str, str]]:
        """The topics of that name with such ids were deleted; returns partitions with offsets."""
        names = [name for name in self.leases if name[0] == topic]
        forgotten = [name for name in names if is_gone(self.ids.get(name, ""))]
        for name in forgotten:
            del self.leases[name]
            self.ids.pop(name, None)
        for name in [name for name in self.known if name[0] == topic]:
            del self.known[name]  # Members tell it again.
        if is_gone(self.meant.get(topic, "")):
            for name in [name for name in self.added if name[0] == topic]:
                del self.added[name]
            self.topics.pop(topic, None)  # until a member tells of what was made anew
            self.meant.pop(topic, None)
        return forgotten

    def from_start(self, name: tuple[str, str], reset: int) -> bool:
        """Whether a partition without an offset is consumed from its first record."""
        # What is added to a topic that the group consumes is new from its first record.
        return reset == BEGIN or name in self.added

    def describe(self, request: int, now: int) -> GroupState:
        """All about it, as the answer to a request."""
        members = tuple(member.describe(now) for member in self.members.values())
        offsets = tuple(
            GroupOffset(
                topic,
                partition,
                leases.committed,
                leases.next,
                leases.in_flight,
                leases.waiting,
                leases.holders,
                leases.is_full,
            )
            for (topic, partition), leases in sorted(self.leases.items())
        )
        return GroupState(request, self.name, self.generation, members, offsets)

    def describe_leases(self, m: GetLeases, now: int) -> GroupLeases:
        """What has become of the records of a partition, as the answer to a request."""
        leases = self.leases.get((m.topic, m.partition))
        _, end = self.known.get((m.topic, m.partition), (0, 0))
        if leases is None:
            return GroupLeases(m.id, known_end=end)
        spans = leases.spans(m.offset, max(0, min(m.max_spans, SPANS_MAX)), now)
        return GroupLeases(m.id, leases.committed, leases.next, end, spans)
