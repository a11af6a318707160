"""The contract between a partition and a replication protocol.

The partition owns the open block's log: the partition stamps and writes batches, and knows which
batches are durable. The replicator decides which replica may append, which records are committed,
and which records a follower must append or truncate. The protocols are
:mod:`pymq.replication.solo`, :mod:`~pymq.replication.raft.raft` and :mod:`~pymq.replication.fetch`.
To add one, write a class with the methods of :class:`Replicator`, and a line in the factory.

A message that must not leave before a write is durable is added to ``after`` in
:meth:`Replicator.flush`, in the same :class:`~pymq.core.ready.Ready` as the write.
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
    """Timeouts (milliseconds) and sizes (bytes) of replication."""

    ping_ms: int = 50  # interval of pings between each pair of brokers
    election_ms: int = 150  # a broker counts as dead after 1 to 2 times this long without a ping
    retry_ms: int = 100  # pause before an unanswered message is sent again
    # how long a leader delays a new high watermark to send it together with data; 0: not at all
    tell_ms: int = 20
    append_bytes: int = 1 << 20  # bytes in one message
    in_flight: int = 8  # unanswered messages to a follower
    fetch_wait_ms: int = 500  # how long a follower's fetch waits for new data
    lag_max_ms: int = 10_000  # after lagging this long, a follower leaves the in-sync set
    repairs: int = 8  # sealed blocks that a broker fetches at the same time
    lend_bytes: int = 16 << 20  # bytes of sealed blocks that a broker sends in one turn
    # bytes a second of sealed blocks that move to a broker; 0: no limit
    copy_bytes_s: int = 50 << 20


class ReplicatedLog(Protocol):
    """The log of one replica of the open block; offsets are those of the partition."""

    start: int  # first offset of the block
    end: int  # the offset of the next record, written or not
    # records before this offset are as durable on this disk as the ack mode requires
    stable_end: int

    def epoch_at(self, end: int) -> int:
        """The epoch of the batch that holds offset ``end - 1``; 0 at the start of the block."""
        ...

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch in the log that is not above *epoch*, and the offset where it ends.

        The result is (0, start) if the whole log has later epochs.
        """
        ...

    def begin(self, epoch: int) -> None:
        """Append the control batch that opens *epoch*, as its leader."""
        ...

    def extend(self, data: bytes) -> None:
        """Append batches that the leader has stamped, as its follower.

        Raises:
            CorruptBatch: the batches are damaged or not contiguous; nothing is appended.
        """
        ...

    def truncate(self, end: int) -> None:
        """Truncate the log to *end*, which is the end of a batch."""
        ...

    def recent(self, offset: int, max_bytes: int) -> bytes | None:
        """Return whole batches from *offset* on, at least one; None if they are not cached.

        A batch must begin at *offset*. The result is empty if *offset* is the end of the log.
        """
        ...

    def read(
        self, peer: str, answer: ReplicaFetched | RaftAppend, offset: int, max_bytes: int
    ) -> None:
        """Ask the store to read stable batches from *offset* on into ``answer.data`` and to send
        it.

        The store reads asynchronously. The leader learns from the follower's answer which batches
        were sent.
        """
        ...


class ReplicaHost(Protocol):
    """The broker, as far as a replicator needs it."""

    @property
    def me(self) -> str:
        """The name of this broker."""
        ...

    @property
    def incarnation(self) -> int:
        """This broker's incarnation; a later one may have another disk."""
        ...

    @property
    def rng(self) -> Rng:
        """The broker's random number generator."""
        ...

    @property
    def replication(self) -> ReplicationConfig:
        """The replication timeouts and sizes."""
        ...

    def send(self, peer: str, message: Message) -> None:
        """Send a message to another broker in this turn."""
        ...

    def tell_controller(self, message: Message) -> None:
        """Send a message to the active zkserver."""
        ...

    def is_alive(self, peer: str) -> bool:
        """Whether another broker seems to be alive and can serve the block."""
        ...


class Replicator(Protocol):
    """The protocol by which the replicas of one open block agree."""

    high_watermark: int  # the first offset that is not committed; never goes back
    is_dirty: bool  # :meth:`flush` has something to add
    deadline: int  # when :meth:`tick` has something to do

    @property
    def epoch(self) -> int:
        """This replica's leader epoch (Raft's term)."""
        ...

    @property
    def leader(self) -> str | None:
        """The leader in this epoch, as far as this replica knows."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether this replica is the leader, which alone may append."""
        ...

    @property
    def in_sync(self) -> tuple[str, ...]:
        """On the leader: the in-sync replicas, as the protocol defines them."""
        ...

    def holders(self, end: int) -> tuple[str, ...]:
        """On the leader: the replicas that are known to hold the log up to *end*."""
        ...

    def adopt(self, state: PartitionState, now: int) -> None:
        """Adopt the controller's new state, in which the block is still open."""
        ...

    def step(self, source: str, message: Replication, now: int) -> None:
        """Handle a message of another replica."""
        ...

    def appended(self, now: int) -> None:
        """On the leader: send the appended batches to the followers."""
        ...

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        ...

    def flush(self, ready: Ready, now: int) -> None:
        """Add to *ready* the replicator's writes, and the messages that may leave after them.

        The log's own appends of this turn are in the same *ready*, up to ``log.end``.
        """
        ...

    def stable(self, end: int, now: int) -> None:
        """Note that the writes of :meth:`flush`, and the log up to *end*, are durable."""
        ...

    def peer_changed(self, peer: str, now: int) -> None:
        """Handle a change of :meth:`ReplicaHost.is_alive` for *peer*, or a restart of *peer*."""
        ...

    def transfer(self, peer: str, now: int) -> None:
        """On the leader: transfer leadership to *peer* as soon as it has the whole log."""
        ...

    def relinquish(self, now: int) -> None:
        """On the leader: transfer leadership at once, because this broker's disk has failed.

        The partition drops the replicator afterwards.
        """
        ...


@define
class Replica:
    """The arguments from which a replicator is made."""

    block: BlockId
    log: ReplicatedLog
    host: ReplicaHost
    state: PartitionState  # the last block of this state is the open one
    saved: bytes | None  # the state that the replicator saved before a restart
    # this broker has just created the block, in the roll that appointed the block's leader
    is_new: bool


ReplicatorFactory = Callable[[Replica, int], Replicator]
"""Makes the replicator of an open block; the second argument is the time."""
