"""What requests about topics and clients mean for the tree; pure functions over the image.

Each takes the image and the request and writes into a :class:`~pymq.node.image.Draft`. It raises
what the caller is to be told, and then nothing is changed.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from pymq.coord import paths
from pymq.core.config import TopicConfig
from pymq.core.message import AlterTopic, CreatePartition, CreateTopic, Subscribe
from pymq.core.metadata import DeletedNode, ProducerNode, SubscriptionNode, TopicNode
from pymq.core.types import OFFSETS_TOPIC, AckMode, TopicPartition, check_name, is_internal
from pymq.errors import ConfigError, InvalidRequest, PartitionExists, TopicExists
from pymq.node import blocks
from pymq.node.image import Draft, TopicImage
from pymq.node.placement import Load, choose, usable

PARTITIONS_MAX = 100_000
OFFSETS_CONFIG = {"cleanup_policy": "compact", "block_bytes": 16 << 20, "fsync": "interval"}


def folders(draft: Draft) -> None:
    """Make what an empty tree needs before anything else."""
    for path in (
        paths.ROOT,
        paths.brokers(),
        paths.topics(),
        paths.producers(),
        paths.deleted_topics(),
    ):
        draft.folder(path)


# --- topics -------------------------------------------------------------------------------------


def create_topic(
    draft: Draft,
    m: CreateTopic,
    live: Collection[str],
    topic_id: str,
    wall_ms: int,
    *,
    fewer: bool = False,
) -> None:
    """Make a topic with all its partitions; *fewer* replicas will do if there are no more brokers.

    Raises:
        InvalidName, TopicExists, ConfigError, InvalidRequest, NotEnoughBrokers: as they say.
    """
    check_name(m.name, "topic name")
    if m.name in draft.image.topics:
        raise TopicExists(f"topic {m.name!r} exists already")
    if not 0 < len(m.partitions) <= PARTITIONS_MAX:
        raise InvalidRequest(f"a topic has 1 to {PARTITIONS_MAX} partitions")
    if m.replicas < 1:
        raise InvalidRequest(f"replicas={m.replicas} must be at least 1")
    if len(set(m.partitions)) != len(m.partitions):
        raise InvalidRequest("two partitions have the same name")
    config = TopicConfig.of(m.config)
    check_in_sync(config, m.replicas)
    node = TopicNode(m.name, topic_id, len(m.partitions), m.acks, m.replicas, config)
    draft.create(paths.topic(m.name), node)
    draft.folder(paths.partitions(m.name))
    draft.folder(paths.subscriptions(m.name))
    count = min(m.replicas, max(1, len(usable(draft.image, live)))) if fewer else m.replicas
    _add_partitions(draft, node, m.partitions, 0, live, count, wall_ms)


def _add_partitions(
    draft: Draft,
    topic: TopicNode,
    names: tuple[str, ...],
    index: int,
    live: Collection[str],
    count: int,
    wall_ms: int,
) -> None:
    brokers = usable(draft.image, live)
    load = Load(draft.image, brokers)
    for number, name in enumerate(names, index):
        chosen: tuple[str, ...] = ()
        check_name(name, "partition name")
        if topic.acks is not AckMode.UNSET:
            key = TopicPartition(topic.name, name)
            chosen = choose(draft.image, brokers, load, key, count)
        blocks.add_partition(draft, topic, name, number, chosen, wall_ms)


def create_partition(draft: Draft, m: CreatePartition, live: Collection[str], wall_ms: int) -> None:
    """Add a partition.

    Raises:
        InvalidName, UnknownTopic, PartitionExists, NotEnoughBrokers: as they say.
    """
    topic = draft.image.topic(m.topic)
    if m.partition in topic.partitions:
        raise PartitionExists(f"topic {m.topic!r} has a partition {m.partition!r} already")
    node = topic.node
    changed = attrs.evolve(node, next_index=node.next_index + 1, version=node.version + 1)
    draft.put(paths.topic(m.topic), changed)
    _add_partitions(draft, node, (m.partition,), node.next_index, live, node.replicas, wall_ms)


def delete_topic(draft: Draft, topic: TopicImage) -> tuple[str, ...]:
    """Remove a topic, from the leaves up; returns the brokers that have something of it.

    They are kept in the tree until they have confirmed: a broker removes files only when it is told
    to, never because it does not know what they are (K7).

    Raises:
        InvalidRequest: it is pymq's own.
    """
    name = topic.node.name
    if is_internal(name):
        raise InvalidRequest(f"topic {name!r} is pymq's own and cannot be deleted")
    brokers: set[str] = set()
    for partition, image in topic.partitions.items():
        brokers.update(image.hosts, image.node.leaving)
        for number in image.blocks:
            blocks.remove(draft, TopicPartition(name, partition), image, number)
        draft.delete(paths.partition(name, partition))
    if (offsets := draft.image.topics.get(OFFSETS_TOPIC)) is not None:
        # How far groups have got in it means nothing to a topic of its name that is made later.
        for image in offsets.partitions.values():
            brokers.update(image.open_block.replicas)
    draft.delete(paths.partitions(name))
    for subscription in topic.subscriptions:
        draft.delete(paths.subscription(name, subscription))
    draft.delete(paths.subscriptions(name))
    draft.delete(paths.topic(name))
    told = tuple(sorted(brokers))
    if told:
        node = DeletedNode(name, topic.node.id, told)
        draft.create(paths.deleted_topic(topic.node.id), node)
    return told


def check_in_sync(config: TopicConfig, replicas: int) -> None:
    """Whether a partition with so many replicas can ever have ``min_in_sync`` of them.

    Raises:
        ConfigError: it cannot.
    """
    if config.min_in_sync > replicas:
        raise ConfigError(
            f"min_in_sync={config.min_in_sync} is more than the {replicas} replicas there are: "
            "whoever waits for all in sync would be refused for ever"
        )


def alter_topic(draft: Draft, m: AlterTopic) -> None:
    """Change options.

    Raises:
        UnknownTopic, ConfigError: as they say.
    """
    node = draft.image.topic(m.name).node
    config = node.config.altered(m.config)
    if config.min_in_sync > node.config.min_in_sync:
        for partition in draft.image.topic(m.name).partitions.values():
            check_in_sync(config, partition.node.replicas)
    if config != node.config:
        draft.put(paths.topic(m.name), attrs.evolve(node, config=config, version=node.version + 1))


def offsets_topic(
    id: int,  # a field's name
    partitions: int,
    replicas: int,
    brokers: int,
) -> CreateTopic:
    """The request that makes the internal topic of the group coordinators, where *brokers* are.

    Its ack mode is ``raft`` where a majority outlives the loss of a broker. Of two replicas either
    one must be able to go on alone, which is what the in-sync set of ``leader`` is for.
    """
    names = tuple(str(index) for index in range(partitions))
    acks = AckMode.RAFT if min(replicas, brokers) > 2 else AckMode.LEADER
    return CreateTopic(id, OFFSETS_TOPIC, names, replicas, acks, dict(OFFSETS_CONFIG), True)


# --- clients ------------------------------------------------------------------------------------


def subscribe(draft: Draft, m: Subscribe) -> None:
    """Record a subscription; one that is there already is left as it is, or replaced.

    A group's is kept: it says who consumes the topic, now or later. A reader's goes with its reader
    or its zkserver (see :mod:`~pymq.node.subscribers`), so recording it writes nothing to a disk,
    which may be full.

    Raises:
        UnknownTopic, UnknownPartition, InvalidName: as they say.
    """
    topic = draft.image.topic(m.topic)
    if m.partition is not None:
        draft.image.partition(m.topic, m.partition)
    if m.group is not None:
        check_name(m.group, "group name")
    node = SubscriptionNode(m.name, m.topic, m.mode, m.group, m.partition)
    path = paths.subscription(m.topic, m.name)
    if m.name not in topic.subscriptions:
        draft.create(path, node, ephemeral=m.group is None)
    elif topic.subscriptions[m.name] != node:
        draft.put(path, node)


def next_producer_epoch(draft: Draft, name: str, run: str = "") -> int:
    """Raise the epoch of a named producer, unless it is the same *run* that asks.

    Raises:
        InvalidName: the name or the run may not be one.
    """
    check_name(name, "producer id")
    if run:
        check_name(run, "run")
    known = draft.image.producers.get(name)
    if known is not None and run and known.run == run:
        return known.epoch
    epoch = known.epoch + 1 if known else 0
    if known is None:
        draft.create(paths.producer(name), ProducerNode(name, epoch, run))
    else:
        draft.put(paths.producer(name), ProducerNode(name, epoch, run))
    return epoch
