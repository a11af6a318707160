"""A queue of partitions to consider for a roll; each turn considers some of them.

If a broker dies, returns or is decommissioned, all of its partitions are candidates, which may be
ten thousand. Rolling all of them in one turn would block all other requests. The queue is in memory
only: a zkserver that takes over considers all partitions again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, TopicPartition

TURN_MAX = 64  # partitions considered in a turn, up to 10 ms


class Candidates:
    """The partitions that wait to be considered, each once."""

    def __init__(self, look: Callable[[TopicPartition, int], None]) -> None:
        self.deadline = NEVER  # when to consider the next partitions
        self._look = look
        self._names: dict[TopicPartition, None] = {}

    def add(self, names: Iterable[TopicPartition], now: int) -> None:
        """Consider *names*: at once if they are few and no others wait, otherwise later."""
        self._names.update(dict.fromkeys(names))
        if self.deadline == NEVER:
            self.tick(now)

    def tick(self, now: int) -> None:
        """Consider up to TURN_MAX partitions."""
        self.deadline = now + 1
        for name in list(islice(self._names, TURN_MAX)):
            del self._names[name]
            self._look(name, now)
        if self._names:
            mark("candidates.more")
        else:
            self.deadline = NEVER

    def clear(self) -> None:
        """Drop all candidates, because this zkserver is no longer active."""
        self._names.clear()
        self.deadline = NEVER
