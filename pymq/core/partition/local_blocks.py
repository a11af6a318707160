"""The blocks of a partition on one broker's disk: recovery, repair and removal.

At start the store recovers the open block. A repair completes each incomplete copy of a sealed
block. Blocks that the metadata no longer assigns to this broker are removed. If a block was
assigned to an earlier disk of this broker, the broker does not count as a holder.
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
    """The blocks of one partition that this broker holds or has to complete."""

    __slots__ = ("_host", "_make_replicator", "host", "repairs")

    def __init__(self, host: Home, make_replicator: ReplicatorFactory) -> None:
        self._host = host
        self.host = PartitionHost(host)  # the broker, as the replicators see it
        self._make_replicator = make_replicator
        self.repairs = PartitionRepairs(self.host)  # repairs of sealed blocks

    def holds(self, block: BlockNode) -> bool:
        """Whether a block is assigned to this broker, and to its present disk."""
        if self._host.me not in block.replicas:
            return False
        if not block.storages:
            return True
        return block.storages[block.replicas.index(self._host.me)] == self._host.storage_id

    def has(self, block: BlockNode) -> bool:
        """Whether this broker's copy of a sealed block is complete."""
        return self._host.me in block.in_sync and block.number not in self.repairs

    def _knows(self, block: BlockNode) -> bool:
        """Whether this broker's copy has the producer table as of the block's end."""
        # A single replica always has the producer table of its batches.
        is_only = block.replicas == (self._host.me,)
        return self.holds(block) and (is_only or self.has(block))

    def open(self, state: PartitionState, visible: int) -> OpenBlock:
        """Create the open block's replica; *visible* is the previous high watermark."""
        return OpenBlock(state, self.host, self._make_replicator, self._knows, visible)

    def begin(self, state: PartitionState, opened: OpenBlock, unsealed: frozenset[int]) -> None:
        """Start repairs of sealed blocks whose local copies are incomplete or *unsealed*.

        The open block is recovered if this broker may have it.
        """
        for block in state.blocks[:-1]:
            if block.number in unsealed and self._host.me in block.replicas:
                self.repairs.start(state, block, None)
        self.repairs.adopt(state)
        if self.holds(opened.node):
            opened.recover()

    def close(
        self, state: PartitionState, last: BlockNode, log: BlockLog, *, is_resting: bool
    ) -> ProducerTable | None:
        """Close the *last* open block: remove an empty block, or repair the copy up to the block's
        end in *state*.

        *is_resting* is true if the block's *log* is not recovered and no answer of the store about
        the block is awaited. Returns the producer table of the block, if that is complete.
        """
        sealed = next((b for b in state.blocks if b.number == last.number), None)
        if sealed is None:
            mark("partition.empty_block")
            # The block was empty and has been removed. Its table is known only if the block was
            # recovered.
            return None if log.is_recovering else log.producers
        is_whole = log.end == sealed.end == log.stable_end and not log.is_recovering
        if len(sealed.replicas) > 1 or not is_whole:
            mark("partition.close.repair")
            # Even a complete copy must be synced, and its index must be stored.
            self.repairs.start(state, sealed, None if is_resting else log)
        return log.producers if is_whole else None

    def retire(self, before: PartitionState, after: PartitionState) -> None:
        """Remove the blocks that are retired, or assigned to other brokers only."""
        me = self._host.me
        kept = {block.number for block in after.blocks if me in block.replicas}
        for gone in before.blocks:
            if gone.number not in kept and me in gone.replicas:
                mark("partition.block_removed")
                # Otherwise the repair would continue with a removed block.
                self.repairs.drop(gone.number)
                self._host.out.write.append(RemoveBlock(before.block_id(gone)))

    def remove(self, state: PartitionState) -> None:
        """Remove all blocks."""
        for block in state.blocks:
            self._host.out.write.append(RemoveBlock(state.block_id(block)))
