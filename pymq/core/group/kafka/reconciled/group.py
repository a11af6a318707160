"""A reconciled group: the epochs of its members, and the target that they move to (KIP-848).

1. A member joins, leaves or changes its subscription, or a topic gets partitions: the group's epoch
   rises, and the assignor computes a target for each member.
2. At its next heartbeat a member learns which partitions it has to give up. The epoch of the member
   stays until it no longer names them as owned.
3. Then the member gets the partitions of its target that no other member holds, and the new epoch.
   It gets the rest at later heartbeats, when the others have given them up.

So a partition has one user at a time, and a member uses the others while some of its partitions
move. The group removes a member that is silent for its session, or that does not give up a
partition in time.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from pymq.core.group.consumer_group import Assignors
from pymq.core.group.kafka.reconciled.codes import ReconciledCode
from pymq.core.group.kafka.reconciled.member import (
    Part,
    ReconciliationState,
    ReconcilingMember,
    indexes,
    parts_of,
)
from pymq.core.message import BeatReconciled, Reconciled, ReconciledState
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER

JOIN, LEAVE, LEAVE_FOR_NOW = 0, -1, -2  # in place of a member's epoch
ASSIGNORS = {"uniform": "sticky", "range": "range"}  # Kafka's names, and those of pymq.hash
DEFAULT = "uniform"


class ReconciledGroupState(Enum):
    """The state of a group; the values are Kafka's names."""

    EMPTY = "Empty"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ReconciledGroup:
    """The members of one group; times are the coordinator's clock."""

    def __init__(self, name: str, assignors: Assignors, interval_ms: int) -> None:
        self.name = name
        self.epoch = 0
        self.members: dict[str, ReconcilingMember] = {}
        self._assignors = assignors
        self._interval_ms = interval_ms
        self._holders: dict[Part, str] = {}  # the members that hold partitions
        self._static: dict[str, str] = {}  # members by instance

    # --- heartbeats -----------------------------------------------------------------------------

    def find(self, m: BeatReconciled) -> ReconcilingMember | ReconciledCode:
        """Return the member of a heartbeat, or the error code if it must not go on."""
        found = self.members.get(m.member)
        if found is None:
            return ReconciledCode.UNKNOWN_MEMBER_ID
        if m.epoch < 0 or m.epoch == found.epoch:
            return found
        if m.epoch > found.epoch or m.epoch != found.previous_epoch:
            return ReconciledCode.FENCED_MEMBER_EPOCH
        # The answer with the new epoch was lost. The member may go on if it uses nothing more.
        if m.owned is not None and not parts_of(m.owned) <= found.assigned:
            return ReconciledCode.FENCED_MEMBER_EPOCH
        return found

    def join(
        self, m: BeatReconciled, session_ms: int, now: int
    ) -> ReconcilingMember | ReconciledCode:
        """Add a member, or take back a static one."""
        found = self.members.get(m.member) or self._new(m, session_ms)
        if isinstance(found, ReconciledCode):
            return found
        found.is_away = False
        self._update(found, m)
        # A member that joins uses nothing, also if it was here before.
        self._settle(found, m, frozenset(), now)
        return found

    def _new(self, m: BeatReconciled, session_ms: int) -> ReconcilingMember | ReconciledCode:
        before = None
        if m.instance is not None and (holder := self._static.get(m.instance)) is not None:
            before = self.members[holder]
            if not before.is_away:
                return ReconciledCode.UNRELEASED_INSTANCE_ID
            mark("reconciled.static_back")
            self._drop(before)
        found = self.members[m.member] = ReconcilingMember(
            m.member, m.instance, m.client, m.host, m.rack, max(m.rebalance_ms, 0), session_ms
        )
        if m.instance is not None:
            self._static[m.instance] = m.member
        if before is not None:
            found.topics, found.assignor = before.topics, before.assignor
            found.target = before.target
            found.assigned = before.assigned
            found.epoch = found.previous_epoch = before.epoch
            self._hold(found)
        else:
            self.epoch += 1  # A new member needs a target, even without a subscription.
        return found

    def beat(self, found: ReconcilingMember, m: BeatReconciled, now: int) -> None:
        """Take in a heartbeat of a member."""
        self._update(found, m)
        self._settle(found, m, None if m.owned is None else parts_of(m.owned), now)

    def _update(self, found: ReconcilingMember, m: BeatReconciled) -> None:
        """Take over what a heartbeat says about its member; a change begins an epoch."""
        found.client, found.host = m.client or found.client, m.host or found.host
        if m.rebalance_ms >= 0:
            found.rebalance_ms = m.rebalance_ms
        found.rack = m.rack if m.rack is not None else found.rack
        topics = found.topics
        if m.topics is not None:
            topics = {id: (name, count) for name, id, count in m.topics}
        assignor = found.assignor if m.assignor is None else m.assignor
        is_new = found.epoch == 0 and not found.target
        if topics != found.topics or assignor != found.assignor:
            found.topics, found.assignor = topics, assignor
            if not is_new:
                self.epoch += 1
        elif not is_new:
            return
        self._assign()

    def _settle(
        self,
        found: ReconcilingMember,
        m: BeatReconciled,
        owned: frozenset[Part] | None,
        now: int,
    ) -> None:
        self._release(found)
        found.reconcile(self.epoch, owned, self._is_free, now)
        self._hold(found)
        found.beat(now)

    def answer(self, found: ReconcilingMember, m: BeatReconciled, before: object) -> Reconciled:
        """Return the answer to a heartbeat; *before* is what was assigned before it."""
        is_full = m.epoch == JOIN or m.owned is not None or m.epoch != found.epoch
        is_told = is_full or before != found.assigned
        return Reconciled(
            m.id,
            epoch=found.epoch,
            interval_ms=self._interval_ms,
            assignment=indexes(found.assigned) if is_told else None,
        )

    # --- leaving --------------------------------------------------------------------------------

    def leave(self, found: ReconcilingMember, epoch: int) -> None:
        """Remove a member, or keep the place of a static one until its session ends."""
        if epoch == LEAVE_FOR_NOW and found.instance is not None:
            self._release(found)
            found.is_away = True
            found.revoking, found.revoke_by = frozenset(), NEVER
            if found.state is ReconciliationState.UNREVOKED:
                found.state = ReconciliationState.STABLE
            self._hold(found)
            return
        self.remove(found)

    def remove(self, found: ReconcilingMember) -> None:
        """Remove a member; the others get its partitions."""
        self._drop(found)
        self.epoch += 1
        self._assign()

    def _drop(self, found: ReconcilingMember) -> None:
        self._release(found)
        del self.members[found.id]
        if found.instance is not None and self._static.get(found.instance) == found.id:
            del self._static[found.instance]

    # --- partitions -----------------------------------------------------------------------------

    def _is_free(self, part: Part, member: str) -> bool:
        return self._holders.get(part, member) == member

    def _hold(self, found: ReconcilingMember) -> None:
        for part in found.held:
            self._holders[part] = found.id

    def _release(self, found: ReconcilingMember) -> None:
        for part in found.held:
            if self._holders.get(part) == found.id:
                del self._holders[part]

    @property
    def assignor(self) -> str:
        """The assignor that most members want, the first of several in the order of names."""
        wanted = Counter(m.assignor for m in self.members.values() if m.assignor is not None)
        return max(sorted(wanted), key=lambda name: wanted[name]) if wanted else DEFAULT

    def _assign(self) -> None:
        """Compute the target of each member."""
        members = self.members
        known: dict[str, int] = {}
        for member in members.values():
            for topic, (_, count) in member.topics.items():
                known[topic] = max(count, known.get(topic, 0))
        partitions = [(topic, index) for topic, count in known.items() for index in range(count)]
        if not members:
            return
        found = self._assignors(ASSIGNORS[self.assignor])(
            list(members),
            partitions,
            {name: sorted(member.target) for name, member in members.items()},
            subscriptions={name: set(member.topics) for name, member in members.items()},
        )
        # Assignors of pymq let spare members share a partition. Here it has one user.
        takers: dict[Part, str] = {}
        for name in sorted(found):
            for part in found[name]:
                if part not in takers or part in members[name].target:
                    takers[part] = name
        for name, member in members.items():
            member.target = frozenset(part for part in found[name] if takers[part] == name)

    # --- time, and for people -------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Remove members that are silent, or that do not give up partitions in time."""
        for member in list(self.members.values()):
            if member.gone_at <= now:
                mark("reconciled.silent")
                self.remove(member)
            elif member.revoke_by <= now:
                mark("reconciled.did_not_revoke")
                self.remove(member)

    def next_due(self) -> int:
        """When the next session or revocation ends."""
        return min(
            (min(member.gone_at, member.revoke_by) for member in self.members.values()),
            default=NEVER,
        )

    @property
    def state(self) -> ReconciledGroupState:
        """The state of the group."""
        if not self.members:
            return ReconciledGroupState.EMPTY
        is_stable = all(
            member.state is ReconciliationState.STABLE and member.epoch == self.epoch
            for member in self.members.values()
        )
        return ReconciledGroupState.STABLE if is_stable else ReconciledGroupState.RECONCILING

    def describe(self, request: int) -> ReconciledState:
        """Describe the group, as the answer to a request."""
        members = tuple(member.describe() for member in self.members.values())
        state = self.state.value
        return ReconciledState(request, state, self.epoch, self.epoch, self.assignor, members)
