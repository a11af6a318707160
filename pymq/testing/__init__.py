"""Tools to test pymq's parts, third-party ones and applications that use pymq."""

from pymq.testing.check_coordinator import check_coordinator
from pymq.testing.check_store import check_store

__all__ = ["check_coordinator", "check_store"]
