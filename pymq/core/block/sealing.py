"""How far the sealing of an open block has got on one broker.

The leader seals in three steps: it takes in nothing more, it waits until all that it has is
committed, it makes that durable with its index. In a Raft block the first step is a batch in the
log, after which no later leader takes in anything either. A follower of a leader that is gone only
stops to follow it, and says where its own copy ends.
"""

from __future__ import annotations

from pymq.core.block.log import BlockLog
from pymq.core.block.replicator import Replicator
from pymq.core.message import Seal, Sealed
from pymq.core.observe.coverage import mark
from pymq.core.ready import Ready
from pymq.core.types import TopicPartition


class Sealing:
    """The seal of one open block, if it was asked for."""

    __slots__ = ("_is_raft", "_is_shared", "_is_written", "answer", "fenced", "request")

    def __init__(self, *, is_shared: bool, is_raft: bool) -> None:
        self.request: Seal | None = None
        self.answer: Sealed | None = None  # once the block is sealed
        self.fenced: int | None = None  # the controller epoch under which the block is taken over
        self._is_shared = is_shared
        self._is_raft = is_raft
        self._is_written = False  # by the write under way

    @property
    def is_parking(self) -> bool:
        """Whether records that come now wait for the next block."""
        return self.request is not None

    @property
    def is_fenced(self) -> bool:
        """Whether this replica heeds its leader no more."""
        return self.fenced is not None

    def begin(self, m: Seal) -> None:
        """The zkserver wants the block sealed."""
        self.request = m
        if m.takeover:
            mark("sealing.fenced")
            self.fenced = m.controller_epoch

    def give_up(self) -> Seal | None:
        """The block stays open; returns who had asked for the seal."""
        mark("sealing.given_up")
        request, self.request = self.request, None
        self.answer = self.fenced = None
        return request

    def must_write(self, log: BlockLog, replicator: Replicator) -> bool:
        """Whether the disk is to be asked next: all that the block will hold is committed."""
        if self.request is None or self.answer is not None or log.has_unwritten:
            return False
        if self.is_fenced or not self._is_shared:
            return True
        if self._is_raft and log.seal_end is None:
            return False
        return replicator.high_watermark == log.end

    def write(self, log: BlockLog, ready: Ready) -> None:
        """Ask the disk."""
        # A follower of a leader that is gone may have to follow another one in this block.
        log.seal_block(ready, keep_open=self.is_fenced)
        self._is_written = True

    def written(self, log: BlockLog) -> bool:
        """The write is done; whether the block is sealed by it."""
        was, self._is_written = self._is_written, False
        return was and self.request is not None and log.end == log.stable_end

    def done(
        self,
        name: TopicPartition,
        me: str,
        incarnation: int,
        log: BlockLog,
        replicator: Replicator,
        past: bytes,
    ) -> Sealed | None:
        """The answer to the zkserver; *past* is what the next block is to know of producers."""
        if self.request is None:
            return None
        mark("sealing.done")
        holders = (me,) if self.is_fenced else replicator.holders(log.end)
        self.answer = Sealed(
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
        return self.answer
