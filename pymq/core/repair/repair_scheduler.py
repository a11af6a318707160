"""Schedules the repairs of one broker: a limited number at a time, in order.

A broker whose disk was replaced lacks all of its sealed blocks at the same time.

==========  ========================================================================================
slots       A bounded number of repairs, across all partitions, have a slot each. A repair keeps its
            slot from the first part to the end of the block. This bounds memory and requests.
queue       Other repairs wait without a deadline of their own. Begun repairs go first.
timeouts    If a holder does not answer within the timeout, no repair sends it a request for the
            same time again. Then one repair at a time does so, with a timeout that doubles. So a
            dead broker costs one slot, and a slow broker gets the time that it needs.
no holder   If none of its holders answers, a repair gives its slot to another repair.
moves       Copies of blocks that move here are fetched at a bounded rate, without a slot while they
            wait. Moves are less urgent than blocks that were just rolled.
==========  ========================================================================================
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pymq.core.block.replicator import ReplicationConfig
from pymq.core.observe.coverage import mark
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER
from pymq.core.values import define

PATIENCE = 2  # times retry_ms: the first timeout of an answer, and the shortest pause
PATIENCE_MAX = 50  # longest pause and longest timeout, in units of retry_ms
SLOWER = 4  # the next timeout, as a multiple of the last answer's duration


class Asker(Protocol):
    """A repair, as the scheduler uses it."""

    def __hash__(self) -> int:
        """Hash by identity, not by progress."""
        ...

    @property
    def is_begun(self) -> bool:
        """Whether this broker has a part of the block."""
        ...

    @property
    def paced_bytes(self) -> int:
        """Bytes of the next request if they count towards the rate limit; else 0."""
        ...

    @property
    def holders(self) -> Sequence[str]:
        """Brokers that may have the block, in the order in which to ask them."""
        ...

    def ask(self, holder: str) -> None:
        """Request the next part from *holder*."""
        ...


@define
class _Holder:
    """A broker that repairs fetch from."""

    patience_ms: int  # the timeout of the holder's answers
    is_silent: bool = False  # a request has timed out
    since: int = 0  # the time when the timeout happened
    until: int = 0  # no request is sent to the holder before this time


class _Ask(NamedTuple):
    holder: str
    at: int


class RepairScheduler:
    """The slots of one broker, and the repairs that wait for a slot."""

    def __init__(self, config: ReplicationConfig) -> None:
        self._config = config
        # repairs with a slot, each with its request in flight, if any
        self._slots: dict[Asker, _Ask | None] = {}
        self.waiting: OrderedDict[Asker, None] = OrderedDict()  # repairs that wait for a slot
        self._timers: TimerHeap[Asker] = TimerHeap()  # timeouts of answers, and ends of pauses
        self._holders: dict[str, _Holder] = {}
        # when the bytes requested so far will have been transferred at the limited rate
        self._paced_until_us = 0
        self.deadline = NEVER  # when :meth:`tick` has something to do, or an earlier time

    # --- called by repairs ------------------------------------------------------------------------

    def want(self, repair: Asker) -> None:
        """Queue *repair*, which needs a part of its block; a repeated call changes nothing."""
        if self._slots.get(repair) is not None or repair in self._timers:
            return
        if repair not in self.waiting:
            self.waiting[repair] = None
            if repair in self._slots or repair.is_begun:
                # A block that was just rolled lacks few records, and there may be no other copy of
                # its end yet.
                self.waiting.move_to_end(repair, last=False)

    def answered(self, repair: Asker, holder: str, now: int) -> None:
        """Note that *holder* has answered the last request of *repair*, perhaps late."""
        found = self._holders.get(holder)
        ask = self._slots.get(repair)
        if found is not None:
            found.is_silent = False
            if ask is not None:
                least = PATIENCE * self._config.retry_ms
                most = PATIENCE_MAX * self._config.retry_ms
                found.patience_ms = min(max(least, SLOWER * (now - ask.at)), most)
        self._timers.drop(repair)
        self.waiting.pop(repair, None)
        if ask is not None:
            self._slots[repair] = None

    def rest(self, repair: Asker, times: int, now: int) -> None:
        """Pause *repair* after the *times*-th useless answer in a row, then queue it again."""
        self.leave(repair)
        retry = self._config.retry_ms
        self._timers.set(repair, now + min(PATIENCE << min(times - 1, 16), PATIENCE_MAX) * retry)
        self.deadline = self._timers.due

    def leave(self, repair: Asker) -> None:
        """Remove *repair*, which is complete, cannot continue now, or is dropped."""
        self._slots.pop(repair, None)
        self.waiting.pop(repair, None)
        self._timers.drop(repair)

    # --- called by the broker ---------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Queue repairs again whose request has timed out or whose pause has ended."""
        for repair in self._timers.over(now):
            ask = self._slots.pop(repair, None)
            if ask is not None:
                mark("repair.unanswered")
                self._missed(ask, now)
            self.waiting[repair] = None
        self.deadline = self._timers.due

    def _missed(self, ask: _Ask, now: int) -> None:
        holder = self._holders[ask.holder]
        if holder.is_silent and ask.at < holder.since:
            return  # This is one of several requests that were sent before the first timeout.
        holder.is_silent, holder.since = True, now
        holder.until = now + holder.patience_ms
        most = PATIENCE_MAX * self._config.retry_ms
        holder.patience_ms = min(2 * holder.patience_ms, most)

    def fill(self, now: int) -> None:
        """Give free slots to waiting repairs and let them ask; called at the end of each turn."""
        waiting = self.waiting
        while waiting:
            repair = next(iter(waiting))
            if repair not in self._slots and len(self._slots) >= self._config.repairs:
                break
            waiting.popitem(last=False)
            self._ask(repair, now)
        self.deadline = self._timers.due

    def _ask(self, repair: Asker, now: int) -> None:
        paced = repair.paced_bytes if self._config.copy_bytes_s else 0
        if paced and now * 1000 < self._paced_until_us:
            mark("repair.paced")
            self._slots.pop(repair, None)
            self._timers.set(repair, -(-self._paced_until_us // 1000))
            return
        until = None
        for name in repair.holders:
            holder = self._holders.get(name)
            if holder is None:
                patience_ms = PATIENCE * self._config.retry_ms
                holder = self._holders[name] = _Holder(patience_ms)
            if not holder.is_silent or now >= holder.until:
                due = now + holder.patience_ms
                # Let other repairs wait for the answer to this request.
                holder.until = due
                self._slots[repair] = _Ask(name, now)
                self._timers.set(repair, due)
                if paced:
                    taken_us = paced * 1_000_000 // self._config.copy_bytes_s
                    self._paced_until_us = max(self._paced_until_us, now * 1000) + taken_us
                repair.ask(name)
                return
            until = holder.until if until is None else min(until, holder.until)
        self._slots.pop(repair, None)  # Queue the repair again when it may ask a holder.
        if until is not None:
            mark("repair.nobody_answers")
            self._timers.set(repair, until)
