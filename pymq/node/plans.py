"""What each request of an administrator means for the tree; pure functions over the image.

Each takes the image and the request and writes into a :class:`~pymq.node.image.Draft`. It raises
what the caller is to be told, and then nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import attrs

from pymq.coord import paths
from pymq.core.config import TopicConfig
from pymq.core.message import (
    AlterTopic,
    BlockSizes,
    CreatePartition,
    CreateTopic,
    Locate,
    Location,
    RetireBlocks,
    Sealed,
    Subscribe,
)
from pymq.core.metadata import (
    BlockNode,
    PartitionLeader,
    PartitionNode,
    ProducerNode,
    ReplicaNode,
    SubscriptionNode,
    TopicMetadata,
    TopicNode,
)
from pymq.core.types import INTERNAL_PREFIX, OFFSETS_TOPIC, AckMode, check_name
from pymq.core.values import value
from pymq.errors import (
    ConfigError,
    InvalidRequest,
    NoBrokers,
    NotSubscribed,
    PartitionExists,
    StaleEpoch,
    TopicExists,
    UnknownPartition,
)
from pymq.hash.place import place
from pymq.node.image import PRODUCERS, Draft, Image, PartitionImage, TopicImage

PARTITIONS_MAX = 100_000
OFFSETS_CONFIG = {"cleanup_policy": "compact", "block_bytes": 16 << 20, "fsync": "interval"}


@value
class Wanted:
    """How the next block of a partition is to be replicated."""

    acks: AckMode
    replicas: tuple[str, ...]  # the first is to lead


# --- placement ----------------------------------------------------------------------------------


class Load:
    """How much each of *live* brokers carries; counts on as blocks are placed."""

    def __init__(self, image: Image, live: Collection[str]) -> None:
        self.hosting: Counter[str] = Counter()
        self.leading: Counter[str] = Counter()
        if len(live) < 2:
            return  # There is no choice, and looking at every partition takes a while.
        for topic in image.topics.values():
            for partition in topic.partitions.values():
                self.add(partition.open_block.replicas)

    def add(self, replicas: tuple[str, ...]) -> None:
        """One block more."""
        self.hosting.update(replicas)
        self.leading.update(replicas[:1])


def choose(
    image: Image, live: Collection[str], load: Load, topic: str, partition: str, replicas: int
) -> tuple[str, ...]:
    """Pick the brokers of a new block.

    Raises:
        NotEnoughBrokers: fewer live brokers than replicas.
    """
    brokers = {name: float(image.brokers[name].weight) for name in sorted(live)}
    racks = {name: image.brokers[name].rack for name in brokers}
    chosen = place(
        f"{topic}/{partition}",
        brokers,
        replicas,
        racks if any(racks.values()) else None,
        hosting=load.hosting,
        leading=load.leading,
    )
    load.add(chosen)
    return chosen


# --- topics -------------------------------------------------------------------------------------


def create_topic(
    draft: Draft, m: CreateTopic, live: Collection[str], topic_id: str, wall_ms: int
) -> None:
    """Make a topic with all its partitions.

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
    node = TopicNode(m.name, topic_id, len(m.partitions), m.acks, m.replicas, config)
    _folders(draft)
    draft.create(paths.topic(m.name), node)
    draft.folder(paths.partitions(m.name))
    draft.folder(paths.subscriptions(m.name))
    load = Load(draft.image, live)
    for index, partition in enumerate(m.partitions):
        _add_partition(draft, node, partition, index, live, load, wall_ms)


def _folders(draft: Draft) -> None:
    for path in (paths.ROOT, paths.brokers(), paths.topics(), PRODUCERS):
        draft.folder(path)


def folders(draft: Draft) -> None:
    """Make what an empty tree needs before anything else."""
    _folders(draft)


def create_partition(draft: Draft, m: CreatePartition, live: Collection[str], wall_ms: int) -> None:
    """Add a partition.

    Raises:
        InvalidName, UnknownTopic, PartitionExists, NotEnoughBrokers: as they say.
    """
    topic = draft.image.topic(m.topic)
    if m.partition in topic.partitions:
        raise PartitionExists(f"topic {m.topic!r} has a partition {m.partition!r} already")
    node = topic.node
    draft.put(paths.topic(m.topic), attrs.evolve(node, next_index=node.next_index + 1))
    load = Load(draft.image, live)
    _add_partition(draft, node, m.partition, node.next_index, live, load, wall_ms)


def _add_partition(
    draft: Draft,
    topic: TopicNode,
    name: str,
    index: int,
    live: Collection[str],
    load: Load,
    wall_ms: int,
) -> None:
    check_name(name, "partition name")
    unset = topic.acks is AckMode.UNSET
    chosen = () if unset else choose(draft.image, live, load, topic.name, name, topic.replicas)
    epoch = 0 if unset else 1
    draft.create(
        paths.partition(topic.name, name),
        PartitionNode(name, index, topic.acks, topic.replicas, 1, epoch),
    )
    _add_block(draft, topic.name, name, 0, 0, epoch, Wanted(topic.acks, chosen), wall_ms)


