"""Drafts requests about topics, subscriptions and producers; pure functions over the image.

Each function writes into a :class:`~pymq.controller.state.image.Draft`. If a function raises an
error, the draft is dropped, and the error is the client's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import attrs

from pymq.access import grants
from pymq.controller.state.image import Draft, Image, PartitionImage, TopicImage
from pymq.controller.transitions import blocks
from pymq.controller.transitions.placement import BrokerLoad, choose, usable
from pymq.coord import paths
from pymq.core.block.idempotence import hashed_id
from pymq.core.counts import plural
from pymq.core.message import (
    AlterTopic,
    CreatePartition,
    CreateTopic,
    DeleteRecords,
    InitProducer,
    Subscribe,
    Unsubscribe,
)
from pymq.core.metadata.nodes import (
    DeletedNode,
    ProducerIds,
    ProducerNode,
    SecretNode,
    SubscriptionNode,
    TopicNode,
)
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import (
    OFFSETS_TOPIC,
    AckMode,
    TopicPartition,
    check_name,
    is_internal,
    node_of,
)
from pymq.errors import (
    ConfigError,
    GroupLimitReached,
    InvalidRequest,
    NoBrokers,
    NotEnoughBrokers,
    PartitionExists,
    ProducerLimitReached,
    TopicExists,
)

PARTITIONS_MAX = 100_000
# most groups subscribed to a topic, and most readers; a subscription takes 150 bytes
SUBSCRIPTIONS_MAX = 10_000
NAMES_MAX = 100_000  # most names of producers in a cluster; a name takes 150 bytes, forever
MODES = ("ptp", "psb")  # modes of subscriptions
OFFSETS_CONFIG = {"cleanup_policy": "compact", "block_bytes": 16 << 20, "fsync": "interval"}


def folders(draft: Draft) -> None:
    """Create the folders of an empty tree."""
    for path in (
        paths.ROOT,
        paths.brokers(),
        paths.topics(),
        paths.producers(),
        paths.deleted_topics(),
    ):
        draft.folder(path)


# --- topics -------------------------------------------------------------------------------------


class Making:
    """A topic that is being created; each commit adds some partitions.

    The topic is hidden until its last partition exists. A zkserver that takes over removes hidden
    topics, so a topic exists completely or not at all.
    """

    def __init__(self, topic_id: str, wall_ms: int, *, fewer: bool = False) -> None:
        self.topic_id = topic_id
        self.wall_ms = wall_ms
        self.fewer = fewer  # allow fewer replicas if there are not enough brokers
        self.replicas = 0  # replicas of each partition
        self._load: BrokerLoad | None = None
        self._brokers: list[str] = []  # brokers that the load counts
        self._disks: dict[str, str] = {}  # storage ids of the brokers that got partitions

    def load(self, image: Image, brokers: list[str], made: Iterable[PartitionImage]) -> BrokerLoad:
        """The load of the brokers, including the hidden partitions of this topic."""
        if self._load is None or brokers != self._brokers:
            self._load, self._brokers = BrokerLoad(image, brokers), brokers
            for partition in made:
                self._load.add(partition.open_block.replicas)
        for broker in brokers:
            self._disks.setdefault(broker, image.brokers[broker].storage_id)
        return self._load

    def check(self, image: Image) -> None:
        """Raise :class:`NotEnoughBrokers` if the disk of a chosen broker was replaced."""
        for broker, disk in self._disks.items():
            if image.brokers[broker].storage_id != disk:
                raise NotEnoughBrokers(f"the disk of {broker} was replaced meanwhile; try again")


def create_topic(draft: Draft, m: CreateTopic, live: Collection[str], making: Making) -> bool:
    """Draft the next part of the creation of a topic; returns whether it is the last part.

    Raises:
        InvalidName, TopicExists, ConfigError, InvalidRequest, NotEnoughBrokers: as the names say.
    """
    hidden = draft.image.hidden.get(m.name)
    if hidden is not None:
        made = len(hidden.partitions)
        left = m.partitions[made:]
        taken = _add_partitions(
            draft, hidden.node, left, made, live, making, hidden.partitions.values()
        )
        if taken < len(left):
            return False
        making.check(draft.image)
        draft.put(paths.topic(m.name), attrs.evolve(hidden.node, is_hidden=False))
        return True
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
    for name in m.partitions:
        check_name(name, "partition name")
    node = TopicNode(m.name, making.topic_id, len(m.partitions), m.acks, m.replicas, config)
    count = len(usable(draft.image, live))
    making.replicas = min(m.replicas, max(1, count)) if making.fewer else m.replicas
    rest = Draft(draft.image, draft.bytes_max)
    is_whole = _add_partitions(rest, node, m.partitions, 0, live, making) == len(m.partitions)
    draft.create(paths.topic(m.name), attrs.evolve(node, is_hidden=not is_whole))
    draft.folder(paths.partitions(m.name))
    draft.folder(paths.subscriptions(m.name))
    draft.extend(rest)
    return is_whole


def _add_partitions(
    draft: Draft,
    topic: TopicNode,
    names: tuple[str, ...],
    index: int,
    live: Collection[str],
    making: Making,
    made: Iterable[PartitionImage] = (),
) -> int:
    """Create as many partitions as fit, at least one; returns their number."""
    brokers = usable(draft.image, live)
    load = making.load(draft.image, brokers, made)
    for number, name in enumerate(names):
        if number and draft.is_full:
            return number
        chosen: tuple[str, ...] = ()
        if topic.acks is not AckMode.UNSET:
            key = TopicPartition(topic.name, name)
            chosen = choose(draft.image, brokers, load, key, making.replicas)
        blocks.add_partition(draft, topic, name, index + number, chosen, making.wall_ms)
    return len(names)


def create_partition(draft: Draft, m: CreatePartition, live: Collection[str], wall_ms: int) -> None:
    """Add a partition.

    Raises:
        InvalidName, UnknownTopic, PartitionExists, NotEnoughBrokers: as the names say.
    """
    topic = draft.image.topic(m.topic)
    if m.partition in topic.partitions:
        raise PartitionExists(f"topic {m.topic!r} has a partition {m.partition!r} already")
    node = topic.node
    changed = attrs.evolve(node, next_index=node.next_index + 1, version=node.version + 1)
    draft.put(paths.topic(m.topic), changed)
    check_name(m.partition, "partition name")
    making = Making(node.id, wall_ms)
    making.replicas = node.replicas
    _add_partitions(draft, node, (m.partition,), node.next_index, live, making)


def delete_topic(draft: Draft, topic: TopicImage) -> tuple[tuple[str, ...], bool]:
    """Remove a topic; returns the brokers with files of the topic, and whether the removal is
    complete.

    If the topic is too large for one commit, this commit hides the topic, and :func:`remove_topic`
    removes the rest.

    The tree keeps the names of these brokers until they have confirmed the removal: a broker
    removes files only on request, never because it does not know the files (K7).

    Raises:
        InvalidRequest: the topic is internal.
    """
    name = topic.node.name
    if is_internal(name):
        raise InvalidRequest(f"topic {name!r} is pymq's own and cannot be deleted")
    brokers: set[str] = set()
    for image in topic.partitions.values():
        brokers.update(image.hosts, image.node.leaving)
    if (offsets := draft.image.topics.get(OFFSETS_TOPIC)) is not None:
        # Group coordinators must drop the topic's offsets, because a later topic of that name
        # starts without offsets.
        for image in offsets.partitions.values():
            brokers.update(image.open_block.replicas)
    rest = Draft(draft.image, draft.bytes_max)
    if is_whole := remove_topic(rest, topic):
        draft.extend(rest)
    else:
        node = topic.node
        draft.put(paths.topic(name), attrs.evolve(node, version=node.version + 1, is_hidden=True))
    told = tuple(sorted(brokers))
    if told:
        deleted = DeletedNode(name, topic.node.id, told)
        draft.create(paths.deleted_topic(topic.node.id), deleted)
    return told, is_whole


def remove_topic(draft: Draft, topic: TopicImage) -> bool:
    """Remove a topic's nodes, from the leaves up; returns whether the removal is complete."""
    name = topic.node.name
    for partition, image in topic.partitions.items():
        for number in image.blocks:
            if draft.is_full:
                return False
            blocks.remove(draft, TopicPartition(name, partition), image, number)
        draft.delete(paths.partition(name, partition))
    for subscription in topic.subscriptions:
        if draft.is_full:
            return False
        draft.delete(paths.subscription(name, subscription))
    draft.delete(paths.partitions(name))
    draft.delete(paths.subscriptions(name))
    draft.delete(paths.topic(name))
    return True


