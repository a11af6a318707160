"""Answers clients' lookups: leaders, readable replicas and locations of offsets."""

from __future__ import annotations

from collections.abc import Callable

from pymq.controller.gradual_reads import gradually
from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.commit_queues import Later
from pymq.controller.state.image import Image, PartitionImage, TopicImage
from pymq.controller.state.replica_ends import KnownEnds
from pymq.core.message import Locate, Location, Result
from pymq.core.metadata.descriptions import BrokerPlace, PartitionLeader, TopicMetadata
from pymq.core.metadata.nodes import BlockNode
from pymq.core.observe.coverage import mark
from pymq.core.types import TopicPartition
from pymq.core.values import define
from pymq.errors import NoBrokers, NotSubscribed, UnknownPartition

PARTS_MAX = 1_000  # partitions looked up in a turn, which takes about 5 ms


@define
class Lookup:
    """Lookups in one image."""

    image: Image
    members: BrokerLiveness
    ends: KnownEnds

    def leader(self, name: TopicPartition) -> PartitionLeader | None:
        """A partition's leader, if it is alive, and the replicas that can serve reads."""
        found = self.image.find(name)
        if found is None:
            return None
        node, leader = found.node, found.open_block.leader
        is_led = leader is not None and leader in self.members.live
        broker = self.image.brokers[leader] if leader is not None and is_led else None
        return PartitionLeader(
            node.name,
            node.index,
            node.acks,
            node.epoch,
            broker.name if broker else None,
            broker.endpoint if broker else None,
            self.readable(name.topic, found),
        )

    def metadata(self, name: str, leaders: tuple[PartitionLeader, ...]) -> TopicMetadata:
        """A topic, with *leaders* of its partitions and the endpoints of all readable replicas.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        topic = self.image.topic(name)
        named = dict.fromkeys(broker for found in leaders for broker in found.replicas)
        brokers = (self.image.brokers[broker] for broker in named)
        places = tuple(BrokerPlace(b.name, b.endpoint, b.rack) for b in brokers)
        return TopicMetadata(name, topic.node.id, topic.node.config, leaders, places)

    def readable(self, topic: str, found: PartitionImage) -> tuple[str, ...]:
        """The live brokers that can serve reads of a partition, the most complete first.

        A replica of the open block knows where the other blocks are, so its live replicas suffice.
        If there is none, the result is the brokers with a complete copy of a sealed block, the
        latest block first.
        """
        block, live, ends = found.open_block, self.members.live, self.ends
        name = TopicPartition(topic, found.node.name)
        offline = self.members.offline
        alive = [b for b in block.replicas if b in live and not offline.has(b, name)]
        if not alive:
            holders = (b for old in reversed(found.blocks.values()) for b in old.in_sync)
            return tuple(dict.fromkeys(broker for broker in holders if broker in live))
        if block.leader in alive:
            # The leader has all records. Because the order is fixed, an end report does not change
            # the clients' choice.
            return tuple(sorted(alive, key=lambda b: (b != block.leader, b not in block.in_sync)))

        def rank(broker: str) -> tuple[int, int, bool]:
            high, end = ends.of(name, block.number, broker)
            return -high, -end, broker not in block.in_sync

        return tuple(sorted(alive, key=rank))

    def locate(self, m: Locate) -> tuple[Location, ...]:
        """Return, for each offset, a live broker that can serve it, or the error if there is none.

        Raises:
            UnknownTopic: there is no topic of that name.
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
        """The broker from which a block is read.

        1. The leader of the open block, if it holds *block*.
        2. Otherwise, for the open block: the replica with the highest reported high watermark.
        3. For a sealed block: a broker with a complete copy, or else with the longest known copy.
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


def metadata(look: Callable[[Image], Lookup], name: str) -> Callable[[Image], Result | Later]:
    """Return a read of a topic's metadata, some partitions in each turn."""
    found: list[PartitionLeader] = []
    topic_id = ""

    def names(image: Image) -> list[TopicPartition]:
        nonlocal topic_id
        topic = image.topic(name)
        found.clear()
        topic_id = topic.node.id
        return [TopicPartition(name, partition) for partition in topic.partitions]

    def each(image: Image, at: TopicPartition) -> None:
        leader = look(image).leader(at)
        if leader is not None:
            found.append(leader)

    def result(image: Image) -> Result | Later:
        if image.topic(name).node.id != topic_id:
            mark("lookup.made_again")
            return Later.MORE  # The topic was deleted and created again.
        return look(image).metadata(name, tuple(found))

    return gradually(names, each, result, PARTS_MAX)
