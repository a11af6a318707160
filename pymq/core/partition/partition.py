"""The replica of a partition on one broker: append, fetch, roll, hand over, retain.

A partition is a list of blocks, of which only the last is open. All records to append come through
:meth:`Partition.produce`. All changes to its replication and blocks come as a
:class:`~pymq.core.metadata.nodes.PartitionState` from the zkserver, through
:meth:`Partition.adopt`. The partition passes each request to one of its parts: the open block,
repairs of sealed blocks, produce, fetch, maintenance, reports to the controller. The replicas of
the open block agree by the protocol of its replicator.

Invariants:

* if a record was acknowledged or below the high watermark, its offset never holds another record;
* a write counts only when :meth:`advance` is called; no answer is sent before;
* while a block is being sealed, the partition parks batches, and handles them in the next epoch.
"""

from __future__ import annotations

from typing import Protocol

from pymq.core.block.recovery import as_told, may_pass
from pymq.core.block.replicator import ReplicatorFactory
from pymq.core.block.sealing import SealState
from pymq.core.message import (
    Fetch,
    ReplicaFetch,
    ReplicaFetched,
    Replication,
    Seal,
)
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.partition.context import PartitionContext
from pymq.core.partition.controller_reports import ControllerReports
from pymq.core.partition.disk_health import DiskHealth, DiskState
from pymq.core.partition.fetch import FetchHandler
from pymq.core.partition.host import Home
from pymq.core.partition.local_blocks import LocalBlocks
from pymq.core.partition.maintenance import Maintenance
from pymq.core.partition.open_block import ReplicaState
from pymq.core.partition.produce import ProduceHandler
from pymq.core.partition.roll import RollHandler
from pymq.core.ready import Ready, Recovered, RecoverFailed, WriteFailed
from pymq.core.types import NEVER, BlockId
from pymq.errors import CorruptBlock, NotLeader, PymqError, ReplicaNotAvailable, StoreError

DRAINING = SealState.DRAINING


class PartitionEnvironment(Home, Protocol):
    """The broker, as far as a partition needs it."""

    def shares(self, partition: Partition, now: int) -> None:
        """Inform the broker that the replicas of the open block may have changed."""
        ...

    def role_changed(self, partition: Partition, now: int) -> None:
        """Inform the broker that this replica has become the leader or is no longer the leader."""
        ...


