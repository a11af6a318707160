"""Completing this broker's copy of a sealed block from the brokers that hold all of it.

A block is sealed when its end is committed, not when every replica has it. The others bring
themselves to exactly that end: what they have and the sealed log has not is cut off, what they lack
is fetched. Nothing is cut before the end is committed.

A copy that is damaged is left as it is until another broker has sent the beginning of a sound one;
then that takes its place. Meanwhile whoever wants to read the block here is told what is wrong with
it, and all other blocks are served.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from pymq.core.log import BlockLog, LogHost
from pymq.core.marks import mark
from pymq.core.message import ReplicaFetch, ReplicaFetched
from pymq.core.metadata import BlockNode, PartitionState
from pymq.core.producers import ProducerTable
from pymq.core.ready import CreateBlock, Read, Ready, Recovered, RemoveBlock
from pymq.core.replicator import ReplicaHost
from pymq.core.runs import clip
from pymq.core.types import NEVER
from pymq.errors import (
    CorruptBatch,
    CorruptBlock,
    CorruptMetadata,
    PymqError,
    ReplicaNotAvailable,
    StoreError,
)


class RepairHost(ReplicaHost, LogHost, Protocol):
    """What a repair needs of the broker around it."""


class Repair:
    """One sealed block that this broker is to hold and does not, or does not know to."""

    __slots__ = (
        "_asked",
        "_block",
        "_host",
        "_is_sealing",
        "_is_unread",
        "_replacement",
        "_rests",
        "_tries",
        "deadline",
        "is_done",
        "log",
        "problem",
    )

    def __init__(self, host: RepairHost, block: BlockNode, log: BlockLog) -> None:
        self._host = host
        self._block = block
        self.log = log
        self.deadline = NEVER
        self.is_done = False  # the copy is whole, durable and sealed
        self._asked: str | None = None  # who is to answer
        self._tries = 0
        self._is_sealing = False
        self._rests = False  # a write has failed: the next one is not before the deadline
        self._is_unread = False  # the store could not say where the copy ends: it is asked again
        self._replacement: CreateBlock | None = None  # of a damaged copy, once there is another
        self.problem: PymqError | None = None  # why the copy here cannot be read, if so

    def recover(self) -> None:
        """Have the store say where the copy ends; :meth:`recovered` or :meth:`unreadable` follows.

        With replicas, what a crash has torn off comes from others. The only one was durable before
        the block was sealed: what is bad in it is damage, and nothing may be cut off.
        """
        self.log.recover(is_open=len(self._block.replicas) > 1)

    def begin(self, topic: str, partition: str, now: int) -> None:
        """Bring the log to where the sealed one is; it is recovered."""
        block, log = self._block, self.log
        if log.is_recovering:
            return
        assert block.end is not None
        agreed = log.agreed(block.epochs, block.end) if block.epochs else min(log.end, block.end)
        if agreed < log.end:
            mark("repair.cut")
            log.truncate(agreed)
        if not log.is_recovering:
            if log.size == 0:
                create = CreateBlock(log.name, block.start, topic, partition)
                mark("repair.from_nothing")
                log.write_first(create)
            self._go_on(now)

    def adopt(self, block: BlockNode, now: int) -> None:
        """Others may hold the block now."""
        self._block = block
        if self._asked is None and not self.log.is_recovering:
            self._go_on(now)

    def recovered(self, found: Recovered, topic: str, partition: str, now: int) -> None:
        """The store has found where the copy ends."""
        self.log.restore(found, ProducerTable())
        self.problem = None
        self.begin(topic, partition, now)

    def unreadable(self, error: PymqError, topic: str, partition: str, now: int) -> None:
        """The store cannot say where the copy ends, because it is damaged or for some other reason.

        What is damaged stays so; anything else may pass.
        """
        self.problem = error
        if not isinstance(error, CorruptBlock | CorruptMetadata):
            mark("repair.unreadable")
            self._is_unread = True
            self.deadline = now + 10 * self._host.replication.retry_ms
            return
        mark("repair.damaged")
        name = self.log.name
        self.log = BlockLog(self._host, name, self._block.start, is_shared=True)
        self._replacement = CreateBlock(name, self._block.start, topic, partition)
        self._go_on(now)

    def _go_on(self, now: int) -> None:
        if self._rests or self.log.is_recovering:
            return
        if self.log.end < (self._block.end or 0) and not self.log.has_unwritten:
            self._ask(now)

    def _ask(self, now: int) -> None:
        host, log = self._host, self.log
        holders = [b for b in self._block.in_sync if b != host.me]
        alive = [b for b in holders if host.is_alive(b)] or holders
        self.deadline = now + 2 * host.replication.retry_ms
        if alive:
            self._asked = alive[self._tries % len(alive)]
            self._tries += 1
            limit = host.replication.append_bytes
            last = log.epoch_at(log.end)
            host.send(self._asked, ReplicaFetch(self._tries, log.name, log.end, last, 0, limit, 0))

    def step(self, source: str, m: ReplicaFetched, now: int) -> None:
        """Take in a part of the block."""
        if source != self._asked or m.id != self._tries or m.offset != self.log.end:
            return
        self._asked = None
        if m.error is None and m.data:
            try:
                # Who holds the block may have compacted it meanwhile.
                data = clip(m.data, self.log.end)
                if data is not m.data:
                    mark("repair.clipped")
                self.log.extend(data)
            except CorruptBatch:
                mark("repair.corrupt")  # Another holder may have it sound: the deadline asks it.
            else:
                mark("repair.part")
                self._replace()
                self._tries -= 1  # Who has answered well is asked again.
                self.deadline = NEVER

    def _replace(self) -> None:
        """Begin another copy in the place of one that is damaged."""
        if self._replacement is not None:
            mark("repair.replaced")
            self._host.out.write.append(RemoveBlock(self.log.name))
            self.log.write_first(self._replacement)
            self._replacement = self.problem = None

    def tick(self, now: int) -> None:
        """Ask again, somebody else."""
        if now >= self.deadline:
            mark("repair.asked_again")
            self._asked, self._rests = None, False
            self.deadline = NEVER
            if self._is_unread:
                self._is_unread = False
                self.recover()
            self._go_on(now)

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write."""
        log = self.log
        if log.is_recovering or log.is_writing or self.is_done or self._rests:
            return False
        return log.has_unwritten or (log.end == self._block.end and not self._is_sealing)

    def flush(self, ready: Ready) -> None:
        """Add what is to be written to *ready*."""
        self.log.flush(ready, sync=False)
        if self.log.end == self._block.end:
            self._is_sealing = True
            self.log.seal_block(ready)

    def advance(self, now: int) -> None:
        """The write is done."""
        if not self.log.advance():
            return
        if self._is_sealing:
            self.is_done = True
            self.deadline = NEVER
        else:
            self._go_on(now)

    def failed(self, now: int, *, is_fatal: bool) -> None:
        """The write failed: try again, later, from what is on the disk by now.

        The store may have sealed the copy where it ended when its disk was full, and takes nothing
        more into it then. After a failed sync nobody knows what is there before the next start.
        """
        self.log.fail()
        mark("repair.write_failed")
        self._is_sealing, self._rests = False, True
        self._asked = None
        if not (is_fatal or self.log.is_recovering):
            self.recover()
        self.deadline = now + 10 * self._host.replication.retry_ms


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

    def ends(self, state: PartitionState) -> list[tuple[str, str, int, int]]:
        """What is whole here by now: (topic, partition, block number, end)."""
        ends = {block.number: block.end for block in state.blocks}
        return [
            (state.topic, state.partition, number, ends[number] or 0)
            for number, repair in self._repairs.items()
            if repair.is_done
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
