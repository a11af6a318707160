"""Finds the partitions of a broker that have something to do, now or later.

Partitions with something to write are in the set of dirty partitions. Partitions with something to
do later are in a heap of deadlines. So an idle partition costs nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush

from pymq.core.partition.partition import Partition
from pymq.core.types import NEVER


class PartitionSchedule:
    """The dirty partitions, and a heap of deadlines."""

    def __init__(self) -> None:
        self.dirty: dict[Partition, None] = {}
        # heap of deadlines; some may be out of date
        self._due: list[tuple[int, int, Partition]] = []
        self._armed: dict[Partition, int] = {}  # earliest deadline of each partition in the heap
        self._armings = 0
        self.deadline = NEVER  # earliest deadline in the heap; may be out of date

    def touch(self, partition: Partition) -> None:
        """Note that *partition* may be dirty or have another deadline."""
        if partition.is_dirty:
            self.dirty[partition] = None
        if partition.deadline < self._armed.get(partition, NEVER):
            self.arm(partition)

    def arm(self, partition: Partition) -> None:
        """Note that the deadline of *partition* may be earlier."""
        due = partition.deadline
        if due < self._armed.get(partition, NEVER):
            self._armed[partition] = due
            self._armings += 1
            heappush(self._due, (due, self._armings, partition))
            self.deadline = self._due[0][0]

    def due(self, now: int) -> list[Partition]:
        """Take out the partitions whose deadline has passed, each once.

        The caller then calls :meth:`touch` for each of them. A partition that is due again at once
        waits for the next turn.
        """
        found = []
        while self._due and self._due[0][0] <= now:
            due, _, partition = heappop(self._due)
            if self._armed.get(partition) != due:
                continue  # An earlier deadline has replaced this one.
            del self._armed[partition]
            found.append(partition)
        self.deadline = self._due[0][0] if self._due else NEVER
        return found

    def drop(self, partition: Partition) -> None:
        """Remove a partition that the broker no longer hosts."""
        self.dirty.pop(partition, None)
        self._armed.pop(partition, None)
