"""The zkserver's picture of the tree, and changes to it that happen whole or not at all.

The image changes in two ways only: it is loaded, or it adopts a :class:`Draft` that the coordinator
has committed. So it is what the tree was at some point in time, never a mixture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pymq.coord import paths
from pymq.core.coordination import Commit, Create, Delete, Entry, Op, Put
from pymq.core.metadata import (
    BlockNode,
    BrokerNode,
    BrokerState,
    ControllerEpoch,
    ControllerNode,
    Node,
    PartitionNode,
    PartitionState,
    ProducerNode,
    ReplicaNode,
    SubscriptionNode,
    TopicNode,
    decode_node,
    encode_node,
)
from pymq.core.values import Factory, define
from pymq.errors import UnknownPartition, UnknownTopic

PRODUCERS = f"{paths.ROOT}/producers"


@define
class PartitionImage:
    """A partition with its blocks, in order."""

    node: PartitionNode
    blocks: dict[int, BlockNode] = Factory(dict)
    replicas: dict[tuple[int, str], ReplicaNode] = Factory(dict)  # by block and broker

    @property
    def open_block(self) -> BlockNode:
        """The block that takes the next record."""
        return self.blocks[max(self.blocks)]


@define
class TopicImage:
    """A topic with its partitions, in creation order."""

    node: TopicNode
    partitions: dict[str, PartitionImage] = Factory(dict)
    subscriptions: dict[str, SubscriptionNode] = Factory(dict)

    def state(self, partition: str) -> PartitionState:
        """What a broker must know of one partition."""
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
            tuple(image.blocks[number] for number in sorted(image.blocks)),
            len(self.partitions),
        )


class Image:
    """Everything in the tree, by name."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicImage] = {}
        self.brokers: dict[str, BrokerNode] = {}
        self.controller: ControllerNode | None = None
        self.controller_epoch = 0
        self.producers: dict[str, ProducerNode] = {}
        self.versions: dict[str, int] = {}

    def topic(self, name: str) -> TopicImage:
        """Find a topic.

        Raises:
            UnknownTopic: there is none of that name.
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
            names = ", ".join(list(found)[:8])
            raise UnknownPartition(
                f"topic {topic!r} has no partition {name!r}; it has {names}"
            ) from None

    @classmethod
    def load(cls, entries: Iterable[Entry]) -> Image:
        """Build the image from what was read.

        Raises:
            CorruptMetadata: a node cannot be understood.
        """
        image = cls()
        for entry in entries:
            kind = _node_class(entry.path)
            node = decode_node(kind, entry.data) if kind is not None else None
            image.set(entry.path, node, entry.version)
        for topic in image.topics.values():
            ordered = sorted(topic.partitions.values(), key=lambda p: p.node.index)
            topic.partitions = {p.node.name: p for p in ordered}
        return image

    def set(self, path: str, node: Node | None, version: int) -> None:
        """Take in that *path* now holds *node* (None for a mere folder)."""
        self.versions[path] = version
        match paths.parse(path), node:
            case paths.TopicPath(topic=topic), TopicNode():
                known = self.topics.get(topic)
                if known is None:
                    self.topics[topic] = TopicImage(node)
                else:
                    known.node = node
            case paths.PartitionPath(topic=topic, partition=name), PartitionNode():
                partitions = self.topics[topic].partitions
                if name in partitions:
                    partitions[name].node = node
                else:
                    partitions[name] = PartitionImage(node)
            case paths.BlockPath(topic=topic, partition=name, block=number), BlockNode():
                self.topics[topic].partitions[name].blocks[number] = node
            case paths.ReplicaPath(topic=topic, partition=name, block=number), ReplicaNode():
                image = self.topics[topic].partitions[name]
                image.replicas[number, node.broker] = node
            case paths.SubscriptionPath(topic=topic), SubscriptionNode():
                self.topics[topic].subscriptions[node.name] = node
            case paths.BrokerPath(broker=name), BrokerNode():
                self.brokers[name] = node
            case paths.ControllerPath(), ControllerNode():
                self.controller = node
            case paths.ControllerEpochPath(), ControllerEpoch():
                self.controller_epoch = node.epoch
            case _, ProducerNode():
                self.producers[node.name] = node
            case _:
                pass  # A folder, or a node of a later version.

    def unset(self, path: str) -> None:
        """Take in that *path* is gone."""
        self.versions.pop(path, None)
        match paths.parse(path):
            case paths.TopicPath(topic=topic):
                self.topics.pop(topic, None)
            case paths.PartitionPath(topic=topic, partition=name):
                self.topics[topic].partitions.pop(name, None)
            case paths.BlockPath(topic=topic, partition=name, block=number):
                self.topics[topic].partitions[name].blocks.pop(number, None)
            case paths.ReplicaPath(topic=topic, partition=name, block=number, broker=broker):
                self.topics[topic].partitions[name].replicas.pop((number, broker), None)
            case paths.SubscriptionPath(topic=topic, subscription=name):
                self.topics[topic].subscriptions.pop(name, None)
            case paths.ControllerPath():
                self.controller = None
            case _:
                pass


def _node_class(path: str) -> type[Node] | None:
    match paths.parse(path):
        case paths.TopicPath():
            return TopicNode
        case paths.PartitionPath():
            return PartitionNode
        case paths.BlockPath():
            return BlockNode
        case paths.ReplicaPath():
            return ReplicaNode
        case paths.SubscriptionPath():
            return SubscriptionNode
        case paths.BrokerPath():
            return BrokerNode
        case paths.BrokerStatePath():
            return BrokerState
        case paths.ControllerPath():
            return ControllerNode
        case paths.ControllerEpochPath():
            return ControllerEpoch
        case _:
            return ProducerNode if path.startswith(f"{PRODUCERS}/") else None


@define
class Draft:
    """A change in the making: operations for the coordinator, and what they mean for the image."""

    image: Image
    ops: list[Op] = Factory(list)
    edits: list[tuple[str, Node | None, bool]] = Factory(list)  # (path, node, whether it is gone)

    def folder(self, path: str) -> None:
        """Make a node that only holds others, unless it is there."""
        if path not in self.image.versions and all(path != edit[0] for edit in self.edits[-8:]):
            self.ops.append(Create(path, b""))
            self.edits.append((path, None, False))

    def create(self, path: str, node: Node, *, ephemeral: bool = False) -> None:
        """Make a node."""
        self.ops.append(Create(path, encode_node(node), ephemeral))
        self.edits.append((path, node, False))

    def put(self, path: str, node: Node) -> None:
        """Replace a node, provided that it is still as the image has it."""
        self.ops.append(Put(path, encode_node(node), self.image.versions[path]))
        self.edits.append((path, node, False))

    def delete(self, path: str) -> None:
        """Remove a node, provided that it is still as the image has it."""
        if path in self.image.versions:
            self.ops.append(Delete(path, self.image.versions[path]))
            self.edits.append((path, None, True))

    def commit(self, tag: int) -> Commit:
        """The draft as a request to the coordinator."""
        return Commit(tag, tuple(self.ops))

    def adopt(self, versions: Sequence[int]) -> None:
        """The coordinator has done it: the image follows."""
        for (path, node, gone), version in zip(self.edits, versions, strict=True):
            if gone:
                self.image.unset(path)
            else:
                self.image.set(path, node, version)
