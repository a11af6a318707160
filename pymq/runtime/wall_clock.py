"""Gives the machines of a loop the time of day."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class WallClockUser(Protocol):
    """A machine that needs the wall clock."""

    def set_wall_offset(self, offset_ms: int) -> None:
        """Handle the current offset of the wall clock from the loop's clock."""
        ...


class WallClock:
    """Passes the offset of the wall clock to machines, at most once per millisecond.

    A wall clock may be set while a process runs, and the loop's clock stops while the computer is
    suspended. In both cases an offset that was computed at the start would be wrong.
    """

    def __init__(self) -> None:
        self._wall_ms: Callable[[], int] | None = None
        self._users: list[WallClockUser] = []
        self.told = -1  # time of the last update, by the loop's clock

    def follow(self, wall_ms: Callable[[], int], machine: WallClockUser) -> None:
        """Pass the time of day to *machine* before each turn."""
        self._wall_ms = wall_ms
        self._users.append(machine)

    def tell(self, now: int) -> None:
        """Pass the offset at *now* to the machines."""
        self.told = now
        if self._wall_ms is not None:
            offset = self._wall_ms() - now
            for user in self._users:
                user.set_wall_offset(offset)
