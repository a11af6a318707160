"""The way to the coordinator of a group, as :mod:`pymq.client.fetching.partition_route` is that to
a partition.
"""

from __future__ import annotations

from pymq.client.fetching.partition_route import ANSWER_MAX_MS, ANSWER_MS, RETRY_MAX_MS, RETRY_MS
from pymq.client.router import Router
from pymq.core.types import OFFSETS_TOPIC
from pymq.errors import NotLeader, PymqError, QuotaExceeded


class CoordinatorRoute:
    """Whom to ask what is for the coordinator of a group, and how patiently."""

    def __init__(self, group: str, router: Router) -> None:
        self.group = group
        self._router = router
        self._asked = ""  # the broker that we take for it
        self._tries = 0  # to get an answer, since it gave one
        self._trouble: str | None = None  # why it does not do what we want

    def find(self) -> str | None:
        """Whom to send what is for it; None while that is being found out."""
        found = self._router.coordinator(self.group)
        if found is not None:
            self._asked = found
        return found

    @property
    def patience_ms(self) -> int:
        """How long an answer may take beyond what it was asked to wait."""
        return min(ANSWER_MS << min(self._tries, 10), ANSWER_MAX_MS)

    def answered(self) -> None:
        """It has done what was asked for."""
        self._tries, self._trouble = 0, None

    def silent(self) -> None:
        """It has not answered, for longer than it should take: perhaps another broker is it."""
        self._tries += 1
        self._trouble = f"{self._asked} did not answer"
        place = self._router.coordinator_of(self.group)
        if place is None:
            self._router.refresh(OFFSETS_TOPIC)
        else:
            self._router.distrust(*place)

    def refused(self, source: str, error: PymqError) -> int:
        """It cannot do it now: returns in how many ms to ask again."""
        pause = 0
        if self._tries:
            pause = min(RETRY_MS << min(self._tries - 1, 10), RETRY_MAX_MS)
        self._tries += 1
        self._trouble = f"{source}: {error}"
        if isinstance(error, QuotaExceeded):
            return max(pause, error.retry_ms)
        place = self._router.coordinator_of(self.group)
        if isinstance(error, NotLeader) and place is not None:
            if not self._router.refused(*place, source, error):
                pause = max(pause, RETRY_MS)
        else:
            self._router.refresh(OFFSETS_TOPIC)
            pause = max(pause, RETRY_MS)
        return pause

    def why(self) -> str | None:
        """What keeps it from answering, for people; None if nothing does."""
        place = self._router.coordinator_of(self.group)
        if place is None or self._router.find(*place) is None:
            reason = self._router.why_no_leader(OFFSETS_TOPIC)
            return f"the coordinator of group {self.group!r} is unknown: {reason}"
        if self._trouble is not None:
            return f"the coordinator of group {self.group!r}: {self._trouble}"
        return None
