"""Repairs one sealed block: completes this broker's copy from brokers that hold the whole block.

A block is sealed when its end is committed, which may be before every replica has the last records.
A replica whose copy differs then truncates batches that are not in the sealed log, and fetches
missing batches. A replica truncates nothing before the end is committed.
:mod:`~pymq.core.repair.repair_scheduler` limits how many repairs fetch at the same time.

A damaged copy is kept until another broker has sent the first part of a sound copy. Until then
reads of the block on this broker return the error. All other blocks stay readable.
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

REST = 10  # times retry_ms: the pause after a failed write
REST_MAX = 600  # times retry_ms: the longest pause, after repeated permanent failures of the store


class RepairHost(ReplicaHost, LogHost, Protocol):
    """The broker, as far as a repair needs it."""

    @property
    def slots(self) -> RepairScheduler:
        """The scheduler of this broker's repairs."""
        ...

    @property
    def lending(self) -> RepairThrottle:
        """The throttle of reads for repairs of other brokers."""
        ...


class BlockRepair:
    """The repair of one sealed block whose copy on this broker may be incomplete."""

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
        self.deadline = NEVER  # the end of a pause; the scheduler has the deadlines of answers
        self.is_done = False  # the copy is complete, durable and sealed
        self._asked: str | None = None  # the holder to which this repair has sent a request
        self._asks = 0  # the id of the last request
        self._turn = 0  # rotates the order of holders
        self._refusals = 0  # useless answers in a row
        self._is_sealing = False
        self._failures = 0  # permanently failed writes in a row
        self._rests = False  # a write failed, so the repair writes nothing before the deadline
        self._is_short = False  # the copy was incomplete when it was recovered
        self._is_unread = False  # the store could not find the end of the copy, and will try again
        # the creation of the block, which is written with the first part
        self._create: CreateBlock | None = None
        self.problem: PymqError | None = None  # the error if the copy cannot be read

    def recover(self) -> None:
        """Ask the store to find the end of the copy; :meth:`recovered` or :meth:`unreadable`
        follows.

        If there are other replicas, the store may truncate a torn write, because the other replicas
        have the records. A single replica synced its copy before the block was sealed, so bad bytes
        are damage, and the store truncates nothing.
        """
        self.log.recover(is_open=len(self._block.replicas) > 1)

    def begin(self, topic: str, partition: str) -> None:
        """If the copy's end is known, truncate batches that are not in the sealed log and fetch the
        rest.
        """
        block, log = self._block, self.log
        if log.is_recovering:
            return
        assert block.end is not None
        agreed = min(log.end, block.end)
        if block.epochs:
            agreed = log.epochs.agreed(log.end, block.epochs, block.end)
        if agreed < log.end:
            if self._rests:
                # A truncation has failed and the copy was recovered at once: try again after the
                # pause.
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
        """Adopt new metadata of the block: other brokers may hold it now."""
        self._block = block
        self._go_on()

    @property
    def is_known(self) -> bool:
        """Whether the controller counts this copy as complete."""
        return self._host.me in self._block.in_sync

    def recovered(self, found: Recovered, topic: str, partition: str) -> None:
        """Handle the store's answer with the end of the copy."""
        self.log.restore(found, ProducerTable())
        self.problem = None
        self.begin(topic, partition)

    def unreadable(self, error: PymqError, topic: str, partition: str, now: int) -> None:
        """Handle a failed recovery: replace a damaged copy, or try again after any other error."""
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
        """Whether the controller counts this copy as complete although the copy is incomplete.

        If a topic does not sync, the controller may count a copy as complete and a power cut may
        then remove its end.
        """
        end = self._block.end or 0
        return self._is_short and self.is_known and self.log.stable_end < end

    # --- fetching from holders ------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._rests or self.log.is_recovering:
            return
        if self.log.end < (self._block.end or 0) and not self.log.unwritten:
            self._host.slots.want(self)

    @property
    def is_begun(self) -> bool:
        """Whether this broker has a part of the block."""
        return self.log.size > 0

    @property
    def paced_bytes(self) -> int:
        """The approximate bytes of the next request, if the block moves to this broker; else 0."""
        move = self._block.move
        if move is None or move.adding != self._host.me:
            return 0
        left = max(1, self._block.size - self.log.size)
        return min(left, self._host.replication.append_bytes)

    @property
    def holders(self) -> Sequence[str]:
        """The other brokers that hold the whole block, live brokers first."""
        host = self._host
        others = [name for name in self._block.in_sync if name != host.me]
        alive = [name for name in others if host.is_alive(name)]
        rest = [name for name in others if name not in alive]
        return self._in_turn(alive) + self._in_turn(rest)

    def _in_turn(self, names: list[str]) -> list[str]:
        first = self._turn % len(names) if names else 0
        return names[first:] + names[:first]

    def ask(self, holder: str) -> None:
        """Request the next part from *holder*; called by the scheduler."""
        if self._asked is not None:
            mark("repair.asked_again")
            self._turn += 1
        self._asked = holder
        self._asks += 1
        host, log = self._host, self.log
        limit, last = host.replication.append_bytes, log.epoch_at(log.end)
        host.send(holder, ReplicaFetch(self._asks, log.name, log.end, last, 0, limit, 0))

    def step(self, source: str, m: ReplicaFetched, now: int) -> None:
        """Handle the answer of a holder (a broker with a complete copy)."""
        if source != self._asked or m.id != self._asks or m.offset != self.log.end:
            return
        self._asked = None
        self._host.slots.answered(self, source, now)
        if m.error is None and m.data and self._take(m.data):
            self._refusals = 0
        else:
            self._refusals += 1
            self._turn += 1  # another holder may have a sound copy of the block
            self._host.slots.rest(self, self._refusals, now)

    def _take(self, data: bytes) -> bool:
        end = self.log.end
        try:
            # The holder may have compacted the block since the last part.
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
        """Create the block if it is missing, or replace a damaged copy."""
        if self._create is None:
            return
        if self.problem is not None:
            mark("repair.replaced")
            self._host.out.write.append(RemoveBlock(self.log.name))
            self.problem = None
        self._host.out.write.append(self._create)
        self._create = None

    def leave(self) -> None:
        """Stop fetching."""
        self._asked = None
        self._host.slots.leave(self)

    # --- the disk -------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Resume after a pause."""
        if now >= self.deadline:
            self._rests = False
            self.deadline = NEVER
            if self._is_unread:
                self._is_unread = False
                self.recover()
            self._go_on()

    @property
    def is_dirty(self) -> bool:
        """Whether :meth:`flush` has something to write."""
        log = self.log
        if log.is_recovering or log.is_writing or self.is_done or self._rests:
            return False
        return bool(log.unwritten) or (log.end == self._block.end and not self._is_sealing)

    def flush(self, ready: Ready) -> None:
        """Add the pending writes to *ready*."""
        self.log.flush(ready, sync=False)
        if self.log.end == self._block.end:
            self._is_sealing = True
            self.log.seal_block(ready)

    def advance(self) -> None:
        """Handle the end of a write."""
        if not self.log.advance():
            return
        self._failures = 0
        self.log.release()  # an incomplete copy serves no followers
        if self._is_sealing:
            self.is_done = True
            self.leave()
        else:
            self._go_on()

    def failed(self, now: int, *, is_fatal: bool) -> None:
        """Handle a failed write: recover the copy and try again after a pause.

        If the disk was full, the store may have sealed the copy at its end, and then accepts no
        more appends. After a failed sync the content of the disk is unknown until the broker
        restarts, and newly fetched parts may be lost too, so the pauses grow.
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