def _add_block(
    draft: Draft,
    topic: str,
    partition: str,
    number: int,
    start: int,
    epoch: int,
    wanted: Wanted,
    wall_ms: int,
) -> None:
    leader = wanted.replicas[0] if wanted.replicas else None
    node = BlockNode(
        number,
        start,
        None,
        epoch,
        wanted.acks,
        leader,
        wanted.replicas,
        wanted.replicas,
        opened_ms=wall_ms,
    )
    draft.create(paths.block(topic, partition, number), node)
    for broker in wanted.replicas:
        replica = ReplicaNode(broker, start, start, True)
        draft.create(paths.replica(topic, partition, number, broker), replica)


def delete_topic(draft: Draft, topic: TopicImage) -> None:
    """Remove a topic, from the leaves up."""
    name = topic.node.name
    for partition in topic.partitions:
        for number in sorted(topic.partitions[partition].blocks):
            _delete_block(draft, name, partition, topic.partitions[partition], number)
        draft.delete(paths.partition(name, partition))
    draft.delete(paths.partitions(name))
    for subscription in topic.subscriptions:
        draft.delete(paths.subscription(name, subscription))
    draft.delete(paths.subscriptions(name))
    draft.delete(paths.topic(name))


def _delete_block(
    draft: Draft, topic: str, partition: str, image: PartitionImage, number: int
) -> None:
    for block, broker in sorted(image.replicas):
        if block == number:
            draft.delete(paths.replica(topic, partition, number, broker))
    draft.delete(paths.block(topic, partition, number))


def alter_topic(draft: Draft, m: AlterTopic) -> None:
    """Change options.

    Raises:
        UnknownTopic, ConfigError: as they say.
    """
    node = draft.image.topic(m.name).node
    draft.put(paths.topic(m.name), attrs.evolve(node, config=node.config.altered(m.config)))


# --- partitions ---------------------------------------------------------------------------------


def check_mode(acks: AckMode) -> None:
    """Refuse what nobody can be told to do.

    Raises:
        ConfigError: UNSET is where a partition begins, not where it can go.
    """
    if acks is AckMode.UNSET:
        raise ConfigError("a partition cannot go back to 'unset'; use 'raft', 'leader' or 'none'")


def open_first(
    draft: Draft, topic: str, partition: str, wanted: Wanted, replicas: int, wall_ms: int
) -> None:
    """UNSET to any mode: the empty open block gets its replicas."""
    image = draft.image.partition(topic, partition)
    block, epoch = image.open_block, image.node.epoch + 1
    draft.put(
        paths.partition(topic, partition),
        attrs.evolve(image.node, acks=wanted.acks, replicas=replicas, epoch=epoch),
    )
    draft.put(
        paths.block(topic, partition, block.number),
        attrs.evolve(
            block,
            epoch=epoch,
            acks=wanted.acks,
            leader=wanted.replicas[0],
            replicas=wanted.replicas,
            in_sync=wanted.replicas,
            opened_ms=wall_ms,
        ),
    )
    for broker in wanted.replicas:
        node = ReplicaNode(broker, block.start, block.start, True)
        draft.create(paths.replica(topic, partition, block.number, broker), node)


def change_acks(draft: Draft, topic: str, partition: str, acks: AckMode) -> None:
    """0 to 1 and back: recorded, nothing moves."""
    image = draft.image.partition(topic, partition)
    block = image.open_block
    draft.put(paths.partition(topic, partition), attrs.evolve(image.node, acks=acks))
    draft.put(paths.block(topic, partition, block.number), attrs.evolve(block, acks=acks))


def roll(draft: Draft, sealed: Sealed, wanted: Wanted, replicas: int, wall_ms: int) -> None:
    """Seal the open block at its end and open the next one there: one conditional write.

    Raises:
        StaleEpoch: the block is not the open one any more.
    """
    image = draft.image.partition(sealed.topic, sealed.partition)
    node, block = image.node, image.open_block
    if block.number != sealed.block or sealed.epoch <= node.epoch:
        raise StaleEpoch(f"{sealed.topic}/{sealed.partition} has been rolled by another")
    draft.put(
        paths.partition(sealed.topic, sealed.partition),
        attrs.evolve(
            node,
            acks=wanted.acks,
            replicas=replicas,
            next_block=node.next_block + 1,
            epoch=sealed.epoch,
        ),
    )
    draft.put(
        paths.block(sealed.topic, sealed.partition, block.number),
        attrs.evolve(block, end=sealed.end, size=sealed.size, max_timestamp=sealed.max_timestamp),
    )
    replica = image.replicas.get((block.number, sealed.broker))
    if replica is not None:
        path = paths.replica(sealed.topic, sealed.partition, block.number, sealed.broker)
        draft.put(path, attrs.evolve(replica, end=sealed.end))
    _add_block(
        draft,
        sealed.topic,
        sealed.partition,
        node.next_block,
        sealed.end,
        sealed.epoch,
        wanted,
        wall_ms,
    )


