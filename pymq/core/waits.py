"""Fetches that wait for something to read."""

from __future__ import annotations

from collections.abc import Callable

from pymq.core.message import Fetch
from pymq.core.types import NEVER

WAIT_MAX_MS = 60_000  # whatever is asked for: nobody says that a client has died


class Waits:
    """The waiting fetches of one partition, in the order in which they came."""

    __slots__ = ("_waiting", "deadline")

    def __init__(self) -> None:
        # By whom, and the id of the fetch: until when, and what.
        self._waiting: dict[tuple[str, int], tuple[int, Fetch]] = {}
        self.deadline = NEVER  # of the first that has waited long enough; perhaps too early

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, source: str, m: Fetch, now: int) -> None:
        """Let a fetch wait; one that was sent again waits once."""
        self._waiting.pop((source, m.id), None)
        until = now + min(m.max_wait_ms, WAIT_MAX_MS)
        self._waiting[source, m.id] = until, m
        self.deadline = min(self.deadline, until)

    def serve(self, is_served: Callable[[str, Fetch], bool]) -> None:
        """Let each be tried again; those that are not served go on waiting."""
        waiting, self._waiting = self._waiting, {}
        for (source, request), (until, m) in waiting.items():
            if not is_served(source, m):
                self._waiting[source, request] = until, m
        self._rearm()

    def over(self, now: int) -> list[tuple[str, Fetch]]:
        """Take out those that have waited long enough."""
        if self.deadline > now:
            return []
        over = [(key, m) for key, (until, m) in self._waiting.items() if until <= now]
        for key, _ in over:
            del self._waiting[key]
        self._rearm()
        return [(source, m) for (source, _), m in over]

    def _rearm(self) -> None:
        self.deadline = min((until for until, _ in self._waiting.values()), default=NEVER)
