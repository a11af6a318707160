"""The classic groups of one partition of the offsets topic: checks requests, and finds members.

Classic groups and pymq's groups share offsets: a group has one committed offset in a partition,
whichever client has committed it. The coordinator does not store members: after a takeover, members
join again. At a time, all members of a group are clients of Kafka, or all are clients of pymq.
Requests of the other kind of client are refused.
"""

from __future__ import annotations

from pymq.core.group.consumer_group import ConsumerGroup
from pymq.core.group.kafka.classic.codes import ClassicCode
from pymq.core.group.kafka.classic.group import ClassicGroup, ClassicGroupState
from pymq.core.group.kafka.classic.member import JoinedMember
from pymq.core.group.kafka.reconciled.codes import ReconciledCode
from pymq.core.group.kafka.reconciled.coordinator import ReconciledCoordinator
from pymq.core.group.lease_manager import GroupContext
from pymq.core.group.leases import Leases
from pymq.core.group.request_validation import ClassicRequest
from pymq.core.message import (
    BeatClassic,
    ClassicDone,
    ClassicState,
    CommitClassic,
    DescribeClassic,
    JoinClassic,
    JoinedClassic,
    LeaveClassic,
    Message,
    SyncClassic,
    SyncedClassic,
)
from pymq.core.observe.coverage import mark
from pymq.core.time.timer_heap import TimerHeap
from pymq.errors import GroupLimitReached, PymqError

SESSION_MAX_MS = 30 * 60_000  # as Kafka's group.max.session.timeout.ms


