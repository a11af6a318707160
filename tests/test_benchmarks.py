"""The benchmarks run, compare the right sides, and name missing ones; no figure is checked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import growth_plot, markdown, publish
from benchmarks.machine import ROOT
from benchmarks.model import At, Goal, Job, Needs, Part, Side
from benchmarks.parts import all_parts, chosen
from benchmarks.report import as_json, from_json, rows, summary
from benchmarks.runner import PartResult, SideResult, missing


def nothing(job: Job) -> dict[str, float]:
    return {}


def part_of(*goals: Goal) -> Part:
    sides = tuple(Side(name, "", nothing) for name in ("a", "b", "pymq"))
    return Part("part", "a part", sides, goals)


def result_of(part: Part, **rates: list[float]) -> PartResult:
    sides = {side.name: SideResult(side) for side in part.sides}
    for name, runs in rates.items():
        sides[name].runs = [{"put": rate} for rate in runs]
    return PartResult(part, sides)


def test_a_goal_is_the_median_of_the_rounds_ratios_to_the_best_peer() -> None:
    """A slow round slows both sides, and counts like any other."""
    part = part_of(Goal(At("pymq", "put"), (At("a", "put"), At("b", "put")), at_least=2.0))
    result = result_of(part, a=[100, 10, 100], b=[50, 5, 50], pymq=[210, 20, 230])
    (goal,) = result.goals
    assert (goal.peer, goal.reached, goal.is_met) == ("a", 2.1, True)
    assert "2.10x a" in {cell for row in rows(result) for cell in row}


def test_what_could_not_be_measured_is_named() -> None:
    part = part_of(Goal(At("pymq", "put"), (At("a", "put"),), at_least=2.0))
    result = result_of(part, pymq=[1.0])
    result.sides["a"].missing = "a_module"
    assert result.goals[0].is_met is None
    assert any("missing: a_module" in row for row in rows(result))
    assert summary([result]) == "0 of 1 goals met, 1 not measured"
    assert missing(Side("a", "", nothing, needs=Needs(("no_such_module.inside",))))
    assert missing(Side("a", "", nothing, needs=Needs(programs=("no-such-program",))))
    assert missing(Side("a", "", nothing, needs=Needs(("json",), ("sh",)))) is None


def test_a_curve_of_which_nothing_was_measured_is_not_drawn() -> None:
    part = part_of()
    assert growth_plot.measures(result_of(part)) == []
    result = result_of(part)
    result.sides["pymq"].runs = [{"put 1": 1.0, "put 10": 2.0, "get 1": 3.0}]
    assert growth_plot.measures(result) == ["put", "get"]


def test_every_goal_names_sides_that_there_are() -> None:
    for part in all_parts():
        names = {side.name for side in part.sides}
        assert len(names) == len(part.sides)
        for goal in part.goals:
            assert {goal.ours.side, *(at.side for at in goal.peers)} <= names
    assert [part.name for part in chosen(["E9"])] == ["E9-start"]
    with pytest.raises(ValueError, match="no part 'E99'"):
        chosen(["E99"])


@pytest.mark.slow
def test_a_tiny_run_measures_and_writes_everything(tmp_path: Path) -> None:
    """A tiny run uses fresh processes, and writes a table, JSON and a picture."""
    files = [tmp_path / name for name in ("bench.json", "bench.png", "growth.png")]
    command = [sys.executable, "-m", "benchmarks", "--tiny"]
    command += ["--only", "E1-put-durable", "G3"]
    places = ["--json", files[0], "--png", files[1], "--curves", files[2], "--folder", tmp_path]
    done = subprocess.run(
        [*command, *map(str, places)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "E1-put-durable: " in done.stdout
    assert "goals met" in done.stdout
    found = json.loads(files[0].read_text(encoding="utf-8"))
    assert found["machine"]["scale"] == "tiny"
    runs = [side["runs"] for part in found["parts"] for side in part["sides"]]
    assert all(len(run) == 1 and min(run[0].values()) > 0 for run in runs)
    assert "each sees all, records/s" in done.stdout
    for file in files[1:]:
        assert file.read_bytes().startswith(b"\x89PNG")
    assert sorted(tmp_path.iterdir()) == files


def test_what_was_measured_before_an_interrupt_is_shown(tmp_path: Path) -> None:
    """All parts together take an hour; an interrupt loses only the results of the running part."""
    json_file = tmp_path / "bench.json"
    parts = ["E10", "G1", "G2", "G3", "G4", "G5"]
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--only", *parts]
    command += ["--json", str(json_file), "--png", str(tmp_path / "bench.png")]
    command += ["--curves", str(tmp_path / "growth.png"), "--folder", str(tmp_path)]
    # A shell starts background processes with SIGINT ignored, and children inherit that.
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 # one call, no lock
    ) as process:
        assert process.stderr is not None
        # the second part of the benchmark has begun
        assert any("G1" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        said, failed = process.communicate(timeout=120)
    assert process.returncode == 130, said + failed
    assert "interrupted" in said
    found = json.loads(json_file.read_text(encoding="utf-8"))
    # Some parts may end before the signal comes on a busy machine, but the last one does not.
    names = [part["name"] for part in found["parts"]]
    assert names[0] == "E10-own"
    assert len(names) < len(parts)


def test_the_readme_shows_what_was_measured() -> None:
    """The README's table is made from the JSON beside it alone."""
    found = markdown.load(publish.FIGURES / "bench.json")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert publish.with_figures(readme, found) == readme
    assert publish.section(found) in readme
    assert "folder" not in found["machine"]


