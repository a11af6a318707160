"""One broker's part in a partition: append, roll, hand over, retain.

A partition is a list of blocks, of which only the last is open. Everything that may be appended
goes through :meth:`Partition.produce`; everything that changes how the partition is kept arrives as
a :class:`~pymq.core.metadata.PartitionState` from the zkserver, through :meth:`Partition.adopt`.
How the replicas of the open block agree is the replicator's part.

What holds at all times:

* an offset that was shown to anybody (answered or below the high watermark) never holds another
  record;
* the partition believes its disk only in :meth:`advance`: nothing is answered or counted before;
* while a block is being sealed, produces are parked and driven again at the next epoch.
"""

from __future__ import annotations

import attrs

from pymq.core.host import Host
from pymq.core.intake import Intake
from pymq.core.log import BlockLog
from pymq.core.marks import mark
from pymq.core.message import (
    BecomeLeader,
    Fetch,
    FindOffset,
    GetSequence,
    Message,
    PartitionReport,
    Produce,
    Progress,
    ReplicaFetch,
    ReplicaFetched,
    Replication,
    Seal,
    Sealed,
    Sequence,
)
from pymq.core.metadata import BlockNode, PartitionState
from pymq.core.producers import ProducerTable
from pymq.core.ready import (
    Compacted,
    Read,
    Ready,
    Recovered,
    RecoverFailed,
    RemoveBlock,
    TimeFound,
    WriteFailed,
)
from pymq.core.recovery import Recovery
from pymq.core.repair import Repairs
from pymq.core.replicator import (
    Replica,
    ReplicationConfig,
    Replicator,
    ReplicatorFactory,
)
from pymq.core.sealing import Sealing
from pymq.core.serving import Serving
from pymq.core.types import AckMode, Rng, TopicPartition
from pymq.core.upkeep import ASK_RETRY_MS, Upkeep
from pymq.errors import (
    CorruptMetadata,
    NotLeader,
    PymqError,
    ReplicaNotAvailable,
    StoreError,
)

NEVER = 1 << 62
RESTART_MS = 200  # a replica whose write has failed starts over after it