def check_in_sync(config: TopicConfig, replicas: int) -> None:
    """Check that a partition has enough replicas for ``min_in_sync``.

    Raises:
        ConfigError: ``min_in_sync`` is more than *replicas*.
    """
    if config.min_in_sync > replicas:
        raise ConfigError(
            f"min_in_sync={config.min_in_sync} is more than {plural(replicas, 'replica')}: "
            "every producer with acks='all' would be refused"
        )


def delete_records(draft: Draft, m: DeleteRecords) -> None:
    """Draft the deletion of a partition's records before an offset.

    Raises:
        UnknownTopic, UnknownPartition: there is no such partition.
        InvalidRequest: the request is about another topic of that name, or the offset is negative.
    """
    topic = draft.image.topic(m.topic).node
    if m.topic_id not in ("", topic.id):
        raise InvalidRequest(f"topic {m.topic!r} is not the topic with the id {m.topic_id}")
    if m.before < 0:
        raise InvalidRequest(f"{m.before} is no offset")
    name = TopicPartition(m.topic, m.partition)
    image = draft.image.partition(*name)
    if m.before > max(image.node.log_start, next(iter(image.blocks.values())).start):
        blocks.change(draft, name, log_start=m.before)


def alter_topic(draft: Draft, m: AlterTopic) -> None:
    """Change options of a topic.

    Raises:
        UnknownTopic, ConfigError: as the names say.
    """
    node = draft.image.topic(m.name).node
    config = node.config.altered(m.config)
    if config.min_in_sync > node.config.min_in_sync:
        for partition in draft.image.topic(m.name).partitions.values():
            check_in_sync(config, partition.node.replicas)
    if config != node.config:
        draft.put(paths.topic(m.name), attrs.evolve(node, config=config, version=node.version + 1))


