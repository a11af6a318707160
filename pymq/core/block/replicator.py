"""What a partition asks of a replication discipline, and what it gives it, whichever it is.

The partition owns the open block's log: it stamps batches, hands them to the disk and knows what is
durable. The replicator decides who may append, what of the log is committed, and what a follower
must add or cut. The disciplines are :mod:`pymq.replication.solo`,
:mod:`~pymq.replication.raft.raft` and
:mod:`~pymq.replication.fetch`; a new one is a class with these methods, and a line in a factory.

What must not leave before something is durable is added to ``after`` in :meth:`Replicator.flush`,
in the same :class:`~pymq.core.ready.Ready` as the write that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pymq.core.message import Message, RaftAppend, ReplicaFetched, Replication
from pymq.core.metadata.nodes import PartitionState
from pymq.core.ready import Ready
from pymq.core.types import BlockId, Rng
from pymq.core.values import define


@define
class ReplicationConfig:
    """How long replicas wait, and how much they send at once; milliseconds and bytes."""

    ping_ms: int = 50  # between two pings of a pair of brokers
    election_ms: int = 150  # without a ping for so long, up to twice that, a broker seems gone
    retry_ms: int = 100  # what was not answered is sent again
    tell_ms: int = 20  # so long the word of a commit waits for data to go with; 0: goes at once
    append_bytes: int = 1 << 20  # in one message
    in_flight: int = 8  # messages to a follower that has not answered yet
    fetch_wait_ms: int = 500  # a follower's fetch waits so long for something new
    lag_max_ms: int = 10_000  # a follower that has not caught up for so long leaves the in-sync set
    repairs: int = 8  # sealed blocks for which a broker asks others at the same time
    lend_bytes: int = 16 << 20  # of sealed blocks to others, in one turn of a broker
    copy_bytes_s: int = 50 << 20  # a second, of sealed blocks that move to a broker; 0: no bound


class ReplicatedLog(Protocol):
    """The log of one replica of the open block; offsets are those of the partition."""

    start: int  # of the block
    end: int  # the offset of the next record, written or not
    stable_end: int  # what is before it is on the disk, as durable as the block's mode asks for

    def epoch_at(self, end: int) -> int:
        """The epoch of the batch that holds offset ``end - 1``; 0 at the start of the block."""
        ...

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch in the log that is not above *epoch*, and the offset where it ends.

        (0, start) when all of the log is of later epochs.
        """
        ...

    def begin(self, epoch: int) -> None:
        """Append the control batch that opens *epoch*, as its leader."""
        ...

    def extend(self, data: bytes) -> None:
        """Append batches that the leader has stamped, as its follower.

        They are checked here: any that does not follow on the one before, or is damaged, raises
        :class:`~pymq.errors.CorruptBatch`, and nothing of *data* is appended.
        """
        ...

    def truncate(self, end: int) -> None:
        """Cut off what is at *end* and beyond; *end* is where a batch ends."""
        ...

    def recent(self, offset: int, max_bytes: int) -> bytes | None:
        """Whole batches from *offset* on if they are still in memory, at least one; else None.

        *offset* is where a batch begins. Empty when it is the end.
        """
        ...

    def read(
        self, peer: str, answer: ReplicaFetched | RaftAppend, offset: int, max_bytes: int
    ) -> None:
        """Let the store fill ``answer.data`` from *offset* on, up to what is stable, and send it.

        The store's end of it is asynchronous: what is sent is known by the follower's answer.
        """
        ...


class ReplicaHost(Protocol):
    """What a replicator needs of the broker around it."""

    @property
    def me(self) -> str:
        """The name of this broker."""
        ...

    @property
    def incarnation(self) -> int:
        """The number of this broker's life; a later one may have another disk."""
        ...

    @property
    def rng(self) -> Rng:
        """The dice."""
        ...

    @property
    def replication(self) -> ReplicationConfig:
        """How long to wait, and how much to send."""
        ...

    def send(self, peer: str, message: Message) -> None:
        """Send a message to another broker, now."""
        ...

    def tell_controller(self, message: Message) -> None:
        """Send something to the active zkserver."""
        ...

    def is_alive(self, peer: str) -> bool:
        """Whether another broker has been heard of lately and can act on the block."""
        ...


class Replicator(Protocol):
    """How the replicas of one open block agree."""

    high_watermark: int  # the first offset that is not committed; never goes back
    leader: str | None  # who leads at that epoch, as far as is known
    is_dirty: bool  # :meth:`flush` has something to add
    deadline: int  # when :meth:`tick` has something to do

    @property
    def epoch(self) -> int:
        """The leader epoch (Raft's term) that this replica is at."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether this replica may append."""
        ...

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The leader's: the replicas that keep up, as the discipline counts them."""
        ...

    def holders(self, end: int) -> tuple[str, ...]:
        """The leader's: the replicas that are known to hold all of the log up to *end*."""
        ...

    def adopt(self, state: PartitionState, now: int) -> None:
        """The zkserver has changed something about the block that is still open."""
        ...

    def step(self, source: str, message: Replication, now: int) -> None:
        """Take in what another replica says."""
        ...

    def appended(self, now: int) -> None:
        """The leader's: the log has a new end; send what is new."""
        ...

    def tick(self, now: int) -> None:
        """Do what is due."""
        ...

    def flush(self, ready: Ready, now: int) -> None:
        """Add to *ready* what must become durable, and what may leave only then.

        The log's own appends of this turn are in the same *ready*, up to ``log.end``.
        """
        ...

    def stable(self, end: int, now: int) -> None:
        """What :meth:`flush` added is durable, and so is the own log up to *end*."""
        ...

    def peer_changed(self, peer: str, now: int) -> None:
        """Another broker seems gone, is back, or has started anew: ask :meth:`is_alive`."""
        ...

    def transfer(self, peer: str, now: int) -> None:
        """The leader's: hand leadership to *peer*, as soon as it has everything."""
        ...

    def relinquish(self, now: int) -> None:
        """The leader's: hand leadership over at once, since the own disk has failed.

        Nothing that is asked of this replica afterwards counts.
        """
        ...


@define
class Replica:
    """What a replicator is made from."""

    block: BlockId
    log: ReplicatedLog
    host: ReplicaHost
    state: PartitionState  # whose last block is the open one
    saved: bytes | None  # what it saved last, before a restart
    is_new: bool  # the block has just been made here, by the roll that named its leader


ReplicatorFactory = Callable[[Replica, int], Replicator]
"""Makes the replicator of an open block, at a time."""
