"""The end of the open block, and the offset up to which consumers may read it."""

from __future__ import annotations

from pymq.core.block.log import BlockLog
from pymq.core.block.replicator import Replicator
from pymq.core.observe.coverage import mark


class BlockOffsets:
    """The ends of one replica of the open block."""

    __slots__ = ("is_raft", "log", "replicator", "start", "visible")

    def __init__(self, start: int, visible: int) -> None:
        self.start = start
        self.visible = visible  # the high watermark from before the replica restarted its log
        self.is_raft = False
        self.log: BlockLog | None = None  # None if this broker does not hold the block
        self.replicator: Replicator | None = None  # set once recovery has ended

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.log.end if self.log is not None else self.start

    @property
    def high_watermark(self) -> int:
        """The offset before which consumers may read."""
        log, replicator = self.log, self.replicator
        if replicator is None or log is None:
            return max(self.visible, self.start)
        high = replicator.high_watermark
        if log.seal_end is not None and high > log.seal_end:
            # Later leaders may have appended no-ops at offsets where the next block begins. A
            # reader that continued after them would miss the next block's first records.
            mark("partition.behind_the_seal")
            high = log.seal_end
        # Records committed before a restart are still committed, up to the end of the log.
        return max(self.visible, high, log.committed)

    @property
    def readable_end(self) -> int:
        """The offset before which consumers may read a follower.

        Records before this offset are on the follower's disk, and the follower knows that they are
        committed.
        """
        log = self.log
        return self.high_watermark if log is None else min(self.high_watermark, log.stable_end)

    @property
    def knows_end(self) -> bool:
        """Whether this leader's high watermark includes all records that earlier leaders
        acknowledged.

        A new Raft leader has all these records, but knows that the records are committed only after
        an entry of its own term is committed (Raft, section 8; Kafka KIP-207).
        """
        if self.log is None or not self.log.epochs or not self.is_raft:
            return True
        return self.high_watermark >= self.log.epochs[-1][1]

    def start_over(self) -> None:
        """Restart the replica's log; records that consumers could read before stay readable."""
        self.visible = self.high_watermark
        self.replicator = None
