"""One broker's replica of a partition: append, fetch, roll, hand over, retain.

A partition is a list of blocks, of which only the last is open. Everything that may be appended
goes through :meth:`Partition.produce`; everything that changes how the partition is kept arrives as
a :class:`~pymq.core.metadata.nodes.PartitionState` from the zkserver, through
:meth:`Partition.adopt`. The partition passes each request to one of its parts: the open block,
repairs of sealed blocks, produce, fetch, maintenance, reports to the controller. The replicator
of the open block decides how its replicas agree.

Invariants:

* an offset that a client has seen (acknowledged or below the high watermark) never holds another
  record;
* a write counts only when :meth:`advance` is called: nothing is answered before;
* while a block is being sealed, batches are parked, and handled again in the next epoch.
"""

from __future__ import annotations

from typing import Protocol

from pymq.core.block.recovery import as_told, may_pass
from pymq.core.block.replicator import ReplicatorFactory
from pymq.core.message import (
    Fetch,
    FindOffset,
    GetSequence,
    PartitionReport,
    Produce,
    ReplicaFetch,
    ReplicaFetched,
    Replication,
    Seal,
)
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.partition.controller_reports import ControllerReports
from pymq.core.partition.fetch import FetchHandler
from pymq.core.partition.host import Home
from pymq.core.partition.local_blocks import LocalBlocks
from pymq.core.partition.maintenance import Maintenance
from pymq.core.partition.produce import ProduceHandler
from pymq.core.partition.roll import RollHandler
from pymq.core.ready import (
    Compacted,
    Ready,
    Recovered,
    RecoverFailed,
    TimeFound,
    WriteFailed,
)
from pymq.core.types import NEVER, BlockId, TopicPartition
from pymq.errors import CorruptBlock, NotLeader, PymqError, ReplicaNotAvailable, StoreError

# after a failed write this replica does not lead until a write succeeds, or for this long; ...
AILS_MS = 2_000
AILS_MAX_MS = 64_000  # ... doubled each time the first write after that pause fails


class PartitionEnvironment(Home, Protocol):
    """The broker, as far as a partition needs it."""

    def shares(self, partition: Partition, now: int) -> None:
        """Tell the broker that the replicas of the open block may have changed."""
        ...

    def role_changed(self, partition: Partition, now: int) -> None:
        """Tell the broker that this replica has begun or ceased to lead."""
        ...


