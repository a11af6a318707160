"""A progress bar shows what is counted, the rate, and the time left."""

from __future__ import annotations

import io
import re
import sys

import pytest

from pymq.cli.show import Pace, Show


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("start", "total", "unit", "seconds", "done", "told"),
    [
        (0, 10_000, "record", 0.0, 0, "0 of 10,000 records"),
        (0, 10_000, "record", 2.0, 0, "0 of 10,000 records"),
        (0, 10_000, "record", 2.0, 1_200, "1,200 of 10,000 records, 600 records/s, 15 s left"),
        (200, 10_000, "record", 2.0, 1_200, "1,200 of 10,000 records, 500 records/s, 18 s left"),
        (0, 10_000, "record", 2.0, 10_000, "10,000 of 10,000 records, 5,000 records/s"),
        (0, 1, "partition", 0.5, 1, "1 of 1 partition, 2.0 partitions/s"),
        (0, 400, "block", 600.0, 100, "100 of 400 blocks, 0.2 blocks/s, 30 min left"),
        (0, None, "record", 2.0, 1, "1 record, 0.5 records/s"),
        (0, 4 << 20, "byte", 2.0, 1 << 20, "1.0 MiB of 4.0 MiB, 512.0 KiB/s, 6 s left"),
        (0, None, "byte", 2.0, 2048, "2.0 KiB, 1.0 KiB/s"),
    ],
)
def test_where_it_is(
    start: int, total: int | None, unit: str, seconds: float, done: int, told: str
) -> None:
    clock = Clock()
    pace = Pace(start, total, unit, clock)
    clock.now = seconds
    assert pace.text(done) == told


def test_what_was_done_in_all() -> None:
    clock = Clock()
    pace = Pace(5, 10, "record", clock)
    assert pace.summary(5) == "5 of 10 records, nothing was to do"
    clock.now = 0.5
    assert pace.summary(10) == "10 of 10 records in 0.5 s, 10 records/s"


class Screen(io.StringIO):
    """A terminal that rich draws on."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [80, 120])
def test_a_bar_says_the_same(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    with Show(is_json=False).progress("produce", 3_000_000, "record", is_told=False) as step:
        step.at(3_000_000)
    found = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert re.search(r"produce +\S+ 3,000,000 of 3,000,000 records, [\d,]+ records/s", found), found
