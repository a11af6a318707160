"""Whether the application still asks for records; if not for long, others get what it has."""

from __future__ import annotations

from pymq.core.types import NEVER
from pymq.errors import FencedMember

LOOKS = 4  # in an interval, whether the application still polls


class PollTimer:
    """How long the application has not asked for records.

    To ask costs it no look at a clock: a flag says that it has, and is looked at now and then. So
    its time is over after *max_poll_ms* milliseconds, or up to a quarter more. It has lapsed then,
    until it asks again.
    """

    def __init__(self, max_poll_ms: int) -> None:
        self.is_used = True  # the application has asked for records; set by any thread
        self.has_lapsed = False  # it had not, for so long that it has lost its partitions
        self.look_at = 0  # at first at once
        self._max_poll_ms = max_poll_ms
        self._idle_looks = 0  # in a row that found it not used

    def asked(self) -> bool:
        """The application asks for records; returns whether it had lapsed."""
        self.is_used = True
        had_lapsed, self.has_lapsed = self.has_lapsed, False
        return had_lapsed

    def look(self, now: int, *, is_awaited: bool) -> bool:
        """Look whether it has asked, or waits for records; returns whether its time is over."""
        self.look_at = now + max(1, self._max_poll_ms // LOOKS)
        self._idle_looks = 0 if self.is_used or is_awaited else self._idle_looks + 1
        self.is_used = False
        return self._idle_looks >= LOOKS

    def lapse(self) -> FencedMember:
        """Its time is over; returns what it is told of its leases."""
        self.has_lapsed = True
        return FencedMember(
            f"nothing was polled for {self._max_poll_ms / 1000:g} s "
            "(max_poll_interval_s), so its records go to others of the group"
        )

    def stop(self) -> None:
        """Nobody looks any more."""
        self.look_at = NEVER
