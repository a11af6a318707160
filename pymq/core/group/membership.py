"""A consumer group: its members, their assignment, and the state of each topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pymq.core.batch.offset_ranges import EVERYTHING, NOTHING, Ranges, joined
from pymq.core.group.leases import Leases
from pymq.core.group.topic_state import TopicState
from pymq.core.message import (
    Acquire,
    GetLeases,
    GroupLeases,
    GroupMember,
    GroupOffset,
    GroupState,
    Join,
    Lease,
    Range,
    Settle,
)
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER
from pymq.core.values import Factory, define

SPANS_MAX = 1_000  # in one answer
PER_MS = 20  # so many members and partitions delay the next assignment by a millisecond ...
PAUSE_MAX_MS = 500  # ... up to so much

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
    told: int = 0  # the generation of the last assignment it was sent
    waiting: Acquire | None = None
    waits_until: int = NEVER
    ordered: bool | None = None
    topic_id: str = ""  # a later topic of the name has a greater id; "": the member named none

    def describe(self, now: int) -> GroupMember:
        """Describe the member, for people."""
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
class ConsumerGroup:
    """A consumer group."""

    name: str
    generation: int = 0
    members: dict[str, Member] = Factory(dict)
    leases: dict[tuple[str, str], Leases] = Factory(dict)  # by topic and partition
    topics: dict[str, TopicState] = Factory(dict)
    # members by partition, as of the last assignment
    _owners: dict[tuple[str, str], tuple[str, ...]] = Factory(dict)
    turn: int = 0  # the next partition to begin with, so that none is always first
    joining: dict[str, int] = Factory(dict)  # requests of members that have no assignment yet
    assign_from: int = 0  # no assignment before then ...
    assign_at: int = NEVER  # ... and one then, since there are changes

    @property
    def is_empty(self) -> bool:
        """Whether the group has neither members nor offsets."""
        return not self.members and not self.leases

    def owners(self, topic: str, partition: str) -> tuple[str, ...]:
        """The members that the partition is assigned to."""
        return self._owners.get((topic, partition), ())

    def topic(self, name: str) -> TopicState:
        """The state of a topic that a member consumes, or in which the group has an offset."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicState(name)
        return found

    def end(self, topic: str, partition: str) -> int | None:
        """The end of a partition, as members have reported it."""
        found = self.topics.get(topic)
        reach = found.reach.get(partition) if found is not None else None
        return reach[1] if reach is not None else None

    # --- members --------------------------------------------------------------------------------

    def join(self, m: Join, source: str, now: int) -> Member:
        """Add a member, or let a known one begin anew."""
        self.grow(m.topic, m.partitions)
        if m.topic_id:
            self.topic(m.topic).adopt(
                m.topic_id, [p for topic, p in self.leases if topic == m.topic]
            )
        before = self.members.get(m.member)
        if before is not None and before.topic != m.topic:
            self.release(before, now)
            before = None
        member = self.members[m.member] = Member(
            m.member,
            source,
            m.topic,
            m.assignor,
            m.session_ms,
            m.ack_wait_ms,
            m.max_deliver,
            m.reset,
            now + m.session_ms,
            before.partitions if before is not None else (),
            topic_id=m.topic_id,
            ordered=m.ordered,
        )
        return member

    def grow(self, topic: str, partitions: tuple[str, ...]) -> bool:
        """Take in the partitions that a member knows; a member that knows fewer changes nothing."""
        return self.topic(topic).grow(partitions, has_members=bool(self.members))

    def release(self, member: Member, now: int) -> None:
        """Make the records available that *member* held."""
        for name, leases in self.leases.items():
            leases.release(member.id, now)
            self.open(*name)

    def assign(self, assignors: Assignors) -> None:
        """Compute the assignment: a new generation."""
        self.generation += 1
        by_topic: dict[str, list[Member]] = {}
        for member in self.members.values():
            by_topic.setdefault(member.topic, []).append(member)
        for topic, members in by_topic.items():
            consumed = self.topic(topic)
            names = consumed.partitions
            consumed.ordered = strictest(member.ordered for member in members)
            place = {name: index for index, name in enumerate(names)}
            previous = {
                m.id: [(topic, place[p]) for p in m.partitions if p in place] for m in members
            }
            assign = assignors(members[0].assignor)
            given = assign([m.id for m in members], [(topic, i) for i in place.values()], previous)
            for member in members:
                member.partitions = tuple(names[i] for _, i in given.get(member.id, ()))
        owners: dict[tuple[str, str], list[str]] = {}
        for member in self.members.values():
            for partition in member.partitions:
                owners.setdefault((member.topic, partition), []).append(member.id)
        self._owners = {name: tuple(ids) for name, ids in owners.items()}

    def pause_ms(self) -> int:
        """How long the next assignment waits for further changes: in proportion to its cost.

        A small group does not wait. Members that join a large one together share one assignment
        (as with Kafka's ``group.initial.rebalance.delay.ms``), so assignments take a bounded share
        of the coordinator's time.
        """
        topics = {member.topic for member in self.members.values()}
        size = len(self.members) + sum(len(self.topic(name).partitions) for name in topics)
        return min(size // PER_MS, PAUSE_MAX_MS)

    # --- offsets --------------------------------------------------------------------------------

    def set_offset(self, topic: str, partition: str, leases: Leases, topic_id: str = "") -> None:
        """Set a partition's offset; *topic_id* is the topic that it belongs to, if known."""
        self.leases[topic, partition] = leases
        self.topic(topic).begin_anew(partition, topic_id)

    def drop_offset(self, topic: str, partition: str) -> None:
        """Remove a partition's offset."""
        if self.leases.pop((topic, partition), None) is not None:
            self.topic(topic).begin_anew(partition, "")
            self._drop_if_blank(topic)

    def forget(self, topic: str, is_gone: Callable[[str], bool]) -> list[tuple[str, str]]:
        """Drop the state of deleted topics of that name; returns the partitions that had
        offsets.
        """
        consumed = self.topic(topic)
        names = [name for name in self.leases if name[0] == topic]
        forgotten = [name for name in names if is_gone(consumed.id_of(name[1]))]
        for name in forgotten:
            del self.leases[name]
        consumed.forget(is_gone)
        self._drop_if_blank(topic)
        return forgotten

    def _drop_if_blank(self, topic: str) -> None:
        if self.topics[topic].is_blank:
            del self.topics[topic]

    # --- records without an order ---------------------------------------------------------------

    def open(self, topic: str, partition: str) -> None:
        """Note that a partition may have records for members that it is not assigned to."""
        consumed = self.topics.get(topic)
        if consumed is not None and consumed.ordered is not True:
            consumed.open[partition] = None

    def _loose(self, topic: str, leases: Leases) -> Ranges:
        """The unordered records of a partition, which any member may lease at any time."""
        ordered = self.topic(topic).ordered
        return leases.unkeyed if ordered is None else NOTHING if ordered else EVERYTHING

    # --- leases ---------------------------------------------------------------------------------

    def learn(
        self, member: Member, m: Acquire
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Take in *member*'s ends of partitions, and begin those that have no offset.

        Returns the partitions whose ends have changed, and those whose offsets must be written.
        """
        news, changed = list[tuple[str, str]](), list[tuple[str, str]]()
        consumed = self.topic(member.topic)
        names = set(consumed.partitions)
        for partition, start, end in m.known:
            # Other partitions belong to a topic that was deleted, or to none.
            if partition in names and consumed.learn(partition, start, end):
                name = member.topic, partition
                news.append(name)
                if self._begin(name, member, consumed):
                    changed.append(name)
                self.open(*name)
        for partition, start, end in m.unkeyed:
            name = member.topic, partition
            leases = self.leases.get(name)
            if leases is None or partition not in names:
                continue
            if leases.unkeyed.put(max(start, leases.committed), end):
                news.append(name)
                self.open(*name)
        return news, changed

    def _begin(self, name: tuple[str, str], member: Member, consumed: TopicState) -> bool:
        """Give a partition an offset if it has none; returns whether it must be written."""
        partition = name[1]
        start, end = consumed.reach[partition]
        leases = self.leases.get(name)
        if leases is not None:
            # Ranges that did not fit into the last record may fit now.
            is_news = leases.begin_at(start)
        else:
            is_news = not consumed.is_from_start(partition, member.reset)
            # From now on END means this offset.
            self.leases[name] = Leases(end if is_news else start)
        consumed.begin(partition, member.topic_id)
        return is_news

    def lease(self, member: Member, now: int) -> tuple[Lease, ...]:
        """Lease records to a waiting member; returns the leases."""
        assert member.waiting is not None
        limit, found = member.waiting.max_records, list[Lease]()
        # without the partitions that it has paused
        wanted = {partition for partition, _, _ in member.waiting.known}
        count, reach = len(member.partitions), self.topic(member.topic).reach
        self.turn += 1
        for step in range(count):
            if limit <= 0:
                break
            partition = member.partitions[(self.turn + step) % count]
            name = member.topic, partition
            if partition not in wanted:
                continue
            leases, known = self.leases.get(name), reach.get(partition)
            if leases is None or known is None or not leases.has_available(known[1], now):
                continue
            loose, among = self._loose(member.topic, leases), EVERYTHING
            # With more members than partitions, several members share one.
            allowed = self.owners(*name) if member.waiting.shares is None else (member.id,)
            if leases.held_by_others(allowed, loose):
                among = loose  # Another member still works on ordered records of the partition.
            share = self._share(member, leases, known[1], limit, loose)
            leased = self._acquire(member, partition, leases, known[1], share, now, among)
            limit -= sum(lease.end - lease.start for lease in leased)
            found += leased
        if not found and limit > 0 and member.waiting.shares:
            found = self._lease_elsewhere(member, limit, now)
        return tuple(found)

    def _acquire(
        self,
        member: Member,
        partition: str,
        leases: Leases,
        end: int,
        limit: int,
        now: int,
        among: Ranges,
    ) -> list[Lease]:
        until = now + member.ack_wait_ms
        found = leases.acquire(member.id, end, limit, until, now, member.max_deliver, among)
        return [Lease(partition, x.start, x.end, x.delivery_count, x.dead) for x in found]

    def _lease_elsewhere(self, member: Member, limit: int, now: int) -> list[Lease]:
        """Lease unordered records of another member's partition to an idle member."""
        consumed = self.topic(member.topic)
        for partition in list(consumed.open):
            name = member.topic, partition
            if member.id in self.owners(*name):
                continue  # This partition was tried already.
            leases, known = self.leases.get(name), consumed.reach.get(partition)
            del consumed.open[partition]
            if leases is None or known is None:
                continue
            loose = self._loose(member.topic, leases)
            if leases.has_available(known[1], now, loose):
                mark("group.lent")
                consumed.open[partition] = None  # It goes to the end of the line.
                share = self._share(member, leases, known[1], limit, loose)
                return self._acquire(member, partition, leases, known[1], share, now, loose)
        return []

    def _share(self, member: Member, leases: Leases, end: int, limit: int, loose: Ranges) -> int:
        """How many records of a partition one member gets while others are idle.

        Unordered records are divided among the idle members; ordered ones are all its own.
        """
        idle = self.topic(member.topic).idle
        others = len(idle) - (member.id in idle)
        if not others or limit <= 1:
            return limit  # the usual case: with many records no member is idle
        theirs = leases.open_before(end, loose) * others // (1 + others)
        return min(limit, max(1, leases.open_before(end) - theirs)) if theirs else limit

    def give_back(self, member: Member, unread: Iterable[tuple[str, Range]], now: int) -> None:
        """Return records that the application of *member* has not seen."""
        for partition, ranges in _by_partition(unread).items():
            if (leases := self.leases.get((member.topic, partition))) is not None:
                leases.give_back(member.id, ranges, now)

    def put_off(self, member: Member, m: Settle, now: int) -> int:
        """Return records to be delivered again, or renew them; returns when the first are due."""
        due = NEVER
        before: dict[str, int] = {}  # the member names nothing before this offset any more
        for partition, (first, end), delay in sorted(m.nacks):
            start = max(first, before.get(partition, 0))
            leases = self.leases.get((member.topic, partition))
            if leases is not None and start < end:
                before[partition] = end
                leases.reject(member.id, [(start, end)], now + delay)
                due = min(due, now + delay) if delay else due
        for partition, ranges in _by_partition(m.renewals).items():
            if (leases := self.leases.get((member.topic, partition))) is not None:
                leases.renew(member.id, ranges, now + member.ack_wait_ms)
                due = min(due, now + member.ack_wait_ms)
        return due

    def acknowledge(
        self, member: Member, acks: Iterable[tuple[str, Range]]
    ) -> tuple[int, int, list[tuple[str, str]]]:
        """Acknowledge records.

        Returns how many were not leased to *member*, how many of those will be delivered again,
        and the partitions whose offsets have changed.
        """
        refused = lapsed = 0
        changed = list[tuple[str, str]]()
        for partition, ranges in _by_partition(acks).items():
            name = member.topic, partition
            leases = self.leases.get(name)
            if leases is None:
                refused += sum(end - start for start, end in ranges)
                continue
            before = leases.committed
            if late := leases.acknowledge(member.id, ranges):
                refused += late
                lapsed += leases.open_in(ranges)
            if leases.committed != before or leases.done_ranges():
                changed.append(name)
        return refused, lapsed, changed

    def next_due(self, now: int) -> int:
        """When the next session, wait, delay or lease ends."""
        due = self.assign_at
        if self.members:
            for member in self.members.values():
                due = min(due, member.gone_at, member.waits_until)
            for leases in self.leases.values():
                due = min(due, leases.next_due(now))
        return due

    # --- for people -----------------------------------------------------------------------------

    def describe(self, request: int, now: int) -> GroupState:
        """Describe the group, as the answer to a request."""
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
        """Describe the records of a partition, as the answer to a request."""
        leases = self.leases.get((m.topic, m.partition))
        end = self.end(m.topic, m.partition) or 0
        if leases is None:
            return GroupLeases(m.id, known_end=end)
        spans = leases.spans(m.offset, max(0, min(m.max_spans, SPANS_MAX)), now)
        return GroupLeases(m.id, leases.committed, leases.next, end, spans)


def _by_partition(spans: Iterable[tuple[str, Range]]) -> dict[str, list[Range]]:
    """Join ranges by partition, so that each record is handled once however often it is named."""
    found: dict[str, list[Range]] = {}
    for partition, span in spans:
        found.setdefault(partition, []).append(span)
    return {partition: joined(ranges) for partition, ranges in found.items()}


def strictest(said: Iterable[bool | None]) -> bool | None:
    """Return the strictest order that any member requires."""
    found = set(said)
    return True if True in found else None if None in found or not found else False
