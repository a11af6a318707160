"""The benchmarks of work queues run with all products; no figure is checked."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.model import Job
from benchmarks.network.roles import HandLoop
from benchmarks.parts import find
from benchmarks.queues.board import Board, checked
from benchmarks.queues.sides.senders import AT_ONCE, Calls, Coroutines, Sender
from benchmarks.runner import missing

TASKS = range(5)


def never() -> None:
    """Return None: no worker has ended."""


def board(tmp_path: Path, workers: int = 1, tasks: int = 100) -> Board:
    return Board.make(tmp_path / "board", workers, tasks)


def test_another_process_sees_what_a_task_notes(tmp_path: Path) -> None:
    mine = board(tmp_path, workers=3, tasks=7)
    theirs = Board(tmp_path / "board", 3)
    mine.sent(6)
    theirs.run(6, 0.002)
    (waited,) = mine.waits_ns(range(6, 7))
    assert waited > 0
    assert mine.seconds(range(6, 7)) >= 0.002 + waited / 1e9


def test_a_task_that_runs_twice_is_an_error(tmp_path: Path) -> None:
    found = board(tmp_path)
    found.run(3, 0.0)
    with pytest.raises(RuntimeError, match="task 3 ran twice"):
        found.run(3, 0.0)


def test_no_worker_passes_the_gate_before_it_is_opened(tmp_path: Path) -> None:
    found, passed = board(tmp_path, workers=2), threading.Event()

    def work() -> None:
        found.pass_gate(0, 1)
        passed.set()

    thread = threading.Thread(target=work)
    thread.start()
    found.wait_for_workers(never)
    assert not passed.is_set()
    found.open_gate()
    thread.join(30)
    assert passed.is_set()


def test_a_worker_that_ends_ends_the_wait(tmp_path: Path) -> None:
    def check() -> None:
        raise RuntimeError("a worker ended")

    found = board(tmp_path)
    with pytest.raises(RuntimeError, match="a worker ended"):
        found.wait_for_workers(check)
    with pytest.raises(RuntimeError, match="a worker ended"):
        found.wait_for_tasks(TASKS, check)


def test_the_first_tenth_of_the_tasks_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = board(tmp_path, tasks=100)
    ends = [second * 10**9 for second in range(1, 11)]  # the first ten take a second each
    ends += [ends[-1] + 10**7 * number for number in range(1, 91)]
    clock = iter(ends)
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(clock))
    for task in range(100):
        found.ended(task)
    assert found.rate(range(100)) == pytest.approx(100)


def test_a_start_before_the_send_is_an_error() -> None:
    assert checked({"start p50": 1.0}) == {"start p50": 1.0}
    with pytest.raises(RuntimeError, match="before it was sent"):
        checked({"start p50": -1.0})


@pytest.mark.parametrize("kind", ["calls", "coroutines"])
def test_a_sender_sends_each_task_once(tmp_path: Path, kind: str) -> None:
    sent: list[int] = []

    async def send(task: int) -> None:
        sent.append(task)

    with closing(HandLoop()) as loop:
        sender: Sender = Calls(sent.append) if kind == "calls" else Coroutines(loop, send)
        many = range(3 * AT_ONCE)
        sender.burst(many)
        assert sorted(sent) == list(many)
        sent.clear()
        found, start = board(tmp_path), time.monotonic()
        sender.paced(found, TASKS, 0.01)
    assert sent == list(TASKS)
    assert time.monotonic() - start >= 0.01 * len(TASKS)
    for task in TASKS:
        found.run(task, 0.0)
    assert min(found.waits_ns(TASKS)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [side.name for side in find("Q3-start").sides])
def test_each_side_runs_tasks_at_half_load(name: str, tmp_path: Path) -> None:
    side = find("Q3-start").side(name)
    if what := missing(side):
        pytest.skip(f"{what} is not installed")
    found = side.run(Job(tmp_path, "tiny"))
    assert found["load"] > 0
    assert 0 < found["start p50"] <= found["start p99"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["Q1-noop", "Q2-millisecond", "Q4-fairness"])
@pytest.mark.parametrize("name", ["pymq", "pymq embedded"])
def test_each_part_runs(part: str, name: str, tmp_path: Path) -> None:
    found = find(part).side(name).run(Job(tmp_path, "tiny"))
    assert set(found) == set(find(part).units)
    assert min(found.values()) > 0
