"""The time since an application last asked for records, measured by a flag that is checked from
time to time.
"""

from __future__ import annotations

from pymq.client.group.poll_timer import PollTimer
from pymq.core.types import NEVER


def over_at(timer: PollTimer, now: int) -> int:
    """Call look at the times that it requests, until the poll is late; return that time."""
    while not timer.look(now, is_awaited=False):
        now = timer.look_at
    return now


def test_its_time_is_over_after_the_interval_or_up_to_a_quarter_more() -> None:
    for asked_at in (0, 1, 24, 25, 26, 49, 50):
        timer = PollTimer(100)
        now = 0
        while now < asked_at:
            timer.look(now, is_awaited=True)
            now = timer.look_at
        timer.is_used = True
        assert asked_at + 100 <= over_at(timer, now) <= asked_at + 125


def test_who_waits_for_records_asks_for_them() -> None:
    timer = PollTimer(100)
    assert not any(timer.look(now, is_awaited=True) for now in range(0, 1_000, 25))


def test_the_error_of_a_late_application_names_the_interval() -> None:
    assert "20 s" in PollTimer(20_000).late().message


def test_nobody_looks_after_the_end() -> None:
    timer = PollTimer(100)
    timer.look(0, is_awaited=False)
    timer.stop()
    assert timer.look_at == NEVER
