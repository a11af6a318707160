"""Faults of disks: slow, full, failing, damaged."""

from __future__ import annotations

from random import Random

from pymq.testing.cluster import Cluster
from pymq.testing.faults.period import FaultPeriod
from pymq.testing.faults.process_faults import ProcessFaults
from pymq.testing.faults.redundancy import Redundancy
from pymq.testing.simulation.process import Process
from pymq.testing.simulation.world import SECOND

FOR_EVER = 1 << 30  # more operations than a disk ever does in a run


class DiskFaults:
    """Makes disks slow, full or faulty, and repairs or replaces them after a while."""

    def __init__(
        self,
        cluster: Cluster,
        period: FaultPeriod,
        redundancy: Redundancy,
        processes: ProcessFaults,
        *,
        has_operator: bool,
    ) -> None:
        # the broker whose disk keeps failing after the end of the faults
        self.left: str | None = None
        self._cluster = cluster
        self._period = period
        self._redundancy = redundancy
        self._processes = processes
        self._has_operator = has_operator
        self._failing: set[str] = set()  # brokers with a failed write, not restarted since
        for host in cluster.brokers.values():
            host.on_death.append(self._died)

    def _died(self, process: Process) -> None:
        # If the fault has not happened yet, it happens to the next incarnation of the broker.
        if not self._cluster.brokers[process.name].files.failing:
            self._failing.discard(process.name)

    def restart_failing(self, *, keeps_one: bool) -> None:
        """Restart the brokers whose disk has failed.

        With *keeps_one* one of these brokers may stay unrepaired.
        """
        up = [name for name, host in self._cluster.brokers.items() if host.is_up]
        failing = [name for name in up if name in self._failing]
        # Restarted brokers leave the in-sync sets. The broker with the failed disk could then be
        # the only member of a set, so leave the disk unrepaired only if all other brokers are up
        # and healthy.
        is_calm = len(up) == len(self._cluster.brokers) and len(failing) == 1
        for name in failing if keeps_one else ():
            # A replica whose sync has failed does not take part until its broker restarts. The
            # other replicas continue without that replica; if they cannot, an operator restarts the
            # broker.
            may_stay = is_calm and not self._has_operator and self.left is None
            if may_stay and self._redundancy.tolerates_failed_disk(name):
                self.left = name
            elif self._cluster.brokers[name].is_up:
                self._cluster.crash(name, "random")

    def fail_left(self) -> None:
        """Let the disk of the unrepaired broker fail until the end of the run."""
        if self.left is not None:
            self._cluster.fail_disk(self.left, "sync", FOR_EVER)

    def replace_disks(self) -> bool:
        """Replace damaged disks whose records are on other brokers.

        Returns whether no damaged disk of this kind is left.
        """
        for name, number in list(self._redundancy.rotten.items()):
            host = self._cluster.brokers[name]
            if host.disks == number and self._redundancy.is_spare(name):
                self._cluster.wipe(name)
                host.start()
            if host.disks != number:
                del self._redundancy.rotten[name]
        return not self._redundancy.rotten

    def slow_disk(self, name: str, duration: int, factor: int) -> None:
        """Multiply the time of each disk operation."""
        self._cluster.slow_disk(name, factor)
        self._period.later(duration, lambda: self._cluster.slow_disk(name, 1))

    def full_disk(self, name: str, duration: int, room: int) -> None:
        """Leave *room* bytes on the disk."""
        self._cluster.fill_disk(name, room)
        self._period.later(duration, lambda: self._cluster.free_disk(name))

    def fail_disk(self, name: str, what: str, duration: int, times: int) -> None:
        """Let a disk operation fail *times* times.

        An operator, if there is one, restarts the broker.
        """
        self._cluster.fail_disk(name, what, times)
        if what != "read":  # a failed read may succeed the next time
            self._failing.add(name)

        def restart() -> None:
            self._cluster.brokers[name].files.failing.clear()
            if what != "read" and self._has_operator:
                self._failing.discard(name)
                self._processes.crash(name, "random", 100_000)

        self._period.later(duration, restart)

    def flip(self, name: str, dice: int, duration: int) -> None:
        """Flip a bit of a block; an operator replaces the disk later.

        The bit may belong to a record that is not visible yet. If the broker has acknowledged the
        record, other brokers must have the record: the block continues after it, and the broker may
        never read it again.
        """
        host = self._cluster.brokers[name]
        files = [path for path in host.disk.paths() if path.endswith(".block")]
        if (
            not files
            or name in self._redundancy.rotten
            or not self._redundancy.is_spare(name, unseen=True)
        ):
            self._cluster.world.note(255, "fault", "no flip", name)
            return
        where = self._cluster.flip(name, Random(dice), files[dice % len(files)])
        self._cluster.world.note(255, "fault", "flipped", where)
        self._redundancy.rotten[name] = host.disks
        self._period.later(duration, lambda: self._replace_rotten(name))

    def _replace_rotten(self, name: str) -> None:
        """Replace the damaged disk if it is still in use and other brokers have its records."""
        if self._redundancy.rotten.get(name) != self._cluster.brokers[name].disks:
            self._redundancy.rotten.pop(name, None)
        elif self._redundancy.is_spare(name):
            del self._redundancy.rotten[name]
            self._processes.wipe(name, 100_000)
        else:
            self._period.later(SECOND, lambda: self._replace_rotten(name))
