"""What clients, brokers and zkservers say to each other: one value class a message.

A request carries an ``id`` that its sender chose; the answer carries it back. An answer either
holds its result or an ``error``, never both. Payload is a list of record batches, which every hop
passes on by reference.
"""

from __future__ import annotations

from typing import Any

from pymq.core.metadata import (
    ClusterDescription,
    PartitionState,
    TopicDescription,
    TopicMetadata,
)
from pymq.core.record import RecordBatch
from pymq.core.types import AckMode, BlockId
from pymq.core.values import Factory, value
from pymq.errors import PymqError

BEGIN = -2  # instead of an offset: where the log starts now
END = -1  # instead of an offset: the high watermark

Range = tuple[int, int]  # offsets from the first up to, not including, the second


# --- producing ----------------------------------------------------------------------------------


@value
class Produce:
    """Append one batch. ``acks`` NONE is not answered."""

    id: int
    topic: str
    partition: str
    acks: AckMode
    batch: RecordBatch
    sync: bool = False  # durable when it is answered, whatever the topic's ``fsync``


@value
class Produced:
    """The batch is in the log at *base_offset*, as safely as was asked for."""

    id: int
    base_offset: int = -1
    epoch: int = 0
    duplicate: bool = False  # it was there already
    error: PymqError | None = None


@value
class GetSequence:
    """Ask how far a producer has got in a partition."""

    id: int
    topic: str
    partition: str
    producer_id: int


@value
class Sequence:
    """The sequence that the producer's next record must have; 0 when nothing is known of it."""

    id: int
    next_sequence: int = 0
    error: PymqError | None = None


# --- fetching -----------------------------------------------------------------------------------


@value
class Fetch:
    """Read a partition from an offset (or BEGIN, END) on; waits at the high watermark."""

    id: int
    topic: str
    partition: str
    offset: int
    max_bytes: int  # 0: only tell where the log starts and ends, once it ends beyond *offset*
    max_wait_ms: int
    end: int | None = None  # read nothing at or beyond it


@value
class Fetched:
    """Whole batches from the one that holds the asked offset on; what is before is skipped."""

    id: int
    topic: str
    partition: str
    offset: int  # the asked one, resolved
    log_start: int
    high_watermark: int
    data: bytes = b""  # batches, one after the other
    error: PymqError | None = None


@value
class FindOffset:
    """Ask for the first offset whose record is not older than a time."""

    id: int
    topic: str
    partition: str
    timestamp_ms: int


@value
class OffsetFound:
    """The offset; the high watermark when all records are older."""

    id: int
    offset: int = -1
    error: PymqError | None = None


# --- groups -------------------------------------------------------------------------------------


@value
class Join:
    """Become a member of a group; a member that is known already may change what it wants."""

    id: int
    group: str
    member: str
    topic: str
    partitions: tuple[str, ...]  # as the member knows them
    assignor: str
    session_ms: int  # the member is gone when it is silent for longer
    ack_wait_ms: int
    max_deliver: int  # 0: no limit
    reset: int  # BEGIN or END: where the group starts when it has no offset


@value
class Heartbeat:
    """A member is alive; *partitions* tells when the topic has grown."""

    id: int
    group: str
    member: str
    partitions: tuple[str, ...]


@value
class Assigned:
    """What a member of a group is to consume, as of a generation."""

    id: int
    generation: int = 0
    partitions: tuple[str, ...] = ()
    error: PymqError | None = None


@value
class Leave:
    """A member goes; *unread* are the leases that its application never saw."""

    id: int
    group: str
    member: str
    unread: tuple[tuple[str, Range], ...] = ()


@value
class Acquire:
    """Lease up to *max_records* for *member*.

    *known* holds, for each partition that the member has been told of, where its log starts and
    ends. Without anything to lease the answer waits, at most *max_wait_ms*; the member's next
    Acquire ends the wait of the one before.
    """

    id: int
    group: str
    member: str
    known: tuple[tuple[str, int, int], ...]
    max_records: int
    max_wait_ms: int


