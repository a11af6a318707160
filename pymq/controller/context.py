"""The shared state of the controller's parts."""

from __future__ import annotations

from collections.abc import Callable

from pymq.controller.operations.broker_updates import BrokerUpdates
from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.replica_ends import KnownEnds
from pymq.controller.state.transactions import Send, Transactions
from pymq.core.values import define


@define
class ControllerContext:
    """The metadata tree, the live brokers, and the updates for these brokers."""

    me: str  # name of this zkserver
    commits: Transactions
    members: BrokerLiveness
    updates: BrokerUpdates
    ends: KnownEnds
    send: Send
    new_id: Callable[[], str]
    wall_offset_ms: int  # wall clock minus the loop's clock

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        return now + self.wall_offset_ms
