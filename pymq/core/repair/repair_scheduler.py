"""Which repairs of one broker ask others for parts of sealed blocks: so many at once, in order.

A broker whose disk was replaced lacks all of its sealed blocks at the same time. Of those a bounded
number has a slot, whatever the partition: it keeps it from its first part to the end of its block,
so that what is in memory and on its way is bounded, too. The others wait in line, and have no
deadlines of their own. What was begun goes before what was not.

Who holds blocks and leaves an ask unanswered is asked by nobody for as long as it was waited for,
then by one repair at a time, and is waited for twice as long each time. So a broker that is away
costs one slot, and one that is slow is given the time that it needs. A repair that none of its
holders answers gives its slot to another one.

Copies of blocks that move here are asked for at a bounded rate, and have no slot while they wait
for that: they are no haste, while one that was rolled just now lacks what others have.
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

PATIENCE = 2  # times retry_ms is how long an answer is waited for, and a rest lasts, at first ...
PATIENCE_MAX = 50  # ... and at most
SLOWER = 4  # an answer may take so many times as long as the last one


class Asker(Protocol):
    """A repair, as far as it asks others."""

    def __hash__(self) -> int:
        """By what it is, not by how far it has got."""
        ...

    @property
    def is_begun(self) -> bool:
        """Whether some of the block is here."""
        ...

    @property
    def paced_bytes(self) -> int:
        """What it asks for next, if that counts towards the bounded rate; else 0."""
        ...

    @property
    def holders(self) -> Sequence[str]:
        """Who may have what it lacks, whom to ask first first."""
        ...

    def ask(self, holder: str) -> None:
        """Ask *holder* for the next part."""
        ...


@define
class _Holder:
    """A broker that is asked for parts."""

    patience_ms: int  # so long it is waited for
    is_silent: bool = False  # it has left an ask unanswered, ...
    since: int = 0  # ... as was found then, ...
    until: int = 0  # ... and is not asked before this


class _Ask(NamedTuple):
    holder: str
    at: int


class RepairScheduler:
    """The slots of one broker, and the repairs that wait for one."""

    def __init__(self, config: ReplicationConfig) -> None:
        self._config = config
        self._slots: dict[Asker, _Ask | None] = {}  # and what waits for an answer, if anything
        self._waiting: OrderedDict[Asker, None] = OrderedDict()
        self._timers: TimerHeap[Asker] = TimerHeap()  # of answers and of rests
        self._holders: dict[str, _Holder] = {}
        self._paced_until_us = 0  # what was asked for by now takes so long at the bounded rate
        self.deadline = NEVER  # when :meth:`tick` has something to do; perhaps too early

    @property
    def is_wanted(self) -> bool:
        """Whether :meth:`fill` may have something to do."""
        return bool(self._waiting)

    # --- what repairs say -----------------------------------------------------------------------

    def want(self, repair: Asker) -> None:
        """*repair* lacks a part; may be repeated. It is asked for when it is its turn."""
        if self._slots.get(repair) is not None or repair in self._timers:
            return
        if repair not in self._waiting:
            self._waiting[repair] = None
            if repair in self._slots or repair.is_begun:
                # A block that was rolled just now lacks little, and nobody has more copies of it.
                self._waiting.move_to_end(repair, last=False)

    def answered(self, repair: Asker, holder: str, now: int) -> None:
        """*holder* has answered what *repair* asked last, be it late."""
        found = self._holders.get(holder)
        ask = self._slots.get(repair)
        if found is not None:
            found.is_silent = False
            if ask is not None:
                least = PATIENCE * self._config.retry_ms
                most = PATIENCE_MAX * self._config.retry_ms
                found.patience_ms = min(max(least, SLOWER * (now - ask.at)), most)
        self._timers.drop(repair)
        self._waiting.pop(repair, None)
        if ask is not None:
            self._slots[repair] = None

    def rest(self, repair: Asker, times: int, now: int) -> None:
        """What was answered is of no use, for the *times*-th time in a row: ask later again."""
        self.leave(repair)
        retry = self._config.retry_ms
        self._timers.set(repair, now + min(PATIENCE << min(times - 1, 16), PATIENCE_MAX) * retry)
        self.deadline = self._timers.due

    def leave(self, repair: Asker) -> None:
        """*repair* lacks nothing, or cannot go on now, or is given up."""
        self._slots.pop(repair, None)
        self._waiting.pop(repair, None)
        self._timers.drop(repair)

    # --- what the broker does -------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due: answers that have not come, and rests that are over."""
        for repair in self._timers.over(now):
            ask = self._slots.pop(repair, None)
            if ask is not None:
                mark("repair.unanswered")
                self._missed(ask, now)
            self._waiting[repair] = None
        self.deadline = self._timers.due

    def _missed(self, ask: _Ask, now: int) -> None:
        holder = self._holders[ask.holder]
        if holder.is_silent and ask.at < holder.since:
            return  # One of several that were asked before it was known.
        holder.is_silent, holder.since = True, now
        holder.until = now + holder.patience_ms
        most = PATIENCE_MAX * self._config.retry_ms
        holder.patience_ms = min(2 * holder.patience_ms, most)

    def fill(self, now: int) -> None:
        """Let those ask whose turn it is; once a turn, when all of it is known."""
        waiting = self._waiting
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
                holder.until = due  # If it is silent, the next one waits for what becomes of this.
                self._slots[repair] = _Ask(name, now)
                self._timers.set(repair, due)
                if paced:
                    taken_us = paced * 1_000_000 // self._config.copy_bytes_s
                    self._paced_until_us = max(self._paced_until_us, now * 1000) + taken_us
                repair.ask(name)
                return
            until = holder.until if until is None else min(until, holder.until)
        self._slots.pop(repair, None)  # It comes again when there are others to be asked.
        if until is not None:
            mark("repair.nobody_answers")
            self._timers.set(repair, until)
