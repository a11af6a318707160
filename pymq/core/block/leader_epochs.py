"""The leader epochs of a log, and the offset where each begins (Kafka: ``LeaderEpochFileCache``).

If two logs have a batch of the same epoch at the same offset, both logs hold the same batches up to
that offset (Raft, log matching). So two replicas need to compare only their epochs to find the
offset up to which their logs agree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from pymq.core.observe.coverage import mark

Epochs = tuple[tuple[int, int], ...]  # (epoch, where it begins), in order


class LeaderEpochs(list[tuple[int, int]]):
    """(epoch, where it begins), in order."""

    __slots__ = ()

    def assign(self, epoch: int, offset: int) -> None:
        """Note that the batch at *offset* belongs to *epoch*."""
        if not self or self[-1][0] != epoch:
            self.append((epoch, offset))

    def at(self, end: int) -> int:
        """The epoch of the batch that holds offset ``end - 1``; 0 at the start of the block."""
        index = bisect_left(self, end, key=lambda epoch: epoch[1])
        return self[index - 1][0] if index else 0

    def end_of(self, epoch: int, start: int, end: int) -> tuple[int, int]:
        """The largest epoch that is not above *epoch*, and the offset where it ends.

        The log begins at *start* and ends at *end*; if all its epochs are later, the result is (0,
        start).
        """
        index = bisect_right(self, epoch, key=lambda known: known[0])
        if not index:
            return 0, start
        return self[index - 1][0], self[index][1] if index < len(self) else end

    def agreed(self, end: int, other: Epochs, other_end: int) -> int:
        """Return the offset up to which this log, with the end *end*, equals another log."""
        for index, (epoch, start) in enumerate(other):
            theirs = other[index + 1][1] if index + 1 < len(other) else other_end
            mine = next(((s, i) for i, (e, s) in enumerate(self) if e == epoch), None)
            if mine is None or mine[0] != start:
                mark("log.agreed.other_epoch")
                return min(start, end)
            after = mine[1] + 1
            my_end = self[after][1] if after < len(self) else end
            if my_end != theirs:
                mark("log.agreed.other_end")
                return min(my_end, theirs)
        return min(other_end, end)

    def cut(self, end: int) -> None:
        """Drop the epochs that begin at or after *end*."""
        self[:] = [known for known in self if known[1] < end]
