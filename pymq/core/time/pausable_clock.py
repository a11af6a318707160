"""A clock for failure detection that ignores the pauses of its own process.

A node may declare another one dead only if it was listening during the silence. A process that was
stopped or slow, or whose clock jumped forward, was not: messages are still queued, or were lost. So
failure detectors read this clock at an interval, and it advances little more than that interval
between two readings.
"""

from __future__ import annotations

from pymq.core.types import NEVER


class PausableClock:
    """A clock that follows another one, but only while it is read.

    A caller that waits for a time reads it every *every_ms*. Readings come late, so a gap counts
    for up to half as long again.
    """

    __slots__ = ("_every_ms", "_most_ms", "_seen", "ms")

    def __init__(self, every_ms: int) -> None:
        self.ms = 0  # as of the last reading; not comparable with other clocks
        self._every_ms = max(1, every_ms)
        self._most_ms = self._every_ms + (self._every_ms + 1) // 2
        self._seen: int | None = None

    def at(self, now: int) -> int:
        """Return what a reading at *now* would return."""
        if self._seen is None or now <= self._seen:
            return self.ms
        return self.ms + min(now - self._seen, self._most_ms)

    def look(self, now: int) -> int:
        """Read the clock: advance it and return its time."""
        self.ms = self.at(now)
        if self._seen is None or now > self._seen:
            self._seen = now
        return self.ms

    def when(self, due: int) -> int:
        """Return when to read again, in the other clock's time, while waiting for *due*."""
        if due == NEVER:
            return NEVER
        return (self._seen or 0) + min(max(0, due - self.ms), self._every_ms)

    def earliest(self, due: int) -> int:
        """Return the earliest time, by the other clock, at which this one can reach *due*."""
        return NEVER if due == NEVER else (self._seen or 0) + max(0, due - self.ms)
