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

from pymq.core.log import BlockLog, LogHost
from pymq.core.marks import mark
from pymq.core.message import ReplicaFetch, ReplicaFetched
from pymq.core.metadata import BlockNode
from pymq.core.producers import ProducerTable
from pymq.core.ready import CreateBlock, Ready, Recovered, RemoveBlock
from pymq.core.replicator import ReplicaHost
from pymq.core.runs import clip
from pymq.core.types import NEVER
from pymq.errors import (
    CorruptBatch,
    CorruptBlock,
    CorruptMetadata,
    PymqError,
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
        "_is_short",
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
        self._is_short = False  # when it was read, the copy lacked something
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
            self._is_short = log.end < block.end
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

    @property
    def is_overrated(self) -> bool:
        """Whether the zkserver takes the copy for whole, and it is not.

        Where nobody waits for a disk, a copy counts that was not synced, and a power cut may take
        the end of it.
        """
        block, end = self._block, self._block.end or 0
        return self._is_short and self._host.me in block.in_sync and self.log.stable_end < end

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
