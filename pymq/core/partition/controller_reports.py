"""Reports of one partition to the controller: elections, complete copies and refused seals."""

from __future__ import annotations

from collections.abc import Sequence

from pymq.core.message import BecomeLeader, Progress, Seal, Sealed
from pymq.core.observe.coverage import mark
from pymq.core.partition.context import PartitionContext
from pymq.core.partition.maintenance import ASK_RETRY_MS
from pymq.core.types import NEVER
from pymq.errors import PymqError


class ControllerReports:
    """Sends each report of the partition until the metadata shows it."""

    __slots__ = ("_host", "_partition", "_repairs", "deadline")

    def __init__(self, partition: PartitionContext) -> None:
        self._partition = partition
        self._repairs = partition.blocks.repairs
        self._host = partition.host
        self.deadline = NEVER

    def stop(self) -> None:
        """Stop reporting."""
        self.deadline = NEVER

    def tick(self, now: int) -> None:
        """Repeat the reports that the metadata does not show yet."""
        if now >= self.deadline:
            self.deadline = NEVER
            self.tell_leader(now)
            self.tell_repairs(now)

    def tell_leader(self, now: int) -> None:
        """Report an election, until the metadata shows the leader."""
        partition, me = self._partition, self._host.me
        state, epoch = partition.state, partition.elected
        if epoch is not None and (state.leader, state.epoch) != (me, epoch):
            number = state.blocks[-1].number
            elected = BecomeLeader(*partition.name, number, epoch, me, state.topic_id)
            self._host.tell_controller(elected)
            self.deadline = now + ASK_RETRY_MS

    def tell_repairs(self, now: int, numbers: Sequence[int] | None = None) -> None:
        """Report copies whose state differs from the metadata, until the metadata agrees.

        Without *numbers* all blocks are compared, otherwise only these.
        """
        host, state = self._host, self._partition.state
        ends = self._repairs.ends(state, numbers)
        if ends:
            mark("partition.progress")
            topic_ids = (state.topic_id,) * len(ends)
            host.tell_controller(Progress(host.me, tuple(ends), host.incarnation, topic_ids))
            due = now + ASK_RETRY_MS
            self.deadline = due if numbers is None else min(self.deadline, due)

    def refuse_seal(self, m: Seal, error: PymqError) -> None:
        """Refuse a seal with the reason; the controller sends the request again."""
        host, name = self._host, self._partition.name
        host.tell_controller(
            Sealed(
                *name,
                m.block,
                m.epoch,
                host.me,
                error=error,
                incarnation=host.incarnation,
                topic_id=self._partition.state.topic_id,
                controller_epoch=m.controller_epoch,
            )
        )
