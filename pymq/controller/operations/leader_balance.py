"""Balances leaders over the brokers, one partition at a time.

After a failure, leaders stay on the brokers where they were elected. When the brokers have not
changed for a while, the zkserver carries out the plan of
:mod:`~pymq.controller.transitions.leader_leveling`. The zkserver asks the leader of a Raft block to
transfer its leadership. The zkserver rolls any other block, so that another in-sync replica leads
the next one. The plan is kept in memory only: a new zkserver plans again.
"""

from __future__ import annotations

from collections import deque

from pymq.controller.context import ControllerContext
from pymq.controller.operations.block_copying import BlockCopying
from pymq.controller.operations.rolls import Rolls
from pymq.controller.state.commit_queues import Later
from pymq.controller.state.image import Draft
from pymq.controller.transitions import leader_leveling
from pymq.controller.transitions.leader_leveling import Shift
from pymq.core.message import BalanceLeaders, Result, TransferLeader
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, AckMode

# how long the set of live brokers must be unchanged before a balance; at most one period
SETTLE_MS = 60_000
SHIFT_MS = 5_000  # timeout of a shift
LOOK_MS = 50  # interval of checks of a shift
RETRY_MS = 500  # pause between two requests of a shift


class LeaderBalance:
    """The planned shifts of leadership, and the shift in progress."""

    def __init__(
        self,
        context: ControllerContext,
        rolls: Rolls,
        copying: BlockCopying,
        every_ms: int,
    ) -> None:
        self._commits = context.commits
        self._members = context.members
        self._rolls = rolls
        self._copying = copying
        self._send = context.send
        self._every_ms = every_ms  # 0: only on request
        self._shifts: deque[Shift] = deque()
        self._shift: Shift | None = None  # the shift in progress
        self._until = 0  # the time when the shift times out
        self._ask_at = 0
        self._is_asked_for = False  # whether an administrator has requested a balance
        self._next_at = NEVER
        self._seen: object = None  # live brokers at the last check
        self._since = 0  # time of the last change of live brokers

    def begin(self, now: int) -> None:
        """Begin as the active zkserver."""
        self._next_at = now + self._every_ms if self._every_ms else NEVER
        self._since = now

    def end(self) -> None:
        """Stop, because this zkserver is no longer active."""
        self._drop()
        self._next_at, self._seen = NEVER, None

    @property
    def deadline(self) -> int:
        """The deadline of :meth:`tick`."""
        return self._next_at

    def step(self, source: str, m: BalanceLeaders, now: int) -> None:
        """Balance leaders now; the answer is the number of partitions that will change leaders."""

        def plan(draft: Draft) -> Result | Later:
            self._drop()
            self._plan()
            self._is_asked_for, self._next_at = bool(self._shifts), now
            return len(self._shifts)

        self._commits.do(plan, answer=(source, m.id))

    def tick(self, now: int) -> None:
        """Continue the shift in progress, or begin the next one."""
        if now < self._next_at:
            return
        if not (self._is_quiet(now) or (self._is_asked_for and self._members.is_settled)):
            mark("balance.unquiet")
            self._drop()
            self._rest(now)
            return
        if self._shift is None and not self._shifts:
            self._plan()
            if not self._shifts:
                self._is_asked_for = False
                self._rest(now)
                return
        self._next_at = now + LOOK_MS
        if self._shift is not None and not self._is_over(self._shift, now):
            if now >= self._ask_at:
                self._ask(self._shift, now)
            return
        self._shift = self._shifts.popleft() if self._shifts else None
        if self._shift is not None:
            self._until = now + SHIFT_MS
            self._ask(self._shift, now)
        # After the last shift, the next tick plans again.

    def _rest(self, now: int) -> None:
        """Wait for the next period."""
        self._next_at = now + self._every_ms if self._every_ms else NEVER

    def _drop(self) -> None:
        self._shifts.clear()
        self._shift, self._is_asked_for = None, False

    def _plan(self) -> None:
        image, members = self._commits.image, self._members
        brokers = [
            name
            for name in members.live
            if name not in members.leaving and not image.brokers[name].is_draining
        ]
        self._shifts.extend(leader_leveling.plan(image, brokers, members.can_act))

    def _is_quiet(self, now: int) -> bool:
        """Whether all brokers except lost ones have been alive for some time."""
        members, image = self._members, self._commits.image
        seen = {name: live.incarnation for name, live in members.live.items()}
        if seen != self._seen:
            self._seen, self._since = seen, now
        lost = self._copying.lost(now)
        away = [name for name in image.brokers if name not in seen and name not in lost]
        waits = now < self._since + min(SETTLE_MS, self._every_ms)
        return members.is_settled and not (away or waits or members.leaving)

    # --- one shift ------------------------------------------------------------------------------

    def _is_over(self, shift: Shift, now: int) -> bool:
        """Whether a shift is done, timed out or no longer needed."""
        found = self._commits.image.find(shift.name)
        if found is None or found.open_block.leader != shift.source:
            return True
        if now >= self._until:
            mark("balance.given_up")
            return True
        return self._rolls.get(shift.name) is None and found.open_block.number != shift.block

    def _ask(self, shift: Shift, now: int) -> None:
        image, members = self._commits.image, self._members
        self._ask_at = now + RETRY_MS
        found = image.find(shift.name)
        if found is None or self._is_over(shift, now) or found.node.wanted is not None:
            return
        block = found.open_block
        if shift.target not in leader_leveling.targets(image, shift.name, block, members.can_act):
            mark("balance.target_gone")
            self._until = now
            return
        mark("balance.shift")
        if block.acks is AckMode.RAFT:
            topic_id = image.topic(shift.name.topic).node.id
            epoch = image.controller_epoch
            order = TransferLeader(epoch, *shift.name, block.number, shift.target, topic_id)
            self._send(shift.source, order)
        elif self._rolls.get(shift.name) is None:
            self._rolls.start(shift.name, now, leader=shift.target)
