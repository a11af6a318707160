"""The replica of the open block on one broker: its log, its replicator and its seal.

A roll replaces this object with the replica of the next block. The partition passes messages and
the results of writes to the replica, and then reads its role and high watermark.

| state | log | replicator | next |
|---|---|---|---|
| ABSENT | none | none | RECOVERING if the block may be on the disk; ACTIVE if it is new |
| RECOVERING | the store finds its end | none | ACTIVE; WAITING if the log could not be read |
| WAITING | the store is asked after a pause | none | RECOVERING |
| APPOINTED | recovered | not leading yet | ACTIVE when this or another replica leads |
| ACTIVE | recovered | leads or follows | WAITING after a failed write |
| FAILED | damaged, or its sync failed | ignored | none, until the broker restarts |

The seal has its own states (:mod:`pymq.core.block.sealing`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from pymq.core.block.block_offsets import BlockOffsets
from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.log import BlockLog
from pymq.core.block.log_writer import LogWriter
from pymq.core.block.recovery import READ_AGAIN_MAX_MS, Recovery, passes
from pymq.core.block.replicator import Replica, Replicator, ReplicatorFactory
from pymq.core.block.sealing import Sealing
from pymq.core.message import Replication
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.partition.host import PartitionHost
from pymq.core.ready import Recovered
from pymq.core.types import AckMode
from pymq.errors import (
    CorruptMetadata,
    NotLeader,
    PymqError,
    ReplicaNotAvailable,
    StoreError,
)

RESTART_MS = 200  # pause after a failed write before the replica restarts its log


class ReplicaState(Enum):
    """The state of a replica of the open block; see the table in the module's docstring."""

    ABSENT = "the block is not on this broker"
    RECOVERING = "the store finds out where the log ends"
    WAITING = "the store is asked again after a pause"
    APPOINTED = "the controller has appointed the replica as leader, but it does not lead yet"
    ACTIVE = "the replica leads or follows"
    FAILED = "nothing can be read or written"


_RUNNING = (ReplicaState.APPOINTED, ReplicaState.ACTIVE)

TRANSITIONS = {
    ReplicaState.ABSENT: {*_RUNNING, ReplicaState.RECOVERING, ReplicaState.FAILED},
    ReplicaState.RECOVERING: {*_RUNNING, ReplicaState.WAITING, ReplicaState.FAILED},
    # The store's answer may arrive after a failed write; that answer is valid, too.
    ReplicaState.WAITING: {
        *_RUNNING,
        ReplicaState.RECOVERING,
        ReplicaState.WAITING,
        ReplicaState.FAILED,
    },
    ReplicaState.APPOINTED: {ReplicaState.ACTIVE, ReplicaState.WAITING, ReplicaState.FAILED},
    ReplicaState.ACTIVE: {ReplicaState.WAITING, ReplicaState.FAILED},
    ReplicaState.FAILED: {ReplicaState.FAILED},
}


