"""The time during which faults happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymq.testing.simulation.world import World


class FaultPeriod:
    """Runs the delayed actions of faults until the period is over."""

    def __init__(self, world: World) -> None:
        self.is_over = False
        self._world = world

    def later(self, delay: int, action: Callable[[], Any]) -> None:
        """Call *action* after *delay* microseconds, unless the period is over by then."""

        def act(_: object, __: object) -> None:
            if not self.is_over:
                action()

        self._world.after(delay, act)
