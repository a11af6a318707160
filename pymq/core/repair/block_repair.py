"""Completing this broker's copy of a sealed block from the brokers that hold all of it.

A block is sealed when its end is committed, not when every replica has it. The others bring
themselves to exactly that end: what they have and the sealed log has not is cut off, what they lack
is fetched. Nothing is cut before the end is committed. How many of them ask at the same time is the
broker's affair (:mod:`~pymq.core.repair.repair_scheduler`).

A copy that is damaged is left as it is until another broker has sent the beginning of a sound one;
then that takes its place. Meanwhile whoever wants to read the block here is told what is wrong with
it, and all other blocks are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymq.core.batch.batch_sequence import clip
from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.log import BlockLog, LogHost
from pymq.core.block.replicator import ReplicaHost
from pymq.core.message import ReplicaFetch, ReplicaFetched
from pymq.core.metadata.nodes import BlockNode
from pymq.core.observe.coverage import mark
from pymq.core.ready import CreateBlock, Ready, Recovered, RemoveBlock
from pymq.core.repair.repair_scheduler import RepairScheduler
from pymq.core.repair.repair_throttle import RepairThrottle
from pymq.core.types import NEVER
from pymq.errors import (
    CorruptBatch,
    CorruptBlock,
    CorruptMetadata,
    PymqError,
)

REST = 10  # times retry_ms is how long nothing is written after a write that failed, at first ...
REST_MAX = 600  # ... and at most, where the store has failed for good


class RepairHost(ReplicaHost, LogHost, Protocol):
    """What a repair needs of the broker around it."""

    @property
    def slots(self) -> RepairScheduler:
        """Whose turn it is to ask others."""
        ...

    @property
    def lending(self) -> RepairThrottle:
        """What others have asked for."""
        ...


class BlockRepair:
    """One sealed block that this broker is to hold and does not, or does not know to."""

    __slots__ = (
        "_asked",
        "_asks",
        "_block",
        "_create",
        "_failures",
        "_host",
        "_is_sealing",
        "_is_short",
        "_is_unread",
        "_refusals",
        "_rests",
        "_turn",
        "deadline",
        "is_done",
        "log",
        "problem",
    )

    def __init__(self, host: RepairHost, block: BlockNode, log: BlockLog) -> None:
        self._host = host
        self._block = block
        self.log = log
        self.deadline = NEVER  # of a rest: what waits for others has its deadlines with the slots
        self.is_done = False  # the copy is whole, durable and sealed
        self._asked: str | None = None  # who is to answer, ...
        self._asks = 0  # ... and what; answers have the number of what was asked
        self._turn = 0  # which of the holders is asked first
        self._refusals = 0  # answers in a row that were of no use
        self._is_sealing = False
        self._failures = 0  # writes in a row that the store has refused for good
        self._rests = False  # a write has failed: the next one is not before the deadline
        self._is_short = False  # when it was read, the copy lacked something
        self._is_unread = False  # the store could not say where the copy ends: it is asked again
        self._create: CreateBlock | None = None  # the copy is begun with the first part of it
        self.problem: PymqError | None = None  # why the copy here cannot be read, if so

    def recover(self) -> None:
        """Have the store say where the copy ends; :meth:`recovered` or :meth:`unreadable` follows.

        With replicas, what a crash has torn off comes from others. The only one was durable before
        the block was sealed: what is bad in it is damage, and nothing may be cut off.
        """
        self.log.recover(is_open=len(self._block.replicas) > 1)

    def begin(self, topic: str, partition: str) -> None:
        """Bring the log to where the sealed one is; it is recovered."""
        block, log = self._block, self.log
        if log.is_recovering:
            return
        assert block.end is not None
        agreed = log.agreed(block.epochs, block.end) if block.epochs else min(log.end, block.end)
        if agreed < log.end:
            if self._rests:
                # A cut has failed, and what is there was read at once: it is cut after the rest.
                mark("repair.cut_later")
                self._is_unread = True
                return
            mark("repair.cut")
            log.truncate(agreed)
        if not log.is_recovering:
            self._is_short = log.end < block.end
            if log.size == 0:
                mark("repair.from_nothing")
                self._create = CreateBlock(log.name, block.start, topic, partition)
                if not self._is_short:
                    self._begin_copy()
            self._go_on()

    def adopt(self, block: BlockNode) -> None:
        """Others may hold the block now."""
        self._block = block
        self._go_on()

    @property
    def is_known(self) -> bool:
        """Whether the zkserver takes the copy for whole."""
        return self._host.me in self._block.in_sync

    def recovered(self, found: Recovered, topic: str, partition: str) -> None:
        """The store has found where the copy ends."""
        self.log.restore(found, ProducerTable())
        self.problem = None
        self.begin(topic, partition)

    def unreadable(self, error: PymqError, topic: str, partition: str, now: int) -> None:
        """The store cannot say where the copy ends, because it is damaged or for some other reason.

        What is damaged stays so; anything else may pass.
        """
        self.problem = error
        if not isinstance(error, CorruptBlock | CorruptMetadata):
            mark("repair.unreadable")
            self._is_unread = True
            self.deadline = now + REST * self._host.replication.retry_ms
            return
        mark("repair.damaged")
        name = self.log.name
        self.log = BlockLog(self._host, name, self._block.start, is_shared=False)
        self._create = CreateBlock(name, self._block.start, topic, partition)
        self._go_on()

    @property
    def is_overrated(self) -> bool:
        """Whether the zkserver takes the copy for whole, and it is not.

        Where nobody waits for a disk, a copy counts that was not synced, and a power cut may take
        the end of it.
        """
        end = self._block.end or 0
        return self._is_short and self.is_known and self.log.stable_end < end

    # --- asking others --------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._rests or self.log.is_recovering:
            return
        if self.log.end < (self._block.end or 0) and not self.log.has_unwritten:
            self._host.slots.want(self)

    @property
    def is_begun(self) -> bool:
        """Whether some of the block is here."""
        return self.log.size > 0

    @property
    def paced_bytes(self) -> int:
        """About how many bytes it asks for next, if the block moves here; else 0."""
        move = self._block.move
        if move is None or move.adding != self._host.me:
            return 0
        left = max(1, self._block.size - self.log.size)
        return min(left, self._host.replication.append_bytes)

    @property
    def holders(self) -> Sequence[str]:
        """The others that hold all of the block, those first that are heard of."""
        host = self._host
        others = [name for name in self._block.in_sync if name != host.me]
        alive = [name for name in others if host.is_alive(name)]
        rest = [name for name in others if name not in alive]
        return self._in_turn(alive) + self._in_turn(rest)

    def _in_turn(self, names: list[str]) -> list[str]:
        first = self._turn % len(names) if names else 0
        return names[first:] + names[:first]

    def ask(self, holder: str) -> None:
        """Ask *holder* for the next part; it is this repair's turn."""
        if self._asked is not None:
            mark("repair.asked_again")
            self._turn += 1
        self._asked = holder
        self._asks += 1
        host, log = self._host, self.log
        limit, last = host.replication.append_bytes, log.epoch_at(log.end)
        host.send(holder, ReplicaFetch(self._asks, log.name, log.end, last, 0, limit, 0))

    def step(self, source: str, m: ReplicaFetched, now: int) -> None:
        """Take in a part of the block."""
        if source != self._asked or m.id != self._asks or m.offset != self.log.end:
            return
        self._asked = None
        self._host.slots.answered(self, source, now)
        if m.error is None and m.data and self._take(m.data):
            self._refusals = 0
        else:
            self._refusals += 1
            self._turn += 1  # Another holder may have it sound.
            self._host.slots.rest(self, self._refusals, now)

    def _take(self, data: bytes) -> bool:
        end = self.log.end
        try:
            # Who holds the block may have compacted it meanwhile.
            clipped = clip(data, end)
            if clipped is not data:
                mark("repair.clipped")
            self.log.extend(clipped)
        except CorruptBatch:
            mark("repair.corrupt")
            return False
        if self.log.end == end:
            return False
        mark("repair.part")
        self._begin_copy()
        return True

    def _begin_copy(self) -> None:
        """Begin a copy where there is none, or one that is damaged."""
        if self._create is None:
            return
        if self.problem is not None:
            mark("repair.replaced")
            self._host.out.write.append(RemoveBlock(self.log.name))
            self.problem = None
        self.log.write_first(self._create)
        self._create = None

    def leave(self) -> None:
        """Ask for nothing any more."""
        self._asked = None
        self._host.slots.leave(self)

    # --- the disk -------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Go on after a rest."""
        if now >= self.deadline:
            self._rests = False
            self.deadline = NEVER
            if self._is_unread:
                self._is_unread = False
                self.recover()
            self._go_on()

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

    def advance(self) -> None:
        """The write is done."""
        if not self.log.advance():
            return
        self._failures = 0
        self.log.release()  # Nobody is sent anything from here before it is whole.
        if self._is_sealing:
            self.is_done = True
            self.leave()
        else:
            self._go_on()

    def failed(self, now: int, *, is_fatal: bool) -> None:
        """The write failed: try again, later, from what is on the disk by now.

        The store may have sealed the copy where it ended when its disk was full, and takes nothing
        more into it then. After a failed sync nobody knows what is there before the next start,
        and each part that is fetched until then is likely to be lost: the pauses grow.
        """
        self.log.fail()
        mark("repair.write_failed")
        self._is_sealing, self._rests = False, True
        self.leave()
        if not (is_fatal or self.log.is_recovering):
            self.recover()
        pause = REST
        if is_fatal:
            mark("repair.store_failed")
            pause = min(REST << min(self._failures, 16), REST_MAX)
            self._failures += 1
        self.deadline = now + pause * self._host.replication.retry_ms
