"""Removes deleted topics from a broker; each turn removes some partitions.

A topic may have thousands of partitions and files on a broker. Removing all of them at once would
block heartbeats, elections and answers to producers. So each turn removes partitions and blocks up
to a cost of :data:`TURN_COST`; blocks with files cost more, because the disk syncs. The broker
answers the zkserver when the last file is gone. If the broker restarts earlier, the zkserver
repeats its request, and the broker finds the remaining files on its disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from pymq.core.message import Stopped, StopReplica
from pymq.core.observe.coverage import mark
from pymq.core.partition.partition import Partition, PartitionEnvironment
from pymq.core.ready import RemoveBlock
from pymq.core.types import NEVER, BlockId
from pymq.core.values import define

TURN_COST = 64  # cost of the removals in a turn; a partition costs 1
FILE_COST = 16  # cost of a block with files: about 10 ms of a disk that syncs


@define
class Removal:
    """The removal of one topic."""

    source: str  # zkserver that gets the answer
    request: int  # id of the request for this removal
    partitions: deque[Partition]
    blocks: deque[tuple[BlockId, int]]  # blocks to remove, with the cost of each


class Removals:
    """The topics that are being removed."""

    def __init__(self, host: PartitionEnvironment, drop: Callable[[Partition, int], None]) -> None:
        self.deadline = NEVER  # time of the next step
        self._host = host
        self._drop = drop  # drops a partition without its files
        self._topics: dict[str, Removal] = {}

    def begin(
        self,
        source: str,
        m: StopReplica,
        partitions: Iterable[Partition],
        leftovers: Iterable[BlockId],
        now: int,
    ) -> None:
        """Begin to remove *partitions* and *leftovers* of a topic, unless the removal has begun."""
        if (removal := self._topics.get(m.topic_id)) is not None:
            mark("removals.asked_again")
            removal.source, removal.request = source, m.id
            return
        blocks = deque((block, FILE_COST) for block in leftovers)
        self._topics[m.topic_id] = Removal(source, m.id, deque(partitions), blocks)
        if self.deadline == NEVER:
            self.tick(now)

    def tick(self, now: int) -> None:
        """Remove as much as one turn allows."""
        left = TURN_COST
        while left > 0 and self._topics:
            topic_id, removal = next(iter(self._topics.items()))
            if removal.blocks:
                block, cost = removal.blocks.popleft()
                self._host.out.write.append(RemoveBlock(block))
                left -= cost
            elif removal.partitions:
                partition = removal.partitions.popleft()
                removal.blocks += self._blocks(partition)
                self._drop(partition, now)
                left -= 1
            if not removal.blocks and not removal.partitions:
                del self._topics[topic_id]
                gone = Stopped(removal.request, self._host.me)
                self._host.out.after.append((removal.source, gone))
        if self._topics:
            mark("removals.more")
        self.deadline = now + 1 if self._topics else NEVER

    def _blocks(self, partition: Partition) -> Iterable[tuple[BlockId, int]]:
        log, last = partition.opened.log, partition.state.blocks[-1]
        for block in partition.state.blocks:
            is_empty = block is last and log is not None and not log.is_recovering and not log.size
            yield partition.state.block_id(block), 1 if is_empty else FILE_COST
