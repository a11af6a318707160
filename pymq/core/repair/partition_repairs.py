"""The repairs of one partition on this broker.

After a disk was replaced, there may be thousands of repairs. So no step of one repair iterates over
all the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import attrs

from pymq.core.block.log import BlockLog
from pymq.core.message import ReplicaFetch, ReplicaFetched
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.ready import Read, Ready, Recovered
from pymq.core.repair.block_repair import BlockRepair, RepairHost
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER
from pymq.errors import PymqError, ReplicaNotAvailable, StoreError

_NONE: dict[int, BlockRepair] = {}  # shared, never changed
_NO_TIMERS: TimerHeap[int] = TimerHeap()


class PartitionRepairs:
    """The sealed blocks of one partition that this broker is repairing."""

    __slots__ = (
        "_host",
        "_overrated",
        "_repairs",
        "_timers",
        "_whole",
        "deadline",
        "dirty",
        "writing",
    )

    def __init__(self, host: RepairHost) -> None:
        self._host = host
        # Most partitions have no repair; they share this empty dictionary until the first repair
        # starts.
        self._repairs = _NONE  # by block number, as in the dictionaries below
        self.dirty = _NONE  # repairs for which :meth:`flush` has something to write
        self.writing = _NONE  # repairs with a write in progress
        self._whole = _NONE  # complete copies that the controller does not know yet
        self._overrated = _NONE  # incomplete copies that the controller counts as complete
        self._timers = _NO_TIMERS
        self.deadline = NEVER

    def __contains__(self, number: int) -> bool:
        return number in self._repairs

    def start(self, state: PartitionState, block: BlockNode, log: BlockLog | None) -> None:
        """Start to repair *block*.

        *log* is the block's log if the block was open on this broker until now.
        """
        fresh = log is None
        if log is None:
            name = state.block_id(block)
            log = BlockLog(self._host, name, block.start, is_shared=False)
        if self._repairs is _NONE:
            self._repairs, self._timers = {}, TimerHeap()
            self.dirty, self.writing, self._whole, self._overrated = {}, {}, {}, {}
        self.drop(block.number)
        repair = self._repairs[block.number] = BlockRepair(self._host, block, log)
        if fresh:
            repair.recover()
        else:
            repair.begin(state.topic, state.partition)
            if log.is_writing:
                self.writing[block.number] = repair  # the write began while the block was open
        self._note(block.number, repair)

    def adopt(self, state: PartitionState) -> None:
        """Start missing repairs, and end those whose copies the controller counts as complete."""
        me = self._host.me
        numbers = {block.number for block in state.blocks[:-1] if me in block.replicas}
        for number in [number for number in self._repairs if number not in numbers]:
            self.drop(number)
        for block in state.blocks[:-1]:
            known = self._repairs.get(block.number)
            if known is not None:
                known.adopt(block)
                self._note(block.number, known)
            elif me in block.replicas and me not in block.in_sync:
                self.start(state, block, None)

    def stop(self) -> None:
        """Drop all repairs, because this broker no longer hosts the partition."""
        for number in list(self._repairs):
            self.drop(number)

    def ends(
        self, state: PartitionState, numbers: Iterable[int] | None = None
    ) -> list[tuple[str, str, int, int]]:
        """Return the ends of copies to report: (topic, partition, block number, end).

        The result covers the copies with *numbers*, or all copies whose end differs from the
        controller's metadata.
        """
        if numbers is None:
            numbers = (*self._whole, *self._overrated)
        return [
            (state.topic, state.partition, number, self._repairs[number].log.stable_end)
            for number in numbers
        ]

    def recovered(self, state: PartitionState, found: Recovered, now: int) -> bool:
        """Handle the store's answer with a copy's end; returns whether the copy is in repair."""
        repair = self._repairs.get(found.block.number)
        if repair is None or not repair.log.is_recovering:
            return False
        try:
            repair.recovered(found, state.topic, state.partition)
        except StoreError as error:
            repair.unreadable(error, state.topic, state.partition, now)
        self._note(found.block.number, repair)
        return True

    def unreadable(self, state: PartitionState, number: int, error: PymqError, now: int) -> bool:
        """Handle a failed recovery of a copy; returns whether that copy is under repair."""
        repair = self._repairs.get(number)
        if repair is None or not repair.log.is_recovering:
            return False
        repair.unreadable(error, state.topic, state.partition, now)
        self._note(number, repair)
        return True

    @property
    def are_overrated(self) -> bool:
        """Whether the controller counts an incomplete copy as complete."""
        return bool(self._overrated)

    def problem(self, number: int) -> PymqError | None:
        """Return the error if this broker's copy of a block cannot be read, or None."""
        repair = self._repairs.get(number)
        return repair.problem if repair is not None else None

    @property
    def problems(self) -> list[PymqError]:
        """The errors of unreadable copies on this broker."""
        if not self._repairs:
            return []
        return [r.problem for r in self._repairs.values() if r.problem is not None]

    def step(self, source: str, m: ReplicaFetched, now: int) -> bool:
        """Handle a part of a block; returns whether that block is under repair."""
        repair = self._repairs.get(m.block.number)
        if repair is None:
            return False
        repair.step(source, m, now)
        self._note(m.block.number, repair)
        return True

    def lend(
        self, source: str, m: ReplicaFetch, state: PartitionState, problem: PymqError | None
    ) -> None:
        """Send a part of a complete sealed block to another broker's repair."""
        host = self._host
        blocks, number = state.blocks, m.block.number
        at = bisect_left(blocks, number, key=lambda block: block.number)
        block = blocks[at] if at < len(blocks) and blocks[at].number == number else None
        is_here = block is not None and host.me in block.in_sync and number not in self
        answer = ReplicaFetched(m.id, m.block, m.offset, 0, 0)
        end = block.end if block is not None and is_here and problem is None else None
        if block is None or end is None or not block.start <= m.offset < end:
            error = ReplicaNotAvailable(f"{host.me} does not hold all of {m.block}")
            host.send(source, attrs.evolve(answer, error=error))
        else:
            host.lending.add(Read(source, answer, m.block, m.offset, end, m.max_bytes))

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        for number in self._timers.over(now):
            repair = self._repairs[number]
            repair.tick(now)
            self._note(number, repair)
        self.deadline = self._timers.due

    def flush(self, ready: Ready) -> None:
        """Add the pending writes to *ready*."""
        dirty, self.dirty = self.dirty, {}
        for repair in dirty.values():
            repair.flush(ready)
        self.writing |= dirty

    def advance(self) -> list[int]:
        """Handle the end of a write; returns the complete blocks that are not reported yet."""
        writing, self.writing = self.writing, {}
        for number, repair in writing.items():
            repair.advance()
            self._note(number, repair)
        return [number for number in writing if number in self._whole]

    def failed(self, number: int, now: int, *, is_fatal: bool) -> bool:
        """Handle a failed write; returns whether the block is under repair."""
        repair = self._repairs.get(number)
        if repair is None:
            return False
        repair.failed(now, is_fatal=is_fatal)
        self._note(number, repair)
        return True

    # --- repairs by state -------------------------------------------------------------------------

    def _note(self, number: int, repair: BlockRepair) -> None:
        """Update the sets and the timer of a repair after a change."""
        if repair.is_done and repair.is_known:
            self.drop(number)
            return
        _keep(self.dirty, number, repair, repair.is_dirty)
        _keep(self._whole, number, repair, repair.is_done)
        _keep(self._overrated, number, repair, repair.is_overrated)
        if repair.deadline != NEVER:
            self._timers.set(number, repair.deadline)
        else:
            self._timers.drop(number)
        self.deadline = self._timers.due

    def drop(self, number: int) -> None:
        """Drop the repair of a block, if there is one."""
        repair = self._repairs.pop(number, None)
        if repair is None:
            return
        repair.leave()
        for those in (self.dirty, self.writing, self._whole, self._overrated):
            those.pop(number, None)
        self._timers.drop(number)


def _keep(those: dict[int, BlockRepair], number: int, repair: BlockRepair, is_one: bool) -> None:
    if is_one:
        those[number] = repair
    else:
        those.pop(number, None)
