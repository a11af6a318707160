"""When the machines of a loop have something to do, found without asking all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from pymq.core.time.timer_heap import TimerHeap


class Timed(Protocol):
    """What has a deadline."""

    @property
    def deadline(self) -> int: ...


class Timers:
    """The deadlines of a loop's machines.

    There may be hundreds of consumers in a process, most of which wait. A machine that *tells* has
    its deadline changed by nobody but the thread that turns the loop, when it is driven, or else by
    someone who says so (:meth:`rearm`); so it is asked only then. The others are asked each time.
    """

    def __init__(self) -> None:
        self._asked: dict[str, Timed] = {}
        self._telling: dict[str, Timed] = {}
        self._places: dict[str, int] = {}  # in the order of which they came
        self._added = 0
        self._known: TimerHeap[str] = TimerHeap()  # of those that tell
        self._rearmed: deque[str] = deque()  # left by any thread

    def add(self, name: str, machine: Timed, *, tells: bool) -> None:
        """Know a machine, in the place of one that had this name before."""
        self.remove(name)
        self._added += 1
        self._places[name] = self._added
        if tells:
            self._telling[name] = machine
            self._known.set(name, machine.deadline)
        else:
            self._asked[name] = machine

    def remove(self, name: str) -> None:
        """Forget a machine."""
        if self._places.pop(name, None) is not None:
            self._asked.pop(name, None)
            self._telling.pop(name, None)
            self._known.drop(name)
            self._known.settle()

    def rearm(self, name: str) -> None:
        """The deadline of a machine that tells may be another one; any thread may say so."""
        self._rearmed.append(name)

    @property
    def first(self) -> int:
        """When the first of them has something to do; any thread may ask."""
        due = self._known.due
        if self._rearmed:
            # Also in the middle of a turn, in which they are taken away.
            for name in self._rearmed.copy():
                told = self._telling.get(name)
                if told is not None:
                    due = min(due, told.deadline)
        # The thread that turns the loop adds and removes machines meanwhile.
        for machine in list(self._asked.values()):
            at = machine.deadline
            if at < due:
                due = at
        return due

    def driven(self, names: Iterable[str]) -> None:
        """These machines were given something to do: their deadlines may be other ones."""
        telling = self._telling
        if telling:
            for name in names:
                machine = telling.get(name)
                if machine is not None:
                    self._known.set(name, machine.deadline)
            self._known.settle()

    def due(self, now: int) -> list[str]:
        """Who may have something to do by *now*, in the order in which they were added."""
        found = list(self._asked)
        if self._telling:
            while self._rearmed:
                self.driven((self._rearmed.popleft(),))
            if self._known.due <= now:
                found += self._known.over(now)
                found.sort(key=self._places.__getitem__)
        return found
