"""One broker's replica of the block that is open: its log, who leads it, how it ends.

It is made when the block is opened, and another one takes its place when the block is rolled. The
partition hands it what concerns the open block, and asks afterwards what has come of that: which
role the replica has, and how far the high watermark is.
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

READ_AGAIN_MAX_MS = 30_000  # the longest pause before what could not be read is asked for again
RESTART_MS = 200  # a replica whose write has failed starts over after it
IDLE_MS = 30_000  # nothing was appended for as long: what was kept in memory for followers may go


class OpenBlock:
    """The open block of one partition, as far as it is here."""

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
        self.visible = visible  # what was before a replicator had to start over
        self.log: BlockLog | None = None  # if the block is to be here
        self.replicator: Replicator | None = None  # None until the log is recovered
        self.is_appointed = False  # to lead the block, and does not yet
        self.sealing = self._new_sealing()
        self._host = host
        self._make_replicator = make_replicator
        self._recovery = Recovery(host, is_known)
        self._has_begun = False  # it has had a replicator in this process
        self._is_broken = False  # nothing can be read or written any more
        self._is_unsent = False  # the other replicas have not been sent what was appended
        self._unread = 0  # how often in a row the store could not read it, and may the next time
        self._sync_at = self._restart_at = self._idle_at = NEVER
        self._idle_end = -1  # where the log ended when that was set
        host.open_block = None

    # --- what it is -----------------------------------------------------------------------------

    @property
    def node(self) -> BlockNode:
        """The block as the zkserver knows it."""
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
        """Whether the replica knows its log, and can go on with it."""
        return self.replicator is not None and not self._is_broken

    @property
    def is_recovering(self) -> bool:
        """Whether the store is to say where the log ends."""
        return self.log is not None and self.log.is_recovering

    @property
    def is_resting(self) -> bool:
        """Whether the log is to be read, and the store does not owe an answer about it.

        It will be asked, or it has told that already, and now owes one about the blocks before.
        """
        if self._restart_at != NEVER:
            return True
        log = self.log
        return log is not None and log.is_recovering and not self.awaits(log.name)

    @property
    def is_unread(self) -> bool:
        """Whether the store could not read it, and is asked again."""
        return self._unread > 0 and not self._is_broken

    def refusal(self, problem: PymqError) -> PymqError:
        """The error for a client that cannot be served because of *problem*.

        A disk that fails here says nothing about the other replicas: the client asks for the leader
        again and sends the same again, whose outcome is unknown until then. A replica that is alone
        tells its problem as it is, unless it reads the block again soon or has no descriptor left.
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
        """Who leads, as far as is known here."""
        return self.replicator.leader if self.replicator is not None else self.state.leader

    @property
    def has_lost_lead(self) -> bool:
        """Whether the block has had its leader, this one, and nobody else knows.

        A leader whose write has failed leads that block no more, as if it had been restarted.
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
        """Whether the replica leads, or hears from who does: what is committed will be known."""
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
        """Whether what was acknowledged before this replica led is below its high watermark.

        A new leader of Raft has all of it, but knows that it is committed only once something of
        its own term is (Raft, section 8; Kafka KIP-207).
        """
        if self.log is None or not self.log.epochs or self.node.acks is not AckMode.RAFT:
            return True
        return self.high_watermark >= self.log.epochs[-1][1]

    @property
    def high_watermark(self) -> int:
        """The offset before which everything may be read."""
        if self.replicator is None:
            return max(self.visible, self.node.start)
        high = self.replicator.high_watermark
        if self.log is not None and self.log.seal_end is not None and high > self.log.seal_end:
            # Later leaders may have added no-ops, which the next block may begin in place of: who
            # read on behind them would miss its first records.
            mark("partition.behind_the_seal")
            high = self.log.seal_end
        # What was known before a restart is so still, as far as it is there.
        known = self.log.committed if self.log is not None else 0
        return max(self.visible, high, known)

    @property
    def readable_end(self) -> int:
        """The offset before which a follower may be read: committed, for all it knows, and here."""
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
        """Whether what producers send has to wait for the next block, or for this one."""
        log = self.log
        if log is not None and (log.is_recovering or log.seal_end is not None):
            return True
        return self.sealing.is_parking or self.is_appointed

    @property
    def acting(self) -> Replicator | None:
        """The replicator, if it may act now."""
        log = self.log
        if log is None or log.is_recovering or self._is_broken or self.sealing.fenced is not None:
            return None
        return self.replicator

    # --- beginning ------------------------------------------------------------------------------

    def recover(self) -> None:
        """Ask the store what is here of it; :meth:`restore` follows."""
        self._recovery.begin()
        self._new_log().recover()

    def create(self, past: ProducerTable, now: int) -> None:
        """Begin the block, which goes on from what the one before knew of producers."""
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
        """Whether the store is to say something about *block* before this one can go on."""
        if self.log is None or self._is_broken:
            return False
        return self._recovery.awaits(block, self.log)

    def restore(self, found: Recovered) -> Recovered | None:
        """Take in what the store has found; once that is enough, returns the block's own part.

        Raises:
            CorruptBlock: what was on the disk is not there any more.
            CorruptMetadata: a checkpoint cannot be read.
            StoreError: what was voted on is missing.
        """
        assert self.log is not None
        return self._recovery.add(found, self.log, self.state)

    def read_again(self, now: int) -> None:
        """The store cannot say what is here, and may the next time: ask it again, later.

        What of the log was durable in this process must be found then, so the log stays.
        """
        mark("partition.unreadable")
        self.start_over(now)
        self._sync_at = self._idle_at = NEVER
        self._unread += 1
        self._restart_at = now + self._pause_ms

    @property
    def _pause_ms(self) -> int:
        """How long to wait before what could not be read is asked for again."""
        first = 10 * self._host.replication.retry_ms
        return min(first << min(self._unread - 1, 16), READ_AGAIN_MAX_MS)

    def start(self, found: Recovered, now: int) -> CorruptMetadata | None:
        """Go on with what was restored; returns why not, if what was saved cannot be read."""
        log, state = self.log, self.state
        assert log is not None
        self._restart_at = NEVER  # A write may have failed after the store was asked.
        self._unread = 0
        if log.size == 0:
            # A crash has taken it, and what it knew of the past with it: once the blocks before
            # are gone, nobody else does.
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
        # It leads as soon as that is on the disk; what comes until then waits for it.
        self.is_appointed = is_new and self.state.leader == self._host.me
        self._has_begun = True

    # --- replication ----------------------------------------------------------------------------

    def adopt(self, state: PartitionState, now: int) -> None:
        """The zkserver has changed something, and the block is still the open one."""
        self.state = state
        if self.replicator is not None:
            self.replicator.adopt(state, now)

    def appended(self) -> None:
        """The log has a new end; what all producers append in a turn is sent together, in it."""
        self._is_unsent = True

    def step(self, source: str, m: Replication, now: int) -> bool:
        """Take in what another replica says; whether it can have changed anything."""
        log, acting = self.log, self.acting
        if acting is None or log is None or log.name != m.block:
            return False
        log.at(self._host.wall_ms(now))
        acting.step(source, m, now)
        return True

    def hand_over(self, now: int, target: str | None = None) -> bool:
        """Have another replica lead, if one can, or just *target*; whether that is under way."""
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
        """The disk has failed: have another replica lead as soon as one can."""
        acting = self.acting
        if acting is not None:
            acting.relinquish(now)

    def is_passed_over(self) -> bool:
        """Whether another was elected before this one, which was appointed, has begun."""
        replicator = self.replicator
        if not self.is_appointed or replicator is None or replicator.epoch == self.node.epoch:
            return False
        mark("partition.appointed_too_late")
        self.is_appointed = False
        return True

    # --- sealing --------------------------------------------------------------------------------

    def seal_error(self, m: Seal, name: TopicPartition) -> PymqError | None:
        """Why this replica cannot seal the block, if so."""
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
        """Let the log end where it is; an elected leader says so in the log itself."""
        log, replicator = self.log, self.replicator
        if log is None or replicator is None or log.seal_end is not None or not self.is_voted:
            return
        log.at(self._host.wall_ms(now))
        log.seal(replicator.epoch)
        replicator.appended(now)

    def sealed(self, name: TopicPartition) -> Sealed | None:
        """The answer to who wants it sealed; all of it is durable."""
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
        """Whether the disk may be asked: it has said where the log ends, and owes no answer."""
        log = self.log
        if log is None or self.replicator is None:
            return False
        return not log.is_recovering and not log.is_writing

    def flush(self, ready: Ready, now: int, *, must_sync: bool) -> int:
        """Add the pending write to *ready*; returns when a sync is due, if it asks for none."""
        log, replicator = self.log, self.replicator
        assert log is not None
        assert replicator is not None
        if self._is_unsent:
            self._is_unsent = False
            replicator.appended(now)  # The others are to write it while this disk does.
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
        """The write is done, and durable as far as its mode asks for that; if there was one."""
        return self.log is not None and self.replicator is not None and self.log.advance()

    def stable(self, now: int) -> None:
        """Count what the write that is done has brought."""
        if self.replicator is not None and self.log is not None:
            self.replicator.stable(self.log.stable_end, now)

    def start_over(self, now: int) -> None:
        """Go on as after a restart: others may have what this disk has not (Raft, term by term).

        A leader has perhaps sent what its own disk failed to take, so it must not lead on.
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
        self._restart_at = now + RESTART_MS  # What failed now fails again at once.

    def fail(self) -> None:
        """Nothing can be read or written any more, and nothing is due."""
        self._is_broken = True
        self._sync_at = self._restart_at = self._idle_at = NEVER
        if self.log is not None:
            self.log.fail()

    def checkpoint(self) -> None:
        """Keep what a recovery would have to find out, unless it is kept already."""
        if self.log is not None and self.is_running:
            self.log.committed = self._committed
            self.log.checkpoint()

    @property
    def _committed(self) -> int:
        """The high watermark to be kept: never above what is here."""
        assert self.log is not None
        return min(self.high_watermark, self.log.stable_end)

    # --- time -----------------------------------------------------------------------------------

    @property
    def deadline(self) -> int:
        """When something is due; what waits for the store to say where the log ends is not."""
        replicator = self.replicator
        if replicator is None or self._is_broken:
            return self._restart_at
        due = min(self._restart_at, self._sync_at, self._idle_at)
        sooner = replicator.deadline
        return sooner if sooner < due and self.acting is not None else due

    def tick_log(self, now: int) -> None:
        """Read the log again, make it durable, or let go of what it remembers, if that is due."""
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
        """Have the replicator do what is due; whether there was something."""
        log, acting = self.log, self.acting
        if acting is None or log is None or acting.deadline > now:
            return False
        log.at(self._host.wall_ms(now))
        acting.tick(now)
        return True
