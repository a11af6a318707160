"""Builds and parses the paths of the metadata tree.

====================================================  ============================================
``/pymq/brokers/<broker>``                            a broker; ``…/state`` (ephemeral): alive
``/pymq/controller``                                  (ephemeral) the active zkserver
``/pymq/controller_epoch``                            rises with each new active zkserver
``/pymq/producers/<name>``                            a named producer's epoch and id
``/pymq/secret``                                      the key for grants of producer ids
``/pymq/deleted/<topic id>``                          a deleted topic; brokers may have its files
``/pymq/topics/<topic>``                              a topic
``/pymq/topics/<topic>/partitions/<partition>``       a partition
``…/<partition>/Block_<number>``                      a block, open or sealed
``…/Block_<number>/<broker>``                         the block's replica on that broker
``/pymq/topics/<topic>/subscriptions/<name>``         a subscription; a reader's is ephemeral
====================================================  ============================================

Each function that builds a path raises :class:`~pymq.errors.InvalidName` for a name that is not a
valid path segment. :func:`parse` is the inverse of all of them.
"""

from __future__ import annotations

import re

from pymq.core.values import value
from pymq.errors import InvalidName

ROOT = "/pymq"

_NAME = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]{1,249}")
_BLOCK = re.compile(r"Block_(0|[1-9][0-9]*)", re.ASCII)


@value
class RootPath:
    """``/pymq``, the root of all other paths."""


@value
class BrokersPath:
    """The folder of all brokers."""


@value
class BrokerPath:
    """A broker that has registered."""

    broker: str


@value
class BrokerStatePath:
    """The ephemeral node of a living broker."""

    broker: str


@value
class ControllerPath:
    """The ephemeral node of the active zkserver."""


@value
class ControllerEpochPath:
    """The controller epoch, which rises with each take-over."""


@value
class SecretPath:
    """The secret key for grants of producer ids."""


@value
class ProducersPath:
    """The folder of all named producers."""


@value
class ProducerPath:
    """A named producer."""

    producer: str


@value
class DeletedTopicsPath:
    """The folder of deleted topics whose files brokers may still have."""


@value
class DeletedTopicPath:
    """A deleted topic."""

    topic_id: str


@value
class TopicsPath:
    """The folder of all topics."""


@value
class TopicPath:
    """A topic."""

    topic: str


@value
class PartitionsPath:
    """The folder of a topic's partitions."""

    topic: str


@value
class PartitionPath:
    """A partition."""

    topic: str
    partition: str


@value
class BlockPath:
    """A block of a partition."""

    topic: str
    partition: str
    block: int  # number of the block within the partition, from 0 up


@value
class ReplicaPath:
    """The copy of a block on one broker."""

    topic: str
    partition: str
    block: int
    broker: str


@value
class SubscriptionsPath:
    """The folder of a topic's subscriptions."""

    topic: str


@value
class SubscriptionPath:
    """A subscription to a topic."""

    topic: str
    subscription: str


MetaPath = (
    RootPath
    | BrokersPath
    | BrokerPath
    | BrokerStatePath
    | ControllerPath
    | ControllerEpochPath
    | SecretPath
    | ProducersPath
    | ProducerPath
    | DeletedTopicsPath
    | DeletedTopicPath
    | TopicsPath
    | TopicPath
    | PartitionsPath
    | PartitionPath
    | BlockPath
    | ReplicaPath
    | SubscriptionsPath
    | SubscriptionPath
)


def _name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise InvalidName(
            f"bad name {name!r}; it must be 1 to 249 of [A-Za-z0-9._-] and neither '.' nor '..'"
        )
    return name


def brokers() -> str:
    """The folder of all brokers."""
    return f"{ROOT}/brokers"


def broker(name: str) -> str:
    """The broker *name*."""
    return f"{ROOT}/brokers/{_name(name)}"


def broker_state(name: str) -> str:
    """The ephemeral node of the broker *name*; it exists while the broker is alive."""
    return f"{broker(name)}/state"


def controller() -> str:
    """The ephemeral node of the active zkserver."""
    return f"{ROOT}/controller"


