"""Partitions to be looked at, a little at a time.

A broker that dies, comes back or is decommissioned concerns all partitions that it hosts, perhaps
ten thousand. Were all of them looked at in one turn, and their rolls begun, nobody else would be
answered meanwhile. Nothing is lost with this queue: the tree says what it is to become, and a
zkserver that takes over looks at all of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, TopicPartition

TURN_MAX = 64  # partitions that are looked at in a turn, which take up to 10 ms


class Candidates:
    """The partitions whose turn has not come yet, each once."""

    def __init__(self, look: Callable[[TopicPartition, int], None]) -> None:
        self.deadline = NEVER  # when the next are looked at
        self._look = look
        self._names: dict[TopicPartition, None] = {}

    def add(self, names: Iterable[TopicPartition], now: int) -> None:
        """Look at *names*: at once, if they are few and no others wait."""
        self._names.update(dict.fromkeys(names))
        if self.deadline == NEVER:
            self.tick(now)

    def tick(self, now: int) -> None:
        """Look at as many as a turn may."""
        self.deadline = now + 1
        for name in list(islice(self._names, TURN_MAX)):
            del self._names[name]
            self._look(name, now)
        if self._names:
            mark("candidates.more")
        else:
            self.deadline = NEVER

    def clear(self) -> None:
        """This zkserver decides nothing any more."""
        self._names.clear()
        self.deadline = NEVER
