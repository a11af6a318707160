"""The two clocks of a process, in milliseconds."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Return the loop's monotonic clock, valid in this process only."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Return milliseconds since 1970; the clock may jump."""
    return time.time_ns() // 1_000_000