def controller_epoch() -> str:
    """The controller epoch, which rises with each take-over."""
    return f"{ROOT}/controller_epoch"


def secret() -> str:
    """The secret key for grants of producer ids."""
    return f"{ROOT}/secret"


def producers() -> str:
    """The folder of all named producers."""
    return f"{ROOT}/producers"


def producer(name: str) -> str:
    """The named producer *name*."""
    return f"{ROOT}/producers/{_name(name)}"


def deleted_topics() -> str:
    """The folder of deleted topics whose files brokers may still have."""
    return f"{ROOT}/deleted"


def deleted_topic(topic_id: str) -> str:
    """The deleted topic *topic_id*."""
    return f"{ROOT}/deleted/{_name(topic_id)}"


def topics() -> str:
    """The folder of all topics."""
    return f"{ROOT}/topics"


def topic(name: str) -> str:
    """The topic *name*."""
    return f"{ROOT}/topics/{_name(name)}"


def partitions(topic_name: str) -> str:
    """The folder of a topic's partitions."""
    return f"{topic(topic_name)}/partitions"


def partition(topic_name: str, name: str) -> str:
    """The partition *name* of a topic."""
    return f"{partitions(topic_name)}/{_name(name)}"


def block_name(number: int) -> str:
    """Return the name of the block *number* of a partition, for paths and users."""
    if number < 0:
        raise InvalidName(f"bad block number {number}; blocks count from 0")
    return f"Block_{number}"


def block(topic_name: str, partition_name: str, number: int) -> str:
    """The block *number* of a partition. A block keeps its path when it is sealed."""
    return f"{partition(topic_name, partition_name)}/{block_name(number)}"


def replica(topic_name: str, partition_name: str, number: int, broker_name: str) -> str:
    """The copy of a block on the broker *broker_name*."""
    return f"{block(topic_name, partition_name, number)}/{_name(broker_name)}"


def subscriptions(topic_name: str) -> str:
    """The folder of a topic's subscriptions."""
    return f"{topic(topic_name)}/subscriptions"


def subscription(topic_name: str, name: str) -> str:
    """The subscription *name* to a topic."""
    return f"{subscriptions(topic_name)}/{_name(name)}"


def parse(path: str) -> MetaPath | None:
    """Return the meaning of *path*; ``None`` if this version does not know it."""
    match path.split("/"):
        case ["", "pymq", *rest]:
            return _parse(rest) if all(map(_NAME.fullmatch, rest)) else None
        case _:
            return None


def _parse(segments: list[str]) -> MetaPath | None:
    match segments:
        case []:
            return RootPath()
        case ["brokers"]:
            return BrokersPath()
        case ["brokers", name]:
            return BrokerPath(name)
        case ["brokers", name, "state"]:
            return BrokerStatePath(name)
        case ["controller"]:
            return ControllerPath()
        case ["controller_epoch"]:
            return ControllerEpochPath()
        case ["secret"]:
            return SecretPath()
        case ["producers"]:
            return ProducersPath()
        case ["producers", name]:
            return ProducerPath(name)
        case ["deleted"]:
            return DeletedTopicsPath()
        case ["deleted", topic_id]:
            return DeletedTopicPath(topic_id)
        case ["topics"]:
            return TopicsPath()
        case ["topics", name]:
            return TopicPath(name)
        case ["topics", name, "subscriptions"]:
            return SubscriptionsPath(name)
        case ["topics", name, "subscriptions", subscribed]:
            return SubscriptionPath(name, subscribed)
        case ["topics", name, "partitions", *rest]:
            return _parse_partition(name, rest)
        case _:
            return None


def _parse_partition(topic_name: str, segments: list[str]) -> MetaPath | None:
    match segments:
        case []:
            return PartitionsPath(topic_name)
        case [name]:
            return PartitionPath(topic_name, name)
        case [name, block_segment] if found := _BLOCK.fullmatch(block_segment):
            return BlockPath(topic_name, name, int(found[1]))
        case [name, block_segment, broker_name] if found := _BLOCK.fullmatch(block_segment):
            return ReplicaPath(topic_name, name, int(found[1]), broker_name)
        case _:
            return None