def offsets_topic(
    id: int,  # the parameter is named after a field
    partitions: int,
    replicas: int,
    brokers: int,
) -> CreateTopic:
    """Return the request that creates the group coordinators' topic.

    *brokers* is the number of live brokers.

    The topic's ack mode is ``raft`` if a majority survives the loss of one broker. If there are
    only two replicas, each must be able to continue alone, so the mode is ``leader``, which has an
    in-sync set.
    """
    names = tuple(str(index) for index in range(partitions))
    acks = AckMode.RAFT if min(replicas, brokers) > 2 else AckMode.LEADER
    return CreateTopic(id, OFFSETS_TOPIC, names, replicas, acks, dict(OFFSETS_CONFIG), True)


# --- clients ------------------------------------------------------------------------------------


def subscribe(draft: Draft, m: Subscribe, source: str) -> None:
    """Create or replace a subscription; does nothing if the same subscription exists.

    A group's subscription is permanent. A reader's subscription ends with the reader or its
    zkserver (see :mod:`~pymq.controller.operations.subscribers`), so it needs no write to a disk,
    which may be full.

    Raises:
        UnknownTopic, UnknownPartition, InvalidName: as the names say. InvalidRequest: the mode is
        unknown, or the name belongs to another client. GroupLimitReached: the topic has reached its
        limit of subscriptions of groups, or of readers.
    """
    topic = draft.image.topic(m.topic)
    if m.partition is not None:
        draft.image.partition(m.topic, m.partition)
    if m.group is not None:
        check_name(m.group, "group name")
    if m.mode not in MODES:
        raise InvalidRequest(f"a subscription's mode must be {' or '.join(MODES)}")
    node = SubscriptionNode(m.name, m.topic, m.mode, m.group, m.partition)
    path = paths.subscription(m.topic, m.name)
    _check_subscriber(topic, m, source)
    if m.name not in topic.subscriptions:
        _check_room(topic, is_group=m.group is not None)
        draft.create(path, node, ephemeral=m.group is None)
    elif topic.subscriptions[m.name] != node:
        draft.put(path, node)


