"""How many records a member leases at a time: about as many as its application does in a moment.

What an application has been given nobody can take back, so a slow one gets few at a time, and the
others of its group find the rest. A fast one gets many: each lease costs a request.
"""

from __future__ import annotations

FIRST = 16  # records, before anything is known of the application
GROWTH = 8  # times as many as it got before, at most
AHEAD_MS = 20  # of work that is leased at a time


class LeasePace:
    """How long a record takes one application, by what it did with those that it got before."""

    def __init__(self, prefetch: int | None = None) -> None:
        self._prefetch = prefetch
        self._limit = FIRST
        self._last = 0, 0.0  # records and time, of those before
        self._idle_ms = 0.0  # that passes between two polls whatever there is to do

    def limit(self, wanted: int) -> int:
        """How many of *wanted* records to lease, at least one."""
        return max(1, min(wanted, self._prefetch or self._limit))

    def took(self, records: int, ms: float) -> None:
        """The application was given *records* and has asked for more after *ms* milliseconds."""
        if records < 1:
            return
        records_before, ms_before = self._last
        if records * 2 <= records_before and ms * 4 > ms_before * 3:
            # Fewer records took no less: it waits for something else in between, a timer perhaps.
            self._idle_ms = ms
        self._idle_ms = min(self._idle_ms, ms)
        self._last = records, ms
        each = (ms - self._idle_ms) / records
        fitting = int(AHEAD_MS / each) if each * (GROWTH * self._limit) > AHEAD_MS else 1 << 31
        self._limit = max(1, min(fitting, max(records, self._limit) * GROWTH))
