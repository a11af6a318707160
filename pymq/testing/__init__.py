"""Tools for tests of pymq's parts, of third-party backends, and of applications that use pymq."""

from pymq.testing.check_coordinator import check_coordinator
from pymq.testing.check_store import check_store
from pymq.testing.check_transport import check_transport
from pymq.testing.cluster import Cluster, NotReached
from pymq.testing.crashpoints import enumerate_crashes
from pymq.testing.faults.kinds import Faults
from pymq.testing.simulation.disk import PowerCut, SimDisk
from pymq.testing.simulation.nodes import Knobs
from pymq.testing.simulation.world import Violation

__all__ = [
    "Cluster",
    "Faults",
    "Knobs",
    "NotReached",
    "PowerCut",
    "SimDisk",
    "Violation",
    "check_coordinator",
    "check_store",
    "check_transport",
    "enumerate_crashes",
]
