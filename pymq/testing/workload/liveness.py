"""Checks that a healed cluster works again within a bound."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NoReturn

from pymq.testing.simulation.world import SECOND, Violation, World

HEAL_S = 90.0  # seconds within which everything must work again
PATIENCE = 5  # factor for this bound while there is slow progress
LOOK_US = 50_000  # time between two checks
# Rules about recovery after the end of the faults; a run may waive some of them.
LIVENESS = """topics-are-made zkserver-comes-back sends-are-answered partitions-take-records
    readers-reach-the-end groups-reach-the-end delayed-are-delivered replicas-converge auditor-reads
    letters-go-back requests-are-answered no-responders-at-once readable-without-leader
    kafka-partitions-take-records kafka-readers-reach-the-end kafka-groups-reach-the-end""".split()


class Waived(Exception):
    """The run has broken a rule that it waives."""


class Liveness:
    """Runs the world until a condition holds; a broken rule in *waive* is not a violation."""

    def __init__(self, world: World, waive: Collection[str] = ()) -> None:
        self._world = world
        self._waive = waive

    def until(
        self,
        is_so: Callable[[], bool],
        rule: str,
        seconds: float = HEAL_S,
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
        """Run the world until *is_so* holds, for at most *seconds* without *progress*.

        Raises:
            Violation: *is_so* does not hold by then.
            Waived: likewise, but the run waives the rule.
        """
        until, latest = self._world.now + round(seconds * SECOND), self._world.now
        latest, done = latest + PATIENCE * (until - latest), progress()
        while not is_so():
            if (now_done := progress()) > done:
                done, until = now_done, min(latest, self._world.now + round(seconds * SECOND))
            if self._world.now >= until:
                self.fail(rule, f"not within {seconds:g} s")
            self._world.run(self._world.now + LOOK_US)

    def fail(self, rule: str, what: str) -> NoReturn:
        """Report that a rule is broken."""
        if rule in self._waive:
            raise Waived(f"{rule}: {what}")
        raise Violation(rule, what)
