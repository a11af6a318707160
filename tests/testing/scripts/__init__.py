"""Short scripts for crash tests: what applications and administrators do, one thing each."""

from tests.testing.scripts import elections, groups, produce, rolls, upkeep
from tests.testing.scripts.desk import SCENARIOS, Desk, scenario

__all__ = ["SCENARIOS", "Desk", "elections", "groups", "produce", "rolls", "scenario", "upkeep"]
