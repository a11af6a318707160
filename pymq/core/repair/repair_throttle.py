"""What a broker sends others of sealed blocks: a bounded number of bytes a turn, in their order.

What is read in a turn is in memory at the same time, and whoever waits for the open blocks waits
for it, too. So what comes beyond the bound is read in the turns that follow; and what others ask
otherwise takes nothing from it.
"""

from __future__ import annotations

from collections import OrderedDict

from pymq.core.observe.coverage import mark
from pymq.core.ready import Read, Ready
from pymq.core.types import NEVER, BlockId


class RepairThrottle:
    """The parts of sealed blocks that others have asked one broker for.

    *turn_bytes* are what they ask for; the store reads more where a single batch is larger.
    """

    def __init__(self, turn_bytes: int) -> None:
        self._turn_bytes = turn_bytes
        self._line: OrderedDict[tuple[str, BlockId], Read] = OrderedDict()
        self._at = -1  # the last turn in which something was read ...
        self._left = 0  # ... and what may be read in that
        self.deadline = NEVER  # when :meth:`fill` has something to do

    def add(self, read: Read) -> None:
        """Have *read* done when it is its turn. Who asks again keeps its place, and asks once."""
        self._line[read.peer, read.block] = read
        self.deadline = self._at + 1

    def fill(self, ready: Ready, now: int) -> None:
        """Add to *ready* what may be read by now; at least one, however large."""
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
