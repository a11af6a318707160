"""Faults of the network and of the coordinator's latency."""

from __future__ import annotations

from functools import partial

from pymq.testing.cluster import Cluster
from pymq.testing.faults.period import FaultPeriod
from pymq.testing.simulation.coordinator import COORDINATOR


class NetworkFaults:
    """Cuts, slows and resets links, and heals them after a while."""

    def __init__(self, cluster: Cluster, period: FaultPeriod) -> None:
        self._cluster = cluster
        self._period = period

    def isolate(self, name: str, duration: int) -> None:
        """Cut a process off from every other."""
        cut = self._cluster.cut(name)
        self._period.later(duration, lambda: self._cluster.heal(cut))

    def cut(self, a: str, b: str, duration: int, one_way: bool) -> None:
        """Cut the link between two processes, or only from *a* to *b*."""
        cut = self._cluster.cut(a, b, one_way=one_way)
        self._period.later(duration, lambda: self._cluster.heal(cut))

    def split(self, names: list[str], duration: int) -> None:
        """Cut *names* off from all other processes."""
        cut = self._cluster.cut(names)
        self._period.later(duration, lambda: self._cluster.heal(cut))

    def bridge(self, left: list[str], right: list[str], duration: int) -> None:
        """Cut two sides off from each other; processes on neither side still reach both."""
        cut = self._cluster.cut(left, right)
        self._period.later(duration, lambda: self._cluster.heal(cut))

    def swizzle(self, names: list[str], gap: int, duration: int) -> None:
        """Isolate processes one after the other; they come back in a random order."""
        rng = self._cluster.world.rng("swizzle")
        for number, name in enumerate(names):
            lasts = duration + rng.randrange(duration + 1)
            self._period.later(number * gap, partial(self.isolate, name, lasts))

    def slow_coordinator(self, duration: int, factor: int) -> None:
        """Delay the coordinator's answers and its notices of changes."""
        ensemble, usual = self._cluster.ensemble, self._cluster.knobs.coordinator_us
        ensemble.latency_us = usual * factor

        def end() -> None:
            ensemble.latency_us = usual

        self._period.later(duration, end)

    def suspend(self, name: str, duration: int) -> None:
        """Cut a zkserver off from the coordinator."""
        self.cut(name, COORDINATOR, duration, False)

    def clog(self, a: str, b: str, duration: int) -> None:
        """Hold back all messages from *a* to *b*."""
        self._cluster.network.clog(a, b, self._cluster.world.now + duration)

    def slow_link(self, a: str, b: str, duration: int, factor: int) -> None:
        """Multiply the latency from *a* to *b*."""
        link = self._cluster.network.link(a, b)
        link.slow = factor

        def end() -> None:
            link.slow = 1

        self._period.later(duration, end)

    def reset(self, a: str, b: str) -> None:
        """Break the connection between *a* and *b*; messages in flight are lost."""
        self._cluster.network.reset(a, b)
