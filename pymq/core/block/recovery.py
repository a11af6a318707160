"""Finding out what the log of an open block holds, after a start.

The store says where the block ends and what its batches tell of their producers since the last
checkpoint. When there is none, the producers before it are known to the blocks before it only, so
these are asked too, one by one, until one has a checkpoint.

A disk may fail to read what it can read the next time. So the store is asked again, ever more
seldom, and until then the replica takes no part. What is damaged stays so.
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.log import BlockLog, LogHost
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.ready import Recover, Recovered, RecoverFailed
from pymq.core.types import AckMode, BlockId
from pymq.errors import CorruptBlock, CorruptMetadata, PymqError, StoreError


def as_told(error: Exception) -> PymqError:
    """What a store has met, as everybody else is told of it."""
    return error if isinstance(error, PymqError) else StoreError(str(error))


def passes(error: Exception) -> bool:
    """Whether a store has failed for want of what it gets again without anybody's help."""
    return isinstance(error, StoreError) and error.details.get("passes") is True


def may_pass(failed: RecoverFailed) -> bool:
    """Whether what could not be read may be readable the next time."""
    if failed.fatal or isinstance(failed.error, CorruptBlock | CorruptMetadata):
        return False
    return isinstance(failed.error, OSError)


class Recovery:
    """The parts that the store has found, newest block first."""

    __slots__ = ("_asked", "_found", "_host", "_is_known")

    def __init__(self, host: LogHost, is_known: Callable[[BlockNode], bool]) -> None:
        self._host = host
        self._is_known = is_known  # whether all that a sealed block tells of producers is here
        self._found: list[Recovered] = []
        self._asked: BlockId | None = None  # the last of the blocks before it that was asked for

    def begin(self) -> None:
        """Forget what was found."""
        self._found, self._asked = [], None

    def awaits(self, block: BlockId, log: BlockLog) -> bool:
        """Whether the store is to say something about *block*; it may have been asked for others.

        What was asked for a sealed block may come when that is not kept any more.
        """
        return log.is_recovering and block == (self._asked or log.name)

    def add(self, found: Recovered, log: BlockLog, state: PartitionState) -> Recovered | None:
        """Take in a part; once there is enough, restore *log* and return the open block's part.

        Raises:
            CorruptBlock: what was on the disk is not there any more.
            CorruptMetadata: a checkpoint cannot be read.
            StoreError: what was voted on is missing.
        """
        self._found.append(found)
        first = self._found[0]
        block = state.blocks[-1]
        is_voted = len(block.replicas) > 1 and block.acks is AckMode.RAFT
        if is_voted and first.state is None and first.end > first.start:
            mark("partition.votes_lost")
            # Nothing is accepted before a term is saved, so what was promised here is lost.
            raise StoreError(f"{first.block} has records, and what it has voted on is missing")
        if not self._restore(log, state):
            return None
        self.begin()
        return first

    def _restore(self, log: BlockLog, state: PartitionState) -> bool:
        blocks, found = state.blocks, self._found
        before: ProducerTable | None = None
        if blocks[-1].past:
            before = ProducerTable.restore(blocks[-1].past)
        elif found[-1].snapshot is None and found[-1].block.number > blocks[0].number:
            # Without a snapshot the producers before this block are only in the block before.
            index = [block.number for block in blocks].index(found[-1].block.number) - 1
            earlier = blocks[index]
            if self._is_known(earlier):
                mark("partition.recover_earlier")
                self._asked = state.block_id(earlier)
                self._host.out.ask.append(Recover(self._asked, earlier.start, False))
                return False
        for part in reversed(found[1:]):
            older = BlockLog(self._host, part.block, part.start, is_shared=False)
            older.restore(part, before or ProducerTable())
            before = older.producers
        return log.restore(found[0], before or ProducerTable())