@value
class Lease:
    """Records of one partition, leased to one member until it acknowledges or the time is up."""

    partition: str
    start: int
    end: int
    delivery_count: int
    dead: bool = False  # delivered too often: move it to the dead-letter topic, then acknowledge


@value
class Acquired:
    """The leases; none when the wait was over."""

    id: int
    leases: tuple[Lease, ...] = ()
    generation: int = 0  # another one than the member's: it is to send a heartbeat and see
    error: PymqError | None = None


@value
class Settle:
    """What became of leased records. Not answered when *id* is 0."""

    id: int
    group: str
    member: str
    acks: tuple[tuple[str, Range], ...] = ()
    nacks: tuple[tuple[str, Range, int], ...] = ()  # with the delay in ms before the next delivery
    renewals: tuple[tuple[str, Range], ...] = ()  # still being worked on: the time begins anew
    unread: tuple[tuple[str, Range], ...] = ()  # given back, as if never delivered
    durable: bool = False  # answered once this, and all that came before, would survive a power cut


@value
class Settled:
    """The acknowledgements are written; *refused* records had been leased to somebody else."""

    id: int
    refused: int = 0
    error: PymqError | None = None


@value
class CommitOffset:
    """Move a group's offset in a partition; only while the group has no members."""

    id: int
    group: str
    topic: str
    partition: str
    offset: int


@value
class GetGroup:
    """Ask for a group's state."""

    id: int
    group: str


@value
class ListGroups:
    """Ask for the names of the groups that this broker coordinates."""

    id: int


@value
class GroupOffset:
    """How far a group has got in one partition."""

    topic: str
    partition: str
    committed: int
    delivered: int  # the offset after the last one that was ever leased
    in_flight: int  # records leased and not yet acknowledged
    waiting: int = 0  # records that were given back and are to be delivered again
    holders: tuple[str, ...] = ()  # the members that hold those in flight


@value
class GroupMember:
    """A member and what it has been assigned."""

    member: str
    topic: str
    partitions: tuple[str, ...]


@value
class GroupState:
    """The answer to GetGroup."""

    id: int
    group: str
    generation: int = 0
    members: tuple[GroupMember, ...] = ()
    offsets: tuple[GroupOffset, ...] = ()
    error: PymqError | None = None


@value
class GroupNames:
    """The answer to ListGroups."""

    id: int
    groups: tuple[str, ...] = ()
    error: PymqError | None = None


# --- asked of the zkserver ----------------------------------------------------------------------


@value
class CreateTopic:
    """Make a topic with partitions; *acks* UNSET leaves them without replicas."""

    id: int
    name: str
    partitions: tuple[str, ...]
    replicas: int
    acks: AckMode
    config: dict[str, Any]
    exist_ok: bool = False


@value
class CreatePartition:
    """Add a partition to a topic, with the topic's ack mode and number of replicas."""

    id: int
    topic: str
    partition: str


@value
class DeleteTopic:
    """Delete a topic and everything in it."""

    id: int
    name: str


@value
class AlterTopic:
    """Change some options of a topic."""

    id: int
    name: str
    config: dict[str, Any]


@value
class SetPartitionState:
    """Change a partition's ack mode or number of replicas, by a roll."""

    id: int
    topic: str
    partition: str
    acks: AckMode
    replicas: int | None = None


@value
class Reassign:
    """Roll a partition onto other brokers; no data moves."""

    id: int
    topic: str
    partition: str
    replicas: tuple[str, ...]


@value
class Decommission:
    """Roll every open block away from a broker."""

    id: int
    broker: str


@value
class DescribeTopic:
    """Ask for all about a topic."""

    id: int
    name: str


@value
class ListTopics:
    """Ask for the names of all topics."""

    id: int


@value
class DescribeCluster:
    """Ask for the brokers and the controller."""

    id: int


@value
class GetMetadata:
    """Ask where a topic's partitions are led (find_leader); makes internal topics on demand."""

    id: int
    topic: str


