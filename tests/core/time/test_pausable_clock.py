"""A clock that runs only while it is read."""

from __future__ import annotations

from pymq.core.time.pausable_clock import PausableClock
from pymq.core.types import NEVER


def test_it_goes_by_the_other_clock_while_one_looks() -> None:
    clock = PausableClock(100)
    assert [clock.look(now) for now in (5_000, 5_100, 5_250, 5_250, 5_200)] == [
        0,
        100,
        250,
        250,
        250,
    ]


def test_of_a_gap_little_counts() -> None:
    clock = PausableClock(100)
    clock.look(0)
    assert clock.at(3_600_000) == 150
    assert clock.ms == 0  # the clock was not read before
    assert clock.look(3_600_000) == 150
    assert clock.look(3_600_050) == 200


def test_whoever_waits_looks_often_enough() -> None:
    clock = PausableClock(100)
    now, looks = 7_000, 0
    due = clock.look(now) + 1_000
    assert clock.earliest(due) == 8_000
    while clock.look(now) < due:
        now, looks = clock.when(due), looks + 1
    assert (now, looks) == (8_000, 10)
    assert clock.when(NEVER) == clock.earliest(NEVER) == NEVER
    assert clock.when(0) == now
