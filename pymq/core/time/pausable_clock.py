"""A clock for failure detection that ignores pauses of the process.

A node may consider another node dead only if it was itself listening during the silence. A process
that was stopped or slow, or whose clock jumped forward, was not listening: messages to this process
are still queued, or were lost. So failure detectors read this clock at an interval; between two
readings it advances by little more than that interval.
"""

from __future__ import annotations

from pymq.core.types import NEVER


class PausableClock:
    """A clock that follows another clock, but only while it is being read.

    A caller that waits for a time has to read the clock every *every_ms* milliseconds. Readings may
    be late, so a gap counts for at most one and a half intervals.
    """

    __slots__ = ("_every_ms", "_most_ms", "_seen", "ms")

    def __init__(self, every_ms: int) -> None:
        self.ms = 0  # time as of the last reading; not comparable with other clocks
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
        """Return when to read again, in the other clock's time, to see *due* in time."""
        if due == NEVER:
            return NEVER
        return (self._seen or 0) + min(max(0, due - self.ms), self._every_ms)

    def earliest(self, due: int) -> int:
        """Return the earliest time, by the other clock, at which this clock can reach *due*."""
        return NEVER if due == NEVER else (self._seen or 0) + max(0, due - self.ms)
