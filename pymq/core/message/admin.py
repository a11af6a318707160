"""Requests of clients to the controller."""

from __future__ import annotations

from typing import Any

from pymq.core.metadata.descriptions import ClusterDescription, TopicDescription, TopicMetadata
from pymq.core.metadata.nodes import Loss, ProducerIds
from pymq.core.types import AckMode
from pymq.core.values import value
from pymq.errors import PymqError


@value
class CreateTopic:
    """Create a topic with partitions; if *acks* is UNSET, the partitions get no replicas."""

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
    """Delete a topic with all its records."""

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
    """Roll a partition onto other brokers; sealed blocks move only with *move_sealed*."""

    id: int
    topic: str
    partition: str
    replicas: tuple[str, ...]
    move_sealed: bool = False  # also move the sealed blocks to these brokers


@value
class Decommission:
    """Move all open blocks away from a broker, by rolls."""

    id: int
    broker: str


@value
class Recommission:
    """Cancel a decommission: new blocks may be placed on the broker again."""

    id: int
    broker: str


@value
class BalanceLeaders:
    """Spread leaderships evenly over brokers.

    The answer is the number of partitions that change leader.
    """

    id: int


@value
class RecoverPartition:
    """Elect a leader for a partition that cannot elect one itself, even if records are lost."""

    id: int
    topic: str
    partition: str


@value
class DescribeTopic:
    """Get the full description of a topic."""

    id: int
    name: str


@value
class DeleteRecords:
    """Delete the records of a partition before an offset; from then on the log starts there.

    The zkserver does not know the end of the log. An offset beyond it deletes later records, too,
    so clients ask the leader for the end first.
    """

    id: int
    topic: str
    partition: str
    before: int
    topic_id: str = ""  # id of the topic; "": any topic of that name


@value
class ListTopics:
    """Get the names of all topics."""

    id: int


@value
class DescribeCluster:
    """Get the brokers and the controller.

    With *brokers_only* the answer has neither numbers of topics, partitions and blocks nor problems
    of partitions, and costs little however many there are.
    """

    id: int
    brokers_only: bool = False


@value
class GetMetadata:
    """Get the leaders of a topic's partitions; creates internal topics on demand."""

    id: int
    topic: str


@value
class Subscribe:
    """Store a subscription: a group's is permanent, a reader's lasts as long as the reader."""

    id: int
    name: str
    topic: str
    mode: str
    group: str | None = None
    partition: str | None = None


@value
class Unsubscribe:
    """Remove the subscription of *group*, or of the sending reader if *group* is not set."""

    id: int
    name: str
    topic: str
    group: str | None = None


@value
class Locate:
    """For each partition of a subscription, find a live broker that serves a given offset."""

    id: int
    name: str
    topic: str
    offsets: tuple[tuple[str, int], ...]


@value
class Location:
    """The broker that serves one partition; *error* is the reason if there is none."""

    partition: str
    offset: int
    block: str = ""
    broker: str = ""
    endpoint: str = ""
    error: PymqError | None = None


@value
class InitProducer:
    """Take over a producer name: the epoch of the name rises, which fences the earlier producer.

    A request with the same *run* as the last request gets the same epoch, so that the processes of
    one task do not fence each other. An empty *run* never equals another one.

    Without a name, the client requests a block of ids. The answer is :class:`ProducerIds`. If
    *takes_ids* is not set, the client gets only an epoch, and its id is a hash of the name.
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
    """The controller is carrying out a request that takes several commits; an Answer follows.

    The controller also sends this message if the client repeats the request in the meantime.
    """

    id: int


@value
class Answer:
    """The controller's answer to a request."""

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
    | DeleteRecords
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
