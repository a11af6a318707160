"""The group coordinators of a broker: one for each partition of the offsets topic that it leads.

A new coordinator reads its whole partition in parts. A turn handles at most one fetched part for
all coordinators. Between two parts the broker answers requests and sends pings; without pings,
other brokers would consider it dead and elect other leaders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import ValuesView

from pymq.core.group.consumer_group import Assignors
from pymq.core.group.coordinator import GroupCoordinator
from pymq.core.group.group_limits import GroupLimits
from pymq.core.group.lease_manager import Awaited
from pymq.core.group.offset_log import GroupHost
from pymq.core.group.request_validation import refusal
from pymq.core.message import (
    Acquire,
    BeatClassic,
    BeatReconciled,
    CommitClassic,
    CommitOffset,
    DeleteGroup,
    DescribeClassic,
    DescribeReconciled,
    Fetched,
    GetGroup,
    GetLeases,
    GroupNames,
    Heartbeat,
    Join,
    JoinClassic,
    Leave,
    LeaveClassic,
    ListGroups,
    Message,
    Produced,
    Settle,
    SyncClassic,
    Unsubscribe,
)
from pymq.core.observe.coverage import mark
from pymq.core.partition.partition import Partition
from pymq.core.pending.growth import Growth
from pymq.core.types import NEVER
from pymq.errors import NotLeader, PymqError, ReplicaNotAvailable
from pymq.hash.partitioner import key_partition

FIRST_EPOCH = 1  # the epoch of a partition's first block; later leaders have higher epochs
LIFE_BITS = 20  # each step of the incarnation reserves 2**LIFE_BITS request ids

OneGroup = (
    Acquire
    | Settle
    | Heartbeat
    | Join
    | Leave
    | CommitOffset
    | DeleteGroup
    | GetGroup
    | GetLeases
    | Unsubscribe
    | JoinClassic
    | SyncClassic
    | BeatClassic
    | LeaveClassic
    | CommitClassic
    | DescribeClassic
    | BeatReconciled
    | DescribeReconciled
)


class GroupCoordinators:
    """The group coordinators of one broker."""

    def __init__(
        self,
        me: str,
        host: GroupHost,
        assignors: Assignors,
        incarnation: int = 0,
        limits: GroupLimits | None = None,
    ) -> None:
        self._me = me
        self._limits = limits or GroupLimits()
        self._host = host
        self._assignors = assignors
        self.by_index: dict[int, GroupCoordinator] = {}
        self.awaited: Awaited = {}
        self.deadline = NEVER  # the time to handle the next part
        self._parts: deque[tuple[int, Fetched]] = deque()  # fetched parts that wait for their turn
        self._part_at = 0  # earliest time for the next part
        self._offsets_partitions = 1
        # The ids are higher than those of earlier coordinators and of earlier starts of this
        # broker, so that a late answer never matches a new request. Incarnations come from the
        # clock.
        self._last_request = incarnation << LIFE_BITS

    def values(self) -> ValuesView[GroupCoordinator]:
        """Return all coordinators."""
        return self.by_index.values()

    def list(self, m: ListGroups) -> GroupNames:
        """Return the groups of one partition, or of all coordinators on this broker.

        The answer has an error if another broker leads the partition, or if it is still being read.
        """
        asked = [c for c in self.by_index.values() if m.partition in ("", str(c.index))]
        if m.partition and not asked:
            # An empty list would mean that the partition has no groups.
            error: PymqError = NotLeader(
                f"{self._me} does not coordinate the groups of partition {m.partition}", leader=None
            )
            return GroupNames(m.id, error=error)
        if not all(c.offsets.is_loaded for c in asked):
            error = ReplicaNotAvailable("offsets of groups are still being read; try again")
            return GroupNames(m.id, error=error)
        classic = tuple(kind for c in asked for kind in c.kinds())
        names = {name for c in asked for name in c.groups} | {name for name, _, _ in classic}
        return GroupNames(m.id, tuple(sorted(names)), None, classic)

    def leadership_changed(self, partition: Partition, now: int) -> None:
        """Take over or hand over the groups of an offsets partition (immigration, emigration)."""
        state, leads = partition.state, partition.leads
        self._offsets_partitions = state.siblings
        coordinator = self.by_index.get(state.index)
        if leads and coordinator is None:
            coordinator = GroupCoordinator(
                state.index,
                self._host,
                self._assignors,
                now,
                self._last_request,
                self._limits,
                self.awaited,
                is_first=_is_first(partition),
            )
            self.by_index[state.index] = coordinator
            coordinator.offsets.begin(now)
        elif not leads and coordinator is not None:
            del self.by_index[state.index]
            self._last_request = max(self._last_request, coordinator.offsets.last_request)
            leader = partition.opened.leader
            coordinator.resign(NotLeader("the coordinator has moved", leader=leader), now)

    def step(self, source: str, m: OneGroup, now: int) -> None:
        """Pass a request to the coordinator of its group, or answer with `NotLeader`."""
        name = m.name if isinstance(m, Unsubscribe) else m.group
        index = key_partition(name.encode(), self._offsets_partitions)
        coordinator = self.by_index.get(index)
        if coordinator is None:
            error = NotLeader(f"{self._me} does not coordinate group {name!r}", leader=None)
            self._host.reply(source, refusal(m, error), now)
            return
        coordinator.step(source, m, now)

    def grown(self, growth: Growth, now: int) -> None:
        """Lease the new records of a partition of this broker to members that wait for records."""
        for index in dict.fromkeys(self.awaited[growth.name.topic].values()):
            coordinator = self.by_index.get(index)
            if coordinator is not None:
                coordinator.grown(growth, now)

    def answered(self, index: int, message: Message, now: int) -> None:
        """Handle an offsets partition's answer to its coordinator."""
        if isinstance(message, Fetched):
            self._parts.append((index, message))
            if now >= self._part_at:
                self._take_part(now)
            else:
                mark("coordinators.part_waits")
                self.deadline = self._part_at
        elif isinstance(message, Produced) and (coordinator := self.by_index.get(index)):
            coordinator.step("", message, now)

    def _take_part(self, now: int) -> None:
        index, part = self._parts.popleft()
        self._part_at = now + 1
        self.deadline = self._part_at if self._parts else NEVER
        coordinator = self.by_index.get(index)
        if coordinator is not None:
            coordinator.step("", part, now)

    def forget_topic(self, topic: str, topic_id: str, now: int) -> None:
        """Drop the state of the deleted topic with that id."""
        for coordinator in self.by_index.values():
            coordinator.forget_topic(topic, now, topic_id)

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        if self.deadline <= now:
            self._take_part(now)
        for coordinator in self.by_index.values():
            if coordinator.deadline <= now:
                coordinator.tick(now)

    def flush(self, now: int) -> None:
        """Write all changes of the groups."""
        for coordinator in self.by_index.values():
            if coordinator.offsets.is_dirty:
                coordinator.offsets.flush(now)


def _is_first(partition: Partition) -> bool:
    """Whether nobody has led an offsets partition before: its first block is in its first epoch."""
    return len(partition.state.blocks) == 1 and partition.leads_at == FIRST_EPOCH
