"""The two clocks of a process, in milliseconds."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """The clock by which a loop goes: it never goes back, and means nothing elsewhere."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970; it may jump."""
    return time.time_ns() // 1_000_000