class ClassicCoordinator:
    """The classic groups of one coordinator."""

    def __init__(self, context: GroupContext, reconciled: ReconciledCoordinator) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.timers: TimerHeap[str] = TimerHeap()
        self._context = context
        self._reconciled = reconciled  # groups with members of the other kind of Kafka's clients
        self._now = 0  # of the request at hand

    def has_members(self, group: str) -> bool:
        """Whether Kafka's clients are members of a group, or about to be."""
        found = self.groups.get(group)
        return found is not None and bool(found.members or found.pending)

    # --- requests -------------------------------------------------------------------------------

    def step(self, source: str, m: ClassicRequest, now: int) -> None:
        """Take in a request."""
        self._now = now
        match m:
            case JoinClassic():
                self._join(source, m)
            case SyncClassic():
                self._sync(source, m)
            case BeatClassic():
                self._answer(source, ClassicDone(m.id, (self._beat(m),)))
            case LeaveClassic():
                codes = tuple(self._leave(m.group, *each) for each in m.members)
                self._answer(source, ClassicDone(m.id, codes))
            case CommitClassic():
                self._commit(source, m)
            case DescribeClassic():
                self._answer(source, self._describe(m))
        self.settle(m.group)

    def _answer(self, source: str, message: Message) -> None:
        self._context.host.reply(source, message, self._now)

    def settle(self, name: str) -> None:
        """Set the timer of a group. Drop the group if it has neither members nor offsets."""
        group = self.groups.get(name)
        if group is None:
            return
        if not group.members and not group.pending and name not in self._context.groups:
            del self.groups[name]
            self.timers.drop(name)
            return
        self.timers.set(name, group.next_due())

    def _group(self, name: str) -> ClassicGroup:
        found = self.groups.get(name)
        if found is None:
            self._context.limits.check_groups(len(self.groups))
            found = self.groups[name] = ClassicGroup(name, self._answer)
        return found

    def _join(self, source: str, m: JoinClassic) -> None:
        at = self._context.clock.ms
        there = self._context.groups.get(m.group)
        code = ClassicCode.NONE
        if not 1 <= m.session_ms <= SESSION_MAX_MS:
            code = ClassicCode.INVALID_SESSION_TIMEOUT
        elif (there is not None and there.members) or self._reconciled.has_members(m.group):
            mark("classic.other_kind")
            code = ClassicCode.INCONSISTENT_GROUP_PROTOCOL
        if code:
            self._answer(source, JoinedClassic(m.id, code, m.member))
            return
        group = self._group(m.group)
        if not group.accepts(m):
            code = ClassicCode.INCONSISTENT_GROUP_PROTOCOL
        elif not m.member:
            code = self._join_new(source, m, group, at)
        else:
            code = self._join_known(source, m, group, at)
        if code:
            member = m.new_member if code is ClassicCode.MEMBER_ID_REQUIRED else m.member
            self._answer(source, JoinedClassic(m.id, code, member))

    def _join_new(self, source: str, m: JoinClassic, group: ClassicGroup, at: int) -> ClassicCode:
        if m.instance is not None and group.holder(m.instance) is not None:
            group.replace(m, source, at)
            return ClassicCode.NONE
        try:
            self._context.limits.check_members(m.group, len(group.members) + len(group.pending))
        except GroupLimitReached:
            return ClassicCode.GROUP_MAX_SIZE_REACHED
        if m.needs_id and m.instance is None:
            group.pending[m.new_member] = at + m.session_ms
            return ClassicCode.MEMBER_ID_REQUIRED
        group.add(m, source, m.new_member, at)
        return ClassicCode.NONE

    def _join_known(self, source: str, m: JoinClassic, group: ClassicGroup, at: int) -> ClassicCode:
        if m.member in group.pending:
            group.add(m, source, m.member, at)
            return ClassicCode.NONE
        found = group.find(m.member, m.instance)
        if isinstance(found, ClassicCode):
            return found
        group.rejoin(found, m, source, at)
        return ClassicCode.NONE

    def _member(
        self, name: str, member: str, instance: str | None, generation: int
    ) -> tuple[ClassicGroup, JoinedMember] | ClassicCode:
        group = self.groups.get(name)
        if group is None or group.state is ClassicGroupState.EMPTY:
            return ClassicCode.UNKNOWN_MEMBER_ID
        found = group.find(member, instance)
        if isinstance(found, ClassicCode):
            return found
        if generation != group.generation:
            return ClassicCode.ILLEGAL_GENERATION
        return group, found

    def _sync(self, source: str, m: SyncClassic) -> None:
        found = self._member(m.group, m.member, m.instance, m.generation)
        code = ClassicCode.NONE
        if isinstance(found, ClassicCode):
            code = found
        elif (m.protocol_type not in (None, found[0].protocol_type)) or (
            m.protocol not in (None, found[0].protocol)
        ):
            code = ClassicCode.INCONSISTENT_GROUP_PROTOCOL
        elif found[0].state is ClassicGroupState.PREPARING:
            code = ClassicCode.REBALANCE_IN_PROGRESS
        if code or isinstance(found, ClassicCode):
            self._answer(source, SyncedClassic(m.id, code))
            return
        group, member = found
        group.sync(member, m, source, self._context.clock.ms)

    def _beat(self, m: BeatClassic) -> ClassicCode:
        found = self._member(m.group, m.member, m.instance, m.generation)
        if isinstance(found, ClassicCode):
            return found
        group, member = found
        member.beat(self._context.clock.ms)
        if group.state is ClassicGroupState.PREPARING:
            return ClassicCode.REBALANCE_IN_PROGRESS
        return ClassicCode.NONE

    def _leave(self, name: str, member: str, instance: str | None) -> ClassicCode:
        group = self.groups.get(name)
        if group is None:
            return ClassicCode.UNKNOWN_MEMBER_ID
        if group.drop_pending(member, self._context.clock.ms):
            return ClassicCode.NONE
        if not member and instance is not None:
            member = group.holder(instance) or ""
        found = group.find(member, instance)
        if isinstance(found, ClassicCode):
            return found
        group.remove(found, self._context.clock.ms)
        return ClassicCode.NONE

    # --- offsets --------------------------------------------------------------------------------

    def _commit(self, source: str, m: CommitClassic) -> None:
        code = self._may_commit(m)
        if code:
            self._answer(source, ClassicDone(m.id, (code,)))
            return
        limits, groups = self._context.limits, self._context.groups
        there = groups.get(m.group)
        if there is None:
            limits.check_groups(len(groups))
        known = there.offsets.leases if there is not None else {}
        added = {(o.topic, o.partition) for o in m.offsets} - known.keys()
        limits.check_offsets(m.group, len(known) + len(added))
        if m.offsets:
            there = groups.setdefault(m.group, ConsumerGroup(m.group))
        for each in m.offsets:
            assert there is not None
            there.offsets.set_offset(
                each.topic, each.partition, Leases(each.offset), note=each.metadata
            )
            self._context.offsets.changed(m.group, each.topic, each.partition)
        self._context.offsets.answer(source, ClassicDone(m.id), durable=False)

    def _may_commit(self, m: CommitClassic) -> ClassicCode | ReconciledCode:
        if self._reconciled.has_members(m.group):
            return self._reconciled.commit_code(m)
        group, there = self.groups.get(m.group), self._context.groups.get(m.group)
        if m.generation < 0 and not m.member:
            is_free = not self.has_members(m.group) and (there is None or not there.members)
            return ClassicCode.NONE if is_free else ClassicCode.UNKNOWN_MEMBER_ID
        if group is None or group.state is ClassicGroupState.EMPTY:
            return ClassicCode.ILLEGAL_GENERATION
        found = self._member(m.group, m.member, m.instance, m.generation)
        if isinstance(found, ClassicCode):
            return found
        found[1].beat(self._context.clock.ms)
        if group.state is ClassicGroupState.COMPLETING:
            return ClassicCode.REBALANCE_IN_PROGRESS
        return ClassicCode.NONE

    # --- for people -----------------------------------------------------------------------------

    def _describe(self, m: DescribeClassic) -> ClassicState:
        group, there = self.groups.get(m.group), self._context.groups.get(m.group)
        if group is not None:
            return group.describe(m.id)
        if there is None:
            return ClassicState(m.id)
        state = ClassicGroupState.STABLE if there.members else ClassicGroupState.EMPTY
        return ClassicState(m.id, state.value, "pymq" if there.members else "")

    def kinds(self) -> tuple[tuple[str, str, str], ...]:
        """The groups that Kafka's clients have joined: name, protocol type and state."""
        return tuple(
            (name, group.protocol_type, group.state.value) for name, group in self.groups.items()
        )

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due by the coordinator's clock."""
        self._now = now
        at = self._context.clock.ms
        for name in self.timers.over(at):
            if (group := self.groups.get(name)) is not None:
                group.tick(at)
                self.settle(name)

    def resign(self, error: PymqError, now: int) -> None:
        """Answer all requests that wait with *error*: another broker takes over."""
        for group in self.groups.values():
            joins, syncs = group.waiting()
            for source, request in joins:
                self._context.host.reply(source, JoinedClassic(request, error=error), now)
            for source, request in syncs:
                self._context.host.reply(source, SyncedClassic(request, error=error), now)
        self.groups.clear()
        self.timers.clear()
