"""Messages between brokers: liveness and replication."""

from __future__ import annotations

from pymq.core.types import BlockId
from pymq.core.values import value
from pymq.errors import PymqError


@value
class Ping:
    """A broker's heartbeat to another broker; *failed* are open blocks that the broker cannot
    serve.

    Each pair of brokers exchanges one ping, regardless of the blocks that they share, so an idle
    block costs nothing. If *failed* is long, most pings leave it out.
    """

    incarnation: int
    failed: tuple[BlockId, ...] = ()
    # *failed* is left out because it has not changed since the last ping with *failed*
    omits: bool = False


@value
class ReplicaFetch:
    """Fetch the batches after the end of a follower's log; its last batch has *last_epoch*.

    All batches before *offset* are on the follower, as durable as the block's ack mode requires. If
    the follower's broker has restarted, the leader ignores requests of its past *incarnation*,
    because the new incarnation may have lost batches (KIP-903).
    """

    id: int
    block: BlockId
    offset: int
    last_epoch: int
    leader_epoch: int  # epoch of the follower's leader; 0: a sealed block, from any holder
    max_bytes: int
    max_wait_ms: int
    incarnation: int = 0  # incarnation of the follower; 0: not given


@value
class ReplicaFetched:
    """Whole batches, or the point where the follower's log diverges from the leader's.

    *diverging* is the largest epoch in the leader's log that is not above the follower's last
    epoch, and the offset where that epoch ends in the leader's log. The follower truncates its log
    at that offset.
    """

    id: int
    block: BlockId
    offset: int
    leader_epoch: int
    high_watermark: int
    data: bytes = b""
    diverging: tuple[int, int] | None = None
    error: PymqError | None = None


@value
class RaftAppend:
    """AppendEntries (Raft, figure 2): batches from *prev* on, after a batch of *prev_epoch*."""

    block: BlockId
    epoch: int
    prev: int
    prev_epoch: int
    commit: int
    data: bytes = b""  # consecutive batches; empty for a probe or a new *commit*
    # error in reading the leader's disk; a message with an error is not sent
    error: PymqError | None = None


@value
class RaftAppended:
    """The follower's log durably equals the leader's up to *end*, unless *conflict* is set.

    If *conflict* is set, the follower refused a message whose batches end at *end*, and will also
    refuse later messages. The leader continues from *conflict*, the (epoch, end) of a batch that
    the leader may have, too. If *end* is -1, the message only informs a leader of an earlier term
    about the new term.
    """

    block: BlockId
    epoch: int
    end: int = 0
    commit: int = 0  # the follower's high watermark
    conflict: tuple[int, int] | None = None


@value
class RaftVote:
    """RequestVote for a log that ends at *end* with *last_epoch*; with *pre* a PreVote (thesis
    9.6).
    """

    block: BlockId
    epoch: int
    end: int
    last_epoch: int
    pre: bool
    # the leader asked for this election, so voters grant it although the leader is alive
    transfer: bool = False


@value
class RaftVoted:
    """The answer to RaftVote."""

    block: BlockId
    epoch: int
    granted: bool
    pre: bool


@value
class RaftTimeout:
    """TimeoutNow (thesis 3.10): campaign at once, without PreVote."""

    block: BlockId
    epoch: int


Replication = (
    RaftAppend | RaftAppended | RaftVote | RaftVoted | RaftTimeout | ReplicaFetch | ReplicaFetched
)

ReplicaMessage = Ping | Replication
