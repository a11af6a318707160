"""What clients ask the active zkserver."""

from __future__ import annotations

from typing import Any

from pymq.core.metadata.nodes import (
    ClusterDescription,
    Loss,
    ProducerIds,
    TopicDescription,
    TopicMetadata,
)
from pymq.core.types import AckMode
from pymq.core.values import value
from pymq.errors import PymqError


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
    """Roll a partition onto other brokers; data moves only with *move_sealed*."""

    id: int
    topic: str
    partition: str
    replicas: tuple[str, ...]
    move_sealed: bool = False  # the sealed blocks are copied there, too


@value
class Decommission:
    """Roll every open block away from a broker."""

    id: int
    broker: str


@value
class Recommission:
    """Take a decommission back: the broker may be given new blocks again."""

    id: int
    broker: str


@value
class BalanceLeaders:
    """Let brokers lead as many partitions as each other; answered with how many change leaders."""

    id: int


@value
class RecoverPartition:
    """Let a partition that nobody can lead go on with what is left, even if something is lost."""

    id: int
    topic: str
    partition: str


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
    """Forget a subscription: a group's if *group* names it, and else a reader's own."""

    id: int
    name: str
    topic: str
    group: str | None = None


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
    """Take over a producer's name: its epoch rises and fences the one before.

    A request with the *run* of the one before gets the same epoch: processes that work on one task
    together do not fence each other. An empty *run* is like no other.

    Without a name it asks for a block of ids. The answer is :class:`ProducerIds`; to those who do
    not say that they take one it is the epoch alone, and the id is a hash of the name.
    """

    id: int
    name: str
    run: str = ""
    takes_ids: bool = False


Result = (
    TopicMetadata
    | TopicDescription
    | ClusterDescription
    | tuple[str, ...]
    | tuple[Location, ...]
    | Loss
    | ProducerIds
    | int
    | bool
    | None
)


@value
class UnderWay:
    """The zkserver has begun to carry out a request that takes several commits; an Answer follows.

    It is sent to a client that asks again, and only while the request is being carried out.
    """

    id: int


@value
class Answer:
    """The zkserver's answer to a request."""

    id: int
    result: Result = None
    error: PymqError | None = None


AdminMessage = (
    CreateTopic
    | CreatePartition
    | DeleteTopic
    | AlterTopic
    | SetPartitionState
    | Reassign
    | Decommission
    | Recommission
    | BalanceLeaders
    | RecoverPartition
    | DescribeTopic
    | ListTopics
    | DescribeCluster
    | GetMetadata
    | Subscribe
    | Unsubscribe
    | Locate
    | InitProducer
    | Answer
    | UnderWay
)
