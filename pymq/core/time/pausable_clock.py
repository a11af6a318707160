"""How long somebody has listened: the clock by which silence is measured.

Whoever takes others for dead because they are silent must have listened meanwhile. A process that
did not run (it was stopped, its disk or its machine was slow), and one whose clock jumped forward,
has not: what was said is still on its way to it, or was lost. So whoever waits for silence looks
again and again, and of the time between two looks little more counts than should lie between them.
"""

from __future__ import annotations

from pymq.core.types import NEVER


class PausableClock:
    """A clock that goes by another one, but only as long as somebody looks at it.

    Whoever waits for a time of it looks each *every_ms*. The longest silence that a gap is taken
    for is half as long again, for looks come late.
    """

    __slots__ = ("_every_ms", "_most_ms", "_seen", "ms")

    def __init__(self, every_ms: int) -> None:
        self.ms = 0  # as of the last look; it means nothing elsewhere
        self._every_ms = max(1, every_ms)
        self._most_ms = self._every_ms + (self._every_ms + 1) // 2
        self._seen: int | None = None

    def at(self, now: int) -> int:
        """What it would show if one looked *now*."""
        if self._seen is None or now <= self._seen:
            return self.ms
        return self.ms + min(now - self._seen, self._most_ms)

    def look(self, now: int) -> int:
        """Look at it; returns what it shows."""
        self.ms = self.at(now)
        if self._seen is None or now > self._seen:
            self._seen = now
        return self.ms

    def when(self, due: int) -> int:
        """When to look again, in the time of the other clock, for it to show *due*."""
        if due == NEVER:
            return NEVER
        return (self._seen or 0) + min(max(0, due - self.ms), self._every_ms)

    def earliest(self, due: int) -> int:
        """When it may show *due*, at the earliest."""
        return NEVER if due == NEVER else (self._seen or 0) + max(0, due - self.ms)