class Partition:
    """A partition that this broker hosts, with its open and sealed blocks."""

    __slots__ = (
        "_ailment",
        "_ailments",
        "_ails_until",
        "_holdings",
        "_host",
        "_intake",
        "_leads_at",
        "_repairs",
        "_serving",
        "_succession",
        "_tidings",
        "_upkeep",
        "deadline",
        "name",
        "opened",
        "problem",
        "state",
    )

    def __init__(
        self,
        state: PartitionState,
        host: PartitionEnvironment,
        make_replicator: ReplicatorFactory,
        unsealed: frozenset[int],
        now: int,
    ) -> None:
        self.name = TopicPartition(state.topic, state.partition)
        self.state = state
        self.problem: PymqError | None = None  # why nothing can be read or written
        self.deadline = NEVER
        self._host = host
        self._holdings = LocalBlocks(host, make_replicator)
        self._repairs = self._holdings.repairs
        self._serving = FetchHandler(self, host)
        self._intake = intake = ProduceHandler(self, host)
        self._upkeep = upkeep = Maintenance(self, host, now)
        self._tidings = tidings = ControllerReports(self, self._repairs, host)
        self._succession = RollHandler(self, self._holdings, intake, upkeep, tidings, host)
        self._ailment: PymqError | None = None  # why the last write failed, until one succeeds
        self._ailments = 0  # failures in a row
        self._ails_until = NEVER
        self._leads_at: int | None = None  # the epoch in which this replica leads, while it does
        self.opened = self._holdings.open(state, 0)
        self._begin(unsealed, now)

    # --- state ----------------------------------------------------------------------------------

    @property
    def me(self) -> str:
        """The broker's name."""
        return self._host.me

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition and takes in records."""
        return self._leads_at is not None and self.problem is None

    @property
    def elected(self) -> int | None:
        """The epoch for which this replica was elected, while it leads."""
        return self._leads_at if self.opened.is_voted else None

    @property
    def epoch(self) -> int:
        """The leader epoch, as far as this broker knows."""
        return self.state.epoch if self._leads_at is None else self._leads_at

    @property
    def taken_in(self) -> tuple[int, int]:
        """How many records, and bytes of batches, producers have sent here."""
        return self._intake.records, self._intake.bytes

    @property
    def peers(self) -> tuple[str, ...]:
        """The other brokers whose liveness this replica depends on."""
        if self.opened.log is None or self.problem is not None:
            return ()
        return tuple(name for name in self.opened.node.replicas if name != self.me)

    @property
    def unable(self) -> BlockId | None:
        """The open block if this broker is a replica of it and cannot act on it; else None.

        Its disk has failed, or is not the disk that the block was created on. Its pings tell the
        other replicas, which would wait for it forever while its broker is alive.
        """
        block = self.opened.node
        if self.me not in block.replicas or (self.problem is None and self._holdings.holds(block)):
            return None
        mark("partition.unable")
        return self.state.block_id(block)

    @property
    def offline(self) -> PymqError | None:
        """Why this broker cannot hold the partition now, if its disk is the reason."""
        return self.problem if isinstance(self.problem, StoreError) else self._ailment

    @property
    def is_settled(self) -> bool:
        """Whether recovery has ended: it has found the log's end, or has failed for good."""
        opened = self.opened
        return opened.replicator is not None or self.problem is not None or opened.log is None

    def is_open(self, block: BlockId) -> bool:
        """Whether *block* is the open one."""
        return self.state.block_id(self.opened.node) == block

    def has(self, block: BlockNode) -> bool:
        """Whether the copy of a sealed block here is complete."""
        return self._holdings.has(block)

    def damage(self, block: BlockNode) -> PymqError | None:
        """Why the copy of a sealed block that is here cannot be read, if so."""
        return self._repairs.problem(block.number)

    # --- metadata -------------------------------------------------------------------------------

    def adopt(self, state: PartitionState, controller_epoch: int, now: int) -> None:
        """Adopt *state* from the controller, which is authoritative. Adopting it twice changes
        nothing.
        """
        fenced = self.opened.sealing.fenced
        if fenced is not None and controller_epoch > fenced:
            mark("partition.fence_lifted")
            # A controller that was taking this partition over can commit nothing any more.
            self.opened.sealing.give_up()
        before, self.state = self.state, state
        self._holdings.retire(before, state)
        self._serving.adopt(state)
        if state.config != before.config:
            self._upkeep.reconsider(now)
        self._adopt_open(before, now)
        self._repairs.adopt(state)
        if self._repairs.are_overrated:
            self._tidings.tell_repairs(now)
        if self.opened.replicator is not None:
            self.look(now)
            self._upkeep.begin(now)
        self._serving.wake(now)
        self._host.shares(self, now)
        self._rearm()

    def _adopt_open(self, before: PartitionState, now: int) -> None:
        state, opened = self.state, self.opened
        if state.blocks[-1].number != before.blocks[-1].number:
            self._succession.roll(before.blocks[-1], now)
            return
        opened.adopt(state, now)
        if opened.replicator is not None:
            if state.epoch > before.epoch and not opened.is_shared:
                opened.sealing.give_up()
                self._intake.drive_parked(now)
        elif not before.blocks[-1].replicas and opened.log is None:
            self.opened = self._holdings.open(state, opened.visible)
            self._begin(frozenset(), now)

    def _begin(self, unsealed: frozenset[int], now: int) -> None:
        state, opened = self.state, self.opened
        self._serving.adopt(state)
        self._holdings.begin(state, unsealed)
        if self.problem is not None:
            opened.fail()
        if self._holdings.holds(opened.node):
            opened.recover()

    # --- recovery -------------------------------------------------------------------------------

    def recovered(self, found: Recovered, now: int) -> None:
        """Take in where the store has found a block's end."""
        opened = self.opened
        if self._repairs.recovered(self.state, found, now) and self._repairs.are_overrated:
            self._tidings.tell_repairs(now)
        if not opened.awaits(found.block):
            self._rearm()
            return
        try:
            first = opened.restore(found)
        except StoreError as error:  # The store could read it, but its content is wrong.
            self._fail(error, now)
            return
        if first is not None and opened.replicator is None:
            self._upkeep.opened_ms = opened.node.opened_ms
            if (problem := opened.start(first, now)) is not None:
                self._fail(problem, now)
                return
            self.problem = None  # an earlier problem is over
            self._host.shares(self, now)
            self._succession.begun(now)
            self._intake.drive_parked(now)
            self._serving.wake(now)
        self._rearm()

    def recover_failed(self, failed: RecoverFailed, now: int) -> None:
        """Take in that a block is damaged or unreadable. The store has changed nothing of it.

        Without the open block, or the one that it continues, the partition refuses all requests
        with the error. Without a sealed block under repair, only its readers are refused.
        """
        error = as_told(failed.error)
        is_repaired = self._repairs.unreadable(self.state, failed.block.number, error, now)
        if self.opened.awaits(failed.block):
            self._fail(error, now, is_final=not may_pass(failed))
        elif is_repaired:
            self._serving.wake(now)
            self._rearm()

    def _fail(self, error: PymqError, now: int, *, is_final: bool = True) -> None:
        self.problem = error
        if isinstance(error, StoreError):
            self.opened.relinquish(now)
        seal = self.opened.sealing.give_up()
        if not is_final:
            self.opened.read_again(now)
        else:  # Nothing is due any more.
            self._tidings.stop()
            self._upkeep.stop()
            self.opened.fail()
        refusal = self.opened.refusal(error)
        self._intake.refuse(refusal, now)
        self._intake.refuse_parked(refusal, now)
        self._serving.wake(now)
        if seal is not None and (is_final or not seal.takeover):  # else the store is asked again
            self._tidings.refuse_seal(seal, error)
        self._leads_at = None
        self._host.role_changed(self, now)
        self._rearm()

    # --- replication ----------------------------------------------------------------------------

    def replicate(self, source: str, m: Replication, now: int) -> None:
        """Take in what another broker says about one of the blocks."""
        if isinstance(m, ReplicaFetched) and self._repairs.step(source, m, now):
            pass
        elif isinstance(m, ReplicaFetch) and m.leader_epoch == 0:
            self._repairs.lend(source, m, self.state, self.problem)
        elif self.opened.step(source, m, now):
            self.look(now)
        self._rearm()

    def peer_changed(self, peer: str, now: int) -> None:
        """Take in that another broker seems dead, or is back."""
        if (acting := self.opened.acting) is not None:
            acting.peer_changed(peer, now)
            self.look(now)
        self._rearm()

    def hand_over(self, now: int, target: str | None = None) -> bool:
        """Transfer leadership of the open block if another replica can lead; returns whether it
        began.
        """
        if not self.opened.hand_over(now, target):
            return False
        self.look(now)
        self._rearm()
        return True

    def look(self, now: int) -> None:
        """Apply the replicator's new state: its role and high watermark."""
        opened = self.opened
        leads = opened.leads
        if leads != self._leads_at and self.problem is None and not opened.sealing.is_fenced:
            was, self._leads_at = self._leads_at, leads
            self._role_changed(was, now)
        replicator, log = opened.replicator, opened.log
        if replicator is None or log is None:
            return
        if opened.is_appointed and opened.is_passed_over():
            self._intake.drive_parked(now)
        self._intake.answer_due(log.stable_end, replicator.high_watermark, now)
        self._serving.wake(now)

    def _recover_from(self, now: int) -> None:
        """Recover from a failed write: the disk has taken one again, or the pause is over."""
        mark("partition.writes_again")
        self._ailment, self._ails_until = None, NEVER
        self._host.role_changed(self, now)

    def step_down(self, now: int) -> None:
        """Stop leading, whatever the replicator's role is."""
        if self._leads_at is not None:
            self._leads_at = None
            self._host.role_changed(self, now)

    def _role_changed(self, was: int | None, now: int) -> None:
        leads = self._leads_at
        if was is not None and leads is None:
            error = NotLeader(f"{self.name} is led by another replica", leader=self.opened.leader)
            self._intake.refuse(error, now)
            self.opened.sealing.give_up()
        if leads is not None:
            self._upkeep.lead(now)
            self._tidings.tell_leader(now)
            self.opened.is_appointed = False
        self._host.role_changed(self, now)
        if self.opened.replicator is not None:
            self._intake.drive_parked(now)

    # --- producing ------------------------------------------------------------------------------

    def produce(self, source: str, m: Produce, now: int) -> None:
        """Append a batch or refuse it; the answer leaves when *m.acks* is fulfilled."""
        self._intake.produce(source, m, now)

    def sequence(self, source: str, m: GetSequence, now: int) -> None:
        """Answer how far a producer has got in this partition."""
        self._intake.sequence(source, m, now)

    # --- the disk -------------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write or to seal, and no write is under way."""
        return self.opened.is_dirty or self._repairs.is_dirty

    def flush(self, ready: Ready, now: int) -> None:
        """Add the pending write to *ready*; :meth:`advance` or :meth:`write_failed` follows."""
        self._repairs.flush(ready)
        if self.opened.can_write:
            sync_at = self.opened.flush(ready, now, must_sync=self._intake.take_sync())
            self.deadline = min(self.deadline, sync_at)

    def advance(self, now: int) -> None:
        """Take in that the write is done, and as durable as the ack mode requires."""
        if whole := self._repairs.advance():
            self._tidings.tell_repairs(now, whole)
        opened = self.opened
        log = opened.log
        if log is not None and opened.advance():
            if self._ailments:
                self._ailments = 0
                self._recover_from(now)
            if opened.sealing.written(log):
                self._succession.sealed(now)
            opened.stable(now)
            self.look(now)
            if self._upkeep.roll_at == NEVER or log.size >= self.state.config.block_bytes:
                self._upkeep.want_roll(now)
        self._rearm()

    def write_failed(self, failed: WriteFailed, now: int) -> None:
        """Take in that the write has failed. After a failed sync the replica stops for good."""
        error = as_told(failed.error)
        opened = self.opened
        log = opened.log
        if self._repairs.failed(failed.block.number, now, is_fatal=failed.fatal):
            self._rearm()
            return
        if opened.replicator is None:
            return
        if log is None or log.name != failed.block:
            return
        if failed.fatal:
            self._fail(error, now)
            return
        if opened.is_shared:
            mark("partition.write_failed.start_over")
            self._start_over(error, now)
            return
        log.fail()
        self._intake.refuse(opened.refusal(error), now)
        if (seal := opened.sealing.give_up()) is not None:
            mark("partition.seal_failed")
            self._tidings.refuse_seal(seal, error)  # The block stays open.
            self._intake.drive_parked(now)

    def read_failed(self, block: BlockId, error: PymqError, now: int) -> PymqError:
        """Take in that the disk could not read records; returns the error to answer.

        Other replicas of a sealed block can serve it. For the open block another replica has to
        lead, and this one recovers its log again.
        """
        if not isinstance(error, StoreError):
            return error
        state, opened = self.state, self.opened
        if not self.is_open(block):
            sealed = [b for b in state.blocks if b.number == block.number]
            others = [name for b in sealed for name in b.in_sync if name != self.me]
            mark("partition.sealed_unreadable")
            return ReplicaNotAvailable(str(error), brokers=others) if others else error
        if self.problem is None and opened.replicator is not None and opened.is_shared:
            if isinstance(error, CorruptBlock):
                mark("partition.found_damaged")
                self._fail(error, now)
            else:
                mark("partition.read_failed.start_over")
                self._start_over(error, now)
        return opened.refusal(error)

    def _start_over(self, error: PymqError, now: int) -> None:
        self.opened.relinquish(now)
        self.opened.start_over(now)
        if self._ailment is None:
            self._ailments += 1
        pause = min(AILS_MS << min(self._ailments - 1, 16), AILS_MAX_MS)
        self._ailment, self._ails_until = error, now + pause
        self._intake.refuse(self.opened.refusal(error), now)
        self._leads_at = None
        self._host.role_changed(self, now)

    # --- rolling --------------------------------------------------------------------------------

    def seal(self, m: Seal, now: int) -> None:
        """Seal the open block. Batches that arrive now are parked for the next one."""
        self._succession.seal(m, now)
        self._rearm()

    # --- reading --------------------------------------------------------------------------------

    def fetch(self, source: str, m: Fetch, now: int) -> None:
        """Answer with batches, or wait until there are some."""
        self._serving.fetch(source, m, now)
        if self.is_settled:
            self.deadline = min(self.deadline, self._serving.deadline)

    def find(self, source: str, m: FindOffset, now: int, token: int) -> bool:
        """Search an offset by time. Returns whether the store searches, and answers to
        :meth:`found`.
        """
        return self._serving.find(source, m, now, token)

    def found(self, m: TimeFound, now: int) -> bool:
        """Take in the search of one block; returns whether the store searches the next one."""
        return self._serving.found(m, now)

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due."""
        opened = self.opened
        if now >= self._ails_until:
            self._recover_from(now)
        opened.tick_log(now)
        if opened.is_running:
            self._upkeep.tick(now)
        if opened.tick_replicator(now):
            self.look(now)
        self._tidings.tick(now)
        if now >= self._repairs.deadline:
            self._repairs.tick(now)
        if self.is_settled:
            self._serving.tick(now)
        self._rearm()

    def _rearm(self) -> None:
        opened = self.opened
        due = opened.deadline  # written out: it runs with every message
        if self._tidings.deadline < due:
            due = self._tidings.deadline
        if self._repairs.deadline < due:
            due = self._repairs.deadline
        if self._ails_until < due:
            due = self._ails_until
        is_running = opened.is_running
        if (is_running or self.is_settled) and self._serving.deadline < due:
            due = self._serving.deadline
        if is_running:
            due = min(due, self._upkeep.roll_at, self._upkeep.retention_at)
        # Otherwise it waits until recovery has found the log's end.
        self.deadline = due

    def compacted(self, m: Compacted, now: int) -> None:
        """Take in that compaction has ended; a failed one is retried after the next roll."""
        self._upkeep.compacted(m)

    # --- leaving --------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write a checkpoint of the open block, unless it is up to date."""
        self.opened.checkpoint()

    def remove(self, error: PymqError, delete: bool, now: int) -> None:
        """Stop hosting the partition: all requests that wait are answered with *error*."""
        self._repairs.stop()
        self._fail(error, now)
        self._serving.close()
        if delete:
            self._holdings.remove(self.state)

    def report(self) -> PartitionReport:
        """Describe what only the leader knows, for ``describe_topic``."""
        log, replicator = self.opened.log, self.opened.replicator
        return PartitionReport(
            *self.name,
            self._serving.log_start,
            self.opened.end,
            self.opened.high_watermark,
            log.size if log is not None else 0,
            replicator.in_sync if replicator is not None else (),
            next((str(x) for x in (self.problem, *self._repairs.problems) if x), None),
        )
