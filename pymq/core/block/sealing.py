"""The seal of an open block on one broker.

The leader seals in three steps:

1. The leader appends no more records. In a Raft block the leader also appends a seal batch, after
   which no later leader appends records either.
2. The leader waits until its whole log is committed.
3. The leader syncs the log and its index to disk.

If the leader has failed, the controller takes the block over: each follower stops following and
reports the end of its own copy. Such a follower is fenced: it ignores its leader until the roll, or
until another controller takes over.
"""

from __future__ import annotations

from enum import Enum

from pymq.core.block.log import BlockLog
from pymq.core.block.replicator import Replicator
from pymq.core.message import Seal, Sealed
from pymq.core.observe.coverage import mark
from pymq.core.ready import Ready
from pymq.core.types import TopicPartition


class SealState(Enum):
    """The progress of the seal of one block on this broker."""

    OPEN = "no seal is requested"
    DRAINING = "batches are parked until all appended batches are committed"
    WRITING = "the seal is being written"
    SEALED = "the seal is durable, and the end was sent to the controller"


# A seal can be cancelled in any state. A repeated request changes the state only if the block is
# open.
TRANSITIONS = {
    SealState.OPEN: {SealState.DRAINING},
    SealState.DRAINING: {SealState.WRITING, SealState.OPEN},
    SealState.WRITING: {SealState.SEALED, SealState.DRAINING, SealState.OPEN},
    SealState.SEALED: {SealState.SEALED, SealState.OPEN},
}


class Sealing:
    """The seal of one open block, if the controller has requested one."""

    __slots__ = ("_is_raft", "_is_shared", "fenced", "request", "state")

    def __init__(self, *, is_shared: bool, is_raft: bool) -> None:
        self.state = SealState.OPEN
        self.request: Seal | None = None  # None: no seal was requested
        self.fenced: int | None = None  # the controller epoch of a takeover of the block
        self._is_shared = is_shared
        self._is_raft = is_raft

    @property
    def is_parking(self) -> bool:
        """Whether new batches are parked for the next block."""
        return self.request is not None

    @property
    def is_fenced(self) -> bool:
        """Whether this replica ignores its leader, because the controller takes the block over."""
        return self.fenced is not None

    def begin(self, m: Seal) -> None:
        """Begin the seal that the controller requests."""
        self.request = m
        if self.state is SealState.OPEN:
            self._move(SealState.DRAINING)
        if m.takeover:
            mark("sealing.fenced")
            self.fenced = m.controller_epoch

    def give_up(self) -> Seal | None:
        """Cancel the seal, so that the block stays open; returns the request, if any."""
        mark("sealing.given_up")
        request, self.request = self.request, None
        self.fenced = None
        if self.state is not SealState.OPEN:
            self._move(SealState.OPEN)
        return request

    def must_write(self, log: BlockLog, replicator: Replicator) -> bool:
        """Whether a draining seal must be written now, since all records are committed."""
        if log.unwritten:
            return False
        if self.is_fenced or not self._is_shared:
            return True
        if self._is_raft and log.seal_end is None:
            return False
        return replicator.high_watermark == log.end

    def write(self, log: BlockLog, ready: Ready) -> None:
        """Add the seal to *ready*."""
        # A fenced replica may have to follow another leader in this block, so it stays open.
        log.seal_block(ready, keep_open=self.is_fenced)
        self._move(SealState.WRITING)

    def written(self, log: BlockLog) -> bool:
        """Handle the end of the seal's write; returns whether the block is sealed now."""
        if log.end == log.stable_end:
            return True
        self._move(SealState.DRAINING)  # More batches have been appended meanwhile.
        return False

    def done(
        self,
        name: TopicPartition,
        me: str,
        incarnation: int,
        log: BlockLog,
        replicator: Replicator,
        past: bytes,
    ) -> Sealed | None:
        """Return the answer to the controller; *past* is the producer table for the next block."""
        if self.request is None:
            return None
        mark("sealing.done")
        self._move(SealState.SEALED)
        holders = (me,) if self.is_fenced else replicator.holders(log.end)
        return Sealed(
            *name,
            self.request.block,
            self.request.epoch,
            me,
            log.end,
            log.size,
            log.max_timestamp,
            holders,
            replicator.epoch,
            incarnation=incarnation,
            epochs=tuple(log.epochs) if self._is_shared else (),
            past=past,
            topic_id=log.name.topic_id,
            controller_epoch=self.request.controller_epoch,
        )

    def _move(self, to: SealState) -> None:
        assert to in TRANSITIONS[self.state], f"{self.state.name} -> {to.name}"
        self.state = to
