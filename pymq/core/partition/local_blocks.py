"""Which blocks of a partition one broker holds, and what is to be done for it to hold them.

The open block is read by the store at the start, a sealed one that is not whole is completed by its
repair, one that is not kept any more is removed. A block that the broker was given on another disk
than the one it has now is not held, whatever its name says.
"""

from __future__ import annotations

from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.log import BlockLog
from pymq.core.block.replicator import ReplicatorFactory
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.partition.host import Home, PartitionHost
from pymq.core.partition.open_block import OpenBlock
from pymq.core.ready import RemoveBlock
from pymq.core.repair.partition_repairs import PartitionRepairs


class LocalBlocks:
    """The blocks of one partition that are, or are to be, on this broker's disk."""

    __slots__ = ("_host", "_make_replicator", "_near", "repairs")

    def __init__(self, host: Home, make_replicator: ReplicatorFactory) -> None:
        self._host = host
        self._near = PartitionHost(host)  # the same, as the replicas see it
        self._make_replicator = make_replicator
        self.repairs = PartitionRepairs(self._near)  # of the sealed ones

    def holds(self, block: BlockNode) -> bool:
        """Whether this broker is to hold a block, and still has the disk that it was given to."""
        if self._host.me not in block.replicas:
            return False
        if not block.storages:
            return True
        return block.storages[block.replicas.index(self._host.me)] == self._host.storage_id

    def has(self, block: BlockNode) -> bool:
        """Whether all of a sealed block is here."""
        return self._host.me in block.in_sync and block.number not in self.repairs

    def _knows(self, block: BlockNode) -> bool:
        """Whether what is here of a sealed block tells all that its producers have written."""
        is_only = block.replicas == (self._host.me,)  # Nothing else can be missing of it.
        return self.holds(block) and (is_only or self.has(block))

    def open(self, state: PartitionState, visible: int) -> OpenBlock:
        """Make the open block; *visible* is how far the partition was read before."""
        return OpenBlock(state, self._near, self._make_replicator, self._knows, visible)

    def begin(self, state: PartitionState, unsealed: frozenset[int]) -> None:
        """Have the sealed blocks completed; those *unsealed* on the disk may say otherwise."""
        for block in state.blocks[:-1]:
            if block.number in unsealed and self._host.me in block.replicas:
                self.repairs.start(state, block, None)
        self.repairs.adopt(state)

    def close(
        self, state: PartitionState, last: BlockNode, log: BlockLog, *, is_resting: bool
    ) -> ProducerTable | None:
        """Let go of the *last* block that was open, or bring it to the end that *state* gives it.

        *is_resting*: its *log* is to be read, and the store owes no answer about it. Returns what
        it knew of producers, if that is all there is to know.
        """
        sealed = next((b for b in state.blocks if b.number == last.number), None)
        if sealed is None:
            mark("partition.empty_block")
            # It was empty, and is no more; before it was read, it knew nothing.
            return None if log.is_recovering else log.producers
        is_whole = log.end == sealed.end == log.stable_end and not log.is_recovering
        if len(sealed.replicas) > 1 or not is_whole:
            mark("partition.close.repair")
            # Even a whole copy is to be made durable, with its index.
            self.repairs.start(state, sealed, None if is_resting else log)
        return log.producers if is_whole else None

    def retire(self, before: PartitionState, after: PartitionState) -> None:
        """Remove the blocks that are kept no more, or not here."""
        me = self._host.me
        kept = {block.number for block in after.blocks if me in block.replicas}
        for gone in before.blocks:
            if gone.number not in kept and me in gone.replicas:
                mark("partition.block_removed")
                self.repairs.drop(gone.number)  # Or it would go on with what is removed.
                self._host.out.write.append(RemoveBlock(before.block_id(gone)))

    def remove(self, state: PartitionState) -> None:
        """Remove all of them."""
        for block in state.blocks:
            self._host.out.write.append(RemoveBlock(state.block_id(block)))
