"""The sealed blocks of one partition that this broker is bringing to their end."""

from __future__ import annotations

import attrs

from pymq.core.log import BlockLog
from pymq.core.message import ReplicaFetch, ReplicaFetched
from pymq.core.metadata import BlockNode, PartitionState
from pymq.core.ready import Read, Ready, Recovered
from pymq.core.repair import Repair, RepairHost
from pymq.core.types import NEVER
from pymq.errors import PymqError, ReplicaNotAvailable, StoreError


class Repairs:
    """The sealed blocks of one partition that this broker is bringing to their end."""

    __slots__ = ("_host", "_repairs", "deadline")

    def __init__(self, host: RepairHost) -> None:
        self._host = host
        self._repairs: dict[int, Repair] = {}  # by block number
        self.deadline = NEVER

    def __contains__(self, number: int) -> bool:
        return number in self._repairs

    def start(
        self, state: PartitionState, block: BlockNode, log: BlockLog | None, now: int
    ) -> None:
        """Bring *block* to its end, from *log* if it was open here until now."""
        fresh = log is None
        if log is None:
            name = state.block_id(block)
            log = BlockLog(self._host, name, block.start, is_shared=True)
        repair = self._repairs[block.number] = Repair(self._host, block, log)
        if fresh:
            repair.recover()
        else:
            repair.begin(state.topic, state.partition, now)
        self._rearm()

    def adopt(self, state: PartitionState, now: int) -> None:
        """Begin what is missing, and end what the zkserver knows to be whole."""
        me = self._host.me
        numbers = {block.number for block in state.blocks[:-1]}
        for number in [number for number in self._repairs if number not in numbers]:
            del self._repairs[number]
        for block in state.blocks[:-1]:
            known = self._repairs.get(block.number)
            if known is not None and known.is_done and me in block.in_sync:
                del self._repairs[block.number]
            elif known is not None:
                known.adopt(block, now)
            elif me in block.replicas and me not in block.in_sync:
                self.start(state, block, None, now)
        self._rearm()

    def stop(self) -> None:
        """Nothing of the partition is to be here any more."""
        self._repairs.clear()
        self._rearm()

    def ends(self, state: PartitionState) -> list[tuple[str, str, int, int]]:
        """How far copies go that the zkserver knows otherwise: (topic, partition, number, end)."""
        return [
            (state.topic, state.partition, number, repair.log.stable_end)
            for number, repair in self._repairs.items()
            if repair.is_done or repair.is_overrated
        ]

    def recovered(self, state: PartitionState, found: Recovered, now: int) -> bool:
        """The store has found where a copy ends; whether it was one of these."""
        repair = self._repairs.get(found.block.number)
        if repair is None or not repair.log.is_recovering:
            return False
        try:
            repair.recovered(found, state.topic, state.partition, now)
        except StoreError as error:
            repair.unreadable(error, state.topic, state.partition, now)
        self._rearm()
        return True

    def unreadable(self, state: PartitionState, number: int, error: PymqError, now: int) -> bool:
        """The store cannot say where a copy ends; whether it was one of these."""
        repair = self._repairs.get(number)
        if repair is None or not repair.log.is_recovering:
            return False
        repair.unreadable(error, state.topic, state.partition, now)
        self._rearm()
        return True

    @property
    def are_overrated(self) -> bool:
        """Whether the zkserver takes any of them for whole that is not."""
        return any(repair.is_overrated for repair in self._repairs.values())

    def problem(self, number: int) -> PymqError | None:
        """Why the copy of a block that is here cannot be read, if so."""
        repair = self._repairs.get(number)
        return repair.problem if repair is not None else None

    @property
    def problems(self) -> list[PymqError]:
        """Why copies that are here cannot be read."""
        if not self._repairs:
            return []
        return [r.problem for r in self._repairs.values() if r.problem is not None]

    def step(self, source: str, m: ReplicaFetched, now: int) -> bool:
        """Take in a part of a block; whether it was for one of these."""
        repair = self._repairs.get(m.block.number)
        if repair is None:
            return False
        repair.step(source, m, now)
        self._rearm()
        return True

    def lend(
        self, source: str, m: ReplicaFetch, state: PartitionState, problem: PymqError | None
    ) -> None:
        """Let another broker complete its copy from a sealed block that is whole here."""
        host = self._host
        block = next((b for b in state.blocks[:-1] if b.number == m.block.number), None)
        is_here = block is not None and host.me in block.in_sync and block.number not in self
        answer = ReplicaFetched(m.id, m.block, m.offset, 0, 0)
        if block is None or block.end is None or not is_here or problem is not None:
            error = ReplicaNotAvailable(f"{host.me} does not hold all of {m.block}")
            host.send(source, attrs.evolve(answer, error=error))
        elif block.start <= m.offset < block.end:
            read = Read(source, answer, m.block, m.offset, block.end, m.max_bytes)
            host.out.read.append(read)

    def tick(self, now: int) -> None:
        """Do what is due."""
        for repair in self._repairs.values():
            repair.tick(now)
        self._rearm()

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write."""
        if not self._repairs:
            return False  # as nearly always, and this is asked all the time
        return any(repair.is_dirty for repair in self._repairs.values())

    def flush(self, ready: Ready) -> None:
        """Add what is to be written to *ready*."""
        for repair in self._repairs.values():
            if repair.is_dirty:
                repair.flush(ready)

    def advance(self, now: int) -> bool:
        """The write is done; whether a copy is whole by it."""
        is_done = False
        for repair in self._repairs.values():
            if repair.log.is_writing:
                repair.advance(now)
                is_done |= repair.is_done
        self._rearm()
        return is_done

    def failed(self, number: int, now: int, *, is_fatal: bool) -> bool:
        """A write failed; whether it was of one of these."""
        repair = self._repairs.get(number)
        if repair is None:
            return False
        repair.failed(now, is_fatal=is_fatal)
        self._rearm()
        return True

    def _rearm(self) -> None:
        repairs = self._repairs.values()
        self.deadline = min([repair.deadline for repair in repairs]) if repairs else NEVER
