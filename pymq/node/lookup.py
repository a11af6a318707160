"""Where clients find what they look for; pure functions over the image."""

from __future__ import annotations

from collections.abc import Collection

from pymq.core.message import Locate, Location
from pymq.core.metadata import BlockNode, BrokerPlace, PartitionLeader, TopicMetadata
from pymq.errors import NoBrokers, NotSubscribed, UnknownPartition
from pymq.node.image import Image, PartitionImage, TopicImage


def metadata(image: Image, name: str, live: Collection[str]) -> TopicMetadata:
    """Where a topic's partitions are led and held; a leader that is not alive is none.

    Raises:
        UnknownTopic: there is none of that name.
    """
    topic = image.topic(name)
    leaders = []
    named: dict[str, None] = {}
    for partition in topic.partitions.values():
        node, leader = partition.node, partition.open_block.leader
        broker = image.brokers[leader] if leader is not None and leader in live else None
        replicas = readable(partition, live)
        named.update(dict.fromkeys(replicas))
        leaders.append(
            PartitionLeader(
                node.name,
                node.index,
                node.acks,
                node.epoch,
                broker.name if broker else None,
                broker.endpoint if broker else None,
                replicas,
            )
        )
    brokers = (image.brokers[broker] for broker in named)
    places = tuple(BrokerPlace(b.name, b.endpoint, b.rack) for b in brokers)
    return TopicMetadata(name, topic.node.id, topic.node.config, tuple(leaders), places)


def readable(found: PartitionImage, live: Collection[str]) -> tuple[str, ...]:
    """The live brokers that can serve reads of a partition, the most complete first.

    Those that hold the open block know all others of the partition, so if there are any, they are
    enough; else those that hold a sealed block whole, the latest block first.
    """
    block = found.open_block
    alive = [broker for broker in block.replicas if broker in live]
    if not alive:
        holders = (b for old in reversed(found.blocks.values()) for b in old.in_sync)
        return tuple(dict.fromkeys(broker for broker in holders if broker in live))

    def rank(broker: str) -> tuple[bool, bool]:
        return broker != block.leader, broker not in block.in_sync

    return tuple(sorted(alive, key=rank))


def locate(image: Image, m: Locate, live: Collection[str]) -> tuple[Location, ...]:
    """For each offset, a live broker that can serve it, or why there is none.

    Raises:
        UnknownTopic: there is none of that name.
        NotSubscribed: consuming needs a subscription.
    """
    topic = image.topic(m.topic)
    if m.name not in topic.subscriptions:
        raise NotSubscribed(f"{m.name!r} has no subscription to topic {m.topic!r}")
    return tuple(_locate(image, topic, name, offset, live) for name, offset in m.offsets)


def _locate(
    image: Image, topic: TopicImage, name: str, offset: int, live: Collection[str]
) -> Location:
    found = topic.partitions.get(name)
    if found is None:
        gone = UnknownPartition(f"topic {topic.node.name!r} has no partition {name!r}")
        return Location(name, offset, error=gone)
    blocks = tuple(found.blocks.values())
    block = next((b for b in reversed(blocks) if b.start <= offset), blocks[0])
    broker = _server(found, block, live)
    if broker is None:
        reason = NoBrokers(f"no replica of {topic.node.name}/{name} {block.name} is alive")
        return Location(name, offset, block.name, error=reason)
    return Location(name, offset, block.name, broker, image.brokers[broker].endpoint)


def _server(found: PartitionImage, block: BlockNode, live: Collection[str]) -> str | None:
    """Who serves reads of a block: the leader of the open one if it has it, else who has it whole.

    Of those that may have a part of it only, the one that has reported the most.
    """
    leader = found.open_block.leader
    if leader in live and (block.end is None or leader in block.in_sync):
        return leader
    for broker in block.in_sync:
        if broker in live:
            return broker
    ends = {
        broker: replica.end
        for broker in block.replicas
        if broker in live and (replica := found.replicas.get((block.number, broker))) is not None
    }
    return max(ends, key=lambda broker: ends[broker], default=None)