class OpenBlock:
    """This broker's replica of the open block of a partition."""

    __slots__ = (
        "_has_begun",
        "_host",
        "_make_replicator",
        "is_running",
        "is_shared",
        "is_voted",
        "log",
        "node",
        "offsets",
        "recovery",
        "replica",
        "replicator",
        "sealing",
        "state",
        "writer",
    )

    def __init__(
        self,
        state: PartitionState,
        host: PartitionHost,
        make_replicator: ReplicatorFactory,
        is_known: Callable[[BlockNode], bool],
        visible: int,
    ) -> None:
        self.replica = ReplicaState.ABSENT
        self.is_running = False  # whether the log is recovered and the replicator runs
        self.offsets = BlockOffsets(state.blocks[-1].start, visible)
        self._adopt(state)
        self.log: BlockLog | None = None  # set if this broker hosts the block
        self.replicator: Replicator | None = None  # set from the end of recovery on, ...
        self.writer: LogWriter | None = None  # ... and so is the writer
        self.sealing = self._new_sealing()
        self.recovery = Recovery(host, is_known, 10 * host.replication.retry_ms)
        self._host = host
        self._make_replicator = make_replicator
        self._has_begun = False  # whether the block has had a replicator in this process
        host.open_block = None

    def _adopt(self, state: PartitionState) -> None:
        self.state = state
        self.node = node = state.blocks[-1]
        self.is_shared = len(node.replicas) > 1  # Other brokers hold the block too.
        # whether the replicas elect their leader
        self.is_voted = self.is_shared and node.acks is AckMode.RAFT
        self.offsets.is_raft = node.acks is AckMode.RAFT

    def _move(self, to: ReplicaState) -> None:
        assert to in TRANSITIONS[self.replica], f"{self.replica.name} -> {to.name}"
        self.replica = to
        self.is_running = to in _RUNNING

    # --- state ----------------------------------------------------------------------------------

    def refusal(self, problem: PymqError) -> PymqError:
        """Return the error for a client that cannot be served because of *problem*.

        Other replicas may be healthy, so the client refreshes the leader and sends its request
        again. A single replica returns its own problem, unless that is temporary: the replica will
        soon read the block again, or has run out of file descriptors.
        """
        me, leader = self._host.me, self.state.leader
        if isinstance(problem, StoreError) and any(name != me for name in self.node.replicas):
            if leader not in (None, me):
                return NotLeader(f"{problem}; {leader} leads", leader=leader)
            return ReplicaNotAvailable(f"{problem}; another replica has to lead")
        recovery = self.recovery
        is_soon = recovery.is_retrying and recovery.pause_ms < READ_AGAIN_MAX_MS
        if passes(problem) or is_soon:
            return ReplicaNotAvailable(f"{problem}; {me} tries again", **problem.details)
        return problem

    @property
    def leads(self) -> int | None:
        """The epoch in which the replica may append; None if the replica does not lead."""
        replicator = self.replicator
        return replicator.epoch if replicator is not None and replicator.is_leader else None

    @property
    def leader(self) -> str | None:
        """The leader, as far as this replica knows."""
        return self.replicator.leader if self.replicator is not None else self.state.leader

    @property
    def has_lost_lead(self) -> bool:
        """Whether this replica has stopped leading the block; the controller may not know that yet.

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
        """Whether the replica learns what is committed: it leads, or its leader seems alive."""
        if not self.is_running:
            return False
        leader = self.leader
        return leader is not None and (leader == self._host.me or self._host.is_alive(leader))

    @property
    def is_parking(self) -> bool:
        """Whether batches are parked, for the next block or until this block is recovered."""
        log = self.log
        if log is not None and (log.is_recovering or log.seal_end is not None):
            return True
        return self.sealing.request is not None or self.replica is ReplicaState.APPOINTED

    @property
    def acting(self) -> Replicator | None:
        """The replicator, unless the replica is fenced or its log is being recovered.

        If written batches of a follower were truncated, its log is recovered again.
        """
        log = self.log
        if log is None or log.is_recovering or not self.is_running:
            return None
        return None if self.sealing.fenced is not None else self.replicator

    # --- creation and recovery --------------------------------------------------------------------

    def recover(self) -> None:
        """Begin recovery: ask the store for the block; :meth:`start` follows."""
        self._move(ReplicaState.RECOVERING)
        self.recovery.ask(self._new_log())

    def create(self, past: ProducerTable, now: int) -> None:
        """Create the block with the producer table of the previous block."""
        self._new_log().create(self.state.topic, self.state.partition, past)
        self._make(None, now, is_new=True)

    def _new_log(self) -> BlockLog:
        name = self._host.open_block = self.state.block_id(self.node)
        self.log = BlockLog(self._host, name, self.node.start, is_shared=self.is_shared)
        self.offsets.log = self.log
        return self.log

    def _new_sealing(self) -> Sealing:
        return Sealing(is_shared=self.is_shared, is_raft=self.node.acks is AckMode.RAFT)

    def start(self, found: Recovered, now: int) -> CorruptMetadata | None:
        """Start the replicator on the restored log.

        Returns the error if the replicator's saved state is unreadable.
        """
        log, state = self.log, self.state
        assert log is not None
        self.recovery.done()
        if log.size == 0:
            # A crash has removed the block and its producer table. Create the block again with the
            # producer table of the previous blocks, because the table is lost when these blocks are
            # removed.
            log.create(state.topic, state.partition, log.producers)
        try:
            self._make(found.state, now, is_new=found.state is None and not self._has_begun)
        except CorruptMetadata as problem:  # a newer version of pymq may have written the state
            return problem
        return None

    def _make(self, saved: bytes | None, now: int, *, is_new: bool) -> None:
        log, state = self.log, self.state
        assert log is not None
        replica = Replica(log.name, log, self._host, state, saved, is_new=is_new)
        self.replicator = replicator = self._make_replicator(replica, now)
        self.offsets.replicator = replicator
        self.writer = LogWriter(log, replicator, self.sealing, state, is_shared=self.is_shared)
        # The replica leads when its state is durable; until then batches are parked.
        is_appointed = is_new and state.leader == self._host.me
        self._move(ReplicaState.APPOINTED if is_appointed else ReplicaState.ACTIVE)
        self._has_begun = True

    # --- replication ----------------------------------------------------------------------------

    def adopt(self, state: PartitionState, now: int) -> None:
        """Adopt a new state in which this block is still the open one."""
        self._adopt(state)
        if self.replicator is not None and self.writer is not None:
            self.writer.adopt(state)
            self.replicator.adopt(state, now)

    def step(self, source: str, m: Replication, now: int) -> bool:
        """Handle another replica's message; returns whether the state may have changed."""
        log, acting = self.log, self.acting
        if acting is None or log is None or log.name != m.block:
            return False
        log.at(self._host.wall_ms(now))
        acting.step(source, m, now)
        return True

    def end_appointment(self) -> None:
        """End the appointment, because the appointed replica or another one leads."""
        if self.replica is ReplicaState.APPOINTED:
            self._move(ReplicaState.ACTIVE)

    # --- failures -------------------------------------------------------------------------------

    def read_again(self, now: int) -> None:
        """Retry recovery after a pause, because the store could not read the block.

        The log is kept, because recovery must find everything that was durable in this process.
        """
        mark("partition.unreadable")
        self.start_over(now)
        self.recovery.failed(now)

    def start_over(self, now: int) -> None:
        """Restart the log, as after a broker's restart, because other replicas may have more
        entries.

        A leader may have sent entries that its own disk failed to write, so the leader must not
        continue.
        """
        log = self.log
        assert log is not None
        self.offsets.start_over()
        self.replicator = self.writer = None
        self.sealing = self._new_sealing()
        log.fail()
        log.is_recovering = True
        self._move(ReplicaState.WAITING)
        self.recovery.ask_at(now + RESTART_MS)  # an immediate retry would fail again

    def fail(self) -> None:
        """Fail permanently: nothing is read or written any more."""
        self._move(ReplicaState.FAILED)
        self.recovery.stop()
        if self.writer is not None:
            self.writer.stop()
        if self.log is not None:
            self.log.fail()

    # --- time -----------------------------------------------------------------------------------

    @property
    def deadline(self) -> int:
        """The next deadline of this block; NEVER while recovery runs."""
        writer, replicator = self.writer, self.replicator
        if writer is None or replicator is None or not self.is_running:
            return self.recovery.retry_at
        due = writer.deadline
        sooner = replicator.deadline
        return sooner if sooner < due and self.acting is not None else due

    def tick_log(self, now: int) -> None:
        """Act on deadlines of the log: retry recovery, sync, or drop cached batches."""
        if now >= self.recovery.retry_at and self.log is not None:
            self._move(ReplicaState.RECOVERING)
            self.recovery.ask(self.log)
        elif self.writer is not None:
            self.writer.tick(now)

    def tick_replicator(self, now: int) -> bool:
        """Let the replicator act on its deadline; returns whether it had passed."""
        log, acting = self.log, self.acting
        if acting is None or log is None or acting.deadline > now:
            return False
        log.at(self._host.wall_ms(now))
        acting.tick(now)
        return True
