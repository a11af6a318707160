"""Detects an application that no longer polls; other members then get its records."""

from __future__ import annotations

from pymq.core.types import NEVER
from pymq.errors import FencedMember

LOOKS = 4  # checks per interval


class PollTimer:
    """Measures how long the application has not polled.

    Reading a clock at each poll would cost time. So a poll only sets a flag, and the machine checks
    this flag a few times per interval. The application counts as late *max_poll_ms* milliseconds
    after its last poll, or up to a quarter later. The consumer then leaves the group until the
    application polls again.
    """

    def __init__(self, max_poll_ms: int) -> None:
        self.is_used = True  # whether the application has polled; any thread sets this
        self.look_at = 0  # the first check is at once
        self._max_poll_ms = max_poll_ms
        self._idle_looks = 0  # checks in a row without a poll

    def look(self, now: int, *, is_awaited: bool) -> bool:
        """Check whether the application has polled or waits for records.

        Returns whether the application is late.
        """
        self.look_at = now + max(1, self._max_poll_ms // LOOKS)
        self._idle_looks = 0 if self.is_used or is_awaited else self._idle_looks + 1
        self.is_used = False
        return self._idle_looks >= LOOKS

    def late(self) -> FencedMember:
        """Return the error for the next commit of an application that polled too late."""
        return FencedMember(
            f"the application has not polled for {self._max_poll_ms / 1000:g} s "
            "(max_poll_interval_s), so other members get its records"
        )

    def stop(self) -> None:
        """Stop the checks."""
        self.look_at = NEVER