def retire(draft: Draft, m: RetireBlocks) -> None:
    """Forget the blocks that retention has let go of; their files go after the commit."""
    image = draft.image.topic(m.topic).partitions.get(m.partition)
    if image is None or image.node.epoch != m.epoch:
        return
    for number in sorted(image.blocks):
        if number < min(m.before, image.open_block.number):
            _delete_block(draft, m.topic, m.partition, image, number)


def resize(draft: Draft, m: BlockSizes) -> None:
    """Note the sizes of blocks that were compacted."""
    topic = draft.image.topics.get(m.topic)
    image = topic.partitions.get(m.partition) if topic else None
    for number, size in m.sizes:
        block = image.blocks.get(number) if image else None
        if block is not None and block.size != size:
            path = paths.block(m.topic, m.partition, number)
            draft.put(path, attrs.evolve(block, size=size))


# --- clients ------------------------------------------------------------------------------------


def metadata(image: Image, name: str, endpoints: Collection[str]) -> TopicMetadata:
    """Where a topic's partitions are led.

    Raises:
        UnknownTopic: there is none of that name.
    """
    topic = image.topic(name)
    leaders = []
    for partition in topic.partitions.values():
        node, leader = partition.node, partition.open_block.leader
        broker = image.brokers[leader] if leader is not None and leader in endpoints else None
        leaders.append(
            PartitionLeader(
                node.name,
                node.index,
                node.acks,
                node.epoch,
                broker.name if broker else None,
                broker.endpoint if broker else None,
            )
        )
    return TopicMetadata(name, topic.node.id, topic.node.config, tuple(leaders))


def offsets_topic(id: int, partitions: int, replicas: int) -> CreateTopic:  # a field's name
    """The request that makes the internal topic of the group coordinators."""
    names = tuple(str(index) for index in range(partitions))
    return CreateTopic(
        id, OFFSETS_TOPIC, names, replicas, AckMode.LEADER, dict(OFFSETS_CONFIG), True
    )


def subscribe(draft: Draft, m: Subscribe) -> None:
    """Record a subscription; one that is there already is left as it is, or replaced.

    A group's is kept: it says who consumes the topic, now or later. A reader's goes with its reader
    or its zkserver, so recording it writes nothing to a disk, which may be full.

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


def locate(image: Image, m: Locate, live: Collection[str]) -> tuple[Location, ...]:
    """For each offset, the live replica of its block that reaches farthest.

    Raises:
        UnknownTopic: there is none of that name.
        NotSubscribed: consuming needs a subscription.
    """
    topic = image.topic(m.topic)
    if m.name not in topic.subscriptions:
        raise NotSubscribed(f"{m.name!r} has no subscription to topic {m.topic!r}")
    return tuple(_locate(image, topic, name, offset, live) for name, offset in m.offsets)


def _locate(
    image: Image, topic: TopicImage, partition: str, offset: int, live: Collection[str]
) -> Location:
    found = topic.partitions.get(partition)
    if found is None:
        gone = UnknownPartition(f"topic {topic.node.name!r} has no partition {partition!r}")
        return Location(partition, offset, error=gone)
    blocks = [found.blocks[number] for number in sorted(found.blocks)]
    block = next((b for b in reversed(blocks) if b.start <= offset), blocks[0])
    ends = {b: r.end for (n, b), r in found.replicas.items() if n == block.number and b in live}
    if not ends:
        reason = NoBrokers(f"no replica of {topic.node.name}/{partition} {block.name} is alive")
        return Location(partition, offset, block.name, error=reason)
    best = min(ends, key=lambda name: (-ends[name], name != block.leader, name))
    return Location(partition, offset, block.name, best, image.brokers[best].endpoint)


def next_producer_epoch(draft: Draft, name: str) -> int:
    """Raise the epoch of a named producer.

    Raises:
        InvalidName: the name may not be one.
    """
    check_name(name, "producer id")
    known = draft.image.producers.get(name)
    path = f"{PRODUCERS}/{name}"
    epoch = known.epoch + 1 if known else 0
    if known is None:
        draft.create(path, ProducerNode(name, epoch))
    else:
        draft.put(path, ProducerNode(name, epoch))
    return epoch


def is_internal(topic: str) -> bool:
    """Whether a topic is pymq's own."""
    return topic.startswith(INTERNAL_PREFIX)
