"""Carries out the faults of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from pymq.testing.cluster import Cluster
from pymq.testing.faults.clock_faults import ClockFaults
from pymq.testing.faults.disk_faults import DiskFaults
from pymq.testing.faults.kinds import Step
from pymq.testing.faults.network_faults import NetworkFaults
from pymq.testing.faults.period import FaultPeriod
from pymq.testing.faults.plan import Plan
from pymq.testing.faults.process_faults import ProcessFaults
from pymq.testing.faults.redundancy import Redundancy


class Nemesis:
    """Carries out each fault of a plan at its time, until it is stopped.

    Args:
        base: the virtual time at which the plan starts, in microseconds.
        crash_app: function that ends an application, by its name.
        restart_app: function that starts an application again.
        hostile: function that lets the hostile client do an act.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        base: int = 0,
        *,
        crash_app: Callable[[str], None] = lambda name: None,
        restart_app: Callable[[str], None] = lambda name: None,
        hostile: Callable[[str, int], None] = lambda act, dice: None,
    ) -> None:
        self.period = FaultPeriod(cluster.world)
        self.redundancy = Redundancy(cluster)
        network = NetworkFaults(cluster, self.period)
        processes = ProcessFaults(cluster, self.period, self.redundancy, crash_app, restart_app)
        self.disks = DiskFaults(
            cluster, self.period, self.redundancy, processes, has_operator=plan.operator
        )
        clocks = ClockFaults(cluster, self.period)
        self._cluster = cluster
        self._restarts_failing = plan.restart != "all"
        self._faults: dict[str, Callable[..., Any]] = {
            "crash": processes.crash,
            "crash_all": processes.crash_all,
            "boundary": processes.boundary,
            "crash_loop": processes.crash_loop,
            "wipe": processes.wipe,
            "pause": processes.pause,
            "crash_app": processes.crash_app,
            "isolate": network.isolate,
            "cut": network.cut,
            "split": network.split,
            "bridge": network.bridge,
            "swizzle": network.swizzle,
            "slow_coordinator": network.slow_coordinator,
            "suspend": network.suspend,
            "clog": network.clog,
            "slow_link": network.slow_link,
            "reset": network.reset,
            "slow_disk": self.disks.slow_disk,
            "full_disk": self.disks.full_disk,
            "fail_disk": self.disks.fail_disk,
            "flip": self.disks.flip,
            "clock": clocks.clock,
            "skew": clocks.skew,
            "jump": clocks.jump,
            "expire": cluster.expire_session,
            "hostile": hostile,
        }
        cluster.network.set_faults(attrs.evolve(cluster.network.faults, **plan.link))
        cluster.ensemble.uncertain = plan.uncertain
        for step in plan.faults:
            cluster.world.at(base + step[0], self._do, step)

    def stop(self) -> None:
        """End the faults in progress, and start no further fault."""
        self.period.is_over = True
        self.disks.restart_failing(keeps_one=self._restarts_failing)
        self._cluster.calm()
        self.disks.fail_left()

    def _do(self, step: Step, _: object) -> None:
        if not self.period.is_over:
            self._cluster.world.note(255, "fault", *step[1:])
            self._faults[step[1]](*step[2:])
