"""One broker's replica of the open block: its log, its replicator and its seal.

A roll replaces it by the replica of the next block. The partition passes it messages and writes,
and reads its role and high watermark afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.log import BlockLog
from pymq.core.block.recovery import Recovery, passes
from pymq.core.block.replicator import Replica, Replicator, ReplicatorFactory
from pymq.core.block.sealing import Sealing
from pymq.core.message import Replication, Seal, Sealed
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.partition.host import PartitionHost
from pymq.core.ready import Ready, Recovered
from pymq.core.types import NEVER, AckMode, BlockId, TopicPartition
from pymq.errors import (
    CorruptMetadata,
    NotLeader,
    PymqError,
    ReplicaNotAvailable,
    StoreError,
)

READ_AGAIN_MAX_MS = 30_000  # the longest pause before a block that could not be read is read again
RESTART_MS = 200  # after a failed write, before the replica starts over
IDLE_MS = 30_000  # without an append, after which batches cached for followers are dropped


class OpenBlock:
    """This broker's replica of the open block of a partition."""

    __slots__ = (
        "_has_begun",
        "_host",
        "_idle_at",
        "_idle_end",
        "_is_broken",
        "_is_unsent",
        "_make_replicator",
        "_recovery",
        "_restart_at",
        "_sync_at",
        "_unread",
        "is_appointed",
        "log",
        "replicator",
        "sealing",
        "state",
        "visible",
    )

    def __init__(
        self,
        state: PartitionState,
        host: PartitionHost,
        make_replicator: ReplicatorFactory,
        is_known: Callable[[BlockNode], bool],
        visible: int,
    ) -> None:
        self.state = state
        self.visible = visible  # from before the replicator started over
        self.log: BlockLog | None = None  # if the block is to be here
        self.replicator: Replicator | None = None  # None until the log is recovered
        self.is_appointed = False  # appointed as leader, and does not lead yet
        self.sealing = self._new_sealing()
        self._host = host
        self._make_replicator = make_replicator
        self._recovery = Recovery(host, is_known)
        self._has_begun = False  # it has had a replicator in this process
        self._is_broken = False  # failed for good: nothing can be read or written
        self._is_unsent = False  # something was appended that the other replicas were not sent
        self._unread = 0  # failed recoveries in a row that may succeed the next time
        self._sync_at = self._restart_at = self._idle_at = NEVER
        self._idle_end = -1  # where the log ended when that was set
        host.open_block = None

    # --- state ----------------------------------------------------------------------------------

    @property
    def node(self) -> BlockNode:
        """The block's node in the metadata tree."""
        return self.state.blocks[-1]

    @property
    def is_shared(self) -> bool:
        """Whether other brokers hold the block too."""
        return len(self.node.replicas) > 1

    @property
    def is_voted(self) -> bool:
        """Whether its replicas elect their leader."""
        return self.is_shared and self.node.acks is AckMode.RAFT

    @property
    def is_running(self) -> bool:
        """Whether the log is recovered and the replicator runs."""
        return self.replicator is not None and not self._is_broken

    @property
    def is_recovering(self) -> bool:
        """Whether the store is finding out where the log ends."""
        return self.log is not None and self.log.is_recovering

    @property
    def is_resting(self) -> bool:
        """Whether the log is not recovered and the store owes no answer about this block.

        The store will be asked, or it has answered and now reads the blocks before.
        """
        if self._restart_at != NEVER:
            return True
        log = self.log
        return log is not None and log.is_recovering and not self.awaits(log.name)

    @property
    def is_unread(self) -> bool:
        """Whether the store could not read the block, and will be asked again."""
        return self._unread > 0 and not self._is_broken

    def refusal(self, problem: PymqError) -> PymqError:
        """Return the error for a client that cannot be served because of *problem*.

        Other replicas may be sound, so the client looks the leader up again and resends. A single
        replica returns its problem as it is, unless it reads the block again soon or has run out of
        file descriptors.
        """
        me, leader = self._host.me, self.state.leader
        if isinstance(problem, StoreError) and any(name != me for name in self.node.replicas):
            if leader not in (None, me):
                return NotLeader(f"{problem}; {leader} leads", leader=leader)
            return ReplicaNotAvailable(f"{problem}; another replica has to lead")
        if passes(problem):
            return ReplicaNotAvailable(f"{problem}; {me} tries again", **problem.details)
        if not self.is_unread or self._pause_ms >= READ_AGAIN_MAX_MS:
            return problem
        return ReplicaNotAvailable(f"{problem}; {me} tries again", **problem.details)

    @property
    def leads(self) -> int | None:
        """The epoch in which the replica may append, if it may."""
        replicator = self.replicator
        return replicator.epoch if replicator is not None and replicator.is_leader else None

    @property
    def leader(self) -> str | None:
        """The leader, as far as this replica knows."""
        return self.replicator.leader if self.replicator is not None else self.state.leader

    @property
    def has_lost_lead(self) -> bool:
        """Whether this replica led the block and stopped, and the controller may not know.

        After a failed write a leader gives up leadership as if its broker had restarted.
        """
        replicator = self.replicator
        return (
            replicator is not None
            and self.node.acks is not AckMode.RAFT
            and self.node.leader == self._host.me
            and replicator.leader is None
        )

    @property
    def is_in_touch(self) -> bool:
        """Whether the replica leads or its leader seems alive, so it learns what is committed."""
        if not self.is_running:
            return False
        leader = self.leader
        return leader is not None and (leader == self._host.me or self._host.is_alive(leader))

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.log.end if self.log is not None else self.node.start

    @property
    def knows_end(self) -> bool:
        """Whether records acknowledged before this replica led are below its high watermark.

        A new Raft leader has all of them, but knows that they are committed only once an entry of
        its own term is committed (Raft, section 8; Kafka KIP-207).
        """
        if self.log is None or not self.log.epochs or self.node.acks is not AckMode.RAFT:
            return True
        return self.high_watermark >= self.log.epochs[-1][1]

    @property
    def high_watermark(self) -> int:
        """The offset before which consumers may read."""
        if self.replicator is None:
            return max(self.visible, self.node.start)
        high = self.replicator.high_watermark
        if self.log is not None and self.log.seal_end is not None and high > self.log.seal_end:
            # Later leaders may have appended no-ops at offsets where the next block begins. A
            # reader that continued after them would miss the next block's first records.
            mark("partition.behind_the_seal")
            high = self.log.seal_end
        # Records committed before a restart are still committed, up to the end of the log.
        known = self.log.committed if self.log is not None else 0
        return max(self.visible, high, known)

    @property
    def readable_end(self) -> int:
        """The offset before which consumers may read this follower: known as committed, and
        here.
        """
        log = self.log
        return self.high_watermark if log is None else min(self.high_watermark, log.stable_end)

    @property
    def is_sealed(self) -> bool:
        """Whether nothing more comes into the block."""
        return self.sealing.answer is not None or (
            self.log is not None and self.log.seal_end is not None
        )

    @property
    def is_parking(self) -> bool:
        """Whether batches are parked, for the next block or until this one is recovered."""
        log = self.log
        if log is not None and (log.is_recovering or log.seal_end is not None):
            return True
        return self.sealing.is_parking or self.is_appointed

    @property
    def acting(self) -> Replicator | None:
        """The replicator, unless a write is under way or the block is not recovered."""
        log = self.log
        if log is None or log.is_recovering or self._is_broken or self.sealing.fenced is not None:
            return None
        return self.replicator

    # --- beginning ------------------------------------------------------------------------------

    def recover(self) -> None:
        """Begin recovery: ask the store for the block; :meth:`restore` follows."""
        self._recovery.begin()
        self._new_log().recover()

    def create(self, past: ProducerTable, now: int) -> None:
        """Create the block with the producer table of the block before."""
        self._new_log().create(self.state.topic, self.state.partition, past)
        self._make(None, now, is_new=True)

    def _new_log(self) -> BlockLog:
        name = self._host.open_block = self.state.block_id(self.node)
        self.log = BlockLog(self._host, name, self.node.start, is_shared=self.is_shared)
        return self.log

    def _new_sealing(self) -> Sealing:
        is_raft = self.node.acks is AckMode.RAFT
        return Sealing(is_shared=self.is_shared, is_raft=is_raft)

    def awaits(self, block: BlockId) -> bool:
        """Whether recovery waits for what the store finds of *block*."""
        if self.log is None or self._is_broken:
            return False
        return self._recovery.awaits(block, self.log)

    def restore(self, found: Recovered) -> Recovered | None:
        """Take in what the store has found; returns the open block's own part once all is known.

        Raises:
            CorruptBlock: what was on the disk is not there any more.
            CorruptMetadata: a checkpoint cannot be read.
            StoreError: the saved vote refers to records that are missing.
        """
        assert self.log is not None
        return self._recovery.add(found, self.log, self.state)

    def read_again(self, now: int) -> None:
        """Retry recovery after a pause: the store could not read the block this time.

        The log is kept, since recovery must find all that was durable in this process.
        """
        mark("partition.unreadable")
        self.start_over(now)
        self._sync_at = self._idle_at = NEVER
        self._unread += 1
        self._restart_at = now + self._pause_ms

    @property
    def _pause_ms(self) -> int:
        """The pause before the next try, which doubles with each failure."""
        first = 10 * self._host.replication.retry_ms
        return min(first << min(self._unread - 1, 16), READ_AGAIN_MAX_MS)

    def start(self, found: Recovered, now: int) -> CorruptMetadata | None:
        """Start the replicator on the restored log; returns why not, if its saved state is
        unreadable.
        """
        log, state = self.log, self.state
        assert log is not None
        self._restart_at = NEVER  # A write may have failed after the store was asked.
        self._unread = 0
        if log.size == 0:
            # A crash has taken the block and its producer table. Create it again with what the
            # blocks before know: once these are retired, it is lost.
            log.create(state.topic, state.partition, log.producers)
        try:
            self._make(found.state, now, is_new=found.state is None and not self._has_begun)
        except CorruptMetadata as problem:  # A newer pymq has written it, perhaps.
            return problem
        return None

    def _make(self, saved: bytes | None, now: int, *, is_new: bool) -> None:
        assert self.log is not None
        replica = Replica(self.log.name, self.log, self._host, self.state, saved, is_new=is_new)
        self.replicator = self._make_replicator(replica, now)
        # It leads as soon as its state is durable; until then batches are parked.
        self.is_appointed = is_new and self.state.leader == self._host.me
        self._has_begun = True

    # --- replication ----------------------------------------------------------------------------

    def adopt(self, state: PartitionState, now: int) -> None:
        """Adopt a new state in which this block is still the open one."""
        self.state = state
        if self.replicator is not None:
            self.replicator.adopt(state, now)

    def appended(self) -> None:
        """Note that the log has grown: all appends of a turn are replicated together."""
        self._is_unsent = True

    def step(self, source: str, m: Replication, now: int) -> bool:
        """Take in another replica's message; returns whether the state may have changed."""
        log, acting = self.log, self.acting
        if acting is None or log is None or log.name != m.block:
            return False
        log.at(self._host.wall_ms(now))
        acting.step(source, m, now)
        return True

    def hand_over(self, now: int, target: str | None = None) -> bool:
        """Transfer leadership to *target* or any replica that can lead; returns whether it
        began.
        """
        acting = self.acting
        if acting is None or not acting.is_leader or self.sealing.is_parking:
            return False
        host = self._host
        others = [peer for peer in acting.in_sync if peer != host.me and host.is_alive(peer)]
        if target is not None:
            others = [peer for peer in others if peer == target]
        if not others:
            return False
        mark("partition.hand_over")
        acting.transfer(others[0], now)
        return True

    def relinquish(self, now: int) -> None:
        """Give up leadership because the disk has failed."""
        acting = self.acting
        if acting is not None:
            acting.relinquish(now)

    def is_passed_over(self) -> bool:
        """Whether another replica was elected before this one, which was appointed, began to
        lead.
        """
        replicator = self.replicator
        if not self.is_appointed or replicator is None or replicator.epoch == self.node.epoch:
            return False
        mark("partition.appointed_too_late")
        self.is_appointed = False
        return True

    # --- sealing --------------------------------------------------------------------------------

    def seal_error(self, m: Seal, name: TopicPartition) -> PymqError | None:
        """Return why this replica cannot seal the block, if so."""
        replicator = self.replicator
        if m.takeover or replicator is None:
            return None
        if self.has_lost_lead:
            mark("partition.seal.lost_lead")
            lost = f"a write of {self._host.me} has failed, and it does not lead {name} any more"
            return ReplicaNotAvailable(lost)
        if not replicator.is_leader:
            mark("partition.seal.not_leader")
            return NotLeader.of(name, replicator.leader)
        return None

    def close(self, now: int) -> None:
        """Begin the seal; an elected leader appends a seal entry to the log."""
        log, replicator = self.log, self.replicator
        if log is None or replicator is None or log.seal_end is not None or not self.is_voted:
            return
        log.at(self._host.wall_ms(now))
        log.seal(replicator.epoch)
        replicator.appended(now)

    def sealed(self, name: TopicPartition) -> Sealed | None:
        """Return the answer to the controller: the block is durable and sealed."""
        assert self.log is not None
        assert self.replicator is not None
        host = self._host
        past = self.log.past(self.state.config.producer_expire_ms)
        return self.sealing.done(name, host.me, host.incarnation, self.log, self.replicator, past)

    # --- the disk -------------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write or to seal, and no write is under way."""
        log, replicator = self.log, self.replicator
        if log is None or log.is_writing or log.is_recovering:
            return False
        if log.has_unwritten:
            return True
        if replicator is None or self._is_broken:
            return False
        return replicator.is_dirty or self.sealing.must_write(log, replicator)

    @property
    def can_write(self) -> bool:
        """Whether a write may begin: recovery has ended, and no write is under way."""
        log = self.log
        if log is None or self.replicator is None:
            return False
        return not log.is_recovering and not log.is_writing

    def flush(self, ready: Ready, now: int, *, must_sync: bool) -> int:
        """Add the pending write to *ready*; returns when its sync is due, if that is later."""
        log, replicator = self.log, self.replicator
        assert log is not None
        assert replicator is not None
        if self._is_unsent:
            self._is_unsent = False
            replicator.appended(now)  # Followers write at the same time as this disk.
        log.committed = self._committed
        must_seal = self.sealing.must_write(log, replicator)
        config = self.state.config
        policy = config.sync_policy(self.node.acks)
        is_synced = must_sync or policy == "always"
        if is_synced:
            self._sync_at = NEVER
        elif log.has_unwritten and policy == "interval" and self._sync_at == NEVER:
            self._sync_at = now + config.fsync_interval_ms
        if self.is_shared and log.has_unwritten and self._idle_at == NEVER:
            self._idle_at, self._idle_end = now + IDLE_MS, log.end
        log.at(self._host.wall_ms(now))
        log.flush(ready, sync=is_synced)
        if must_seal:
            self.sealing.write(log, ready)
            self._sync_at = NEVER
        if replicator.is_dirty:
            replicator.flush(ready, now)
        return self._sync_at

    def advance(self) -> bool:
        """Take in that a write, if any, is done and as durable as the ack mode requires."""
        return self.log is not None and self.replicator is not None and self.log.advance()

    def stable(self, now: int) -> None:
        """Tell the replicator what the write has made durable."""
        if self.replicator is not None and self.log is not None:
            self.replicator.stable(self.log.stable_end, now)

    def start_over(self, now: int) -> None:
        """Start over as after a restart: other replicas may have entries that this disk lacks.

        A leader may have sent entries that its own disk failed to write, so it must not go on.
        """
        log = self.log
        assert log is not None
        self.visible = self.high_watermark
        self.replicator = None
        self.is_appointed = False
        self.sealing = self._new_sealing()
        log.fail()
        log.is_recovering = True
        self._recovery.begin()
        self._restart_at = now + RESTART_MS  # An immediate retry would fail again.

    def fail(self) -> None:
        """Fail for good: nothing is read or written any more."""
        self._is_broken = True
        self._sync_at = self._restart_at = self._idle_at = NEVER
        if self.log is not None:
            self.log.fail()

    def checkpoint(self) -> None:
        """Write a checkpoint, unless it is up to date."""
        if self.log is not None and self.is_running:
            self.log.committed = self._committed
            self.log.checkpoint()

    @property
    def _committed(self) -> int:
        """The high watermark for the checkpoint: never above this replica's own end."""
        assert self.log is not None
        return min(self.high_watermark, self.log.stable_end)

    # --- time -----------------------------------------------------------------------------------

    @property
    def deadline(self) -> int:
        """When something is due. Nothing is due while recovery runs."""
        replicator = self.replicator
        if replicator is None or self._is_broken:
            return self._restart_at
        due = min(self._restart_at, self._sync_at, self._idle_at)
        sooner = replicator.deadline
        return sooner if sooner < due and self.acting is not None else due

    def tick_log(self, now: int) -> None:
        """Do what is due of the log: retry recovery, sync, or drop cached batches."""
        log = self.log
        if now >= self._restart_at:
            self._restart_at = NEVER
            if log is not None:
                self._recovery.begin()
                log.recover()
        if now >= self._sync_at:
            self._sync_at = NEVER
            if log is not None:
                log.sync()
        if now >= self._idle_at:
            self._idle_at = NEVER
            if log is not None and log.end == self._idle_end:
                log.release()
            elif log is not None:
                self._idle_at, self._idle_end = now + IDLE_MS, log.end

    def tick_replicator(self, now: int) -> bool:
        """Let the replicator do what is due; returns whether there was something."""
        log, acting = self.log, self.acting
        if acting is None or log is None or acting.deadline > now:
            return False
        log.at(self._host.wall_ms(now))
        acting.tick(now)
        return True
