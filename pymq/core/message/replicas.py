"""Messages between brokers: liveness and replication."""

from __future__ import annotations

from pymq.core.types import BlockId
from pymq.core.values import value
from pymq.errors import PymqError


@value
class Ping:
    """A broker is alive, as *incarnation*; *failed* are open blocks on which it cannot act.

    There is one for each pair of brokers, however many blocks they share, so an idle block costs
    nothing. If *failed* would be long, most pings leave it out.
    """

    incarnation: int
    failed: tuple[BlockId, ...] = ()
    omits: bool = False  # *failed* is left out, and unchanged since the last ping that had it


@value
class ReplicaFetch:
    """A follower fetches what follows its log, whose last batch has *last_epoch*.

    Before *offset* the follower's log is as durable as the block's ack mode requires. The
    leader does not count this for a past *incarnation*: the next one may have lost that part
    (KIP-903).
    """

    id: int
    block: BlockId
    offset: int
    last_epoch: int
    leader_epoch: int  # of the follower's leader; 0: a sealed block, from any holder
    max_bytes: int
    max_wait_ms: int
    incarnation: int = 0  # of the follower; 0: not given


@value
class ReplicaFetched:
    """Whole batches, or the point where the follower's log diverges from the leader's.

    *diverging* is the largest epoch in the leader's log that is not above the follower's last one,
    and the offset where that epoch ends in the leader's log. The follower truncates what is beyond.
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
    """AppendEntries (Raft, figure 2): batches from *prev* on; the one before has *prev_epoch*."""

    block: BlockId
    epoch: int
    prev: int
    prev_epoch: int
    commit: int
    data: bytes = b""  # consecutive batches; empty for a probe or a new *commit*
    error: PymqError | None = None  # of reading the leader's disk; such a message is not sent


@value
class RaftAppended:
    """The follower's log matches the leader's up to *end*, durably; or the point to retry from.

    With *conflict* set, the follower refused a message that claimed the log up to *end*, and will
    refuse those sent after it. The leader continues from *conflict*, the (epoch, end) of a batch
    that it may have too. With *end* -1 the message only gives a leader of an earlier term the term.
    """

    block: BlockId
    epoch: int
    end: int = 0
    commit: int = 0  # the follower's high watermark
    conflict: tuple[int, int] | None = None


@value
class RaftVote:
    """RequestVote for a log that ends at *end* with *last_epoch*; *pre*: PreVote (thesis 9.6)."""

    block: BlockId
    epoch: int
    end: int
    last_epoch: int
    pre: bool
    transfer: bool = False  # the leader asked for it, so voters ignore that it is alive


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
