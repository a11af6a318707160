"""Deadlines of many machines: no deadline is missed, and a waiting machine costs nothing."""

from __future__ import annotations

import random

import pytest

from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER
from pymq.runtime.loop import Loop
from pymq.runtime.timers import Timers
from pymq.testing.faults.plan import generate
from pymq.testing.run import run_plan
from tests.controller.machines import Scripted


class Counted:
    """A machine that counts how often its deadline is read."""

    def __init__(self, deadline: int = NEVER) -> None:
        self.at = deadline
        self.asked = 0

    @property
    def deadline(self) -> int:
        self.asked += 1
        return self.at


def test_one_that_waits_is_not_asked() -> None:
    """The timers read only the deadlines of machines that were driven."""
    timers, machines = Timers(), [Counted(1_000 + n) for n in range(500)]
    for number, machine in enumerate(machines):
        timers.add(f"m{number}", machine, tells=True)
    timers.add("busy", Counted(), tells=False)
    asked = [machine.asked for machine in machines]
    for now in range(900, 1_000):
        assert timers.first == 1_000
        assert timers.due(now) == ["busy"]
        timers.driven(["m7"])
    asked[7] += 100
    assert [machine.asked for machine in machines] == asked


def test_who_is_due_comes_in_the_order_of_adding() -> None:
    """Due machines come in the order of their addition, for any deadlines and both kinds of
    machines.
    """
    timers = Timers()
    for number, due in enumerate((30, 10, 20, NEVER)):
        timers.add(f"m{number}", Counted(due), tells=number != 2)
    assert timers.due(30) == ["m0", "m1", "m2"]
    assert timers.first == 20, "who has been handed over is known again once it was driven"


def test_any_thread_may_change_a_deadline() -> None:
    """The change counts at once, also for a thread that only reads the next deadline."""
    timers, machine = Timers(), Counted()
    timers.add("m", machine, tells=True)
    machine.at = 5
    assert timers.first == NEVER
    timers.rearm("m")
    timers.rearm("somebody who has gone")
    assert timers.first == 5
    assert timers.due(4) == []
    assert timers.first == 5
    assert timers.due(5) == ["m"]


def test_who_is_removed_is_due_no_more() -> None:
    """A removed machine is never due, nor is an earlier machine of its name."""
    timers = Timers()
    timers.add("m", Counted(5), tells=True)
    timers.add("m", Counted(9), tells=True)
    assert timers.first == 9
    timers.remove("m")
    timers.remove("m")
    assert timers.first == NEVER
    assert timers.due(10) == []


def test_a_machine_that_tells_is_ticked() -> None:
    """With *tells* a machine is called only after ``rearm``, or after the loop has run it."""
    now = [100]
    loop, machine = Loop(lambda: now[0]), Scripted()
    loop.add("m", machine, tells=True)
    loop.run()
    machine.on_tick = lambda at: setattr(machine, "deadline", at + 10 if at < 120 else NEVER)
    machine.deadline = 105
    loop.rearm("m")
    for now[0] in range(100, 140):
        loop.run()
    assert machine.ticks == [105, 115, 125]
    assert loop.deadline == NEVER


def test_deadlines_are_exact_once_settled() -> None:
    """Entries of the heap that are too early are corrected, and no deadline is lost."""
    dice, known = random.Random(7), TimerHeap[int]()
    wanted: dict[int, int] = {}
    for _ in range(5_000):
        key, due = dice.randrange(20), dice.randrange(1_000)
        if dice.random() < 0.2:
            known.drop(key)
            wanted.pop(key, None)
        else:
            known.set(key, due)
            wanted[key] = due
        known.settle()
        assert known.due == min(wanted.values(), default=NEVER)
        if dice.random() < 0.05:
            now = dice.randrange(1_000)
            assert sorted(known.over(now)) == sorted(k for k, due in wanted.items() if due <= now)
            wanted = {key: due for key, due in wanted.items() if due > now}


@pytest.mark.parametrize("seed", [2, 17])
def test_consumers_tell_of_every_change(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a simulated process reads the known deadline of a machine, it equals the machine's
    own.
    """
    first, asked = vars(Timers)["first"].fget, 0

    def checked(timers: Timers) -> int:
        nonlocal asked
        asked += bool(timers.telling)
        machines = [*timers.telling.values(), *timers._asked.values()]
        found: int = first(timers)
        assert found == min((machine.deadline for machine in machines), default=NEVER)
        return found

    monkeypatch.setattr(Timers, "first", property(checked))
    outcome = run_plan(generate(seed, profile="network", seconds=3))
    assert outcome.violation is None, outcome.message
    assert asked > 100
