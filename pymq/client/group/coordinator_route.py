"""Finds the broker that coordinates a group.

:mod:`pymq.client.fetching.partition_route` does the same for the leaders of partitions.
"""

from __future__ import annotations

from pymq.client.fetching.partition_route import ANSWER_MAX_MS, ANSWER_MS, RETRY_MAX_MS, RETRY_MS
from pymq.client.router import Router
from pymq.core.types import OFFSETS_TOPIC
from pymq.errors import NotLeader, PymqError, QuotaExceeded


class CoordinatorRoute:
    """The coordinator of one group, and the timeout of its answers."""

    def __init__(self, group: str, router: Router) -> None:
        self.group = group
        self._router = router
        self._asked = ""  # the broker that got the last request
        self._tries = 0  # tries since the last answer of the coordinator
        self._trouble: str | None = None  # the reason why the coordinator does not answer

    def find(self) -> str | None:
        """Return the coordinator; None while the metadata is refreshed."""
        found = self._router.coordinator(self.group)
        if found is not None:
            self._asked = found
        return found

    @property
    def patience_ms(self) -> int:
        """The timeout of an answer, in addition to the wait that the request allows."""
        return min(ANSWER_MS << min(self._tries, 10), ANSWER_MAX_MS)

    def answered(self) -> None:
        """Handle an answer."""
        self._tries, self._trouble = 0, None

    def silent(self) -> None:
        """Note a missing answer of the coordinator; another broker may coordinate by now."""
        self._tries += 1
        self._trouble = f"{self._asked} did not answer"
        place = self._router.metadata.coordinator_of(self.group)
        if place is None:
            self._router.refresh(OFFSETS_TOPIC)
        else:
            self._router.distrust(*place)

    def refused(self, source: str, error: PymqError) -> int:
        """Handle a transient error; returns the milliseconds until the retry."""
        pause = 0
        if self._tries:
            pause = min(RETRY_MS << min(self._tries - 1, 10), RETRY_MAX_MS)
        self._tries += 1
        self._trouble = f"{source}: {error}"
        if isinstance(error, QuotaExceeded):
            return max(pause, error.retry_ms)
        place = self._router.metadata.coordinator_of(self.group)
        if isinstance(error, NotLeader) and place is not None:
            if not self._router.refused(*place, source, error):
                pause = max(pause, RETRY_MS)
        else:
            self._router.refresh(OFFSETS_TOPIC)
            pause = max(pause, RETRY_MS)
        return pause

    def why(self) -> str | None:
        """The reason why the coordinator does not answer, as text for users; None if it answers."""
        place = self._router.metadata.coordinator_of(self.group)
        if place is None or self._router.metadata.find(*place) is None:
            reason = self._router.why_no_leader(OFFSETS_TOPIC)
            return f"the coordinator of group {self.group!r} is unknown: {reason}"
        if self._trouble is not None:
            return f"the coordinator of group {self.group!r}: {self._trouble}"
        return None
