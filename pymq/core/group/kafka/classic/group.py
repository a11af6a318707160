"""A classic group: the rebalances of its members.

=============  =====================================================================================
state          what happens
=============  =====================================================================================
``EMPTY``      there is no member
``PREPARING``  a rebalance: all members have to join (again); their requests wait for each other
``COMPLETING`` all have joined, and the leader computes the assignment; syncs wait for the leader's
``STABLE``     every member has its assignment
=============  =====================================================================================

A member that joins, leaves, is silent for its session, or changes its subscription, starts a
rebalance. The group removes a member that does not join within the longest rebalance timeout, and a
member that joins but does not sync. A static member stays until its session ends. If it returns
before under a new id, it gets its assignment back without a rebalance.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Protocol

from pymq.core.group.kafka.classic.codes import ClassicCode
from pymq.core.group.kafka.classic.member import JoinedMember, Waiting
from pymq.core.message import (
    ClassicState,
    JoinClassic,
    JoinedClassic,
    SyncClassic,
    SyncedClassic,
)
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER

NONE = ClassicCode.NONE


class ClassicGroupState(Enum):
    """The state of a group; the values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class SendReply(Protocol):
    """Sends an answer to the source of a request."""

    def __call__(self, source: str, message: JoinedClassic | SyncedClassic) -> None: ...


