"""How a broker that stops on purpose hands over what it leads before it goes (as in KIP-143).

It asks the active zkserver, which has others lead its fetch blocks, and has the leadership of its
Raft blocks transferred itself. It asks again until nothing is left that anybody could take, or
until its time is up: who waits for a broker to stop does not wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from pymq.core.message import Answer, ControlledShutdown
from pymq.core.observe.coverage import mark
from pymq.core.partition.partition import Partition
from pymq.core.types import NEVER, AckMode

RETRY_MS = 100


class ShutdownHandover:
    """One broker's going, if it has begun."""

    def __init__(self, me: str, incarnation: int) -> None:
        self.deadline = NEVER
        self.is_over = False  # nothing is left to be handed over, or there is no more time for it
        self._me = me
        self._incarnation = incarnation
        self._until = NEVER
        self._asked = 0

    @property
    def has_begun(self) -> bool:
        """Whether the broker is to stop."""
        return self._until != NEVER

    def begin(self, now: int, within_ms: int) -> None:
        """The broker is to stop, *within_ms* from now; at once if there is nothing to hand over."""
        if not self.has_begun:
            self._until = now + within_ms
            self.deadline = now
            if not within_ms:
                self._end()

    def ask(self, now: int) -> ControlledShutdown | None:
        """Do what is due; returns what the active zkserver is to be asked."""
        if now >= self._until:
            mark("departure.out_of_time")
            self._end()
            return None
        self.deadline = min(now + RETRY_MS, self._until)
        self._asked += 1
        return ControlledShutdown(self._asked, self._me, self._incarnation)

    def answered(self, m: Answer) -> None:
        """The zkserver says how much is left, or that it cannot tell."""
        if self.has_begun and m.id == self._asked and m.error is None and m.result == 0:
            mark("departure.over")
            self._end()

    def _end(self) -> None:
        self.is_over, self.deadline = True, NEVER


def hand_over(partitions: Iterable[Partition], now: int) -> list[Partition]:
    """Have others lead the Raft blocks that are led here; returns those that are affected."""
    found = [p for p in partitions if p.leads and p.state.blocks[-1].acks is AckMode.RAFT]
    return [partition for partition in found if partition.hand_over(now)]
