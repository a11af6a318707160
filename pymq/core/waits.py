"""Fetches that wait for something to read."""

from __future__ import annotations

from collections.abc import Callable

from pymq.core.message import Fetch
from pymq.core.types import NEVER

WAIT_MAX_MS = 60_000  # whatever is asked for: nobody says that a client has died

Waiting = tuple[int, str, Fetch]  # (until, whom, what)


class Waits:
    """The waiting fetches of one partition."""

    __slots__ = ("_waiting", "deadline")

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self.deadline = NEVER  # of the first that has waited long enough

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, source: str, m: Fetch, now: int) -> None:
        """Let a fetch wait; a consumer's next one of the partition takes the place of its last."""
        self.cancel(source, m.id)
        until = now + min(m.max_wait_ms, WAIT_MAX_MS)
        self._waiting.append((until, source, m))
        self.deadline = min(self.deadline, until)

    def cancel(self, source: str, request: int) -> None:
        """The fetch is no longer waited for."""
        self._waiting = [w for w in self._waiting if w[1] != source or w[2].id != request]

    def serve(self, is_served: Callable[[str, Fetch], bool]) -> None:
        """Let each be tried again; those that are not served go on waiting."""
        waiting, self._waiting = self._waiting, []
        self._waiting = [w for w in waiting if not is_served(w[1], w[2])] + self._waiting
        self._rearm()

    def over(self, now: int) -> list[tuple[str, Fetch]]:
        """Take out those that have waited long enough."""
        if self.deadline > now:
            return []
        over = [(source, m) for until, source, m in self._waiting if until <= now]
        self._waiting = [w for w in self._waiting if w[0] > now]
        self._rearm()
        return over

    def _rearm(self) -> None:
        self.deadline = min((until for until, _, _ in self._waiting), default=NEVER)
