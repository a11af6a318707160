"""Short scripts for crash tests: each one is a single action of an application or an
administrator.
"""

from tests.testing.scripts import elections, groups, produce, rolls, upkeep
from tests.testing.scripts.desk import SCENARIOS, Desk, scenario

__all__ = ["SCENARIOS", "Desk", "elections", "groups", "produce", "rolls", "scenario", "upkeep"]
