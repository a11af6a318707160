"""Leases records to the members of groups.

A request for records waits until records are available (as in the purgatory of Kafka's
``SharePartitionManager``). Three events make records available: a member reports new ends of
partitions, a member settles a lease, or a lease expires. After each of these events the coordinator
serves the waiting members.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from pymq.core.group.consumer_group import ConsumerGroup
from pymq.core.group.group_limits import GroupLimits
from pymq.core.group.group_offsets import Name
from pymq.core.group.member import Member, MemberState
from pymq.core.group.offset_log import GroupHost, OffsetLog
from pymq.core.message import Acquire, Acquired, Lease, Settle, Settled
from pymq.core.pending.growth import Growth
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.values import define

# By topic, the groups whose members may wait for its records, each with its coordinator's index.
Awaited = dict[str, dict[str, int]]

IDLE_TRIES = 64  # idle members that one request tries to serve


@define
class GroupContext:
    """The groups of a coordinator, their clock and timers, and the store of their offsets."""

    host: GroupHost
    limits: GroupLimits
    groups: dict[str, ConsumerGroup]
    offsets: OffsetLog
    clock: PausableClock  # the time of groups, members and leases
    timers: TimerHeap[str]  # by group: the next deadline by that clock
    index: int  # of the coordinator's partition of the offsets topic
    awaited: Awaited


class LeaseManager:
    """Answers requests for records, and settles leases."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context

    def acquire(self, group: ConsumerGroup, member: Member, m: Acquire, now: int) -> None:
        """Lease records to a member, now or as soon as records are available."""
        context = self._context
        fresh = sum((member.topic, name) not in group.offsets.leases for name, _, _ in m.known)
        if fresh:
            context.limits.check_offsets(m.group, len(group.offsets.leases) + fresh)
        news, changed = group.offsets.learn(member, m)
        for name in changed:
            context.offsets.changed(group.name, *name)
        if member.waiting is not None:
            self.answer(group, member, (), now)
        if member.state is MemberState.JOINING:
            # The member has sent this request before it got the answer to its Join.
            context.host.reply(member.source, Acquired(m.id, (), group.generation), now)
        elif not m.ahead:
            member.move(MemberState.WAITING, m, context.clock.ms + m.max_wait_ms)
            self._serve(group, member, now)
        if len(group.members) > 1:
            self._serve_owners(group, news, now)
            self._serve_idle(group, member.topic, now)
        if m.ahead and member.state is MemberState.STABLE:
            # Members that have nothing to do were served first.
            member.move(MemberState.WAITING, m, context.clock.ms + m.max_wait_ms)
            self._serve(group, member, now)
        if m.max_wait_ms == 0 or member.generation != group.generation:
            self.answer(group, member, (), now)
        context.timers.sooner(m.group, member.waits_until)

    def grown(self, growth: Growth, now: int) -> None:
        """Serve the members that wait for records of a partition that has grown."""
        context, topic = self._context, growth.name.topic
        groups = context.awaited[topic]
        for each in [name for name, index in groups.items() if index == context.index]:
            group = context.groups.get(each)
            if group is None or not group.is_awaited(topic):
                del groups[each]
            elif group.offsets.grown(growth):
                self._serve_owners(group, (growth.name,), now)
                self._serve_idle(group, topic, now)
        if not groups:
            del context.awaited[topic]

    def settle(
        self, source: str, group: ConsumerGroup, member: Member, m: Settle, now: int
    ) -> None:
        """Settle leases of a member, and serve the members that wait for the records."""
        log, timers, at = self._context.offsets, self._context.timers, self._context.clock.ms
        if m.whole:
            missing, lapsed = group.offsets.unheld(member, m)
            if missing:
                answer = Settled(m.id, missing, lapsed=lapsed)
                self._context.host.reply(source, answer, now)
                return
        # Handle returned records first, so that acknowledged ranges around them do not include
        # them.
        timers.sooner(group.name, group.offsets.put_off(member, m, at))
        group.offsets.give_back(member, m.unread, at)
        refused, lapsed, changed = group.offsets.acknowledge(member, m.acks)
        for name in changed:
            log.changed(group.name, *name)
        log.note_counts(group, [(member.topic, partition) for partition, _, _ in m.nacks])
        if m.id:
            log.answer(source, Settled(m.id, refused, lapsed=lapsed), durable=m.durable)
        told = (*m.acks, *m.unread, *((partition, span) for partition, span, _ in m.nacks))
        names = {(member.topic, partition): None for partition, _ in told}
        for name in names:
            group.offsets.open(*name)
        self._serve_owners(group, names, now)
        self._serve_idle(group, member.topic, now)

    def answer(
        self, group: ConsumerGroup, member: Member, leases: tuple[Lease, ...], now: int
    ) -> None:
        """Answer the member's waiting request for records, if any."""
        if member.waiting is None:
            return
        shares, at = member.waiting.shares, self._context.clock.ms
        has_more = bool(leases and shares) and group.has_unordered(member.topic, at)
        answer = Acquired(member.waiting.id, leases, group.generation, has_more=has_more)
        member.move(MemberState.STABLE)
        group.offsets.topic(member.topic).idle.pop(member.id, None)
        self._context.host.reply(member.source, answer, now)

    def tick(self, group: ConsumerGroup, now: int) -> None:
        """Expire leases, and answer requests whose wait has ended."""
        at = self._context.clock.ms
        group.offsets.expire(at)
        self._context.offsets.note_counts(group, list(group.offsets.leases))
        for member in list(group.members.values()):
            self._serve(group, member, now)
        for member in group.members.values():
            if member.waits_until <= at:
                self.answer(group, member, (), now)

    def _serve_owners(self, group: ConsumerGroup, names: Iterable[Name], now: int) -> None:
        """Serve the members that wait for records of some partitions."""
        for id in dict.fromkeys(id for name in names for id in group.owners(*name)):
            member = group.members.get(id)  # The member may have left since the last assignment.
            if member is not None and member.waiting is not None:
                self._serve(group, member, now)

    def _serve_idle(self, group: ConsumerGroup, topic: str, now: int) -> None:
        """Lease unordered records of others' partitions to members whose own partitions have no
        records.
        """
        consumed = group.offsets.topics.get(topic)
        if consumed is None or not consumed.open:
            return
        for id in list(islice(consumed.idle, IDLE_TRIES)):
            if not consumed.open:
                return
            self._serve(group, group.members[id], now)

    def _serve(self, group: ConsumerGroup, member: Member, now: int) -> None:
        """Answer a waiting member if there are records for that member."""
        if member.waiting is None:
            return
        at = self._context.clock.ms
        if found := group.lease(member, at):
            self._context.timers.sooner(group.name, at + member.ack_wait_ms)
            self.answer(group, member, found, now)
            return
        self._context.awaited.setdefault(member.topic, {})[group.name] = self._context.index
        if member.waiting.shares:
            if member.state is MemberState.WAITING:
                member.move(MemberState.IDLE, member.waiting, member.waits_until)
            group.offsets.topic(member.topic).idle[member.id] = None
