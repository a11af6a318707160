"""The benchmark of delayed tasks counts each task once, and its sides run.

The test checks no figure.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.model import Job
from benchmarks.parts import find
from benchmarks.queues.arrivals import OTHER, Arrivals, children_bytes, note
from benchmarks.runner import missing


def planned(tmp_path: Path) -> Arrivals:
    arrivals = Arrivals()
    arrivals.plan(Job(tmp_path, "tiny"))
    return arrivals


def test_lateness_is_from_the_time_at_which_a_task_is_due(tmp_path: Path) -> None:
    arrivals = planned(tmp_path)
    for number, due in enumerate(arrivals.due):
        assert arrivals.is_awaited
        arrivals.ran(number, due + (number - 1) / 1000)
    assert not arrivals.is_awaited
    measures = arrivals.measures()
    assert measures["late min"] == pytest.approx(-1, abs=1e-3)
    assert measures["late max"] == pytest.approx(len(arrivals.due) - 2, abs=1e-3)


def test_a_task_that_runs_twice_or_never_is_an_error(tmp_path: Path) -> None:
    arrivals = planned(tmp_path)
    arrivals.check()
    arrivals.ran(0, time.time())
    with pytest.raises(RuntimeError, match="task 0 ran twice"):
        arrivals.ran(0, time.time())
    with pytest.raises(RuntimeError, match=r"1 of \d+ timed tasks ran"):
        arrivals.measures()
    arrivals.due[0] = time.time() - 2
    with pytest.raises(RuntimeError, match=r"due 2\.\d s before all were ready"):
        arrivals.check()


def test_tasks_that_other_processes_note_are_read_from_their_file(tmp_path: Path) -> None:
    arrivals, file = planned(tmp_path), tmp_path / "arrivals"
    for number in (OTHER, *range(len(arrivals.due))):
        note(file, number)
    arrivals.read(file)
    assert arrivals.measures()["late max"] < 0


def test_the_memory_of_this_process_is_not_counted() -> None:
    held = children_bytes()
    more = bytearray(64 << 20)
    more[:: 4 << 10] = bytes([1]) * (16 << 10)
    assert abs(children_bytes() - held) < len(more) // 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["celery", "rq", "pymq"])
def test_each_side_runs_its_timed_tasks(name: str, tmp_path: Path) -> None:
    side = find("Q5-delayed").side(name)
    if what := missing(side):
        pytest.skip(f"{what} is not installed")
    found = side.run(Job(tmp_path, "tiny"))
    assert found["send"] > 0
    assert found["late min"] <= found["late p50"] <= found["late p99"] <= found["late max"]
