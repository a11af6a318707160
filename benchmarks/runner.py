"""Runs the sides of a part in turn (A B A B), each run in a fresh process and a fresh folder."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from benchmarks.kafka import jars
from benchmarks.machine import ROOT
from benchmarks.model import At, Goal, Measures, Part, Side
from benchmarks.network.servers import find_program

STOP_S = 30  # a worker ends its servers one after the other
TIMEOUT_S = {"tiny": 300, "default": 300, "long": 1800}


class RunFailed(Exception):
    """A run failed; the message says how, and *trace* shows where."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


@dataclass
class SideResult:
    """The results of a side."""

    side: Side
    runs: list[Measures] = field(default_factory=list)
    missing: str | None = None  # what it needs and is not there
    error: str | None = None
    trace: str = ""  # traceback of the error

    def median(self, measure: str) -> float | None:
        """Return the median of all runs."""
        found = [run[measure] for run in self.runs if measure in run]
        return statistics.median(found) if found else None

    def spread(self, measure: str) -> tuple[float, float]:
        """Return the lowest and the highest run."""
        found = [run[measure] for run in self.runs if measure in run]
        return min(found), max(found)

    @property
    def measures(self) -> list[str]:
        """Return the names of the measures."""
        return list(self.runs[0]) if self.runs else []


@dataclass
class GoalResult:
    """The result of a goal."""

    goal: Goal
    reached: float | None  # None: pymq, or all of its peers, could not be measured
    peer: str = ""  # the best peer

    @property
    def is_met(self) -> bool | None:
        """Whether the goal was reached; None without a bound or a measurement."""
        return None if self.reached is None else self.goal.is_met(self.reached)


@dataclass
class PartResult:
    """The results of a part."""

    part: Part
    sides: dict[str, SideResult]

    @property
    def goals(self) -> list[GoalResult]:
        """The results of the part's goals."""
        return [self._look(goal) for goal in self.part.goals]

    def _look(self, goal: Goal) -> GoalResult:
        mine = self._median(goal.ours)
        if mine is None:
            return GoalResult(goal, None)
        if not goal.peers:
            return GoalResult(goal, mine)
        found = [(value, at) for at in goal.peers if (value := self._median(at)) is not None]
        if not found:
            return GoalResult(goal, None)
        more = self.part.unit(goal.ours.measure).more_is_better
        best = (max if more else min)(found)[1]
        return GoalResult(goal, self._ratio(goal.ours, best), best.side)

    def _median(self, at: At) -> float | None:
        side = self.sides.get(at.side)  # an earlier run may have fewer sides
        return side.median(at.measure) if side is not None else None

    def _ratio(self, ours: At, peer: At) -> float:
        """Return the median of the rounds' ratios, since a slow round slows both sides."""
        pairs = zip(self.sides[ours.side].runs, self.sides[peer.side].runs, strict=False)
        return statistics.median(a[ours.measure] / b[peer.measure] for a, b in pairs)


def missing(side: Side) -> str | None:
    """Return the first module, program or set of jars that *side* needs and that is missing."""
    for name in side.needs.programs:
        if not find_program(name):
            return name
    for name in side.needs.modules:
        try:
            if find_spec(name) is None:
                return name
        except ModuleNotFoundError:
            return name
    return next(filter(None, map(jars.missing, side.needs.jars)), None)


def run_part(
    part: Part, folder: Path, scale: str, runs: int, told: Callable[[str], object]
) -> PartResult:
    """Run all sides of *part* in turn, *runs* times; call *told* with the progress."""
    sides = {side.name: SideResult(side, missing=missing(side)) for side in part.sides}
    home = folder / part.name
    rounds = min(runs, part.runs_max)
    for number in range(rounds):
        for result in sides.values():
            if result.missing or result.error:
                continue
            told(f"{part.name}: {result.side.name}, run {number + 1} of {rounds}")
            try:
                result.runs.append(_run(part, result.side, home, scale, number))
            except RunFailed as error:
                result.error, result.trace = str(error), error.trace
    shutil.rmtree(home, ignore_errors=True)
    return PartResult(part, sides)


def _run(part: Part, side: Side, home: Path, scale: str, number: int) -> Measures:
    mine = home / side.name.replace(" ", "-")
    if not (side.is_kept and mine.exists()):
        shutil.rmtree(mine, ignore_errors=True)
        mine.mkdir(parents=True)
        if side.prepare is not None:
            _start(part, side, mine, scale, number, "prepare")
    result = home / "result.json"
    result.unlink(missing_ok=True)
    _start(part, side, mine, scale, number, "run")
    measures: Measures = json.loads(result.read_text(encoding="ascii"))
    if not side.is_kept:
        shutil.rmtree(mine)
    return measures


def _start(part: Part, side: Side, mine: Path, scale: str, number: int, phase: str) -> None:
    order = {
        "part": part.name,
        "side": side.name,
        "phase": phase,
        "folder": str(mine),
        "scale": scale,
        "round": number,
        "result": str(mine.parent / "result.json"),
    }
    command = [sys.executable, "-m", "benchmarks.worker", json.dumps(order)]
    pipe, patience_s = subprocess.PIPE, TIMEOUT_S[scale] * part.patience
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            _, stderr = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            _stop(process)
            raise RunFailed(f"{phase} took more than {patience_s} s") from None
        except KeyboardInterrupt:
            _stop(process)
            raise
    wanted = -signal.SIGKILL if phase == "prepare" and side.is_killed else 0
    if process.returncode != wanted:
        said = stderr.strip() or f"exit code {process.returncode}"
        raise RunFailed(f"{phase} failed: {said.splitlines()[-1]}", said)


def _stop(process: subprocess.Popen[str]) -> None:
    """End the worker, and the servers that the worker has started."""
    process.terminate()
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
