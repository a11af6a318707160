"""Limits how many bytes per turn a broker reads for the repairs of other brokers.

The broker holds all reads of a turn in memory at the same time, and these reads delay answers about
open blocks. Reads beyond the limit are done in later turns, in order. Other requests do not count
towards the limit.
"""

from __future__ import annotations

from collections import OrderedDict

from pymq.core.observe.coverage import mark
from pymq.core.ready import Read, Ready
from pymq.core.types import NEVER, BlockId


class RepairThrottle:
    """The queue of reads for repairs of other brokers.

    *turn_bytes* bounds the requested bytes; the store reads more if a single batch is larger.
    """

    def __init__(self, turn_bytes: int) -> None:
        self._turn_bytes = turn_bytes
        self._line: OrderedDict[tuple[str, BlockId], Read] = OrderedDict()
        self._at = -1  # the last turn with a read
        self._left = 0  # bytes left for that turn
        self.deadline = NEVER  # when :meth:`fill` has something to do

    def add(self, read: Read) -> None:
        """Queue *read*. If a request is repeated, it replaces the first one and keeps its place."""
        self._line[read.peer, read.block] = read
        self.deadline = self._at + 1

    def fill(self, ready: Ready, now: int) -> None:
        """Add reads to *ready* up to this turn's limit, but at least one read."""
        line = self._line
        if not line:
            return
        if now > self._at:
            self._at, self._left = now, self._turn_bytes
        while line:
            read = next(iter(line.values()))
            is_first = self._left == self._turn_bytes
            if read.max_bytes > self._left and not is_first:
                mark("lending.later")
                break
            line.popitem(last=False)
            self._left = max(0, self._left - read.max_bytes)
            ready.read.append(read)
        self.deadline = self._at + 1 if line else NEVER