class Partition:
    """A partition that this broker hosts."""

    __slots__ = (
        "_has_begun",
        "_host",
        "_intake",
        "_leads_at",
        "_make_replicator",
        "_recovery",
        "_repairs",
        "_restart_at",
        "_sealing",
        "_serving",
        "_sync_at",
        "_tell_at",
        "_upkeep",
        "_visible",
        "deadline",
        "is_appointed",
        "log",
        "name",
        "problem",
        "replicator",
        "state",
    )

    def __init__(
        self,
        state: PartitionState,
        host: Host,
        make_replicator: ReplicatorFactory,
        unsealed: frozenset[int],
        now: int,
    ) -> None:
        self.name = TopicPartition(state.topic, state.partition)
        self.state = state
        self.problem: PymqError | None = None  # why nothing can be read or written any more
        self.log: BlockLog | None = None  # of the open block, if it is to be here
        self.replicator: Replicator | None = None  # None until the open block is recovered
        self.deadline = NEVER
        self._host = host
        self._make_replicator = make_replicator
        self._serving = Serving(self, host)
        self._repairs = Repairs(self)
        self._recovery = Recovery(host, self._keeps)
        self._intake = Intake(self, host)
        self._upkeep = Upkeep(self, now)
        self._sealing = self._new_sealing()
        self._leads_at: int | None = None  # the epoch in which this replica leads, while it does
        self._visible = 0  # what was before a replicator had to start over
        self._has_begun = False  # the open block has had a replicator in this process
        self.is_appointed = False  # to lead the open block, and does not yet
        self._sync_at = self._tell_at = self._restart_at = NEVER
        self._begin(unsealed, now)

    # --- what it is -----------------------------------------------------------------------------

    @property
    def _block(self) -> BlockNode:
        return self.state.blocks[-1]

    @property
    def is_shared(self) -> bool:
        """Whether other brokers hold the open block too."""
        return len(self._block.replicas) > 1

    @property
    def _is_voted(self) -> bool:
        """Whether the replicas of the open block elect their leader."""
        return self.is_shared and self._block.acks is AckMode.RAFT

    @property
    def leads(self) -> bool:
        """Whether this broker takes in records."""
        return self._leads_at is not None and self.problem is None

    @property
    def has_lost_lead(self) -> bool:
        """Whether the open block has had its leader, this one, and nobody else knows.

        A leader whose write has failed leads that block no more, as if it had been restarted.
        """
        replicator = self.replicator
        return (
            replicator is not None
            and self._block.acks is not AckMode.RAFT
            and self._block.leader == self.me
            and replicator.leader is None
        )

    @property
    def leader(self) -> str | None:
        """Who leads, as far as this broker knows."""
        return self.replicator.leader if self.replicator is not None else self.state.leader

    @property
    def peers(self) -> tuple[str, ...]:
        """The other brokers that this one must know to be alive."""
        if self.log is None or self.problem is not None:
            return ()
        return tuple(name for name in self._block.replicas if name != self.me)

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.log.end if self.log is not None else self._block.start

    @property
    def high_watermark(self) -> int:
        """The offset before which everything may be read."""
        if self.replicator is None:
            return max(self._visible, self._block.start)
        high = self.replicator.high_watermark
        if self.log is not None and self.log.seal_end is not None and high > self.log.seal_end:
            # Later leaders may have added no-ops, which the next block may begin in place of: who
            # read on behind them would miss its first records.
            mark("partition.behind_the_seal")
            high = self.log.seal_end
        return max(self._visible, high)

    @property
    def is_settled(self) -> bool:
        """Whether it is known where the log ends, or that it never will be."""
        return self.replicator is not None or self.problem is not None or self.log is None

    def has(self, block: BlockNode) -> bool:
        """Whether all of a sealed block is here."""
        return self.me in block.in_sync and block.number not in self._repairs

    def _holds(self, block: BlockNode) -> bool:
        """Whether this broker is to hold a block, and still has the disk that it was given to."""
        if self.me not in block.replicas:
            return False
        if not block.storages:
            return True
        return block.storages[block.replicas.index(self.me)] == self._host.storage_id

    def _keeps(self, block: BlockNode) -> bool:
        return self._holds(block) and self.has(block)

    # --- metadata -------------------------------------------------------------------------------

    def adopt(self, state: PartitionState, controller_epoch: int, now: int) -> None:
        """Go over to *state*; the zkserver's word is final, and doing it twice changes nothing."""
        fenced = self._sealing.fenced
        if fenced is not None and controller_epoch > fenced:
            mark("partition.fence_lifted")
            self._sealing.give_up()  # Whoever was taking over can commit nothing any more.
        before, self.state = self.state, state
        kept = {block.number for block in state.blocks}
        for gone in before.blocks:
            if gone.number not in kept and self.me in gone.replicas:
                self._host.out.write.append(RemoveBlock(before.block_id(gone)))
        self._serving.adopt(state)
        if state.config != before.config:
            self._upkeep.reconsider(now)
        if state.blocks[-1].number != before.blocks[-1].number:
            self._open_next(before.blocks[-1], now)
        elif self.replicator is not None:
            self.replicator.adopt(state, now)
            if state.epoch > before.epoch and not self.is_shared:
                self._sealing.give_up()
                self._intake.drive_parked(now)
        elif not before.blocks[-1].replicas and self.log is None:
            self._begin(frozenset(), now)
        self._repairs.adopt(state, now)
        if self.replicator is not None:
            self._look(now)
            self._upkeep.begin(now)
        self._serving.wake(now)
        self._host.shares(self, now)
        self._rearm()

    def _begin(self, unsealed: frozenset[int], now: int) -> None:
        state = self.state
        self._serving.adopt(state)
        for block in state.blocks[:-1]:
            if block.number in unsealed and self.me in block.replicas:
                self._repairs.start(state, block, None, now)
        self._repairs.adopt(state, now)
        self._sealing = self._new_sealing()
        if self._holds(self._block):
            self._recovery.begin()
            self.log = self._new_log(self._block)
            self.log.recover()

    def _new_log(self, block: BlockNode) -> BlockLog:
        shared = len(block.replicas) > 1
        return BlockLog(self._host, self.state.block_id(block), block.start, is_shared=shared)

    def _new_sealing(self) -> Sealing:
        is_raft = self._block.acks is AckMode.RAFT
        return Sealing(is_shared=self.is_shared, is_raft=is_raft)

    def _open_next(self, last: BlockNode, now: int) -> None:
        """The roll: the block before was sealed at its end, another one takes the next record."""
        log, block, state = self.log, self._block, self.state
        self.log = self.replicator = None
        self._has_begun = False
        self._sealing = self._new_sealing()
        self._sync_at = self._tell_at = self._restart_at = NEVER
        self._upkeep.open_next(block.opened_ms, now)
        self._intake.refuse(NotLeader(f"{self.name} has been rolled", leader=state.leader), now)
        past = self._close(last, log, now)
        self._look(now)
        if self._holds(block) and self.problem is None:
            self.log = self._new_log(block)
            if block.past:
                mark("partition.past_inherited")
                past = ProducerTable.restore(block.past)
            self.log.create(state.topic, state.partition, past or ProducerTable())
            self._make(None, now, is_new=True)
        self._intake.drive_parked(now)

    def _close(self, last: BlockNode, log: BlockLog | None, now: int) -> ProducerTable | None:
        """Let go of the block that was open, or bring it to its end; returns what it knew."""
        sealed = next((b for b in self.state.blocks if b.number == last.number), None)
        if log is None or self.problem is not None:
            return None
        if sealed is None:
            mark("partition.empty_block")
            return log.producers  # It was empty, and is no more.
        is_whole = log.end == sealed.end == log.stable_end and not log.is_recovering
        if len(sealed.replicas) > 1 or not is_whole:
            mark("partition.close.repair")
            # Even a whole copy is to be made durable, with its index.
            self._repairs.start(self.state, sealed, log, now)
        return log.producers if is_whole else None

    # --- recovery -------------------------------------------------------------------------------

    def recovered(self, found: Recovered, now: int) -> None:
        """The store has found a block's end."""
        log = self.log
        if self._repairs.recovered(self.state, found, now) or log is None or not log.is_recovering:
            self._rearm()
            return
        try:
            first = self._recovery.add(found, log, self.state)
        except CorruptMetadata as error:
            self.recover_failed(RecoverFailed(found.block, error), now)
            return
        if first is None:
            return
        if self._is_voted and first.state is None and log.end > log.start:
            # Nothing is accepted before a term is saved, so what was promised here is lost.
            mark("partition.votes_lost")
            lost = StoreError(f"{log.name} has records, and what it has voted on is missing")
            self._fail(lost, now)
        elif self.replicator is None:
            block = self._block
            self._upkeep.opened_ms = block.opened_ms
            if log.size == 0:
                # A crash has taken it, and what it knew of the past with it: once the blocks before
                # are gone, nobody else does.
                log.create(self.state.topic, self.state.partition, log.producers)
            is_new = first.state is None and not self._has_begun
            self._make(first.state, now, is_new=is_new)
            self._intake.drive_parked(now)
            self._serving.wake(now)
        self._rearm()

    def _make(self, saved: bytes | None, now: int, *, is_new: bool) -> None:
        assert self.log is not None
        replica = Replica(self.log.name, self.log, self, self.state, saved, is_new=is_new)
        self.replicator = self._make_replicator(replica, now)
        # It leads as soon as that is on the disk; what comes until then waits for it.
        self.is_appointed = is_new and self.state.leader == self.me
        self._has_begun = True
        self._look(now)
        if self.has_lost_lead:
            mark("partition.lost_lead")
            self._upkeep.want_roll(now)

    def recover_failed(self, failed: RecoverFailed, now: int) -> None:
        """The block is damaged: nothing is served, nothing is changed, everybody is told why."""
        self._recovery.begin()
        self._fail(failed.error, now)

    def _fail(self, error: Exception, now: int) -> None:
        self.problem = error if isinstance(error, PymqError) else StoreError(str(error))
        # Nothing is due any more.
        self._sync_at = self._tell_at = self._restart_at = NEVER
        self._upkeep.stop()
        if self.log is not None:
            self.log.fail()
        self._intake.refuse(self.problem, now)
        self._intake.refuse_parked(self.problem, now)
        self._serving.wake(now)
        if (seal := self._sealing.give_up()) is not None:
            self._refuse_seal(seal, self.problem)
        self._leads_at = None
        self._host.role_changed(self, now)
        self._rearm()

    # --- what its parts are given -----------------------------------------------------------

    @property
    def me(self) -> str:
        """The broker's name."""
        return self._host.me

    @property
    def rng(self) -> Rng:
        """The broker's dice."""
        return self._host.rng

    @property
    def incarnation(self) -> int:
        """The number of the broker's life."""
        return self._host.incarnation

    @property
    def replication(self) -> ReplicationConfig:
        """The broker's patience."""
        return self._host.replication

    @property
    def out(self) -> Ready:
        """What the broker wants done in this turn."""
        return self._host.out

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        return self._host.wall_ms(now)

    def send(self, peer: str, message: Message) -> None:
        """Send a message to another broker."""
        self._host.send(peer, message)

    def tell_controller(self, message: Message) -> None:
        """Send something to the active zkserver."""
        self._host.tell_controller(message)

    def is_alive(self, peer: str) -> bool:
        """Whether another broker can act on the open block."""
        if not self._host.is_alive(peer):
            return False
        return self.log is None or not self._host.has_failed(peer, self.log.name)

    # --- replication ----------------------------------------------------------------------------

    @property
    def _acting(self) -> Replicator | None:
        """The replicator, if it may act now."""
        log = self.log
        if log is None or log.is_recovering or self.problem is not None:
            return None
        if self._sealing.fenced is not None:
            return None
        return self.replicator

    def replicate(self, source: str, m: Replication, now: int) -> None:
        """Take in what another broker says about one of the blocks."""
        log, acting = self.log, self._acting
        if isinstance(m, ReplicaFetched) and self._repairs.step(source, m, now):
            pass
        elif isinstance(m, ReplicaFetch) and m.leader_epoch == 0:
            self._serve_sealed(source, m)
        elif acting is not None and log is not None and log.name == m.block:
            log.at(self._host.wall_ms(now))
            acting.step(source, m, now)
            self._look(now)
        self._rearm()

    def peer_changed(self, peer: str, now: int) -> None:
        """Another broker seems gone, or is back."""
        if (acting := self._acting) is not None:
            acting.peer_changed(peer, now)
            self._look(now)
        self._rearm()

    def hand_over(self, now: int) -> bool:
        """Have another replica lead the open block, if one can; whether that is under way."""
        acting = self._acting
        if acting is None or not acting.is_leader or self._sealing.is_parking:
            return False
        others = [peer for peer in acting.in_sync if peer != self.me and self.is_alive(peer)]
        if not others:
            return False
        mark("partition.hand_over")
        acting.transfer(others[0], now)
        self._look(now)
        self._rearm()
        return True

    def _serve_sealed(self, source: str, m: ReplicaFetch) -> None:
        block = next((b for b in self.state.blocks[:-1] if b.number == m.block.number), None)
        answer = ReplicaFetched(m.id, m.block, m.offset, 0, 0)
        if block is None or block.end is None or not self.has(block) or self.problem is not None:
            error = ReplicaNotAvailable(f"{self.me} does not hold all of {m.block}")
            self.send(source, attrs.evolve(answer, error=error))
        elif block.start <= m.offset < block.end:
            read = Read(source, answer, m.block, m.offset, block.end, m.max_bytes)
            self._host.out.read.append(read)

    def _look(self, now: int) -> None:
        """Act on what the replicator has come to: a role, a high watermark."""
        replicator, log = self.replicator, self.log
        leads = replicator.epoch if replicator is not None and replicator.is_leader else None
        if leads != self._leads_at and self.problem is None and not self._sealing.is_fenced:
            was, self._leads_at = self._leads_at, leads
            self._role_changed(was, now)
        if replicator is None or log is None:
            return
        if self.is_appointed and replicator.epoch != self._block.epoch:
            mark("partition.appointed_too_late")
            self.is_appointed = False  # Another was elected before this one began.
            self._intake.drive_parked(now)
        self._intake.answer_due(log.stable_end, replicator.high_watermark, now)
        self._serving.wake(now)

    def _role_changed(self, was: int | None, now: int) -> None:
        leads = self._leads_at
        if was is not None and leads is None:
            error = NotLeader(f"{self.name} is led by another replica", leader=self.leader)
            self._intake.refuse(error, now)
            self._sealing.give_up()
        if leads is not None:
            self._upkeep.lead(now)
            self._tell_leader(now)
            self.is_appointed = False
        self._host.role_changed(self, now)
        if self.replicator is not None:
            self._intake.drive_parked(now)

    def _tell_leader(self, now: int) -> None:
        """Tell the zkserver who was elected, until it knows."""
        state, epoch = self.state, self._leads_at
        if epoch is None or not self._is_voted:
            return
        if (state.leader, state.epoch) != (self.me, epoch):
            self.tell_controller(BecomeLeader(*self.name, self._block.number, epoch, self.me))
            self._tell_at = now + ASK_RETRY_MS

    def _tell_repairs(self, now: int) -> None:
        """Tell the zkserver of the blocks that are whole now, until it knows."""
        ends = self._repairs.ends(self.state)
        if ends:
            mark("partition.progress")
            self.tell_controller(Progress(self.me, tuple(ends), self._host.incarnation))
            self._tell_at = now + ASK_RETRY_MS

    # --- producing ------------------------------------------------------------------------------

    def produce(self, source: str, m: Produce, now: int) -> None:
        """Append a batch, or say why not; answered when *m.acks* is fulfilled."""
        self._intake.produce(source, m, now)

    @property
    def is_fenced(self) -> bool:
        """Whether the open block is being taken over from a leader that is gone."""
        return self._sealing.is_fenced

    @property
    def is_sealed(self) -> bool:
        """Whether nothing more comes into the open block."""
        return self._sealing.answer is not None or (
            self.log is not None and self.log.seal_end is not None
        )

    @property
    def is_sealing(self) -> bool:
        """Whether the zkserver wants it sealed."""
        return self._sealing.is_parking

    @property
    def is_parking(self) -> bool:
        """Whether what producers send has to wait for the next block, or for this one."""
        log = self.log
        if log is not None and (log.is_recovering or log.seal_end is not None):
            return True
        return self._sealing.is_parking or self.is_appointed

    def sequence(self, source: str, m: GetSequence, now: int) -> None:
        """Tell how far a producer has got."""
        error, known = self.problem, 0
        if error is None and not self.is_settled:
            mark("partition.sequence_too_early")
            error = ReplicaNotAvailable(f"{self.name} does not know yet where its log ends")
        elif error is None and not self.leads:
            error = NotLeader(f"{self.name} is led by {self.leader}", leader=self.leader)
        elif self.log is not None:
            known = self.log.producers.next_sequence(m.producer_id)
            # Whoever goes on behind its records relies on them: told once they are safe.
            end = self.log.producers.end(m.producer_id)
            if self._intake.tell(source, Sequence(m.id, known), end):
                return
        self._host.reply(source, Sequence(m.id, known, error), now)

    # --- the disk -------------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write or to seal, and no write is under way."""
        log, replicator = self.log, self.replicator
        if log is not None and not log.is_writing and not log.is_recovering:
            if log.has_unwritten:
                return True
            if (
                replicator is not None
                and self.problem is None
                and (replicator.is_dirty or self._sealing.must_write(log, replicator))
            ):
                return True
        return self._repairs.is_dirty

    def flush(self, ready: Ready, now: int) -> None:
        """Add the pending write to *ready*; :meth:`advance` or :meth:`write_failed` follows."""
        self._repairs.flush(ready)
        log, replicator = self.log, self.replicator
        if log is None or replicator is None or log.is_recovering or log.is_writing:
            return
        must_seal = self._sealing.must_write(log, replicator)
        config = self.state.config
        policy = config.sync_policy(self._block.acks)
        is_synced = self._intake.take_sync() or policy == "always"
        if is_synced:
            self._sync_at = NEVER
        elif log.has_unwritten and policy == "interval" and self._sync_at == NEVER:
            self._sync_at = now + config.fsync_interval_ms
            self.deadline = min(self.deadline, self._sync_at)
        log.flush(ready, sync=is_synced)
        if must_seal:
            self._sealing.write(log, ready)
            self._sync_at = NEVER
        if replicator.is_dirty:
            replicator.flush(ready, now)

    def advance(self, now: int) -> None:
        """The write is done, and durable as far as its mode asks for that."""
        if self._repairs.advance(now):
            self._repairs.adopt(self.state, now)  # Of some the zkserver knows that they are whole.
            self._tell_repairs(now)
        log, replicator = self.log, self.replicator
        if log is None or replicator is None or not log.advance():
            self._rearm()
            return
        if self._sealing.written(log):
            self._seal_done(now)
        replicator.stable(log.stable_end, now)
        self._look(now)
        if self._upkeep.roll_at == NEVER or log.size >= self.state.config.block_bytes:
            self._upkeep.want_roll(now)
        self._rearm()

    def write_failed(self, failed: WriteFailed, now: int) -> None:
        """Nothing of the write counts; after a failed sync the replica stops for good."""
        error = failed.error
        if not isinstance(error, PymqError):
            error = StoreError(str(error))
        log, replicator = self.log, self.replicator
        if self._repairs.failed(failed.block.number, now) or log is None or replicator is None:
            return
        if log.name != failed.block:
            return
        if failed.fatal:
            self._fail(error, now)
            return
        if self.is_shared:
            mark("partition.write_failed.start_over")
            self._start_over(error, now)
            return
        log.fail()
        self._intake.refuse(error, now)
        if (seal := self._sealing.give_up()) is not None:
            mark("partition.seal_failed")
            self._refuse_seal(seal, error)  # The block stays open.
            self._intake.drive_parked(now)

    def _start_over(self, error: PymqError, now: int) -> None:
        """Go on as after a restart: others may have what this disk has not (Raft, term by term).

        A leader has perhaps sent what its own disk failed to take, so it must not lead on.
        """
        log = self.log
        assert log is not None
        self._visible = self.high_watermark
        self.replicator = None
        self.is_appointed = False
        self._sealing = self._new_sealing()
        self._intake.refuse(error, now)
        was, self._leads_at = self._leads_at, None
        if was is not None:
            self._host.role_changed(self, now)
        log.fail()
        log.is_recovering = True
        self._recovery.begin()
        self._restart_at = now + RESTART_MS  # What failed now fails again at once.

    # --- rolling --------------------------------------------------------------------------------

    def seal(self, m: Seal, now: int) -> None:
        """Let the open block end where it is; records that come now wait for the next one."""
        log, replicator = self.log, self.replicator
        if m.block != self._block.number or m.epoch <= self.state.epoch or log is None:
            return  # From a roll that is over, or from a controller that has been replaced.
        if self.problem is not None:
            self._refuse_seal(m, self.problem)
        elif replicator is None or log.is_recovering:
            mark("partition.seal_too_early")  # It is asked for again.
        elif not m.takeover and self.has_lost_lead:
            mark("partition.seal.lost_lead")
            lost = f"a write of {self.me} has failed, and it does not lead {self.name} any more"
            self._refuse_seal(m, ReplicaNotAvailable(lost))
        elif not m.takeover and not replicator.is_leader:
            mark("partition.seal.not_leader")
            self._refuse_seal(m, NotLeader(f"{self.name} is led by {replicator.leader}"))
        else:
            self._sealing.begin(m)
            if m.takeover and self._leads_at is not None:
                self._leads_at = None
                self._host.role_changed(self, now)
            if self._sealing.answer is not None:
                mark("partition.seal_again")
                # The first answer was lost, or another controller took over.
                self._seal_done(now)
            elif self._is_voted and not m.takeover and log.seal_end is None:
                log.at(self._host.wall_ms(now))
                log.seal(replicator.epoch)
                replicator.appended(now)
        self._rearm()

    def _refuse_seal(self, m: Seal, error: PymqError) -> None:
        incarnation = self._host.incarnation
        refused = Sealed(
            *self.name, m.block, m.epoch, self.me, error=error, incarnation=incarnation
        )
        self.tell_controller(refused)

    def _seal_done(self, now: int) -> None:
        assert self.log is not None
        assert self.replicator is not None
        answer = self._sealing.done(
            self.name, self.me, self._host.incarnation, self.log, self.replicator
        )
        if answer is not None:
            self.tell_controller(answer)
            # Should nothing come of it, because the zkserver was replaced, the next one is to know.
            self._upkeep.asked(now)

    # --- reading --------------------------------------------------------------------------------

    def fetch(self, source: str, m: Fetch, now: int) -> None:
        """Answer with batches, or wait until there are some."""
        self._serving.fetch(source, m, now)
        if self.is_settled:
            self.deadline = min(self.deadline, self._serving.deadline)

    def cancel(self, source: str, request: int) -> None:
        """The fetch is no longer waited for."""
        self._serving.cancel(source, request)

    def find(self, source: str, m: FindOffset, now: int, token: int) -> None:
        """Look for an offset by time; the answer of the store comes to :meth:`found`."""
        self._serving.find(source, m, now, token)

    def found(self, m: TimeFound, now: int) -> None:
        """The store has searched one block."""
        self._serving.found(m, now)

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due."""
        if now >= self._restart_at:
            self._restart_at = NEVER
            if self.log is not None:
                self.log.recover()
        if now >= self._sync_at:
            self._sync_at = NEVER
            if self.log is not None:
                self.log.sync()
        if self.replicator is not None and self.problem is None:
            self._upkeep.tick(now)
        if (acting := self._acting) is not None and acting.deadline <= now and self.log is not None:
            self.log.at(self._host.wall_ms(now))
            acting.tick(now)
            self._look(now)
        if now >= self._tell_at:
            self._tell_at = NEVER
            self._tell_leader(now)
            self._tell_repairs(now)
        if now >= self._repairs.deadline:
            self._repairs.tick(now)
        if self.is_settled:
            self._serving.tick(now)
        self._rearm()

    def _rearm(self) -> None:
        due = min(self._tell_at, self._restart_at, self._repairs.deadline)
        replicator, problem = self.replicator, self.problem
        if replicator is not None and problem is None:
            upkeep = self._upkeep
            due = min(
                due, self._serving.deadline, self._sync_at, upkeep.roll_at, upkeep.retention_at
            )
            if self._acting is not None:
                due = min(due, replicator.deadline)
        elif self.is_settled:
            due = min(due, self._serving.deadline)
        # Else what is due waits for the store to say where the log ends.
        self.deadline = due

    def compacted(self, m: Compacted, now: int) -> None:
        """Compaction is over; a failed one is tried again after the next roll."""
        self._upkeep.compacted(m)

    # --- leaving --------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Keep what a recovery would have to find out, unless it is kept already."""
        if self.replicator is not None and self.problem is None and self.log is not None:
            self.log.checkpoint()

    def remove(self, error: PymqError, delete: bool, now: int) -> None:
        """Give the partition up: everybody who waits is told *error*."""
        self._fail(error, now)
        if delete:
            for block in self.state.blocks:
                self._host.out.write.append(RemoveBlock(self.state.block_id(block)))

    def report(self) -> PartitionReport:
        """What only the leader knows."""
        return PartitionReport(
            *self.name,
            self._serving.log_start,
            self.end,
            self.high_watermark,
            self.log.size if self.log is not None else 0,
            self.replicator.in_sync if self.replicator else (),
            str(self.problem) if self.problem else None,
        )
