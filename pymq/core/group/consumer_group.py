"""A consumer group: its members, assignment and offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import attrs

from pymq.core.batch.offset_ranges import EVERYTHING, Ranges
from pymq.core.group.group_offsets import GroupOffsets, Name
from pymq.core.group.leases import Leases
from pymq.core.group.member import Member, MemberState
from pymq.core.group.topic_state import TopicState
from pymq.core.message import GroupState, Join, Lease
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER
from pymq.core.values import Factory, define

PER_MS = 20  # the next assignment is delayed by 1 ms for this many members and partitions ...
PAUSE_MAX_MS = 500  # ... but by no more than this

TopicIndex = tuple[str, int]


class Assign(Protocol):
    """Divides partitions among members; see :class:`pymq.hash.assign.Assignor`."""

    def __call__(
        self,
        members: Sequence[str],
        partitions: Sequence[TopicIndex],
        previous: Mapping[str, Sequence[TopicIndex]] = ...,
        *,
        subscriptions: Mapping[str, Collection[str]] | None = None,
    ) -> dict[str, tuple[TopicIndex, ...]]: ...


Assignors = Callable[[str], Assign]


@define
class ConsumerGroup:
    """A consumer group."""

    name: str
    generation: int = 0
    members: dict[str, Member] = Factory(dict)
    offsets: GroupOffsets = Factory(GroupOffsets)
    # members by partition, as of the last assignment
    _owners: dict[Name, tuple[str, ...]] = Factory(dict)
    _turn: int = 0  # the partition to begin with; rotates, so that none is always first
    assign_from: int = 0  # earliest time of the next assignment
    assign_at: int = NEVER  # time of the next assignment, if there are changes

    @property
    def is_empty(self) -> bool:
        """Whether the group has neither members nor offsets."""
        return not self.members and not self.offsets.leases

    def owners(self, topic: str, partition: str) -> tuple[str, ...]:
        """The members to which the partition is assigned."""
        return self._owners.get((topic, partition), ())

    # --- members --------------------------------------------------------------------------------

    def join(self, m: Join, source: str, now: int) -> Member:
        """Add a member, or reset a known member."""
        self.grow(m.topic, m.partitions)
        if m.topic_id:
            self.offsets.adopt(m.topic, m.topic_id)
        before = self.members.get(m.member)
        if before is not None:
            before.move(MemberState.REMOVED)
            if before.topic != m.topic:
                self.offsets.release(before, now)
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
            m.id,
            topic_id=m.topic_id,
            ordered=m.ordered,
            within=None if m.within is None else frozenset(m.within),
        )
        return member

    def grow(self, topic: str, partitions: tuple[str, ...]) -> bool:
        """Adopt a member's list of partitions if that list is longer; returns whether it is."""
        return self.offsets.topic(topic).grow(partitions, has_members=bool(self.members))

    def remove(self, member: Member, now: int) -> None:
        """Remove a member, and make its leased records available."""
        member.move(MemberState.REMOVED)
        del self.members[member.id]
        self.offsets.topic(member.topic).idle.pop(member.id, None)
        self.offsets.release(member, now)

    # --- assignment -----------------------------------------------------------------------------

    def assign(self, assignors: Assignors, now: int) -> None:
        """Compute a new assignment, which begins a new generation."""
        self.generation += 1
        by_topic: dict[str, list[Member]] = {}
        for member in self.members.values():
            by_topic.setdefault(member.topic, []).append(member)
        for topic, members in by_topic.items():
            consumed = self.offsets.topic(topic)
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
            if any(member.within is not None for member in members):
                _hand_on(members)
        owners: dict[Name, list[str]] = {}
        for member in self.members.values():
            for partition in member.partitions:
                owners.setdefault((member.topic, partition), []).append(member.id)
        self._owners = {name: tuple(ids) for name, ids in owners.items()}
        self.assign_at, self.assign_from = NEVER, now + self.pause_ms()

    def pause_ms(self) -> int:
        """How long to wait for more changes before the next assignment, in proportion to its cost.

        A small group does not wait. Members that join a large group at about the same time share
        one assignment (as with Kafka's ``group.initial.rebalance.delay.ms``), so assignments take a
        bounded share of the coordinator's time.
        """
        topics = {member.topic for member in self.members.values()}
        count = sum(len(self.offsets.topic(name).partitions) for name in topics)
        return min((len(self.members) + count) // PER_MS, PAUSE_MAX_MS)

    # --- leases ---------------------------------------------------------------------------------

    def lease(self, member: Member, now: int) -> tuple[Lease, ...]:
        """Lease records to a waiting member; returns the leases."""
        assert member.waiting is not None
        limit, found = member.waiting.max_records, list[Lease]()
        shares, consumed = member.waiting.shares, self.offsets.topic(member.topic)
        self._turn += 1
        for least in self._levels(consumed, now) if consumed.has_priorities else (0,):
            if limit <= 0:
                break
            leased = self._lease_own(member, limit, now, least)
            limit -= sum(lease.end - lease.start for lease in leased)
            found += leased
            # Records of a higher priority in other partitions come before the member's own records.
            if shares and limit > 0 and (least > 0 or not found):
                leased = self._lease_elsewhere(member, limit, now, least)
                limit -= sum(lease.end - lease.start for lease in leased)
                found += leased
        return tuple(found)

    def _levels(self, consumed: TopicState, now: int) -> list[int]:
        """The priorities of a topic's leasable records, from the highest down to 0."""
        levels = {0}
        for partition, (_, end) in consumed.reach.items():
            if (leases := self.offsets.leases.get((consumed.name, partition))) is not None:
                levels |= leases.levels(end, now)
        return sorted(levels, reverse=True)

    def _lease_own(self, member: Member, limit: int, now: int, least: int) -> list[Lease]:
        """Lease records of the member's own partitions with a priority of at least *least*."""
        assert member.waiting is not None
        # partitions that the member has not paused
        wanted = {partition for partition, _, _ in member.waiting.known}
        count, reach = len(member.partitions), self.offsets.topic(member.topic).reach
        found = list[Lease]()
        for step in range(count):
            if limit <= 0:
                break
            partition = member.partitions[(self._turn + step) % count]
            name = member.topic, partition
            if partition not in wanted:
                continue
            leases, known = self.offsets.leases.get(name), reach.get(partition)
            if leases is None or known is None or not leases.has_available(known[1], now):
                continue
            loose, among = self.offsets.loose(member.topic, leases), EVERYTHING
            # If there are more members than partitions, several members share one.
            allowed = self.owners(*name) if member.waiting.shares is None else (member.id,)
            if member.waiting.ahead or leases.held_by_others(allowed, loose):
                # This or another member still works on ordered records of the partition.
                among = loose
            share = self._share(member, leases, known[1], limit, loose)
            leased = self._acquire(member, partition, leases, known[1], share, now, among, least)
            limit -= sum(lease.end - lease.start for lease in leased)
            found += leased
        return found

    def _acquire(
        self,
        member: Member,
        partition: str,
        leases: Leases,
        end: int,
        limit: int,
        now: int,
        among: Ranges,
        least: int,
    ) -> list[Lease]:
        until = now + member.ack_wait_ms
        most = member.max_deliver
        found = leases.acquire(member.id, end, limit, until, now, most, among, least)
        return [attrs.evolve(lease, partition=partition) for lease in found]

    def _lease_elsewhere(self, member: Member, limit: int, now: int, least: int) -> list[Lease]:
        """Lease unordered records of at least priority *least* from other members' partitions.

        At priority 0 the records of one partition are enough for an idle member.
        """
        consumed, found = self.offsets.topic(member.topic), list[Lease]()
        for partition in list(consumed.open):
            name = member.topic, partition
            if member.id in self.owners(*name) or not member.can_consume(partition):
                continue  # this partition was already tried, or is not for this member
            leases, known = self.offsets.leases.get(name), consumed.reach.get(partition)
            if least and leases and known and max(leases.levels(known[1], now), default=0) < least:
                continue  # the topic may have other partitions
            del consumed.open[partition]
            if leases is None or known is None:
                continue
            loose = self.offsets.loose(member.topic, leases)
            if leases.has_available(known[1], now, loose):
                mark("group.lent")
                consumed.open[partition] = None  # Move the partition to the end of the queue.
                share = self._share(member, leases, known[1], limit, loose)
                leased = self._acquire(
                    member, partition, leases, known[1], share, now, loose, least
                )
                found += leased
                limit -= sum(lease.end - lease.start for lease in leased)
                if not least or limit <= 0:
                    break
        return found

    def is_awaited(self, topic: str) -> bool:
        """Whether a member waits for records of a topic."""
        if self.offsets.topic(topic).idle:
            return True
        return any(m.waiting is not None and m.topic == topic for m in self.members.values())

    def has_unordered(self, topic: str, now: int) -> bool:
        """Whether unordered records of a topic may be leased."""
        consumed = self.offsets.topic(topic)
        for partition in list(consumed.open):
            leases = self.offsets.leases.get((topic, partition))
            known = consumed.reach.get(partition)
            if leases is not None and known is not None:
                loose = self.offsets.loose(topic, leases)
                if leases.has_available(known[1], now, loose):
                    return True
            del consumed.open[partition]
        return False

    def _share(self, member: Member, leases: Leases, end: int, limit: int, loose: Ranges) -> int:
        """How many records of a partition one member gets while others are idle.

        Unordered records are divided among the idle members; ordered records all go to this member.
        """
        idle = self.offsets.topic(member.topic).idle
        others = len(idle) - (member.id in idle)
        if not others or limit <= 1:
            return limit  # the usual case: if there are many records, no member is idle
        theirs = leases.open_before(end, loose) * others // (1 + others)
        return min(limit, max(1, leases.open_before(end) - theirs)) if theirs else limit

    # --- deadline and description -----------------------------------------------------------------

    def next_due(self, now: int) -> int:
        """The time when the next session, wait, delay, lease or pause ends."""
        due = min(self.assign_at, self.offsets.next_due(now))
        for member in self.members.values():
            due = min(due, member.gone_at, member.waits_until)
        return due

    def describe(self, request: int, now: int, *, is_new: bool = False) -> GroupState:
        """Return a description of the group; *is_new*: the coordinator has just started."""
        members = tuple(member.describe(now) for member in self.members.values())
        offsets = self.offsets.describe()
        return GroupState(request, self.name, self.generation, members, offsets, is_new=is_new)


def _hand_on(members: Sequence[Member]) -> None:
    """Give partitions whose owner cannot consume them to members that can, with the fewest first.

    A partition that no member can consume has no owner.
    """
    lost: dict[str, None] = {}
    for member in members:
        lost |= {name: None for name in member.partitions if not member.can_consume(name)}
        member.partitions = tuple(filter(member.can_consume, member.partitions))
    for name in lost:
        able = [member for member in members if member.can_consume(name)]
        if able and not any(name in member.partitions for member in able):
            member = min(able, key=lambda member: len(member.partitions))
            member.partitions = (*member.partitions, name)


def strictest(said: Iterable[bool | None]) -> bool | None:
    """Return the strictest order of records that any member requires."""
    found = set(said)
    return True if True in found else None if None in found or not found else False
