"""The members of groups: joins, heartbeats, departures, and the assignment of partitions.

A member belongs to the node from which it joined; the connection from that node is authenticated.
Other nodes may not send requests for the member.
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.core.group.consumer_group import Assignors, ConsumerGroup
from pymq.core.group.lease_manager import GroupContext, LeaseManager
from pymq.core.group.member import FencedMembers, Member, MemberState
from pymq.core.message import (
    Acquire,
    Acquired,
    Answer,
    Assigned,
    Heartbeat,
    Join,
    Leave,
    Settle,
    Settled,
    Unsubscribe,
)
from pymq.core.observe.coverage import mark
from pymq.core.types import node_of
from pymq.errors import AuthorizationFailed, PymqError


class MembershipManager:
    """Admits and removes members, and assigns partitions to them."""

    def __init__(self, context: GroupContext, leases: LeaseManager, assignors: Assignors) -> None:
        self._context = context
        self._leases = leases
        self._assignors = assignors
        self._fenced = FencedMembers()

    def find(
        self, source: str, m: Heartbeat | Acquire | Settle | Leave
    ) -> tuple[ConsumerGroup, Member]:
        """Find the member that sends a request, and restart its session timeout.

        Raises:
            FencedMember, NotSubscribed: the member was removed.
            AuthorizationFailed: the member belongs to another node.
        """
        group = self._context.groups.get(m.group)
        member = group.members.get(m.member) if group else None
        if group is None or member is None:
            raise self._fenced.reason(m.group, m.member)
        self._check_owner(group, member, source)
        member.gone_at = self._context.clock.ms + member.session_ms
        return group, member

    def _check_owner(self, group: ConsumerGroup, member: Member, source: str) -> None:
        """Check that *source* may send requests for a member.

        Raises:
            AuthorizationFailed: the member belongs to another node.
        """
        if node_of(member.source) != node_of(source):
            raise AuthorizationFailed(
                f"member {member.id} of group {group.name!r} is another client's"
            )

    # --- requests -------------------------------------------------------------------------------

    def join(self, source: str, m: Join, now: int) -> None:
        """Add a member, or reset a known member; the answer is the next assignment.

        Raises:
            PymqError: the member may not join.
        """
        self._assignors(m.assignor)
        self._admit(source, m)
        self._check_topic(m, now)
        group = self._context.groups.setdefault(m.group, ConsumerGroup(m.group))
        before = group.members.get(m.member)
        if before is not None:
            self._leases.answer(group, before, (), now)
        member = group.join(m, source, self._context.clock.ms)
        self._context.timers.sooner(m.group, member.gone_at)
        self._rebalance(group, now)

    def _admit(self, source: str, m: Join) -> None:
        """Check that the group has room for a member, and that a known member belongs to *source*.

        Raises:
            GroupLimitReached: the group or the coordinator is full.
            AuthorizationFailed: the member belongs to another node.
        """
        groups, limits = self._context.groups, self._context.limits
        group = groups.get(m.group)
        if group is None:
            limits.check_groups(len(groups))
        elif (before := group.members.get(m.member)) is not None:
            self._check_owner(group, before, source)
        else:
            limits.check_members(m.group, len(group.members))
        limits.check_offsets(m.group, len(m.partitions))

    def _check_topic(self, m: Join, now: int) -> None:
        """Forget an earlier topic of that name if the topic was created again.

        A coordinator that took over after the deletion received no notice of the deletion.

        Raises:
            StaleEpoch: a later topic of that name exists.
        """
        group = self._context.groups.get(m.group)
        if group is None or not m.topic_id:
            return
        group.offsets.topic(m.topic).check(m.topic_id)
        self.forget(group, m.topic, lambda topic_id: "" < topic_id < m.topic_id, now)

    def heartbeat(self, group: ConsumerGroup, member: Member, m: Heartbeat, now: int) -> None:
        """Answer a heartbeat with the member's assignment."""
        self._context.limits.check_offsets(m.group, len(m.partitions))
        if group.grow(member.topic, m.partitions):
            self._rebalance(group, now)
        self._assigned(group, member, m.id, now)

    def _assigned(self, group: ConsumerGroup, member: Member, request: int, now: int) -> None:
        member.generation = group.generation
        answer = Assigned(request, group.generation, member.partitions)
        self._context.host.reply(member.source, answer, now)

    def leave(self, source: str, group: ConsumerGroup, member: Member, m: Leave, now: int) -> None:
        """Remove a member that leaves."""
        group.offsets.give_back(member, m.unread, self._context.clock.ms)
        self.remove(group, member, now)
        self._context.host.reply(source, Settled(m.id), now)

    def unsubscribe(self, source: str, m: Unsubscribe, now: int) -> None:
        """End the group's subscription to a topic: remove the members, but keep the offsets."""
        group = self._context.groups.get(m.name)
        if group is not None:
            for member in [x for x in group.members.values() if x.topic == m.topic]:
                mark("group.member_unsubscribed")
                self._fence(group, member, now, is_deleted=False)
        self._context.host.reply(source, Answer(m.id), now)

    def forget(
        self, group: ConsumerGroup, topic: str, is_gone: Callable[[str], bool], now: int
    ) -> None:
        """Drop the offsets of deleted topics of that name, and remove the topics' members."""
        for name in group.offsets.forget(topic, is_gone):
            self._context.offsets.changed(group.name, *name)
        members = [x for x in group.members.values() if x.topic == topic and is_gone(x.topic_id)]
        for member in members:
            mark("group.member_without_topic")
            self._fence(group, member, now, is_deleted=True)

    # --- removal --------------------------------------------------------------------------------

    def _fence(self, group: ConsumerGroup, member: Member, now: int, *, is_deleted: bool) -> None:
        """Remove a live member.

        The error answers the member's pending request, or its next request if none is pending.
        """
        self._fenced.add(member, is_deleted=is_deleted)
        self._refuse(member, self._fenced.reason(group.name, member.id), now)
        self.remove(group, member, now)

    def _refuse(self, member: Member, error: PymqError, now: int) -> None:
        """Answer the member's pending request, if there is one, with *error*."""
        if member.waiting is not None:
            answer: Acquired | Assigned = Acquired(member.waiting.id, error=error)
        elif member.state is MemberState.JOINING:
            answer = Assigned(member.join_id, error=error)
        else:
            return
        self._context.host.reply(member.source, answer, now)

    def remove(self, group: ConsumerGroup, member: Member, now: int) -> None:
        """Remove a member, and assign its partitions to others."""
        group.remove(member, self._context.clock.ms)
        self._context.offsets.note_counts(group, list(group.offsets.leases))
        self._rebalance(group, now)
        if group.is_empty:
            self._context.groups.pop(group.name, None)

    def resign(self, error: PymqError, now: int) -> None:
        """Answer all pending requests with *error*."""
        for group in self._context.groups.values():
            for member in group.members.values():
                self._refuse(member, error, now)

    # --- assignment -----------------------------------------------------------------------------

    def tick(self, group: ConsumerGroup, now: int) -> None:
        """Remove members whose session has expired, and rebalance if a rebalance is due."""
        at = self._context.clock.ms
        for member in [x for x in group.members.values() if x.gone_at <= at]:
            mark("group.member_gone")
            self.remove(group, member, now)
        if group.assign_at <= at:
            self._assign(group, now)

    def _rebalance(self, group: ConsumerGroup, now: int) -> None:
        """Rebalance now, or a little later together with further changes."""
        if self._context.clock.ms >= group.assign_from:
            self._assign(group, now)
        else:
            group.assign_at = group.assign_from
            self._context.timers.sooner(group.name, group.assign_at)

    def _assign(self, group: ConsumerGroup, now: int) -> None:
        """Rebalance: compute the assignment and answer the members that wait for it."""
        group.assign(self._assignors, self._context.clock.ms)
        for member in group.members.values():
            self._leases.answer(group, member, (), now)
            if member.state is MemberState.JOINING:
                member.move(MemberState.STABLE)
                self._assigned(group, member, member.join_id, now)