class Partition(PartitionContext):
    """A partition that this broker hosts, with its open and sealed blocks.

    The parts of a partition share its context and never call the partition back.
    """

    __slots__ = (
        "_environment",
        "_repairs",
        "_reports",
        "_rolls",
        "deadline",
        "fetches",
        "maintenance",
        "produces",
    )

    def __init__(
        self,
        state: PartitionState,
        host: PartitionEnvironment,
        make_replicator: ReplicatorFactory,
        unsealed: frozenset[int],
        now: int,
    ) -> None:
        blocks = LocalBlocks(host, make_replicator)
        super().__init__(state, host, blocks, blocks.open(state, 0))
        self.deadline = NEVER
        self.produces = ProduceHandler(self)
        self.fetches = FetchHandler(self)
        self.maintenance = Maintenance(self, now)
        self._environment = host
        self._repairs = blocks.repairs
        self._reports = ControllerReports(self)
        self._rolls = RollHandler(self, self.maintenance, self._reports)
        self.fetches.adopt(state)
        blocks.begin(state, self.opened, unsealed)

    # --- metadata -------------------------------------------------------------------------------

    def adopt(self, state: PartitionState, controller_epoch: int, now: int) -> None:
        """Adopt *state* from the controller, which is authoritative.

        A second call with the same state changes nothing.
        """
        fenced = self.opened.sealing.fenced
        if fenced is not None and controller_epoch > fenced:
            mark("partition.fence_lifted")
            # A former controller, which was taking this partition over, can no longer commit
            # anything.
            self.opened.sealing.give_up()
        before, self.state = self.state, state
        self.blocks.retire(before, state)
        self.fetches.adopt(state)
        if state.config != before.config or state.deleted_to != before.deleted_to:
            self.maintenance.reconsider(now)
        self._adopt_open(before, now)
        self._repairs.adopt(state)
        if self._repairs.are_overrated:
            self._reports.tell_repairs(now)
        if self.opened.replicator is not None:
            self.look(now)
            self.maintenance.begin(now)
        self.fetches.wake(now)
        self._environment.shares(self, now)
        self._rearm()

    def _adopt_open(self, before: PartitionState, now: int) -> None:
        state, opened = self.state, self.opened
        if state.blocks[-1].number != before.blocks[-1].number:
            self._roll(before.blocks[-1], now)
            return
        opened.adopt(state, now)
        if opened.replicator is not None:
            if state.epoch > before.epoch and not opened.is_shared:
                opened.sealing.give_up()
                self.produces.drive_parked(now)
        elif not before.blocks[-1].replicas and opened.log is None:
            self.opened = opened = self.blocks.open(state, opened.offsets.visible)
            self.blocks.begin(state, opened, frozenset())
            if self.problem is not None:
                opened.fail()

    # --- recovery -------------------------------------------------------------------------------

    def recovered(self, found: Recovered, now: int) -> None:
        """Handle the store's answer with a block's end."""
        opened = self.opened
        if self._repairs.recovered(self.state, found, now) and self._repairs.are_overrated:
            self._reports.tell_repairs(now)
        log = opened.log
        if log is None or not opened.recovery.awaits(found.block, log):
            self._rearm()
            return
        try:
            first = opened.recovery.add(found, log, self.state)
        except StoreError as error:  # the store could read the block, but its content is invalid
            self._fail(error, now)
            return
        if first is not None and opened.replicator is None:
            self.maintenance.opened_ms = opened.node.opened_ms
            if (problem := opened.start(first, now)) is not None:
                self._fail(problem, now)
                return
            self.problem = None  # an earlier problem is over
            self._environment.shares(self, now)
            self._started(now)
            self.produces.drive_parked(now)
            self.fetches.wake(now)
        self._rearm()

    def recover_failed(self, failed: RecoverFailed, now: int) -> None:
        """Handle the error of a damaged or unreadable block, which the store has not changed.

        If the block is the open block or the previous one, the partition refuses all requests with
        the error. If the block is sealed and under repair, the partition refuses only reads of this
        block.
        """
        error = as_told(failed.error)
        is_repaired = self._repairs.unreadable(self.state, failed.block.number, error, now)
        log = self.opened.log
        if log is not None and self.opened.recovery.awaits(failed.block, log):
            self._fail(error, now, is_final=not may_pass(failed))
        elif is_repaired:
            self.fetches.wake(now)
            self._rearm()

    def _fail(self, error: PymqError, now: int, *, is_final: bool = True) -> None:
        self.problem = error
        if isinstance(error, StoreError) and (acting := self.opened.acting) is not None:
            acting.relinquish(now)
        seal = self.opened.sealing.give_up()
        if not is_final:
            self.opened.read_again(now)
        else:  # no retry is due now
            self._reports.stop()
            self.maintenance.stop()
            self.opened.fail()
        refusal = self.opened.refusal(error)
        self.produces.refuse(refusal, now)
        self.produces.refuse_parked(refusal, now)
        self.fetches.wake(now)
        # A takeover waits, because the store may be able to read the block later.
        if seal is not None and (is_final or not seal.takeover):
            self._reports.refuse_seal(seal, error)
        self.leads_at = None
        self._environment.role_changed(self, now)
        self._rearm()

    # --- replication ----------------------------------------------------------------------------

    def replicate(self, source: str, m: Replication, now: int) -> None:
        """Handle another broker's message about one of the blocks."""
        if isinstance(m, ReplicaFetched) and self._repairs.step(source, m, now):
            pass
        elif isinstance(m, ReplicaFetch) and m.leader_epoch == 0:
            self._repairs.lend(source, m, self.state, self.problem)
        elif self.opened.step(source, m, now):
            self.look(now)
        self._rearm()

    def peer_changed(self, peer: str, now: int) -> None:
        """Handle that another broker seems dead, or is back."""
        if (acting := self.opened.acting) is not None:
            acting.peer_changed(peer, now)
            self.look(now)
        self._rearm()

    def hand_over(self, now: int, target: str | None = None) -> bool:
        """Transfer the leadership of the open block if another replica can lead.

        Returns whether the transfer began.
        """
        acting = self.opened.acting
        if acting is None or not acting.is_leader or self.opened.sealing.request is not None:
            return False
        near = self.blocks.host
        others = [peer for peer in acting.in_sync if peer != self.me and near.is_alive(peer)]
        if target is not None:
            others = [peer for peer in others if peer == target]
        if not others:
            return False
        mark("partition.hand_over")
        acting.transfer(others[0], now)
        self.look(now)
        self._rearm()
        return True

    def look(self, now: int) -> None:
        """Apply the replicator's new state: its role and high watermark."""
        opened = self.opened
        replicator, log = opened.replicator, opened.log
        leads = replicator.epoch if replicator is not None and replicator.is_leader else None
        if leads != self.leads_at and self.problem is None and not opened.sealing.is_fenced:
            was, self.leads_at = self.leads_at, leads
            self._role_changed(was, now)
            replicator = opened.replicator
        if replicator is None or log is None:
            return
        is_appointed = opened.replica is ReplicaState.APPOINTED
        if is_appointed and replicator.epoch != opened.node.epoch:
            # Another replica was elected before the appointed one began to lead.
            mark("partition.appointed_too_late")
            opened.end_appointment()
            self.produces.drive_parked(now)
        self.produces.answer_due(log.stable_end, replicator.high_watermark, now)
        if self.name.topic in self.host.awaited:
            # Before the fetches: a member that gets a lease now sends no request about the new end.
            self.fetches.tell_groups(now)
        if self.fetches.waits.waiting:
            self.fetches.wake(now)

    def _role_changed(self, was: int | None, now: int) -> None:
        leads = self.leads_at
        if was is not None and leads is None:
            error = NotLeader(f"{self.name} is led by another replica", leader=self.opened.leader)
            self.produces.refuse(error, now)
            self.opened.sealing.give_up()
        if leads is not None:
            self.maintenance.lead(now)
            self._reports.tell_leader(now)
            self.opened.end_appointment()
            if (writer := self.opened.writer) is not None and not self.opened.is_parking:
                writer.skip_deleted(self.state.log_start, leads)
        self._environment.role_changed(self, now)
        if self.opened.replicator is not None:
            self.produces.drive_parked(now)

    # --- the disk -------------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write or to seal, and no write is in progress."""
        opened = self.opened
        writer = opened.writer
        if writer is not None and opened.is_running:
            log, sealing = writer.log, opened.sealing
            if not (log.is_writing or log.is_recovering) and (
                log.unwritten
                or writer.replicator.is_dirty
                or (sealing.state is DRAINING and sealing.must_write(log, writer.replicator))
            ):
                return True
        return bool(self._repairs.dirty)

    def flush(self, ready: Ready, now: int) -> None:
        """Add the pending write to *ready*; :meth:`advance` or :meth:`write_failed` follows."""
        if self._repairs.dirty:
            self._repairs.flush(ready)
        opened = self.opened
        writer = opened.writer
        if writer is None or not opened.is_running:
            return
        log = writer.log
        if not log.is_recovering and not log.is_writing:
            if (wall_ms := now + self.host.wall_offset_ms) != log.wall_ms:
                log.at(wall_ms)
            # A checkpoint must not name more records as committed than this replica has.
            committed = min(opened.offsets.high_watermark, log.stable_end)
            must_sync, self.produces.must_sync = self.produces.must_sync, False
            sync_at = writer.flush(ready, committed, now, must_sync=must_sync)
            self.deadline = min(self.deadline, sync_at)

    def advance(self, now: int) -> None:
        """Handle the end of a write, which is as durable as the ack mode requires."""
        if self._repairs.writing and (whole := self._repairs.advance()):
            self._reports.tell_repairs(now, whole)
        opened = self.opened
        writer = opened.writer
        if writer is not None and (log := writer.log).advance():
            if self.disk is not None and self.disk.state is not DiskState.SOUND:
                self.disk.wrote()
                self._environment.role_changed(self, now)
            if opened.sealing.state is SealState.WRITING and opened.sealing.written(log):
                self._rolls.sealed(now)
            writer.replicator.stable(log.stable_end, now)
            self.look(now)
            if self.maintenance.roll_at == NEVER or log.size >= self.state.config.block_bytes:
                self.maintenance.want_roll(now)
        self._rearm()

    def write_failed(self, failed: WriteFailed, now: int) -> None:
        """Handle a failed write; after a failed sync the replica stops permanently."""
        error = as_told(failed.error)
        opened = self.opened
        log = opened.log
        if self._repairs.failed(failed.block.number, now, is_fatal=failed.fatal):
            self._rearm()
            return
        if log is None or not opened.is_running or log.name != failed.block:
            return
        if failed.fatal:
            self._fail(error, now)
            return
        if opened.is_shared:
            mark("partition.write_failed.start_over")
            self._start_over(error, now)
            return
        log.fail()
        self.produces.refuse(opened.refusal(error), now)
        if (seal := opened.sealing.give_up()) is not None:
            mark("partition.seal_failed")
            self._reports.refuse_seal(seal, error)  # The block stays open.
            self.produces.drive_parked(now)

    def read_failed(self, block: BlockId, error: PymqError, now: int) -> PymqError:
        """Handle a failed read of records; returns the error for the answer.

        Other replicas can serve a sealed block. For the open block another replica has to lead, and
        this replica recovers its log again.
        """
        if not isinstance(error, StoreError):
            return error
        state, opened = self.state, self.opened
        if not self.is_open(block):
            sealed = [b for b in state.blocks if b.number == block.number]
            others = [name for b in sealed for name in b.in_sync if name != self.me]
            mark("partition.sealed_unreadable")
            return ReplicaNotAvailable(str(error), brokers=others) if others else error
        if self.problem is None and opened.is_running and opened.is_shared:
            if isinstance(error, CorruptBlock):
                mark("partition.found_damaged")
                self._fail(error, now)
            else:
                mark("partition.read_failed.start_over")
                self._start_over(error, now)
        return opened.refusal(error)

    def _start_over(self, error: PymqError, now: int) -> None:
        if (acting := self.opened.acting) is not None:
            acting.relinquish(now)
        self.opened.start_over(now)
        self.disk = self.disk or DiskHealth()
        self.disk.failed(error, now)
        self.produces.refuse(self.opened.refusal(error), now)
        self.leads_at = None
        self._environment.role_changed(self, now)

    # --- rolling --------------------------------------------------------------------------------

    def seal(self, m: Seal, now: int) -> None:
        """Seal the open block. Batches that arrive now are parked for the next block."""
        if self._rolls.begin(m):
            if m.takeover and self.leads_at is not None:
                self.leads_at = None
                self._environment.role_changed(self, now)
            self._rolls.proceed(m, now)
        self._rearm()

    def _roll(self, node: BlockNode, now: int) -> None:
        """Open the block after that of *node*, because the roll is committed."""
        last = self._rolls.open_next(now)
        rolled = NotLeader(f"{self.name} has been rolled", leader=self.state.leader)
        self.produces.refuse(rolled, now)
        past = self._rolls.close(last, node)
        self.look(now)
        if self._rolls.start(last, past, now):
            self._started(now)
        self.produces.drive_parked(now)

    def _started(self, now: int) -> None:
        """Start serving, because the open block is recovered and has its replicator."""
        self.look(now)
        if self.opened.has_lost_lead:
            mark("partition.lost_lead")
            self.maintenance.want_roll(now)

    # --- reading --------------------------------------------------------------------------------

    def fetch(self, source: str, m: Fetch, now: int) -> None:
        """Answer with batches, or wait until there are batches."""
        self.fetches.fetch(source, m, now)
        if self.is_settled:
            self.deadline = min(self.deadline, self.fetches.waits.deadline)

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        opened = self.opened
        if self.disk is not None and now >= self.disk.until:
            self.disk.try_again()
            self._environment.role_changed(self, now)
        opened.tick_log(now)
        if opened.is_running:
            self.maintenance.tick(now)
        if opened.tick_replicator(now):
            self.look(now)
        self._reports.tick(now)
        if now >= self._repairs.deadline:
            self._repairs.tick(now)
        if self.is_settled:
            self.fetches.tick(now)
        self._rearm()

    def _rearm(self) -> None:
        opened = self.opened
        due = opened.deadline  # inlined, because this runs with each message
        if self._reports.deadline < due:
            due = self._reports.deadline
        if self._repairs.deadline < due:
            due = self._repairs.deadline
        if self.disk is not None and self.disk.until < due:
            due = self.disk.until
        is_running = opened.is_running
        waits = self.fetches.waits
        if waits.waiting and (is_running or self.is_settled):
            due = min(due, waits.deadline)
        if is_running:
            due = min(due, self.maintenance.roll_at, self.maintenance.retention_at)
        # Without a replicator the partition waits for recovery to find the log's end.
        self.deadline = due

    # --- removal ----------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write a checkpoint of the open block, unless it is up to date."""
        log, opened = self.opened.log, self.opened
        if log is not None and opened.is_running:
            log.committed = min(opened.offsets.high_watermark, log.stable_end)
            log.checkpoint()

    def remove(self, error: PymqError, delete: bool, now: int) -> None:
        """Stop hosting the partition, and answer all waiting requests with *error*."""
        self._repairs.stop()
        self._fail(error, now)
        self.fetches.close()
        if delete:
            self.blocks.remove(self.state)
