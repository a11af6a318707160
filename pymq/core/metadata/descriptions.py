"""The metadata and descriptions of topics, partitions and brokers that clients get."""

from __future__ import annotations

from collections.abc import Collection

from pymq.core.metadata.nodes import Loss
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode
from pymq.core.values import Factory, value


@value
class PartitionLeader:
    """The leader of a partition, to which clients send records; None while there is no leader."""

    partition: str
    index: int
    acks: AckMode
    epoch: int
    leader: str | None
    endpoint: str | None
    replicas: tuple[str, ...] = ()  # live brokers to read from, the most complete first


@value
class BrokerPlace:
    """The endpoint and the rack of a live broker."""

    name: str
    endpoint: str
    rack: str | None = None


@value
class TopicMetadata:
    """The metadata of a topic for clients."""

    topic: str
    topic_id: str
    config: TopicConfig
    partitions: tuple[PartitionLeader, ...]  # in creation order
    brokers: tuple[BrokerPlace, ...] = ()  # the live brokers that the partitions name


@value
class BlockDescription:
    """A block as ``describe_topic`` shows it; *end_offset* is None while it is open."""

    name: str
    start_offset: int
    end_offset: int | None
    epoch: int
    acks: AckMode
    leader: str | None
    replicas: tuple[str, ...]
    size_bytes: int
    number: int = 0  # the block's number in the partition; removed blocks count
    # replicas that hold the whole block or, if it is open, are in sync
    in_sync: tuple[str, ...] = ()
    opened_ms: int = 0  # wall clock
    max_timestamp_ms: int = -1  # latest record timestamp; -1 while the block is open or empty
    is_unclean: bool = False  # sealed although no replica was known to hold all records


@value
class PartitionDescription:
    """A partition as ``describe_topic`` shows it."""

    name: str
    index: int
    acks: AckMode
    leader: str | None
    epoch: int
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]
    start_offset: int
    end_offset: int
    high_watermark: int
    blocks: tuple[BlockDescription, ...]
    # the reason if the partition has no leader, or its leader cannot write
    problem: str | None = None
    losses: tuple[Loss, ...] = ()
    offline: tuple[str, ...] = ()  # replicas whose broker is dead or whose disk has failed
    under_replicated: bool = False  # there are fewer in-sync replicas than requested
    # False: no live replica has reported in time, so *end_offset* and *high_watermark* are the
    # start of the open block
    is_reported: bool = True

    def unreadable(self, dead: Collection[str]) -> list[BlockDescription]:
        """Return the sealed blocks whose copies are all on *dead* brokers.

        The leader does not report these blocks.
        """
        return [
            block
            for block in self.blocks
            if block.end_offset is not None and all(broker in dead for broker in block.in_sync)
        ]


@value
class TopicDescription:
    """The result of ``describe_topic``."""

    name: str
    config: TopicConfig
    partitions: tuple[PartitionDescription, ...]


@value
class BrokerDescription:
    """A broker as ``cluster`` shows it."""

    name: str
    endpoint: str
    rack: str | None
    alive: bool
    leads: int  # number of partitions whose open block the broker leads
    is_draining: bool = False
    blocks: int = 0  # number of open and sealed blocks of which the broker is a replica
    kept_by: tuple[str, ...] = ()  # the reasons why a draining broker is not empty yet
    number: int = -1  # the broker's number for Kafka's clients
    kafka: str = ""  # HOST:PORT for Kafka's clients; "": the broker does not listen for them


@value
class ClusterDescription:
    """The result of ``cluster``."""

    controller: str
    controller_epoch: int
    brokers: tuple[BrokerDescription, ...] = Factory(tuple)
    topics: int = 0
    partitions: int = 0
    leaderless: tuple[str, ...] = ()  # "topic/partition"; ``describe_topic`` gives the reason
    under_replicated_blocks: int = 0  # sealed blocks with fewer live complete copies than replicas
    moving_blocks: int = 0  # sealed blocks that are being copied to another broker
