"""Where clients find what they look for: in the image, among the brokers that are alive."""

from __future__ import annotations

from pymq.core.message import Locate, Location
from pymq.core.metadata import BlockNode, BrokerPlace, PartitionLeader, TopicMetadata
from pymq.core.types import TopicPartition
from pymq.core.values import define
from pymq.errors import NoBrokers, NotSubscribed, UnknownPartition
from pymq.node.ends import Ends
from pymq.node.image import Image, PartitionImage, TopicImage
from pymq.node.membership import Members


@define
class Lookup:
    """What is told to clients as of one image."""

    image: Image
    members: Members
    ends: Ends

    def metadata(self, name: str) -> TopicMetadata:
        """Where a topic's partitions are led and held; a leader that is not alive is none.

        Raises:
            UnknownTopic: there is none of that name.
        """
        image, live = self.image, self.members.live
        topic = image.topic(name)
        leaders = []
        named: dict[str, None] = {}
        for partition in topic.partitions.values():
            node, leader = partition.node, partition.open_block.leader
            broker = image.brokers[leader] if leader is not None and leader in live else None
            replicas = self.readable(name, partition)
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

    def readable(self, topic: str, found: PartitionImage) -> tuple[str, ...]:
        """The live brokers that can serve reads of a partition, the most complete first.

        Those that hold the open block know all others of the partition, so if there are any, they
        are enough; else those that hold a sealed block whole, the latest block first.
        """
        block, live, ends = found.open_block, self.members.live, self.ends
        name = TopicPartition(topic, found.node.name)
        offline = self.members.offline
        alive = [b for b in block.replicas if b in live and not offline.has(b, name)]
        if not alive:
            holders = (b for old in reversed(found.blocks.values()) for b in old.in_sync)
            return tuple(dict.fromkeys(broker for broker in holders if broker in live))
        if block.leader in alive:
            # It knows best, and clients hear of no other order each time that somebody has told.
            return tuple(sorted(alive, key=lambda b: (b != block.leader, b not in block.in_sync)))

        def rank(broker: str) -> tuple[int, int, bool]:
            high, end = ends.of(name, block.number, broker)
            return -high, -end, broker not in block.in_sync

        return tuple(sorted(alive, key=rank))

    def locate(self, m: Locate) -> tuple[Location, ...]:
        """For each offset, a live broker that can serve it, or why there is none.

        Raises:
            UnknownTopic: there is none of that name.
            NotSubscribed: consuming needs a subscription.
        """
        topic = self.image.topic(m.topic)
        if m.name not in topic.subscriptions:
            raise NotSubscribed(f"{m.name!r} has no subscription to topic {m.topic!r}")
        return tuple(self._locate(topic, name, offset) for name, offset in m.offsets)

    def _locate(self, topic: TopicImage, name: str, offset: int) -> Location:
        found = topic.partitions.get(name)
        if found is None:
            gone = UnknownPartition(f"topic {topic.node.name!r} has no partition {name!r}")
            return Location(name, offset, error=gone)
        blocks = tuple(found.blocks.values())
        block = next((b for b in reversed(blocks) if b.start <= offset), blocks[0])
        broker = self._server(topic.node.name, found, block)
        if broker is None:
            reason = NoBrokers(f"no replica of {topic.node.name}/{name} {block.name} is alive")
            return Location(name, offset, block.name, error=reason)
        return Location(name, offset, block.name, broker, self.image.brokers[broker].endpoint)

    def _server(self, topic: str, found: PartitionImage, block: BlockNode) -> str | None:
        """Who serves reads of a block: the leader of the open one if it has it, else the best.

        That is who holds a sealed block whole, and of the open one who is told to know most of it.
        """
        live, leader = self.members.live, found.open_block.leader
        if leader in live and (block.end is None or leader in block.in_sync):
            return leader
        if block.end is None:
            best = [b for b in self.readable(topic, found) if b in block.replicas]
            return best[0] if best else None
        for broker in block.in_sync:
            if broker in live:
                return broker
        ends = {
            broker: replica.end
            for broker in block.replicas
            if broker in live
            and (replica := found.replicas.get((block.number, broker))) is not None
        }
        return max(ends, key=lambda broker: ends[broker], default=None)
