"""The reconciled groups of one partition of the offsets topic: checks requests, finds members.

The coordinator does not store members: after a takeover they join again (KIP-848), and keep using
their partitions meanwhile only until their next heartbeat, which fences them.
"""

from __future__ import annotations

from pymq.core.group.consumer_group import Assignors
from pymq.core.group.kafka.reconciled.codes import ReconciledCode
from pymq.core.group.kafka.reconciled.group import ASSIGNORS, JOIN, ReconciledGroup
from pymq.core.group.lease_manager import GroupContext
from pymq.core.message import (
    BeatReconciled,
    CommitClassic,
    DescribeReconciled,
    Message,
    Reconciled,
    ReconciledState,
)
from pymq.core.observe.coverage import mark
from pymq.core.time.timer_heap import TimerHeap
from pymq.errors import GroupLimitReached

SESSION_MS = 45_000  # as Kafka's group.consumer.session.timeout.ms
REBALANCE_MAX_MS = 30 * 60_000
TYPE = "reconciled"  # in place of the protocol type of a classic group


class ReconciledCoordinator:
    """The reconciled groups of one coordinator."""

    def __init__(self, context: GroupContext, assignors: Assignors) -> None:
        self.groups: dict[str, ReconciledGroup] = {}
        self.timers: TimerHeap[str] = TimerHeap()
        self._context = context
        self._assignors = assignors

    def has_members(self, group: str) -> bool:
        """Whether a group has members of this kind."""
        found = self.groups.get(group)
        return found is not None and bool(found.members)

    # --- requests -------------------------------------------------------------------------------

    def beat(self, m: BeatReconciled, *, is_taken: bool) -> Message:
        """Return the answer to a heartbeat.

        *is_taken*: the group has members of another kind.
        """
        answer = self._beat(m, is_taken=is_taken)
        self.settle(m.group)
        if isinstance(answer, Reconciled):
            return answer
        code, why = answer
        return Reconciled(m.id, code, why)

    def _beat(
        self, m: BeatReconciled, *, is_taken: bool
    ) -> Reconciled | tuple[ReconciledCode, str]:
        why = _problem(m)
        if why:
            return ReconciledCode.INVALID_REQUEST, why
        if m.assignor is not None and m.assignor not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            return ReconciledCode.UNSUPPORTED_ASSIGNOR, f"no assignor {m.assignor!r}; {known} are"
        if is_taken:
            mark("reconciled.other_kind")
            return (
                ReconciledCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {m.group!r} has members of another kind",
            )
        now, group = self._context.clock.ms, self.groups.get(m.group)
        if m.epoch == JOIN:
            return self._join(m, now)
        if group is None:
            return ReconciledCode.UNKNOWN_MEMBER_ID, f"group {m.group!r} has no members"
        found = group.find(m)
        if isinstance(found, ReconciledCode):
            return found, f"member {m.member!r} of epoch {m.epoch} is not known"
        if m.epoch < 0:
            group.leave(found, m.epoch)
            return Reconciled(m.id, epoch=m.epoch)
        before = found.assigned
        group.beat(found, m, now)
        return group.answer(found, m, before)

    def _join(self, m: BeatReconciled, now: int) -> Reconciled | tuple[ReconciledCode, str]:
        group = self.groups.get(m.group)
        limits = self._context.limits
        if group is None:
            limits.check_groups(len(self.groups))
            group = ReconciledGroup(m.group, self._assignors, limits.heartbeat_ms)
            self.groups[m.group] = group
        if m.member not in group.members:
            try:
                limits.check_members(m.group, len(group.members))
            except GroupLimitReached as error:
                return ReconciledCode.GROUP_MAX_SIZE_REACHED, str(error)
        found = group.join(m, SESSION_MS, now)
        if isinstance(found, ReconciledCode):
            return found, f"instance {m.instance!r} is a member already"
        return group.answer(found, m, None)

    def commit_code(self, m: CommitClassic) -> ReconciledCode:
        """Return whether a member may commit: the epoch must be its own."""
        group = self.groups.get(m.group)
        found = group.members.get(m.member) if group is not None else None
        if found is None:
            return ReconciledCode.UNKNOWN_MEMBER_ID
        if m.generation != found.epoch:
            return ReconciledCode.STALE_MEMBER_EPOCH
        return ReconciledCode.NONE

    def describe(self, m: DescribeReconciled) -> ReconciledState:
        """Describe a group."""
        group = self.groups.get(m.group)
        return ReconciledState(m.id) if group is None else group.describe(m.id)

    def kinds(self) -> tuple[tuple[str, str, str], ...]:
        """The groups of this kind: name, type and state."""
        return tuple((name, TYPE, group.state.value) for name, group in self.groups.items())

    # --- time -----------------------------------------------------------------------------------

    def settle(self, name: str) -> None:
        """Set the timer of a group. Drop the group if it has neither members nor offsets."""
        group = self.groups.get(name)
        if group is None:
            return
        if not group.members:
            # Its epoch is not needed: new members begin with 0.
            del self.groups[name]
            self.timers.drop(name)
            return
        self.timers.set(name, group.next_due())

    def tick(self) -> None:
        """Do what is due by the coordinator's clock."""
        now = self._context.clock.ms
        for name in self.timers.over(now):
            if (group := self.groups.get(name)) is not None:
                group.tick(now)
                self.settle(name)

    def resign(self) -> None:
        """Forget all members: another broker takes over."""
        self.groups.clear()
        self.timers.clear()


def _problem(m: BeatReconciled) -> str:
    """Return why a heartbeat is invalid, by the rules of KIP-848; empty if it is valid."""
    if m.epoch < -2:
        return f"a member's epoch is not {m.epoch}"
    if not m.member:
        return "a member needs an id"
    if m.epoch == JOIN:
        if m.rebalance_ms < 0:
            return "a member that joins has to say its rebalance timeout"
        if m.topics is None:
            return "a member that joins has to subscribe"
        if m.owned:
            return "a member that joins owns no partition"
    if m.epoch == -2 and m.instance is None:
        return "only a static member leaves for a while"
    if m.rebalance_ms > REBALANCE_MAX_MS:
        return f"the rebalance timeout is at most {REBALANCE_MAX_MS} ms"
    return ""
