"""Which partitions of a broker have something to do, now or later.

Nobody ever looks at all of them. Those with something to write are in a set of dirty ones; those
with something to do later are in a heap of deadlines. So an idle partition costs nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush

from pymq.core.partition.partition import Partition
from pymq.core.types import NEVER


class PartitionSchedule:
    """The dirty partitions, and the deadlines of all."""

    def __init__(self) -> None:
        self.dirty: dict[Partition, None] = {}
        self._due: list[tuple[int, int, Partition]] = []  # deadlines, perhaps out of date
        self._armed: dict[Partition, int] = {}  # the earliest of each in the heap
        self._armings = 0
        self.deadline = NEVER  # when there is something in due(); perhaps too early

    def touch(self, partition: Partition) -> None:
        """Something about *partition* may have changed."""
        if partition.is_dirty:
            self.dirty[partition] = None
        self.arm(partition)

    def arm(self, partition: Partition) -> None:
        """The deadline of *partition* may be earlier than it was."""
        due = partition.deadline
        if due < self._armed.get(partition, NEVER):
            self._armed[partition] = due
            self._armings += 1
            heappush(self._due, (due, self._armings, partition))
            self.deadline = self._due[0][0]

    def due(self, now: int) -> list[Partition]:
        """Take out those whose deadline has come, each once; each is to be touched again.

        One that is overdue again at once has to wait for the next turn, like everybody.
        """
        found = []
        while self._due and self._due[0][0] <= now:
            due, _, partition = heappop(self._due)
            if self._armed.get(partition) != due:
                continue  # An earlier deadline took its place.
            del self._armed[partition]
            found.append(partition)
        self.deadline = self._due[0][0] if self._due else NEVER
        return found

    def drop(self, partition: Partition) -> None:
        """*partition* is gone."""
        self.dirty.pop(partition, None)
        self._armed.pop(partition, None)