@value
class Subscribe:
    """Record who consumes a topic: a group for good, a reader for as long as it lives."""

    id: int
    name: str
    topic: str
    mode: str
    group: str | None = None
    partition: str | None = None


@value
class Unsubscribe:
    """Forget a subscription."""

    id: int
    name: str
    topic: str


@value
class Locate:
    """Ask which live broker serves an offset of each partition of a subscription."""

    id: int
    name: str
    topic: str
    offsets: tuple[tuple[str, int], ...]


@value
class Location:
    """Where one partition can be read from; *error* says why it cannot."""

    partition: str
    offset: int
    block: str = ""
    broker: str = ""
    endpoint: str = ""
    error: PymqError | None = None


@value
class InitProducer:
    """Take over a producer's name: its epoch rises and fences the one before."""

    id: int
    name: str


Result = (
    TopicMetadata
    | TopicDescription
    | ClusterDescription
    | tuple[str, ...]
    | tuple[Location, ...]
    | int
    | bool
    | None
)


@value
class Answer:
    """The zkserver's answer to whatever was asked."""

    id: int
    result: Result = None
    error: PymqError | None = None


# --- between brokers and the zkserver -----------------------------------------------------------


@value
class RegisterBroker:
    """A broker has started, or the zkserver has; answered by LeaderAndIsr for all it hosts."""

    id: int
    name: str
    endpoint: str
    rack: str | None
    weight: int
    storage_id: str
    incarnation: int


@value
class BrokerHeartbeat:
    """A broker is alive."""

    name: str
    incarnation: int


@value
class LeaderAndIsr:
    """What a broker is to host, as far as it has changed; *full* lists all there is.

    It is for one *incarnation* of the broker: one that has been started anew since, perhaps with
    another disk, has nothing to do with what was meant for the one before (KIP-380).
    """

    id: int
    controller: str
    controller_epoch: int
    partitions: tuple[PartitionState, ...]
    full: bool = False
    incarnation: int = 0


@value
class LeaderAndIsrAnswer:
    """An error, or None, for each partition of the request."""

    id: int
    broker: str
    errors: tuple[tuple[str, str, PymqError | None], ...] = ()
    error: PymqError | None = None


@value
class StopReplica:
    """Give up a partition; *delete* removes its blocks too. Answered by :class:`Stopped`.

    Without a *partition*, it is for all of the topic that has *topic_id*, whatever is left of it.
    It is sent until it is confirmed, so what it names may have been given up before, and the broker
    may have been started anew since and know of nothing but files.
    """

    id: int
    controller_epoch: int
    topic: str
    topic_id: str
    partition: str
    epoch: int  # a partition that the broker has at a later epoch was given to it again since
    delete: bool
    index: int = -1  # of the partition; -1 for the whole topic


@value
class Stopped:
    """What StopReplica named is not here, and that is durable."""

    id: int
    broker: str


@value
class Seal:
    """Take no more records into a block; *epoch* fences every leader before.

    The leader answers once everything that it has taken in is committed. With *takeover* the leader
    is gone: each in-sync replica stops following it and answers where its own copy ends.
    """

    controller_epoch: int
    topic: str
    partition: str
    block: int
    epoch: int
    takeover: bool = False


@value
class Sealed:
    """The block ends at *end*, durably, and nothing can be added to it.

    *holders* are the replicas that are known to hold all of it; *leader_epoch* is the epoch under
    which it was sealed, which in a Raft block may be higher than the zkserver's.
    """

    topic: str
    partition: str
    block: int
    epoch: int
    broker: str
    end: int = 0
    size: int = 0
    max_timestamp: int = -1
    holders: tuple[str, ...] = ()
    leader_epoch: int = 0
    error: PymqError | None = None
    incarnation: int = 0  # of the broker; 0: not told
    epochs: tuple[tuple[int, int], ...] = ()  # (epoch, where it begins) of the block's batches
    past: bytes = b""  # the producers as of *end*, for the next block


@value
class RollWanted:
    """The leader finds its open block large or old enough."""

    topic: str
    partition: str
    block: int
    epoch: int
    reason: str  # "size" or "age"


