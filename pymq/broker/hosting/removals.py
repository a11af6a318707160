"""Topics that were deleted go from a broker a little at a time.

A topic may have thousands of partitions and files here. Were all of them removed at once, nothing
else would happen meanwhile: no heartbeat, no election, no answer to a producer. A turn removes some
partitions, and only a few of those that have files, for which the disk is waited for. The zkserver
hears that the topic is gone when the last file is. If the broker stops before, it is told again,
and finds what is left on its disk.
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

TURN_COST = 64  # of what is removed in a turn: partitions, and ...
FILE_COST = 16  # ... each block that has files, which are some 10 ms of a disk that syncs


@define
class Removal:
    """What is left of one topic."""

    source: str  # which zkserver is to hear that it is gone
    request: int  # and to which of its requests that is the answer
    partitions: deque[Partition]
    blocks: deque[tuple[BlockId, int]]  # and what it costs to remove them


class Removals:
    """The topics that are going."""

    def __init__(self, host: PartitionEnvironment, drop: Callable[[Partition, int], None]) -> None:
        self.deadline = NEVER  # when the next of it goes
        self._host = host
        self._drop = drop  # gives a partition up, and leaves its files
        self._topics: dict[str, Removal] = {}

    def begin(
        self,
        source: str,
        m: StopReplica,
        partitions: Iterable[Partition],
        leftovers: Iterable[BlockId],
        now: int,
    ) -> None:
        """Remove *partitions* and *leftovers* of a topic, unless that has begun."""
        if (removal := self._topics.get(m.topic_id)) is not None:
            mark("removals.asked_again")
            removal.source, removal.request = source, m.id
            return
        blocks = deque((block, FILE_COST) for block in leftovers)
        self._topics[m.topic_id] = Removal(source, m.id, deque(partitions), blocks)
        if self.deadline == NEVER:
            self.tick(now)

    def tick(self, now: int) -> None:
        """Remove as much as a turn may."""
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
