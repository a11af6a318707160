"""A roll on one broker: seal the open block, open the next block.

1. The controller sends ``Seal``. From now on the replica parks the batches of producers.
2. When the whole block is durable, the replica answers ``Sealed`` with the block's end.
3. The controller commits the roll and sends the new state.
4. The replica opens the next block and handles the parked batches in the next epoch.
"""

from __future__ import annotations

from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.sealing import SealState
from pymq.core.message import Seal
from pymq.core.metadata.nodes import BlockNode
from pymq.core.observe.coverage import mark
from pymq.core.partition.context import PartitionContext
from pymq.core.partition.controller_reports import ControllerReports
from pymq.core.partition.maintenance import Maintenance
from pymq.core.partition.open_block import OpenBlock
from pymq.errors import CorruptBlock, NotLeader, PymqError, ReplicaNotAvailable


class RollHandler:
    """Handles the seals and rolls of one partition."""

    __slots__ = ("_context", "_maintenance", "_reports")

    def __init__(
        self, context: PartitionContext, maintenance: Maintenance, reports: ControllerReports
    ) -> None:
        self._context = context
        self._maintenance = maintenance
        self._reports = reports

    # --- the seal -------------------------------------------------------------------------------

    def begin(self, m: Seal) -> bool:
        """Begin the seal of the open block, or refuse the request; returns whether the seal began.

        The caller then calls :meth:`proceed`.
        """
        context, opened = self._context, self._context.opened
        if m.block != opened.node.number or m.epoch <= context.state.epoch or opened.log is None:
            # The request belongs to an earlier roll, or to a controller that was replaced.
            return False
        # In a takeover the controller would consider a refusal as final.
        is_asked_again = m.takeover and opened.recovery.is_retrying
        if context.problem is not None and not is_asked_again:
            self._reports.refuse_seal(m, context.problem)
        elif opened.replicator is None or opened.log.is_recovering:
            mark("partition.seal_too_early")  # The controller sends the request again.
        elif (error := self._refusal(m)) is not None:
            self._reports.refuse_seal(m, error)
        else:
            opened.sealing.begin(m)
            return True
        return False

    def _refusal(self, m: Seal) -> PymqError | None:
        """Return the error if this replica cannot seal the block."""
        context, opened = self._context, self._context.opened
        replicator = opened.replicator
        if m.takeover or replicator is None:
            return None
        if opened.has_lost_lead:
            mark("partition.seal.lost_lead")
            lost = f"a write of {context.me} has failed, and it does not lead {context.name} "
            return ReplicaNotAvailable(f"{lost}any more")
        if not replicator.is_leader:
            mark("partition.seal.not_leader")
            return NotLeader.of(context.name, replicator.leader)
        return None

    def proceed(self, m: Seal, now: int) -> None:
        """Proceed with a seal: an elected leader appends a seal entry to the log."""
        opened = self._context.opened
        log, replicator = opened.log, opened.replicator
        if opened.sealing.state is SealState.SEALED:
            mark("partition.seal_again")
            # The first answer was lost, or a new controller repeats the request.
            self.sealed(now)
        elif m.takeover or not opened.is_voted or log is None or replicator is None:
            pass  # The write that follows seals the block.
        elif log.seal_end is None:
            log.at(self._context.host.wall_ms(now))
            log.seal(replicator.epoch)
            replicator.appended(now)

    def sealed(self, now: int) -> None:
        """Report the sealed block's end to the controller."""
        context, opened = self._context, self._context.opened
        log, replicator, host = opened.log, opened.replicator, context.host
        assert log is not None
        assert replicator is not None
        past = log.past(opened.state.config.producer_expire_ms)
        answer = opened.sealing.done(context.name, host.me, host.incarnation, log, replicator, past)
        if answer is not None:
            host.tell_controller(answer)
            # If this controller is replaced before its commit, the new controller has to learn of
            # the seal.
            self._maintenance.asked(now)

    # --- the next block -------------------------------------------------------------------------

    def open_next(self, now: int) -> OpenBlock:
        """Replace the open block with the next block, because the roll is committed.

        Returns the closed block.
        """
        context, last = self._context, self._context.opened
        # Consumers have seen no record beyond the sealed block's end, unless an election has lost
        # records.
        context.opened = context.blocks.open(context.state, 0)
        self._reports.stop()
        self._maintenance.open_next(context.opened.node.opened_ms, now)
        return last

    def close(self, last: OpenBlock, node: BlockNode) -> ProducerTable | None:
        """Close the *last* open block; returns its producer table, if the table is complete.

        An error of that block no longer affects the partition, because the block's repair handles
        it.
        """
        context = self._context
        is_copy = last.is_shared and isinstance(context.problem, CorruptBlock)
        if last.recovery.is_retrying or is_copy:
            context.problem = None
        if last.log is None or context.problem is not None:
            return None
        is_resting = last.recovery.is_resting(last.log)
        return context.blocks.close(context.state, node, last.log, is_resting=is_resting)

    def start(self, last: OpenBlock, past: ProducerTable | None, now: int) -> bool:
        """Start the new open block with the producer table *past*; returns whether the replica
        runs.

        If *past* is None, the table is read from the disk first.
        """
        context, opened = self._context, self._context.opened
        if not context.blocks.holds(opened.node) or context.problem is not None:
            return False
        if opened.node.past:
            mark("partition.past_inherited")
            past = ProducerTable.restore(opened.node.past)
        if past is None and last.log is not None:
            mark("partition.past_unread")
            # The producer table is in the previous block, whose recovery has not ended.
            opened.recover()
            return False
        opened.create(past or ProducerTable(), now)
        return True
