"""What brokers say to each other: that they are alive, and what belongs in their copies."""

from __future__ import annotations

from pymq.core.types import BlockId
from pymq.core.values import value
from pymq.errors import PymqError


@value
class Ping:
    """A broker is alive, as *incarnation*; *failed* are the open blocks on which it cannot act.

    One for a pair of brokers, however many blocks they share: an idle block costs nothing. Where
    *failed* would be long, most pings leave it out: what it *omits* is as it was told last.
    """

    incarnation: int
    failed: tuple[BlockId, ...] = ()
    omits: bool = False


@value
class ReplicaFetch:
    """A follower asks for what comes after its own end, by whose log the last batch is *epoch*'s.

    *offset* tells the leader how far the follower is safe, in the sense of the block's ack mode. Of
    an *incarnation* that is no more it tells nothing, for the next may have lost what this one had
    (KIP-903).
    """

    id: int
    block: BlockId
    offset: int
    last_epoch: int
    leader_epoch: int  # of the leader that the follower follows; 0: of a sealed block, from anyone
    max_bytes: int
    max_wait_ms: int
    incarnation: int = 0  # of the follower; 0: not told


@value
class ReplicaFetched:
    """Whole batches, or where the follower's log leaves the leader's.

    *diverging* is the largest epoch in the leader's log that is not above the follower's last one,
    and the offset where it ends there: all that the follower has beyond is not of this log.
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
    """AppendEntries (Raft, figure 2): what follows *prev*, whose last batch is of *prev_epoch*."""

    block: BlockId
    epoch: int
    prev: int
    prev_epoch: int
    commit: int
    data: bytes = b""  # batches, one after the other; empty to probe or to tell *commit*
    round: int = 0  # of a read index that waits for an answer
    error: PymqError | None = None  # the leader's disk could not be read: not sent on


@value
class RaftAppended:
    """The follower's log is durable and the leader's up to *end*; or where to try again.

    When *conflict* is set, a message that claimed the log up to *end* was refused, and so will be
    all that was sent after it: the leader is to go on from the pair (epoch, end) of a batch that it
    may have too. -1 for *end* tells a leader of an earlier term nothing but the term.
    """

    block: BlockId
    epoch: int
    end: int = 0
    commit: int = 0  # the follower's high watermark
    conflict: tuple[int, int] | None = None
    round: int = 0


@value
class RaftVote:
    """RequestVote for a log that ends at *end* with *last_epoch*; *pre* only asks (thesis 9.6)."""

    block: BlockId
    epoch: int
    end: int
    last_epoch: int
    pre: bool
    transfer: bool = False  # the leader wants it: its being alive is no reason to refuse


@value
class RaftVoted:
    """The answer to RaftVote."""

    block: BlockId
    epoch: int
    granted: bool
    pre: bool


@value
class RaftTimeout:
    """TimeoutNow (thesis 3.10): campaign at once, without asking first."""

    block: BlockId
    epoch: int


@value
class RaftSnapshot:
    """InstallSnapshot: the state before *end*, for a follower to which the log goes not back."""

    block: BlockId
    epoch: int
    end: int
    last_epoch: int
    data: bytes


Replication = (
    RaftAppend
    | RaftAppended
    | RaftVote
    | RaftVoted
    | RaftTimeout
    | RaftSnapshot
    | ReplicaFetch
    | ReplicaFetched
)

ReplicaMessage = Ping | Replication
