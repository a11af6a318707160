"""Divides long work of handlers into slices, so that no client waits for another one's batch.

To check a batch costs the gate 0.6 us for each record, and a batch of some bytes may hold very many
records. So a handler that has used up the slice of its turn waits in this queue:

* a handler that has just begun is new, and runs in the next turn, before all others;
* a handler that has used up a slice of its own is long. The first :data:`LONG_MAX` long ones run in
  turn; the others wait until one of these has ended. So only so many batches are unpacked in memory
  at a time. A request of another client needs some turns of the loop, so there is a rest after each
  slice of a long handler.
"""

from __future__ import annotations

from collections import deque

from pymq.core.types import NEVER

LONG_MAX = 4
SLICE = 10_000  # decoded records, each 0.6 us; the usual batch of librdkafka
LONG_SLICE = 5_000  # of a long handler
REST_MS = 8  # from the beginning of such a slice to the next one


class SliceQueue:
    """The handlers that wait for their next slice, by their numbers."""

    def __init__(self) -> None:
        self._new: deque[int] = deque()
        self._long: deque[int] = deque()
        self._running = 0
        self._rests_until = 0

    @property
    def due(self) -> int:
        """When a handler may run."""
        if self._new:
            return 0
        return self._rests_until if self._long else NEVER

    def add(self, number: int) -> None:
        """Let a handler wait for a slice."""
        if number == self._running:
            # This slice was not enough. The handler takes its turn with the others that are long.
            self._long.insert(min(LONG_MAX - 1, len(self._long)), number)
        else:
            self._new.append(number)

    def drop(self, number: int) -> None:
        """Remove a handler that has ended."""
        for queue in (self._new, self._long):
            if number in queue:
                queue.remove(number)

    def next_new(self) -> int | None:
        """Return a handler that runs for the first time in this queue, if there is one."""
        return self._begin(self._new)

    def next_long(self, now: int) -> int | None:
        """Return the long handler whose turn it is, if there is one and the rest is over."""
        if now < self._rests_until:
            return None
        self._rests_until = now + REST_MS
        return self._begin(self._long)

    def _begin(self, queue: deque[int]) -> int | None:
        if not queue:
            return None
        self._running = queue.popleft()
        return self._running