def test_the_readme_has_a_line_for_each_work_and_a_column_for_each_peer_that_was_measured() -> None:
    units = {"put": "records/s"}
    rates = {"pymq": 9, "nats": 3, "nats fast": 4, "sqlite3": 5}
    sides = [{"name": name, "median": {"put": n}, "units": units} for name, n in rates.items()]
    # in the first run RabbitMQ was missing
    sides.append({"name": "rabbitmq", "median": {}, "units": {}})
    found = {"parts": [{"name": "R1-put-durable", "sides": sides}]}
    assert markdown.front(found).splitlines() == [
        "| 100 B a record | pymq | NATS JetStream | sqlite3 |",
        "| --- | --- | --- | --- |",
        "| produce to three replicas, pymq synced on a majority | **9.00 records/s** "
        "| 4.00 records/s | 5.00 records/s |",
    ]
    assert len(markdown.front(markdown.load(publish.FIGURES / "bench.json")).splitlines()) == 8


def test_work_queues_are_a_row_each_with_the_goals_below() -> None:
    def part(name: str, measure: str, unit: str, figures: dict[str, float], **goal: object) -> Any:
        sides = [
            {"name": side, "median": {measure: value}, "units": {measure: unit}}
            for side, value in figures.items()
        ]
        bounds = {"at_least": None, "at_most": None, "peer": ""} | goal
        goals = [{"side": "pymq", "measure": measure} | bounds]
        return {"name": name, "sides": sides, "goals": goals}

    rates, times = {"celery": 900.0, "pymq": 90_000.0}, {"celery": 30.0, "pymq": 12.0}
    met = {"at_least": 5, "peer": "celery", "reached": 100.0, "met": True}
    missed = {"at_most": 10, "reached": 12.0, "met": False}
    parts = [
        part("Q1-noop", "4 workers", "tasks/s", rates, **met),
        part("Q3-start", "start p99", "ms", times, **missed),
    ]
    assert markdown.queues({"parts": parts}).splitlines() == [
        "|  | 4 workers | p99 |",
        "| --- | --- | --- |",
        "| celery | 900 tasks/s | 30.0 ms |",
        "| **pymq** | 90,000 tasks/s | 12.0 ms |",
        "",
        "| goal of pymq | reached |  |",
        "| --- | --- | --- |",
        "| Q1-noop, pymq, 4 workers: at least 5 times celery | 100 times celery | met |",
        "| Q3-start, pymq, start p99: at most 10 ms | 12.0 ms | **missed** |",
    ]


def test_markdown_of_a_run() -> None:
    """A goal with a peer is a line; missing sides are named, and a missed goal is marked."""
    goal = Goal(At("pymq", "put"), (At("a", "put"), At("b", "put")), at_least=2.0)
    result = result_of(part_of(goal), a=[100, 100], pymq=[110, 130])
    result.sides["b"].missing = "a_module"
    machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "system": "s", "file_system": "ext4"}
    machine |= {"python": "3", "sqlite": "3", "pymq": "1", "date": "2026-11-21T00:00", "runs": 2}
    machine |= {"scale": "default", "load": 0.5, "load_after": 5.0, "packages": {"x": "1"}}
    found = as_json([result], machine)
    told = "| a part | 120 records/s (`pymq`) | 100 records/s (a) | **1.200x** | >= 2x, missed |"
    assert markdown.headlines(found).splitlines()[-1] == told
    assert "| b |  |  | - | missing: a_module |" in markdown.parts(found)
    assert "| **pymq** |  | put | 120 records/s | 110 .. 130 |" in markdown.parts(found)
    assert "only the ratios" in markdown.about(found)
    machine["load_after"] = 3.0  # the load that is caused by the benchmark's own five processes
    assert "only the ratios" not in markdown.about(found)


def test_parts_that_were_measured_again_take_the_place_of_what_they_were() -> None:
    """The other parts stay in the document, which marks parts measured at another time."""
    goal = Goal(At("pymq", "put"), (At("a", "put"),), at_least=2.0)
    machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "system": "s", "file_system": "ext4"}
    machine |= {"python": "3", "sqlite": "3", "pymq": "1", "date": "2026-11-21T00:00", "runs": 2}
    machine |= {"scale": "default", "load": 0.5, "load_after": 1.0, "packages": {"x": "1"}}
    old, new = (result_of(part_of(goal), a=[100], pymq=[rate]) for rate in (110, 300))
    before = as_json([old], machine)
    other = as_json([old], machine)["parts"][0] | {"name": "other", "title": "another part"}
    before["parts"].insert(0, other)
    later = machine | {"pymq": "2", "date": "2026-11-22T00:00", "runs": 3}
    found = publish.merged(before, as_json([new], later))
    assert [part["name"] for part in found["parts"]] == ["other", old.part.name]
    lines = markdown.headlines(found).splitlines()[-2:]
    assert ["**1.100x**" in lines[0], "**3.00x**" in lines[1]] == [True, True]
    told = markdown.about(found)
    assert "pymq 1; 2026-11-21" in told
    assert f"Later than that {old.part.name}: pymq 2, 2026-11-22, c. Medians of 3 runs" in told
    single = markdown.about(publish.merged(before, as_json([new], later | {"runs": 1})))
    assert f"Later than that {old.part.name}: pymq 2, 2026-11-22, c. One run, " in single
    (again,) = from_json(found, [old.part])  # the other part does not exist any more
    assert [each.reached for each in again.goals] == [3.0]
