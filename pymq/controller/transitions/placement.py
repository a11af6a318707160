"""Chooses the brokers of a new block, with few changes of replicas and an even load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Image
from pymq.core.metadata.nodes import BlockNode, Wanted
from pymq.core.types import TopicPartition, is_internal
from pymq.hash.place import load_cost, place, ring_of


class BrokerLoad:
    """The load of each broker, including the blocks placed so far."""

    def __init__(self, image: Image, brokers: Collection[str]) -> None:
        hosting = image.hosting
        self.hosting = Counter({name: hosting.opened_count(name) for name in brokers})
        self.leading = Counter({name: hosting.leads[name] for name in brokers})

    def add(self, replicas: tuple[str, ...]) -> None:
        """Count one more block."""
        self.hosting.update(replicas)
        self.leading.update(replicas[:1])


def usable(image: Image, live: Collection[str]) -> list[str]:
    """The live brokers that may get new blocks."""
    return [name for name in sorted(live) if not image.brokers[name].is_draining]


def choose(
    image: Image,
    brokers: Collection[str],
    load: BrokerLoad,
    name: TopicPartition,
    count: int,
    keep: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Choose *count* of *brokers* for a new block; brokers in *keep* come first.

    Raises:
        NotEnoughBrokers: there are fewer than *count*.
    """
    keep = keep[:count]
    weights = {name: float(image.brokers[name].weight) for name in sorted({*brokers, *keep})}
    found = {name: image.brokers[name].rack for name in weights}
    racks = found if any(found.values()) else None
    if not keep:
        chosen = place(str(name), weights, count, racks, hosting=load.hosting, leading=load.leading)
    else:
        cost = load_cost(load.hosting, weights)
        ring = ring_of(weights)
        chosen = (
            *keep,
            *ring.pick(str(name), count - len(keep), racks=racks, keep=keep, cost=cost),
        )
    load.add(chosen)
    return chosen


def succeed(
    image: Image,
    live: Collection[str],
    name: TopicPartition,
    wanted: Wanted,
    holders: Collection[str],
) -> tuple[str, ...]:
    """Return the replicas of the block after the open one.

    - Live replicas stay; dead ones are replaced.
    - If fewer brokers are alive than requested, the block gets fewer replicas, but at least one.
    - If some replicas must go, *holders* stay.
    - One replica may move to a broker with much less load. So a new broker gets its share of
      blocks; a new block has no data to move.
    """
    found = image.partition(*name)
    brokers = usable(image, live)
    stay = wanted.replicas
    if stay is None:
        # Put holders first, and keep the present order otherwise (the sort is stable).
        stay = tuple(sorted(found.open_block.replicas, key=lambda broker: broker not in holders))
    count = wanted.count if wanted.count is not None else found.node.replicas
    keep = tuple(broker for broker in stay if broker in brokers)
    if not brokers:
        return tuple(broker for broker in stay if broker in live)[:count]
    count = min(count, len(brokers))
    load = BrokerLoad(image, brokers)
    if len(keep) < count:
        return choose(image, brokers, load, name, count, keep)
    if wanted.replicas is not None:
        return keep[:count]
    return _relieved(image, load, name, keep[:count])


def _relieved(
    image: Image, load: BrokerLoad, name: TopicPartition, keep: tuple[str, ...]
) -> tuple[str, ...]:
    """Replace one replica if a broker outside *keep* has much less load.

    The leader stays, unless it is the only replica. Replicas of internal partitions stay, because
    their group coordinators would have to move.
    """
    leader = image.partition(*name).open_block.leader
    movable = [broker for broker in keep if broker != leader or len(keep) == 1]
    idle = [broker for broker in load.hosting if broker not in keep]
    if not movable or not idle or is_internal(name.topic):
        return keep
    nodes, hosting = image.brokers, load.hosting
    busiest = max(movable, key=lambda broker: (hosting[broker] / nodes[broker].weight, broker))
    # Keep the spread over racks: choose the same rack, or a rack without another replica.
    racks = {nodes[broker].rack for broker in keep if broker != busiest}
    fit = [b for b in idle if nodes[b].rack == nodes[busiest].rack or nodes[b].rack not in racks]
    if not fit:
        return keep
    laziest = min(fit, key=lambda broker: ((hosting[broker] + 1) / nodes[broker].weight, broker))
    gain = hosting[busiest] / nodes[busiest].weight - (hosting[laziest] + 1) / nodes[laziest].weight
    if gain <= 0:
        return keep
    return tuple(laziest if broker == busiest else broker for broker in keep)


def is_manned(image: Image, members: BrokerLiveness, name: TopicPartition) -> bool:
    """Whether enough brokers are alive for the next block, or no more brokers are expected.

    A zkserver that has just taken over does not know all live brokers yet.
    """
    node = image.partition(*name).node
    count = node.replicas
    if node.wanted is not None and node.wanted.count is not None:
        count = node.wanted.count
    return members.is_settled or len(usable(image, members.live)) >= count


def is_better(image: Image, members: BrokerLiveness, name: TopicPartition) -> bool:
    """Whether a roll would give a partition more healthy replicas than it has."""
    found = image.partition(*name)
    block = found.open_block
    brokers = usable(image, members.able(name))
    sound = sum(_is_sound(image, members, name, block, broker) for broker in block.replicas)
    return sound < min(found.node.replicas, len(brokers))


def _is_sound(
    image: Image, members: BrokerLiveness, name: TopicPartition, block: BlockNode, broker: str
) -> bool:
    """Whether a replica of the open block is healthy, or may still recover."""
    if members.offline.is_given_up(broker, name):
        return False
    if image.brokers[broker].is_draining or not has_storage(image, block, broker):
        return False
    return members.may_live(broker) or members.may_return(broker)


def has_storage(image: Image, block: BlockNode, broker: str) -> bool:
    """Whether a replica's broker still has the disk on which the replica was created, as far as
    known.
    """
    if not block.storages:
        return True
    made_on = block.storages[block.replicas.index(broker)]
    return not made_on or made_on == image.brokers[broker].storage_id
