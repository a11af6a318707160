"""Messages between brokers and the controller."""

from __future__ import annotations

from pymq.core.metadata.nodes import PartitionState
from pymq.core.values import Factory, value
from pymq.errors import PymqError


@value
class RegisterBroker:
    """Register a broker, after the broker or the controller has started.

    The answer is a LeaderAndIsr with all partitions that the broker hosts.
    """

    id: int
    name: str
    endpoint: str
    rack: str | None
    weight: int
    storage_id: str
    incarnation: int
    kafka: str = ""  # HOST:PORT for Kafka's clients


@value
class BrokerHeartbeat:
    """A broker's heartbeat."""

    name: str
    incarnation: int


@value
class ControlledShutdown:
    """A broker is about to stop and wants to hand over its leaderships (as in KIP-143).

    The answer is the number of partitions that the broker still leads. The broker repeats the
    request until that is 0.
    """

    id: int
    broker: str
    incarnation: int


@value
class LeaderAndIsr:
    """The changed partitions that a broker hosts; with *full*, all of them.

    The message is for one *incarnation* of the broker. A later incarnation, which may have another
    disk, ignores the message (KIP-380).
    """

    id: int
    controller: str
    controller_epoch: int
    partitions: tuple[PartitionState, ...]
    full: bool = False
    incarnation: int = 0
    secret: bytes = b""  # secret for checking grants of producer ids


@value
class LeaderAndIsrAnswer:
    """An error, or None, for each partition of the request."""

    id: int
    broker: str
    errors: tuple[tuple[str, str, PymqError | None], ...] = ()
    error: PymqError | None = None


@value
class StopReplica:
    """Stop hosting a partition; with *delete* also remove its blocks. :class:`Stopped` is the
    answer.

    If *partition* is not set, the request is for all remaining partitions of the topic with
    *topic_id*. The controller repeats the request until the broker confirms it. So the partition
    may already be removed, or the broker may have restarted and know only the files.
    """

    id: int
    controller_epoch: int
    topic: str
    topic_id: str
    partition: str
    # a broker with a later epoch of the partition ignores the request: it hosts the partition again
    epoch: int
    delete: bool
    index: int = -1  # index of the partition; -1 for the whole topic


@value
class Stopped:
    """The broker has durably removed everything that StopReplica named."""

    id: int
    broker: str


@value
class Seal:
    """Seal a block; *epoch* fences all earlier leaders.

    The leader answers after all records that it has appended are committed. If *takeover* is set,
    the leader has failed: each in-sync replica stops following the leader and answers with the end
    of its own copy.
    """

    controller_epoch: int
    topic: str
    partition: str
    block: int
    epoch: int
    takeover: bool = False
    topic_id: str = ""  # id of the topic; "": not given


@value
class Sealed:
    """The block is sealed and durable; it ends at *end*.

    *holders* are the replicas that are known to hold the whole block. *leader_epoch* is the epoch
    of the leader that sealed the block; in a Raft block it may be higher than the epoch that the
    controller knows.
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
    incarnation: int = 0  # incarnation of the broker; 0: not given
    epochs: tuple[tuple[int, int], ...] = ()  # (epoch, first offset) of the block's batches
    past: bytes = b""  # the producer table as of *end*, for the next block
    topic_id: str = ""  # id of the topic; "": not given
    controller_epoch: int = 0  # controller epoch of the request; 0: not given


@value
class TransferLeader:
    """Transfer the leadership of a Raft block to *target*, if that replica has the whole log.

    There is no answer. The controller repeats the message until the leader has changed.
    """

    controller_epoch: int
    topic: str
    partition: str
    block: int
    target: str
    topic_id: str


@value
class RollWanted:
    """The leader's open block is large or old enough to roll."""

    topic: str
    partition: str
    block: int
    epoch: int
    reason: str  # "size" or "age"


@value
class RetireBlocks:
    """The leader reports that the blocks before number *before* are past their retention."""

    topic: str
    partition: str
    epoch: int
    before: int
    topic_id: str = ""  # id of the topic; "": not given


