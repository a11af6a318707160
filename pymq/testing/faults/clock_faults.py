"""Faults of clocks."""

from __future__ import annotations

from pymq.testing.cluster import Cluster
from pymq.testing.faults.period import FaultPeriod


class ClockFaults:
    """Changes the rate and the time of a process's clocks."""

    def __init__(self, cluster: Cluster, period: FaultPeriod) -> None:
        self._cluster = cluster
        self._period = period

    def clock(self, name: str, duration: int, rate: int) -> None:
        """Let a clock run at *rate* millionths of its speed."""
        self._cluster.clock(name, rate=rate / 1_000_000)
        self._period.later(duration, lambda: self._cluster.clock(name))

    def skew(self, name: str, skew_ms: int) -> None:
        """Set the wall clock wrong, until the faults end."""
        host = self._cluster.host(name)
        host.wall_skew_ms, host.was_skewed = skew_ms, True

    def jump(self, name: str, jump: int) -> None:
        """Advance the monotonic clock by *jump* microseconds."""
        host = self._cluster.host(name)
        host.clock.change(rate=host.clock.rate, jump_us=jump)
        host.wake()
