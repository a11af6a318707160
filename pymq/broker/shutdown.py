"""Controlled shutdown: a broker hands over leadership before it stops (as in KIP-143).

1. The broker sends a request to the active zkserver, which elects other leaders for the broker's
   blocks with fetch replication.
2. The broker itself transfers the leadership of its Raft blocks.
3. The broker repeats both steps until it leads no partition that another replica could lead, or
   until its time is up.
"""

from __future__ import annotations

from collections.abc import Iterable

from pymq.core.message import Answer, ControlledShutdown
from pymq.core.observe.coverage import mark
from pymq.core.partition.partition import Partition
from pymq.core.types import NEVER, AckMode

RETRY_MS = 100


class ShutdownHandover:
    """The controlled shutdown of one broker, if it has begun."""

    def __init__(self, me: str, incarnation: int) -> None:
        self.deadline = NEVER
        self.is_over = False  # whether all leadership is handed over, or the time is up
        self._me = me
        self._incarnation = incarnation
        self._until = NEVER
        self._asked = 0

    @property
    def has_begun(self) -> bool:
        """Whether the broker is stopping."""
        return self._until != NEVER

    def begin(self, now: int, within_ms: int) -> None:
        """Begin the shutdown, which ends within *within_ms* milliseconds; 0 ends it at once."""
        if not self.has_begun:
            self._until = now + within_ms
            self.deadline = now
            if not within_ms:
                self._end()

    def ask(self, now: int) -> ControlledShutdown | None:
        """Repeat the request if it is due.

        Returns the request to the active zkserver, or None when time is up.
        """
        if now >= self._until:
            mark("departure.out_of_time")
            self._end()
            return None
        self.deadline = min(now + RETRY_MS, self._until)
        self._asked += 1
        return ControlledShutdown(self._asked, self._me, self._incarnation)

    def answered(self, m: Answer) -> None:
        """Handle the zkserver's answer: the number of partitions left to move, or an error."""
        # On a slow network an answer arrives after the next request was sent, so an answer to any
        # request counts. A broker that stops gets no new leadership, so an older answer of 0 is
        # still valid.
        is_ours = self.has_begun and 0 < m.id <= self._asked
        if is_ours and m.error is None and m.result == 0:
            mark("departure.over")
            self._end()

    def _end(self) -> None:
        self.is_over, self.deadline = True, NEVER


def hand_over(partitions: Iterable[Partition], now: int) -> list[Partition]:
    """Transfer the leadership of the Raft blocks led here; returns the affected partitions."""
    found = [p for p in partitions if p.leads and p.state.blocks[-1].acks is AckMode.RAFT]
    return [partition for partition in found if partition.hand_over(now)]
