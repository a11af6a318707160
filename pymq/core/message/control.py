"""What brokers and the active zkserver say to each other, and what only brokers can report."""

from __future__ import annotations

from pymq.core.metadata.nodes import PartitionState
from pymq.core.values import Factory, value
from pymq.errors import PymqError


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
class ControlledShutdown:
    """A broker is about to stop, and asks that others lead what it leads (as in KIP-143).

    Answered with how many partitions it leads still; it asks again until there are none.
    """

    id: int
    broker: str
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
    secret: bytes = b""  # that grants of producers' ids are checked with


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
    topic_id: str = ""  # of the topic that is meant; "": not told


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
    topic_id: str = ""  # of the topic that is meant; "": not told
    controller_epoch: int = 0  # of the zkserver that has asked; 0: not told


@value
class TransferLeader:
    """The leader of a Raft block is to hand its leadership to *target*, if that has all of it.

    Nothing answers it but the change of the leader; it is sent again.
    """

    controller_epoch: int
    topic: str
    partition: str
    block: int
    target: str
    topic_id: str


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
    topic_id: str = ""  # of the topic that is meant; "": not told


@value
class BlockSizes:
    """Compaction has rewritten sealed blocks."""

    topic: str
    partition: str
    sizes: tuple[tuple[int, int], ...]  # (block number, bytes)
    topic_id: str = ""  # of the topic that is meant; "": not told


@value
class AlterIsr:
    """The leader of a fetch block wants another in-sync set.

    The new :class:`~pymq.core.metadata.nodes.PartitionState` is the answer; until it comes, the
    leader counts on both sets. *version* is that of the state that the leader goes by: the wish is
    refused, and the newer state sent again, when another change came before it (KIP-497), and when
    the leader was started anew meanwhile: its disk may be another one. Who is to join and was
    started anew since the leader has heard of it, as *incarnations* tell, is left out (KIP-903).
    """

    topic: str
    partition: str
    block: int
    epoch: int
    broker: str
    in_sync: tuple[str, ...]
    version: int = 0  # 0: not told
    incarnation: int = 0  # of *broker*; 0: not told
    topic_id: str = ""  # of the topic that is meant; "": not told
    incarnations: tuple[int, ...] = ()  # of those *in_sync*, one for each; 0, or (): not told


@value
class BecomeLeader:
    """The replicas of a Raft block have elected *broker* at *epoch*; repeated until it is known."""

    topic: str
    partition: str
    block: int
    epoch: int
    broker: str
    topic_id: str = ""  # of the topic that is meant; "": not told


@value
class Progress:
    """Sealed blocks of which a broker now has all up to *end*; sent for many at once."""

    broker: str
    ends: tuple[tuple[str, str, int, int], ...]  # (topic, partition, block number, end)
    incarnation: int = 0  # of the broker; 0: not told
    topic_ids: tuple[str, ...] = ()  # of the topics in *ends*, one for each; (): not told


@value
class OfflineReplica:
    """A partition whose open block a broker cannot act on, because of its disk.

    If it *is_damaged* that is all: the broker's disk is good for another block.
    """

    topic: str
    partition: str
    topic_id: str
    is_damaged: bool
    why: str  # for people


@value
class OfflineReplicas:
    """All replicas that are offline because of a broker's disk, alive as the broker is.

    As the offline log directories of KIP-858, but each partition by itself. It is told when that
    changes, and again and again; of two reports the one with the lower *version* is out of date.
    """

    broker: str
    incarnation: int
    version: int
    replicas: tuple[OfflineReplica, ...]


@value
class ReplicaEnds:
    """How far a broker's replicas of open blocks reach; a hint, at most once a second."""

    broker: str
    incarnation: int
    # (topic, partition, block number, end of the log, high watermark)
    ends: tuple[tuple[str, str, int, int, int], ...]


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