def _check_room(topic: TopicImage, *, is_group: bool) -> None:
    kept = topic.subscriptions.values()
    if sum((each.group is not None) == is_group for each in kept) >= SUBSCRIPTIONS_MAX:
        raise GroupLimitReached(
            f"topic {topic.node.name!r} has {SUBSCRIPTIONS_MAX} subscriptions of "
            f"{'groups' if is_group else 'readers'}; end some with mq.unsubscribe or "
            "mq.delete_group, or close readers"
        )


def _check_subscriber(topic: TopicImage, m: Subscribe | Unsubscribe, source: str) -> None:
    """Check that *source* may use a subscription of that name.

    A group's subscription has the group's name; access rules have checked that *source* may use
    this name. A reader's name begins with the name of its node, and only that node may use the
    name.
    """
    before = topic.subscriptions.get(m.name)
    if m.group is not None:
        is_theirs = m.name == m.group
    else:
        is_theirs = node_of(m.name) in (source, node_of(source))
    if not is_theirs or (before is not None and before.group != m.group):
        raise InvalidRequest(
            f"the subscription {m.name!r} is not for {source}: a group's has the group's name, "
            "and a reader's begins with the name of its node"
        )


def unsubscribe(draft: Draft, m: Unsubscribe, source: str) -> bool:
    """Remove a subscription; returns whether there was one.

    Raises:
        InvalidName: a topic or a subscription may not have that name.
        InvalidRequest: the subscription belongs to another client.
    """
    if (topic := draft.image.topics.get(m.topic)) is not None:
        _check_subscriber(topic, m, source)
    draft.delete(paths.subscription(m.topic, m.name))
    return topic is not None and m.name in topic.subscriptions


def keep_secret(draft: Draft, new_id: Callable[[], str]) -> None:
    """Create the secret of producer-id grants, if there is none."""
    if not draft.image.secret:
        draft.create(paths.secret(), SecretNode(bytes.fromhex(new_id())))


def init_producer(draft: Draft, m: InitProducer, new_id: Callable[[], str]) -> ProducerIds | int:
    """Raise the epoch of a named producer, unless the request is of the same run.

    Without a name, the function assigns a block of ids.

    A name that was first used before the cluster assigned ids keeps its hashed id, so that its
    sequences continue. A grant protects that id like any other id.

    Raises:
        InvalidName: the name or the run is not valid. InvalidRequest: the name has an id, but this
        client would use a different id. ProducerLimitReached: the name is new, and the cluster has
        reached its limit of names. NoBrokers: no broker has registered yet.
    """
    secret = draft.image.secret
    if not m.name and m.takes_ids:
        if not secret:
            raise NoBrokers("no broker has registered yet")
        return grants.give(secret, "", new_id)
    check_name(m.name, "producer id")
    if m.run:
        check_name(m.run, "run")
    known = draft.image.producers.get(m.name)
    if known is None:
        if len(draft.image.producers) >= NAMES_MAX:
            raise ProducerLimitReached(
                f"the cluster has {NAMES_MAX} named producers, and {m.name!r} is not one of them; "
                "names are permanent, so name a program, not each of its runs"
            )
        number = grants.new_named(new_id) if m.takes_ids else -1
        node = ProducerNode(m.name, 0, m.run, number)
        draft.create(paths.producer(m.name), node)
    elif m.run and known.run == m.run:
        node = known
    else:
        node = ProducerNode(m.name, known.epoch + 1, m.run, known.id)
        draft.put(paths.producer(m.name), node)
    if not m.takes_ids:
        if node.id >= 0:
            raise InvalidRequest(f"producer {m.name!r} has an id; this client is too old to use it")
        return node.epoch
    number = node.id if node.id >= 0 else hashed_id(m.name)
    grant = grants.Grant(number, 1, node.epoch, "", m.name)
    return ProducerIds(number, 1, node.epoch, grants.seal(secret, grant) if secret else b"")
