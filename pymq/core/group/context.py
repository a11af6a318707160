"""What the parts of a group coordinator share."""

from __future__ import annotations

from pymq.core.group.consumer_group import ConsumerGroup
from pymq.core.group.group_limits import GroupLimits
from pymq.core.group.offset_log import GroupHost, OffsetLog
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.values import define


@define
class GroupContext:
    """The groups of a coordinator, their clock and timers, and the store of their offsets."""

    host: GroupHost
    limits: GroupLimits
    groups: dict[str, ConsumerGroup]
    offsets: OffsetLog
    clock: PausableClock  # the time of groups, members and leases
    timers: TimerHeap[str]  # by group, when something is due on that clock
