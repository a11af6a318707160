"""Plans moves of leaders so that all brokers lead equally many partitions; pure functions.

Only an in-sync replica may lead. A broker may lead too many partitions although none of them has a
replica on a broker that leads too few. In this case leaders move along a chain of brokers (an
augmenting path). The numbers of leaders then differ from the ideal by at most one, as far as the
places of the replicas allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from pymq.controller.state.image import Image
from pymq.controller.transitions.placement import has_storage
from pymq.core.metadata.nodes import BlockNode
from pymq.core.types import AckMode, TopicPartition, is_internal
from pymq.core.values import value

SHIFTS_MAX = 1_000  # shifts in one plan

CanLead = Callable[[str, TopicPartition], bool]


@value
class Shift:
    """A planned move of a partition's leadership from *source* to *target*."""

    name: TopicPartition
    block: int
    source: str
    target: str


def targets(
    image: Image, name: TopicPartition, block: BlockNode, can_lead: CanLead
) -> tuple[str, ...]:
    """The replicas that could lead the open block instead of its leader.

    All replicas of a Raft block count, because its leader transfers leadership only to a replica
    with all records.
    """
    able = block.replicas if block.acks is AckMode.RAFT else block.in_sync
    return tuple(
        broker
        for broker in able
        if broker != block.leader and can_lead(broker, name) and has_storage(image, block, broker)
    )


def plan(image: Image, brokers: Collection[str], can_lead: CanLead) -> list[Shift]:
    """Return the shifts of leadership, in order, that balance the leaders over *brokers* as far as
    possible.
    """
    leads = {broker: image.hosting.leads[broker] for broker in sorted(brokers)}
    if not leads or max(leads.values()) - min(leads.values()) < 2:
        return []
    board = _Board(image, leads, can_lead)
    shifts: list[Shift] = []
    while len(shifts) < SHIFTS_MAX:
        found = board.next()
        if found is None:
            break
        shifts.append(found)
    return shifts


class _Board:
    """The numbers of leaders and the possible moves after the shifts planned so far."""

    def __init__(self, image: Image, leads: dict[str, int], can_lead: CanLead) -> None:
        self._leads = leads
        self._blocks: dict[TopicPartition, BlockNode] = {}
        self._able: dict[TopicPartition, tuple[str, ...]] = {}
        # Partitions by leader and possible next leader.
        self._edges: dict[str, dict[str, dict[TopicPartition, None]]] = {b: {} for b in leads}
        for broker in leads:
            for name in image.hosting.opened(broker):
                block = image.partition(*name).open_block
                if block.leader == broker:
                    found = targets(image, name, block, can_lead)
                    self._blocks[name] = block
                    self._able[name] = (broker, *(each for each in found if each in leads))
                    self._add(name, broker)

    def _add(self, name: TopicPartition, leader: str) -> None:
        for other in self._able[name]:
            if other != leader:
                self._edges[leader].setdefault(other, {})[name] = None

    def next(self) -> Shift | None:
        """Plan the next shift: the last step of the shortest chain from the busiest broker."""
        leads = self._leads
        for source in sorted(leads, key=lambda broker: (-leads[broker], broker)):
            step = self._last_step(source)
            if step is not None:
                return self._do(*step)
        return None

    def _last_step(self, source: str) -> tuple[str, str] | None:
        leads = self._leads
        seen, line = {source}, deque([source])
        while line:
            broker = line.popleft()
            others = [b for b, names in self._edges[broker].items() if names and b not in seen]
            for other in sorted(others, key=lambda b: (leads[b], b)):
                if leads[other] <= leads[source] - 2:
                    return broker, other
                seen.add(other)
                line.append(other)
        return None

    def _do(self, source: str, target: str) -> Shift:
        # The group coordinator on a new leader must load again, so move internal partitions last.
        names = self._edges[source][target]
        name = min(names, key=lambda name: (is_internal(name.topic), name))
        for others in self._edges[source].values():
            others.pop(name, None)
        self._add(name, target)
        self._leads[source] -= 1
        self._leads[target] += 1
        return Shift(name, self._blocks[name].number, source, target)