@value
class RetireBlocks:
    """The leader finds all blocks before number *before* beyond the retention."""

    topic: str
    partition: str
    epoch: int
    before: int


@value
class BlockSizes:
    """Compaction has rewritten sealed blocks."""

    topic: str
    partition: str
    sizes: tuple[tuple[int, int], ...]  # (block number, bytes)


@value
class AlterIsr:
    """The leader of a fetch block wants another in-sync set.

    The new :class:`~pymq.core.metadata.PartitionState` is the answer; until it comes, the leader
    counts on both sets. *version* is that of the state that the leader goes by: the wish is
    refused, and the newer state sent again, when another change came before it (KIP-497, KIP-903).
    """

    topic: str
    partition: str
    block: int
    epoch: int
    broker: str
    in_sync: tuple[str, ...]
    version: int = 0  # 0: not told


@value
class BecomeLeader:
    """The replicas of a Raft block have elected *broker* at *epoch*; repeated until it is known."""

    topic: str
    partition: str
    block: int
    epoch: int
    broker: str


@value
class Progress:
    """Sealed blocks of which a broker now has all up to *end*; sent for many at once."""

    broker: str
    ends: tuple[tuple[str, str, int, int], ...]  # (topic, partition, block number, end)
    incarnation: int = 0  # of the broker; 0: not told


@value
class DescribePartitions:
    """Ask a broker for the state of partitions that it leads."""

    id: int
    partitions: tuple[tuple[str, str], ...]


@value
class PartitionReport:
    """What only the leader knows of a partition."""

    topic: str
    partition: str
    log_start: int
    end: int
    high_watermark: int
    size: int
    in_sync: tuple[str, ...] = ()
    problem: str | None = None


@value
class PartitionReports:
    """The answer to DescribePartitions."""

    id: int
    reports: tuple[PartitionReport, ...] = Factory(tuple)


# --- between brokers ----------------------------------------------------------------------------


@value
class Ping:
    """A broker is alive, as *incarnation*; *failed* are the open blocks on which it cannot act.

    One for a pair of brokers, however many blocks they share: an idle block costs nothing.
    """

    incarnation: int
    failed: tuple[BlockId, ...] = ()


@value
class ReplicaFetch:
    """A follower asks for what comes after its own end, by whose log the last batch is *epoch*'s.

    *durable* tells the leader how far the follower is safe, in the sense of the block's ack mode.
    """

    id: int
    block: BlockId
    offset: int
    last_epoch: int
    leader_epoch: int  # of the leader that the follower follows; 0: of a sealed block, from anyone
    max_bytes: int
    max_wait_ms: int


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


Message = (
    Produce
    | Produced
    | GetSequence
    | Sequence
    | Fetch
    | Fetched
    | FindOffset
    | OffsetFound
    | Join
    | Heartbeat
    | Assigned
    | Leave
    | Acquire
    | Acquired
    | Settle
    | Settled
    | CommitOffset
    | GetGroup
    | GroupState
    | ListGroups
    | GroupNames
    | CreateTopic
    | CreatePartition
    | DeleteTopic
    | AlterTopic
    | SetPartitionState
    | Reassign
    | Decommission
    | DescribeTopic
    | ListTopics
    | DescribeCluster
    | GetMetadata
    | Subscribe
    | Unsubscribe
    | Locate
    | InitProducer
    | Answer
    | RegisterBroker
    | BrokerHeartbeat
    | LeaderAndIsr
    | LeaderAndIsrAnswer
    | StopReplica
    | Stopped
    | Seal
    | Sealed
    | RollWanted
    | RetireBlocks
    | BlockSizes
    | AlterIsr
    | BecomeLeader
    | Progress
    | Ping
    | ReplicaFetch
    | ReplicaFetched
    | RaftAppend
    | RaftAppended
    | RaftVote
    | RaftVoted
    | RaftTimeout
    | RaftSnapshot
    | DescribePartitions
    | PartitionReports
)