@value
class BlockSizes:
    """The sizes of sealed blocks after compaction."""

    topic: str
    partition: str
    sizes: tuple[tuple[int, int], ...]  # (block number, bytes)
    topic_id: str = ""  # id of the topic; "": not given


@value
class AlterIsr:
    """The leader of a fetch block requests a new in-sync set.

    The answer is the new :class:`~pymq.core.metadata.nodes.PartitionState`. Until the answer comes,
    the leader waits for the replicas of both sets. The controller refuses the request and sends the
    newer state again in two cases: *version* is out of date (KIP-497), or the leader has restarted
    meanwhile and may have another disk. A joining replica must still have its incarnation in
    *incarnations*; if its broker has restarted, the controller leaves it out (KIP-903).
    """

    topic: str
    partition: str
    block: int
    epoch: int
    broker: str
    in_sync: tuple[str, ...]
    version: int = 0  # version of the leader's state; 0: not given
    incarnation: int = 0  # incarnation of *broker*; 0: not given
    topic_id: str = ""  # id of the topic; "": not given
    # incarnations of the brokers in *in_sync*, one for each; 0, or (): not given
    incarnations: tuple[int, ...] = ()


@value
class BecomeLeader:
    """The replicas of a Raft block elected *broker* as leader for *epoch*.

    The leader repeats the report until the metadata names it as leader.
    """

    topic: str
    partition: str
    block: int
    epoch: int
    broker: str
    topic_id: str = ""  # id of the topic; "": not given


@value
class Progress:
    """The ends of a broker's copies of many sealed blocks."""

    broker: str
    ends: tuple[tuple[str, str, int, int], ...]  # (topic, partition, block number, end)
    incarnation: int = 0  # incarnation of the broker; 0: not given
    topic_ids: tuple[str, ...] = ()  # ids of the topics in *ends*, one for each; (): not given


@value
class OfflineReplica:
    """A partition whose open block a broker cannot serve because of its disk."""

    topic: str
    partition: str
    topic_id: str
    is_damaged: bool  # only this block is damaged; the disk can store another copy
    why: str  # reason, as text for users


@value
class OfflineReplicas:
    """All replicas of a live broker that are offline because of its disk.

    This is like the offline log directories of KIP-858, but for each partition. The broker sends
    the report after each change and repeats it. The report with the higher *version* is the newer
    one.
    """

    broker: str
    incarnation: int
    version: int
    replicas: tuple[OfflineReplica, ...]


@value
class ReplicaEnds:
    """The ends of a broker's replicas of open blocks; an estimate, sent at most once a second."""

    broker: str
    incarnation: int
    # (topic, partition, block number, end of the log, high watermark)
    ends: tuple[tuple[str, str, int, int, int], ...]


@value
class DescribePartitions:
    """Get the state of partitions from the broker that leads them."""

    id: int
    partitions: tuple[tuple[str, str], ...]


@value
class PartitionReport:
    """The state of a partition as its leader, or another replica, reports it."""

    topic: str
    partition: str
    log_start: int
    end: int
    high_watermark: int
    size: int
    in_sync: tuple[str, ...] = ()
    problem: str | None = None
    leads: bool = True  # whether the reporting broker leads the partition


@value
class PartitionReports:
    """The answer to DescribePartitions."""

    id: int
    reports: tuple[PartitionReport, ...] = Factory(tuple)


ControlMessage = (
    RegisterBroker
    | BrokerHeartbeat
    | ControlledShutdown
    | LeaderAndIsr
    | LeaderAndIsrAnswer
    | StopReplica
    | Stopped
    | Seal
    | Sealed
    | TransferLeader
    | RollWanted
    | RetireBlocks
    | BlockSizes
    | AlterIsr
    | BecomeLeader
    | Progress
    | OfflineReplicas
    | ReplicaEnds
    | DescribePartitions
    | PartitionReports
)
