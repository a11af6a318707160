"""Faults of processes: crashes, pauses, replaced disks."""

from __future__ import annotations

from collections.abc import Callable

from pymq.testing.cluster import Cluster
from pymq.testing.faults.period import FaultPeriod
from pymq.testing.faults.redundancy import Redundancy
from pymq.testing.simulation.process import Process


class ProcessFaults:
    """Ends and pauses processes, and starts them again after a while."""

    def __init__(
        self,
        cluster: Cluster,
        period: FaultPeriod,
        redundancy: Redundancy,
        crash_app: Callable[[str], None],
        restart_app: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._period = period
        self._redundancy = redundancy
        self._crash_app = crash_app
        self._restart_app = restart_app
        self._down: dict[str, int] = {}  # microseconds until a dying process is restarted
        for host in (*cluster.brokers.values(), *cluster.zkservers.values()):
            host.on_death.append(self._died)

    def crash(self, name: str, keep: str, down: int) -> None:
        """End a process; *keep* selects which unsynced writes survive."""
        self._down[name] = down
        self._cluster.crash(name, keep)

    def crash_all(self, keep: str, down: int) -> None:
        """End all brokers and zkservers."""
        for name in [*self._cluster.brokers, *self._cluster.zkservers]:
            self.crash(name, keep, down)

    def boundary(self, name: str, boundary: int, keep: str, down: int) -> None:
        """End a process at its next effect after a number of others."""
        self._down[name] = down
        self._cluster.crash(name, keep, at_boundary=boundary)

    def crash_loop(self, name: str, boundaries: list[int], keep: str, down: int) -> None:
        """Crash repeatedly; each number says after how many effects of a start the next crash
        comes.
        """
        first, *rest = boundaries
        self.boundary(name, first, keep, down)
        self._cluster.brokers[name].crash_loop = rest

    def wipe(self, name: str, down: int) -> None:
        """Replace the disk, if other brokers have all of its records."""
        if not self._redundancy.is_spare(name):
            self._cluster.world.note(255, "fault", "no wipe", name)
            return
        self._down[name] = down
        self._cluster.wipe(name)
        if name in self._down:  # the process was down already; its earlier death restarts it
            del self._down[name]

    def pause(self, name: str, duration: int) -> None:
        """Stop a process and let it continue later."""
        self._cluster.pause(name)
        self._period.later(duration, lambda: self._cluster.resume(name))

    def crash_app(self, name: str, duration: int) -> None:
        """End an application."""
        self._crash_app(name)
        self._period.later(duration, lambda: self._restart_app(name))

    def _died(self, process: Process) -> None:
        name = process.name
        self._period.later(self._down.pop(name, 100_000), lambda: self._start(name))

    def _start(self, name: str) -> None:
        host = self._cluster.host(name)
        if not host.is_up:
            host.start()