class ClassicGroup:
    """The members of one group and their generation; times are the coordinator's clock."""

    def __init__(self, name: str, reply: SendReply) -> None:
        self.name = name
        self.state = ClassicGroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, JoinedMember] = {}
        self.pending: dict[str, int] = {}  # ids given to new members, and when they expire
        self._reply = reply
        self._static: dict[str, str] = {}  # members by instance
        self._until = NEVER  # the rebalance, or the wait for syncs, ends

    # --- members --------------------------------------------------------------------------------

    def find(self, member: str, instance: str | None) -> JoinedMember | ClassicCode:
        """Return the member with an id and an instance, or the error code if there is none."""
        if instance is not None:
            holder = self._static.get(instance)
            if holder is None:
                return ClassicCode.UNKNOWN_MEMBER_ID
            if holder != member:
                return ClassicCode.FENCED_INSTANCE_ID
        found = self.members.get(member)
        return found if found is not None else ClassicCode.UNKNOWN_MEMBER_ID

    def holder(self, instance: str) -> str | None:
        """The member of an instance."""
        return self._static.get(instance)

    def accepts(self, m: JoinClassic) -> bool:
        """Whether all members have a protocol in common with a new member."""
        if not m.protocols or not m.protocol_type:
            return False
        others = [member for member in self.members.values() if member.id != m.member]
        if m.instance is not None and (holder := self._static.get(m.instance)) is not None:
            others = [member for member in others if member.id != holder]
        if not others:
            return True
        common = set.intersection(*(set(member.protocols) for member in others))
        return m.protocol_type == self.protocol_type and not common.isdisjoint(dict(m.protocols))

    def add(self, m: JoinClassic, source: str, member: str, now: int) -> None:
        """Add a member, which starts a rebalance."""
        self.pending.pop(member, None)
        if not self.members:
            self.protocol_type = m.protocol_type
        added = self.members[member] = JoinedMember.of(m, member)
        if m.instance is not None:
            self._static[m.instance] = member
        added.joining = source, m.id
        added.beat(now)
        self._rebalance(now)

    def replace(self, m: JoinClassic, source: str, now: int) -> None:
        """Let a static member come back under a new id; the former one is fenced."""
        assert m.instance is not None
        before = self.members.pop(self._static[m.instance])
        self._refuse(before, ClassicCode.FENCED_INSTANCE_ID)
        member = self.members[m.new_member] = JoinedMember.of(m, m.new_member)
        self._static[m.instance] = member.id
        member.assignment = before.assignment
        member.beat(now)
        was_leader = self.leader == before.id
        if was_leader:
            self.leader = member.id
        if self.state is ClassicGroupState.STABLE and before.protocols == member.protocols:
            mark("classic.static_back")
            self._joined(member, (source, m.id))
            return
        member.joining = source, m.id
        if self.state is ClassicGroupState.PREPARING:
            self._complete_if_all(now)
        else:
            self._rebalance(now)

    def rejoin(self, member: JoinedMember, m: JoinClassic, source: str, now: int) -> None:
        """Handle the join request of a member that has joined before."""
        is_same = member.protocols == dict(m.protocols)
        member.protocols = dict(m.protocols)
        member.session_ms, member.rebalance_ms = m.session_ms, m.rebalance_ms
        member.beat(now)
        is_leader = member.id == self.leader
        completing = self.state is ClassicGroupState.COMPLETING
        stable = self.state is ClassicGroupState.STABLE
        if is_same and (completing or (stable and not is_leader)):
            # The member did not get the last answer, or joins again without need: repeat the
            # answer.
            mark("classic.joined_again")
            self._joined(member, (source, m.id))
            return
        self._refuse_join(member, ClassicCode.UNKNOWN_MEMBER_ID)  # its former request
        member.joining = source, m.id
        if self.state is ClassicGroupState.PREPARING:
            self._complete_if_all(now)
        else:
            self._rebalance(now)

    def remove(self, member: JoinedMember, now: int) -> None:
        """Remove a member, which starts a rebalance of the others."""
        del self.members[member.id]
        if member.instance is not None:
            self._static.pop(member.instance, None)
        self._refuse(member, ClassicCode.UNKNOWN_MEMBER_ID)
        if self.state is ClassicGroupState.PREPARING:
            self._complete_if_all(now)
        elif self.state is not ClassicGroupState.EMPTY:
            self._rebalance(now)

    def drop_pending(self, member: str, now: int) -> bool:
        """Drop the id of a client that was given an id and will not join; returns whether there was
        one.
        """
        if self.pending.pop(member, None) is None:
            return False
        if self.state is ClassicGroupState.PREPARING:
            self._complete_if_all(now)
        return True

    def waiting(self) -> tuple[list[Waiting], list[Waiting]]:
        """The waiting requests to join and to sync."""
        members = self.members.values()
        joins = [member.joining for member in members if member.joining is not None]
        return joins, [member.syncing for member in members if member.syncing is not None]

    # --- rebalances -----------------------------------------------------------------------------

    def _rebalance(self, now: int) -> None:
        for member in self.members.values():
            self._refuse_sync(member, ClassicCode.REBALANCE_IN_PROGRESS)
        self.state = ClassicGroupState.PREPARING
        longest = max((member.rebalance_ms for member in self.members.values()), default=0)
        self._until = now + longest
        self._complete_if_all(now)

    def _complete_if_all(self, now: int) -> None:
        if not self.pending and all(member.joining for member in self.members.values()):
            self._complete(now)

    def _complete(self, now: int) -> None:
        """End the join phase: a new generation of those that have joined."""
        for member in list(self.members.values()):
            if member.joining is None and member.instance is None:
                mark("classic.did_not_join")
                del self.members[member.id]
        self.generation += 1
        if not self.members:
            self.state, self._until = ClassicGroupState.EMPTY, NEVER
            self.protocol = self.leader = ""
            return
        joined = [member for member in self.members.values() if member.joining is not None]
        if not joined:
            # Only static members are left, which may come back while their sessions last.
            self._until = now + max(member.rebalance_ms for member in self.members.values())
            return
        if self.leader not in {member.id for member in joined}:
            self.leader = joined[0].id
        self.protocol = self._vote()
        self.state = ClassicGroupState.COMPLETING
        self._until = now + max(member.rebalance_ms for member in self.members.values())
        for member in joined:
            assert member.joining is not None
            waiting, member.joining = member.joining, None
            member.assignment = b""
            member.beat(now)
            self._joined(member, waiting)

    def _vote(self) -> str:
        """Of the protocols that all members have, return the one that most members prefer."""
        everyone = list(self.members.values())
        common = set.intersection(*(set(member.protocols) for member in everyone))
        votes = Counter(next(p for p in member.protocols if p in common) for member in everyone)
        return max(everyone[0].protocols, key=lambda protocol: votes[protocol])

    def _joined(self, member: JoinedMember, waiting: Waiting) -> None:
        source, request = waiting
        members = [each.describe(self.protocol) for each in self.members.values()]
        answer = JoinedClassic(
            request,
            NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            tuple(members) if member.id == self.leader else (),
        )
        self._reply(source, answer)

    def sync(self, member: JoinedMember, m: SyncClassic, source: str, now: int) -> None:
        """Store the leader's assignment, or answer another member with its part."""
        member.beat(now)
        if self.state is ClassicGroupState.STABLE:
            self._synced(member, (source, m.id))
            return
        self._refuse_sync(member, ClassicCode.REBALANCE_IN_PROGRESS)  # its former request
        member.syncing = source, m.id
        if member.id != self.leader:
            return
        given = dict(m.assignments)
        for each in self.members.values():
            each.assignment = given.get(each.id, b"")
        self.state = ClassicGroupState.STABLE
        for each in self.members.values():
            if each.syncing is not None:
                waiting, each.syncing = each.syncing, None
                self._synced(each, waiting)

    def _synced(self, member: JoinedMember, waiting: Waiting) -> None:
        source, request = waiting
        self._reply(
            source,
            SyncedClassic(request, NONE, self.protocol_type, self.protocol, member.assignment),
        )

    # --- refusals -------------------------------------------------------------------------------

    def _refuse(self, member: JoinedMember, code: ClassicCode) -> None:
        self._refuse_join(member, code)
        self._refuse_sync(member, code)

    def _refuse_join(self, member: JoinedMember, code: ClassicCode) -> None:
        if member.joining is not None:
            (source, request), member.joining = member.joining, None
            self._reply(source, JoinedClassic(request, code, member.id))

    def _refuse_sync(self, member: JoinedMember, code: ClassicCode) -> None:
        if member.syncing is not None:
            (source, request), member.syncing = member.syncing, None
            self._reply(source, SyncedClassic(request, code))

    # --- time, and for people -------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Remove members whose session has run out, and end a rebalance whose time is up."""
        for name in [name for name, until in self.pending.items() if until <= now]:
            mark("classic.never_came")
            del self.pending[name]
        for member in list(self.members.values()):
            # A member that waits for others to join sends no heartbeats, but counts as alive.
            if member.gone_at <= now and member.joining is None and member.id in self.members:
                mark("classic.silent")
                self.remove(member, now)
        if self.state is ClassicGroupState.PREPARING:
            if self._until <= now:
                self.pending.clear()
                self._complete(now)
            else:
                self._complete_if_all(now)
        elif self._until <= now:
            self._until = NEVER
            self._remove_unsynced(now)

    def _remove_unsynced(self, now: int) -> None:
        """Remove members that have joined and do not ask for their assignment."""
        if self.state is not ClassicGroupState.COMPLETING:
            return
        mark("classic.did_not_sync")
        late = [member for member in self.members.values() if member.syncing is None]
        for member in late:
            del self.members[member.id]
            if member.instance is not None:
                self._static.pop(member.instance, None)
        if late:
            self._rebalance(now)

    def next_due(self) -> int:
        """When the next session, id or rebalance ends."""
        due = self._until
        if self.state is ClassicGroupState.STABLE:
            due = NEVER
        for member in self.members.values():
            if member.joining is None:
                due = min(due, member.gone_at)
        return min(due, *self.pending.values(), NEVER)

    def describe(self, request: int) -> ClassicState:
        """Describe the group, as the answer to a request."""
        members = tuple(member.describe(self.protocol) for member in self.members.values())
        return ClassicState(request, self.state.value, self.protocol_type, self.protocol, members)
