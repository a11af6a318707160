"""How one open block of a partition follows the other, on one broker: the seal, and the roll.

The zkserver asks for the seal; once everything in the block is durable it is told where the block
ends, and commits that. The state that comes of it opens the next block. Between the two what
producers send is parked, and driven again at the next epoch.
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
    """What of a partition is rolled."""

    name: TopicPartition
    state: PartitionState
    problem: PymqError | None
    opened: OpenBlock

    def look(self, now: int) -> None:
        """Act on what the replicator has come to."""
        ...

    def step_down(self, now: int) -> None:
        """Lead no more."""
        ...


class RollHost(Protocol):
    """What is needed of the broker."""

    def tell_controller(self, message: Message) -> None:
        """Send something to the active zkserver."""
        ...


class RollHandler:
    """The seals and rolls of one partition."""

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
        """Let the open block end where it is; records that come now wait for the next one."""
        partition = self._partition
        opened = partition.opened
        if m.block != opened.node.number or m.epoch <= partition.state.epoch or opened.log is None:
            return  # From a roll that is over, or from a controller that has been replaced.
        is_asked_again = m.takeover and opened.is_unread  # A refusal would count for good.
        if partition.problem is not None and not is_asked_again:
            self._tidings.refuse_seal(m, partition.problem)
        elif opened.replicator is None or opened.is_recovering:
            mark("partition.seal_too_early")  # It is asked for again.
        elif (error := opened.seal_error(m, partition.name)) is not None:
            self._tidings.refuse_seal(m, error)
        else:
            opened.sealing.begin(m)
            if m.takeover:
                partition.step_down(now)
            if opened.sealing.answer is not None:
                mark("partition.seal_again")
                # The first answer was lost, or another controller took over.
                self.sealed(now)
            elif not m.takeover:
                opened.close(now)

    def sealed(self, now: int) -> None:
        """The open block is sealed: tell where it ends."""
        answer = self._partition.opened.sealed(self._partition.name)
        if answer is not None:
            self._host.tell_controller(answer)
            # Should nothing come of it, because the zkserver was replaced, the next one is to know.
            self._upkeep.asked(now)

    def roll(self, last: BlockNode, now: int) -> None:
        """The block before was sealed at its end, another one takes the next record."""
        partition, holdings = self._partition, self._holdings
        before = partition.opened
        state, log = partition.state, before.log
        # What was visible ends where the next block begins, unless an election has lost some of it.
        opened = partition.opened = holdings.open(state, 0)
        self._tidings.stop()
        self._upkeep.open_next(opened.node.opened_ms, now)
        rolled = NotLeader(f"{partition.name} has been rolled", leader=state.leader)
        self._intake.refuse(rolled, now)
        past = None
        is_copy = before.is_shared and isinstance(partition.problem, CorruptBlock)
        if before.is_unread or is_copy:
            partition.problem = None  # It is the sealed block that cannot be read: see its repair.
        if log is not None and partition.problem is None:
            past = holdings.close(state, last, log, is_resting=before.is_resting)
        partition.look(now)
        if holdings.holds(opened.node) and partition.problem is None:
            if opened.node.past:
                mark("partition.past_inherited")
                past = ProducerTable.restore(opened.node.past)
            if past is None and log is not None:
                mark("partition.past_unread")
                opened.recover()  # The block before knows it, and the store has not said so yet.
            else:
                opened.create(past or ProducerTable(), now)
                self.begun(now)
        self._intake.drive_parked(now)

    def begun(self, now: int) -> None:
        """The open block has its replicator."""
        self._partition.look(now)
        if self._partition.opened.has_lost_lead:
            mark("partition.lost_lead")
            self._upkeep.want_roll(now)
