"""The group coordinators of a broker: one for each partition of the offsets topic that it leads.

A coordinator that takes over reads its whole partition. A broker that takes over several of them
takes in one part a turn, whichever coordinator it is for: between two parts it answers others and
sends its pings, without which they would take it for dead and elect other leaders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import ValuesView

from pymq.core.group.coordinator import GroupCoordinator
from pymq.core.group.group_limits import GroupLimits
from pymq.core.group.membership import Assignors
from pymq.core.group.offset_log import GroupHost
from pymq.core.group.request_validation import refusal
from pymq.core.message import (
    Acquire,
    CommitOffset,
    DeleteGroup,
    Fetched,
    GetGroup,
    GetLeases,
    GroupNames,
    Heartbeat,
    Join,
    Leave,
    ListGroups,
    Message,
    Produced,
    Settle,
    Unsubscribe,
)
from pymq.core.observe.coverage import mark
from pymq.core.partition.partition import Partition
from pymq.core.types import NEVER
from pymq.errors import NotLeader, PymqError, ReplicaNotAvailable
from pymq.hash.partitioner import key_partition

LIFE_BITS = 20  # a life of a broker has so many ids for each number that its incarnation is higher

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
)


class GroupCoordinators:
    """The groups that are coordinated here."""

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
        self.deadline = NEVER  # when the next part is taken in
        self._parts: deque[tuple[int, Fetched]] = deque()  # that were read and wait for their turn
        self._part_at = 0  # before which no other part is taken in
        self._offsets_partitions = 1
        # No coordinator before has used a higher id, nor one of the broker's lives before: an
        # answer that is late would pass for one to what is asked now. Incarnations are times.
        self._last_request = incarnation << LIFE_BITS

    def values(self) -> ValuesView[GroupCoordinator]:
        """All of them."""
        return self.by_index.values()

    def list(self, m: ListGroups) -> GroupNames:
        """The groups of one partition, or of all that is coordinated here, once they are known."""
        asked = [c for c in self.by_index.values() if m.partition in ("", str(c.index))]
        if m.partition and not asked:
            # No groups would mean that there are none.
            error: PymqError = NotLeader(
                f"{self._me} does not coordinate the groups of partition {m.partition}", leader=None
            )
            return GroupNames(m.id, error=error)
        if not all(c.is_loaded for c in asked):
            error = ReplicaNotAvailable("offsets of groups are still being read; try again")
            return GroupNames(m.id, error=error)
        return GroupNames(m.id, tuple(sorted(name for c in asked for name in c.groups)))

    def leadership_changed(self, partition: Partition, now: int) -> None:
        """Take over or hand over the groups of an offsets partition (immigration, emigration)."""
        state, leads = partition.state, partition.leads
        self._offsets_partitions = state.siblings
        coordinator = self.by_index.get(state.index)
        if leads and coordinator is None:
            coordinator = GroupCoordinator(
                state.index, self._host, self._assignors, now, self._last_request, self._limits
            )
            self.by_index[state.index] = coordinator
            coordinator.begin(now)
        elif not leads and coordinator is not None:
            del self.by_index[state.index]
            self._last_request = max(self._last_request, coordinator.last_request)
            leader = partition.opened.leader
            coordinator.resign(NotLeader("the coordinator has moved", leader=leader), now)

    def step(self, source: str, m: OneGroup, now: int) -> None:
        """Hand a request to the coordinator of its group."""
        name = m.name if isinstance(m, Unsubscribe) else m.group
        index = key_partition(name.encode(), self._offsets_partitions)
        coordinator = self.by_index.get(index)
        if coordinator is None:
            error = NotLeader(f"{self._me} does not coordinate group {name!r}", leader=None)
            self._host.reply(source, refusal(m, error), now)
            return
        coordinator.step(source, m, now)

    def answered(self, index: int, message: Message, now: int) -> None:
        """An offsets partition has answered its coordinator."""
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
        """The topic, the one with that id, was deleted."""
        for coordinator in self.by_index.values():
            coordinator.forget_topic(topic, now, topic_id)

    def tick(self, now: int) -> None:
        """Do what is due."""
        if self.deadline <= now:
            self._take_part(now)
        for coordinator in self.by_index.values():
            if coordinator.deadline <= now:
                coordinator.tick(now)

    def flush(self, now: int) -> None:
        """Write what has changed."""
        for coordinator in self.by_index.values():
            if coordinator.is_dirty:
                coordinator.flush(now)
