"""Finds the machines of a loop that are due without asking all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from pymq.core.time.timer_heap import TimerHeap


class Timed(Protocol):
    """An object that has a deadline."""

    @property
    def deadline(self) -> int: ...


class Timers:
    """The deadlines of a loop's machines.

    A process may have hundreds of consumers, most of them idle. If a machine was added with
    *tells*, its deadline changes only when the loop drives it or before a call of :meth:`rearm`, so
    the loop reads the deadline only then. The loop reads the deadlines of other machines in each
    turn.
    """

    def __init__(self) -> None:
        self._asked: dict[str, Timed] = {}
        self.telling: dict[str, Timed] = {}
        # the number of each machine, in the order of their addition
        self._places: dict[str, int] = {}
        self._added = 0
        self._known: TimerHeap[str] = TimerHeap()  # deadlines of the machines with *tells*
        self._rearmed: deque[str] = deque()  # names of machines; any thread may append

    def add(self, name: str, machine: Timed, *, tells: bool) -> None:
        """Add a machine; it replaces an earlier one of this name."""
        self.remove(name)
        self._added += 1
        self._places[name] = self._added
        if tells:
            self.telling[name] = machine
            self._known.set(name, machine.deadline)
        else:
            self._asked[name] = machine

    def remove(self, name: str) -> None:
        """Remove a machine."""
        if self._places.pop(name, None) is not None:
            self._asked.pop(name, None)
            self.telling.pop(name, None)
            self._known.drop(name)
            self._known.settle()

    def rearm(self, name: str) -> None:
        """Note that a machine's deadline may have changed; any thread may call this."""
        self._rearmed.append(name)

    @property
    def first(self) -> int:
        """Return the earliest deadline; any thread may call this."""
        due = self._known.due
        if self._rearmed:
            # Iterate over a copy, because the loop's thread removes names during a turn.
            for name in self._rearmed.copy():
                told = self.telling.get(name)
                if told is not None:
                    due = min(due, told.deadline)
        # Iterate over a copy, because the loop's thread may add and remove machines at the same
        # time.
        for machine in list(self._asked.values()):
            at = machine.deadline
            if at < due:
                due = at
        return due

    def driven(self, names: Iterable[str]) -> None:
        """Note that these machines were driven, so their deadlines may have changed."""
        telling = self.telling
        for name in names:
            machine = telling.get(name)
            if machine is not None:
                self._known.set(name, machine.deadline)
        self._known.settle()

    def due(self, now: int) -> list[str]:
        """Return the machines that may be due by *now*, in the order of their addition."""
        found = list(self._asked)
        if self.telling:
            while self._rearmed:
                self.driven((self._rearmed.popleft(),))
            if self._known.due <= now:
                found += self._known.over(now)
                found.sort(key=self._places.__getitem__)
        return found
