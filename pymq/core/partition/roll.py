"""One broker's part in a roll: seal the open block, open the next one.

1. The controller sends ``Seal``. From here on batches of producers are parked.
2. When all of the block is durable, the replica answers ``Sealed`` with the block's end.
3. The controller commits the roll and sends the new state.
4. The replica opens the next block and handles the parked batches in the next epoch.
"""

from __future__ import annotations

from typing import Protocol

from pymq.core.block.idempotence import ProducerTable
from pymq.core.message import Message, Seal
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.partition.controller_reports import ControllerReports
from pymq.core.partition.local_blocks import LocalBlocks
from pymq.core.partition.maintenance import Maintenance
from pymq.core.partition.open_block import OpenBlock
from pymq.core.partition.produce import ProduceHandler
from pymq.core.types import TopicPartition
from pymq.errors import CorruptBlock, NotLeader, PymqError


class RollingPartition(Protocol):
    """The partition, as far as a roll needs it."""

    name: TopicPartition
    state: PartitionState
    problem: PymqError | None
    opened: OpenBlock

    def look(self, now: int) -> None:
        """Apply the replicator's new state."""
        ...

    def step_down(self, now: int) -> None:
        """Stop leading."""
        ...


class RollHost(Protocol):
    """The broker, as far as a roll needs it."""

    def tell_controller(self, message: Message) -> None:
        """Send something to the active zkserver."""
        ...


class RollHandler:
    """Handles the seals and rolls of one partition."""

    __slots__ = ("_holdings", "_host", "_intake", "_partition", "_tidings", "_upkeep")

    def __init__(
        self,
        partition: RollingPartition,
        holdings: LocalBlocks,
        intake: ProduceHandler,
        upkeep: Maintenance,
        tidings: ControllerReports,
        host: RollHost,
    ) -> None:
        self._partition = partition
        self._holdings = holdings
        self._intake = intake
        self._upkeep = upkeep
        self._tidings = tidings
        self._host = host

    def seal(self, m: Seal, now: int) -> None:
        """Seal the open block. Batches that arrive now are parked for the next one."""
        partition = self._partition
        opened = partition.opened
        if m.block != opened.node.number or m.epoch <= partition.state.epoch or opened.log is None:
            return  # The request is of an earlier roll, or of a controller that was replaced.
        # The controller would take a refusal as final.
        is_asked_again = m.takeover and opened.is_unread
        if partition.problem is not None and not is_asked_again:
            self._tidings.refuse_seal(m, partition.problem)
        elif opened.replicator is None or opened.is_recovering:
            mark("partition.seal_too_early")  # The controller asks again.
        elif (error := opened.seal_error(m, partition.name)) is not None:
            self._tidings.refuse_seal(m, error)
        else:
            opened.sealing.begin(m)
            if m.takeover:
                partition.step_down(now)
            if opened.sealing.answer is not None:
                mark("partition.seal_again")
                # The first answer was lost, or a new controller asks.
                self.sealed(now)
            elif not m.takeover:
                opened.close(now)

    def sealed(self, now: int) -> None:
        """Report the sealed block's end to the controller."""
        answer = self._partition.opened.sealed(self._partition.name)
        if answer is not None:
            self._host.tell_controller(answer)
            # If this controller is replaced before it commits, the next one has to learn of the
            # seal.
            self._upkeep.asked(now)

    def roll(self, last: BlockNode, now: int) -> None:
        """Open the next block: the roll is committed."""
        partition, holdings = self._partition, self._holdings
        before = partition.opened
        state, log = partition.state, before.log
        # Consumers saw no more than the sealed block's end, unless an election has lost records.
        opened = partition.opened = holdings.open(state, 0)
        self._tidings.stop()
        self._upkeep.open_next(opened.node.opened_ms, now)
        rolled = NotLeader(f"{partition.name} has been rolled", leader=state.leader)
        self._intake.refuse(rolled, now)
        past = None
        is_copy = before.is_shared and isinstance(partition.problem, CorruptBlock)
        if before.is_unread or is_copy:
            # The problem is of the sealed block, and its repair takes care of it.
            partition.problem = None
        if log is not None and partition.problem is None:
            past = holdings.close(state, last, log, is_resting=before.is_resting)
        partition.look(now)
        if holdings.holds(opened.node) and partition.problem is None:
            if opened.node.past:
                mark("partition.past_inherited")
                past = ProducerTable.restore(opened.node.past)
            if past is None and log is not None:
                mark("partition.past_unread")
                # The block before has the producer table, and its recovery has not ended.
                opened.recover()
            else:
                opened.create(past or ProducerTable(), now)
                self.begun(now)
        self._intake.drive_parked(now)

    def begun(self, now: int) -> None:
        """Take in that the open block is recovered and has its replicator."""
        self._partition.look(now)
        if self._partition.opened.has_lost_lead:
            mark("partition.lost_lead")
            self._upkeep.want_roll(now)
