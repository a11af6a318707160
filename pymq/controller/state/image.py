"""The zkserver's image of the metadata tree, and drafts of atomic changes to it.

The image changes in two ways only: it is loaded, or it adopts a :class:`Draft` that the coordinator
has committed. So an image always equals the tree at one point in time. An image has indexes, for
example of partitions by broker, so that no request has to scan all partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeVar

from pymq.controller.state.hosting_index import Hosting
from pymq.coord import paths
from pymq.core.metadata.coordination import Create, Delete, Entry, Op, Put
from pymq.core.metadata.nodes import (
    BlockNode,
    BrokerNode,
    BrokerState,
    ControllerEpoch,
    ControllerNode,
    DeletedNode,
    Node,
    PartitionNode,
    PartitionState,
    ProducerNode,
    ReplicaNode,
    SecretNode,
    SubscriptionNode,
    TopicNode,
    decode_node,
    encode_node,
)
from pymq.core.types import TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import UnknownPartition, UnknownTopic

SLICE_OPS = 500  # approximate limit of operations in a commit; larger changes take several commits
# approximate limit of bytes in a commit; ZooKeeper accepts 1 MiB in one transaction
SLICE_BYTES = 1 << 18

K = TypeVar("K")


@define
class PartitionImage:
    """A partition with its blocks, by number and in that order."""

    node: PartitionNode
    blocks: dict[int, BlockNode] = Factory(dict)
    replicas: dict[tuple[int, str], ReplicaNode] = Factory(dict)  # by block and broker

    @property
    def open_block(self) -> BlockNode:
        """The last block, which accepts new records."""
        return self.blocks[next(reversed(self.blocks))]

    @property
    def hosts(self) -> dict[str, None]:
        """The brokers that host a block of the partition, without repetitions, in the order of the
        blocks.
        """
        return dict.fromkeys(name for block in self.blocks.values() for name in block.replicas)


@define
class TopicImage:
    """A topic with its partitions, in creation order."""

    node: TopicNode
    partitions: dict[str, PartitionImage] = Factory(dict)
    subscriptions: dict[str, SubscriptionNode] = Factory(dict)

    def state(self, partition: str) -> PartitionState:
        """Return the state of one partition for a `LeaderAndIsr` message."""
        image = self.partitions[partition]
        node = image.node
        return PartitionState(
            self.node.name,
            self.node.id,
            node.name,
            node.index,
            node.acks,
            node.epoch,
            image.open_block.leader,
            self.node.config,
            tuple(image.blocks.values()),
            len(self.partitions),
            # Both versions only rise, so their sum rises whenever one of them changes.
            self.node.version + node.version,
            deleted_to=node.log_start,
        )


class Image:
    """All nodes of the tree, decoded, with indexes."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicImage] = {}
        self.hidden: dict[str, TopicImage] = {}  # topics that are being created or removed
        self.brokers: dict[str, BrokerNode] = {}
        self.controller: ControllerNode | None = None
        self.controller_epoch = 0
        self.producers: dict[str, ProducerNode] = {}
        self.secret = b""  # secret of producer-id grants
        self.deleted: dict[str, DeletedNode] = {}  # by topic id
        self.hosting = Hosting()
        self.short: dict[TopicPartition, None] = {}  # partitions with too few replicas
        # partitions with an open request of an administrator
        self.wanted: dict[TopicPartition, None] = {}
        self.draining: dict[str, None] = {}  # decommissioned brokers
        self.sealed_to: dict[TopicPartition, None] = {}  # partitions whose sealed blocks must move
        self.moving: dict[tuple[TopicPartition, int], None] = {}  # sealed blocks being moved
        # sealed blocks with fewer complete copies than requested
        self.not_whole: dict[tuple[TopicPartition, int], None] = {}
        self.versions: dict[str, int] = {}

    def topic(self, name: str) -> TopicImage:
        """Find a topic.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        try:
            return self.topics[name]
        except KeyError:
            raise UnknownTopic(
                f"there is no topic {name!r}; create it with create_topic({name!r})"
            ) from None

    def partition(self, topic: str, name: str) -> PartitionImage:
        """Find a partition.

        Raises:
            UnknownTopic: there is no such topic.
            UnknownPartition: the topic has no such partition.
        """
        found = self.topic(topic).partitions
        try:
            return found[name]
        except KeyError:
            names = ", ".join(islice(found, 8))
            raise UnknownPartition(
                f"topic {topic!r} has no partition {name!r}; it has {names}"
            ) from None

    def find(self, name: TopicPartition) -> PartitionImage | None:
        """Find a partition that may have been deleted."""
        topic = self.topics.get(name.topic)
        return None if topic is None else topic.partitions.get(name.partition)

    @classmethod
    def load(cls, entries: Iterable[Entry]) -> Image:
        """Build the image from the entries of the tree.

        Raises:
            CorruptMetadata: a node cannot be decoded.
        """
        image = cls()
        for entry in entries:
            kind = _node_class(entry.path)
            node = decode_node(kind, entry.data) if kind is not None and entry.data else None
            image.set(entry.path, node, entry.version)
        for topic in (*image.topics.values(), *image.hidden.values()):
            ordered = sorted(topic.partitions.values(), key=lambda p: p.node.index)
            topic.partitions = {p.node.name: p for p in ordered}
            for partition in ordered:
                blocks = partition.blocks
                partition.blocks = {number: blocks[number] for number in sorted(blocks)}
        return image

    def set(self, path: str, node: Node | None, version: int) -> None:
        """Note that *path* now holds *node* (None for a folder)."""
        self.versions[path] = version
        match paths.parse(path), node:
            case paths.TopicPath(topic=topic), TopicNode():
                self._set_topic(topic, node)
            case paths.PartitionPath(topic=topic, partition=name), PartitionNode():
                self._set_partition(TopicPartition(topic, name), node)
            case paths.BlockPath(topic=topic, partition=name, block=number), BlockNode():
                self._set_block(TopicPartition(topic, name), number, node)
            case paths.ReplicaPath(topic=topic, partition=name, block=number), ReplicaNode():
                image = self._topic(topic).partitions[name]
                image.replicas[number, node.broker] = node
            case paths.SubscriptionPath(topic=topic), SubscriptionNode():
                self._topic(topic).subscriptions[node.name] = node
            case paths.BrokerPath(broker=name), BrokerNode():
                self.brokers[name] = node
                _keep(self.draining, name, is_in=node.is_draining)
            case paths.ControllerPath(), ControllerNode():
                self.controller = node
            case paths.ControllerEpochPath(), ControllerEpoch():
                self.controller_epoch = node.epoch
            case paths.ProducerPath(), ProducerNode():
                self.producers[node.name] = node
            case paths.SecretPath(), SecretNode():
                self.secret = node.secret
            case paths.DeletedTopicPath(), DeletedNode():
                self.deleted[node.id] = node
            case _:
                pass  # a folder, or a node of a later version

    def unset(self, path: str) -> None:
        """Note that *path* is gone."""
        self.versions.pop(path, None)
        match paths.parse(path):
            case paths.TopicPath(topic=topic):
                self.topics.pop(topic, None)
                self.hidden.pop(topic, None)
            case paths.PartitionPath(topic=topic, partition=name):
                self._set_partition(TopicPartition(topic, name), None)
            case paths.BlockPath(topic=topic, partition=name, block=number):
                self._set_block(TopicPartition(topic, name), number, None)
            case paths.ReplicaPath(topic=topic, partition=name, block=number, broker=broker):
                self._topic(topic).partitions[name].replicas.pop((number, broker), None)
            case paths.SubscriptionPath(topic=topic, subscription=name):
                self._topic(topic).subscriptions.pop(name, None)
            case paths.ControllerPath():
                self.controller = None
            case paths.DeletedTopicPath(topic_id=topic_id):
                self.deleted.pop(topic_id, None)
            case _:
                pass

    def _topic(self, name: str) -> TopicImage:
        return self.topics.get(name) or self.hidden[name]

    def _set_topic(self, name: str, node: TopicNode) -> None:
        there, elsewhere = self.topics, self.hidden
        if node.is_hidden:
            there, elsewhere = elsewhere, there
        found = elsewhere.pop(name, None)
        if found is not None:
            there[name] = found
            found.node = node
            for partition, image in found.partitions.items():
                self._show(TopicPartition(name, partition), image, is_hidden=node.is_hidden)
        elif name in there:
            there[name].node = node
        else:
            there[name] = TopicImage(node)

    def _show(self, name: TopicPartition, image: PartitionImage, *, is_hidden: bool) -> None:
        """Add a partition to the indexes, or remove it if it becomes hidden."""
        # skip changes without effect, since all partitions of a topic may run this in one turn
        node = image.node
        if node.leaving and is_hidden:
            self.hosting.replace_leaving(name, node.leaving, ())
        elif node.leaving:
            self.hosting.replace_leaving(name, (), node.leaving)
        for number, block in image.blocks.items():
            if is_hidden:
                self.hosting.replace_block(name, block, None)
            else:
                self.hosting.replace_block(name, None, block)
            if block.end is not None:
                self._index_block(name, number, None if is_hidden else block)
        if node.wanted is not None:
            _keep(self.wanted, name, is_in=not is_hidden)
        if node.sealed_to:
            _keep(self.sealed_to, name, is_in=not is_hidden)
        if is_hidden:
            self.short.pop(name, None)
        else:
            self._count(name, image)

    def _set_hidden(self, name: TopicPartition, node: PartitionNode | None) -> None:
        partitions = self.hidden[name.topic].partitions
        if node is None:
            del partitions[name.partition]
        elif (known := partitions.get(name.partition)) is not None:
            known.node = node
        else:
            partitions[name.partition] = PartitionImage(node)

    def _set_partition(self, name: TopicPartition, node: PartitionNode | None) -> None:
        if name.topic in self.hidden:
            self._set_hidden(name, node)
            return
        partitions = self.topics[name.topic].partitions
        known = partitions.get(name.partition)
        before = known.node.leaving if known is not None else ()
        self.hosting.replace_leaving(name, before, node.leaving if node is not None else ())
        _keep(self.wanted, name, is_in=node is not None and node.wanted is not None)
        _keep(self.sealed_to, name, is_in=node is not None and bool(node.sealed_to))
        if node is None:
            del partitions[name.partition]
            self.short.pop(name, None)
        elif known is None:
            partitions[name.partition] = PartitionImage(node)
        else:
            known.node = node
            self._count(name, known)

    def _index_block(self, name: TopicPartition, number: int, node: BlockNode | None) -> None:
        sealed = node if node is not None and node.end is not None else None
        is_moving = sealed is not None and sealed.move is not None
        _keep(self.moving, (name, number), is_in=is_moving)
        lacks = sealed is not None and len(sealed.in_sync) < sealed.wanted_copies
        _keep(self.not_whole, (name, number), is_in=lacks)

    def _set_block(self, name: TopicPartition, number: int, node: BlockNode | None) -> None:
        image = self._topic(name.topic).partitions[name.partition]
        is_hidden = name.topic in self.hidden
        if not is_hidden:
            self.hosting.replace_block(name, image.blocks.get(number), node)
            self._index_block(name, number, node)
        if node is None:
            del image.blocks[number]
        else:
            image.blocks[number] = node
        if not is_hidden:
            self._count(name, image)

    def _count(self, name: TopicPartition, image: PartitionImage) -> None:
        """Note whether the open block has too few replicas."""
        open_block = image.open_block if image.blocks else None
        if open_block is None or open_block.end is not None or not open_block.replicas:
            return  # the change is not complete, or the partition has no replicas yet
        if len(open_block.replicas) < image.node.replicas:
            self.short[name] = None
        else:
            self.short.pop(name, None)


def _keep(index: dict[K, None], key: K, *, is_in: bool) -> None:
    """Add *key* to an index, or remove it from the index."""
    if is_in:
        index[key] = None
    else:
        index.pop(key, None)


_NODES: dict[type[paths.MetaPath], type[Node]] = {
    paths.TopicPath: TopicNode,
    paths.PartitionPath: PartitionNode,
    paths.BlockPath: BlockNode,
    paths.ReplicaPath: ReplicaNode,
    paths.SubscriptionPath: SubscriptionNode,
    paths.BrokerPath: BrokerNode,
    paths.BrokerStatePath: BrokerState,
    paths.ControllerPath: ControllerNode,
    paths.ControllerEpochPath: ControllerEpoch,
    paths.ProducerPath: ProducerNode,
    paths.SecretPath: SecretNode,
    paths.DeletedTopicPath: DeletedNode,
}


def _node_class(path: str) -> type[Node] | None:
    parsed = paths.parse(path)
    return None if parsed is None else _NODES.get(type(parsed))


@define
class Draft:
    """A planned change: operations for the coordinator, and the matching edits of the image."""

    image: Image
    bytes_max: int = SLICE_BYTES
    ops: list[Op] = Factory(list)
    # (path, node, whether the node was deleted)
    edits: list[tuple[str, Node | None, bool]] = Factory(list)
    size: int = 0  # approximate bytes of the operations

    @property
    def is_full(self) -> bool:
        """Whether the change must continue in another commit."""
        return len(self.ops) >= SLICE_OPS or self.size >= self.bytes_max

    def _add(self, op: Op, node: Node | None, *, is_gone: bool = False) -> None:
        self.ops.append(op)
        self.edits.append((op.path, node, is_gone))
        self.size += 100 + len(op.path) + (len(op.data) if isinstance(op, (Create, Put)) else 0)

    def folder(self, path: str) -> None:
        """Create a folder node, unless it exists."""
        if path not in self.image.versions and all(path != edit[0] for edit in self.edits[-8:]):
            self._add(Create(path, b""), None)

    def create(self, path: str, node: Node, *, ephemeral: bool = False) -> None:
        """Create a node."""
        self._add(Create(path, encode_node(node), ephemeral), node)

    def put(self, path: str, node: Node) -> None:
        """Replace a node, if it still has the image's version."""
        self._add(Put(path, encode_node(node), self.image.versions[path]), node)

    def delete(self, path: str) -> None:
        """Delete a node, if it still has the image's version."""
        if path in self.image.versions:
            self._add(Delete(path, self.image.versions[path]), None, is_gone=True)

    def extend(self, other: Draft) -> None:
        """Append the changes of *other*."""
        self.ops += other.ops
        self.edits += other.edits
        self.size += other.size

    def adopt(self, versions: Sequence[int]) -> None:
        """Apply the committed changes to the image.

        *versions* are the new versions of the nodes.
        """
        for (path, node, gone), version in zip(self.edits, versions, strict=True):
            if gone:
                self.image.unset(path)
            else:
                self.image.set(path, node, version)
