"""``python -m tests.simulator.crashes``: runs the scripts of a module with all crash points, and
reports.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TextIO

from pymq.core.values import Factory, define
from pymq.testing.crashpoints import CrashPoint, CrashRun, Scenario, crash, points, sample, survey

USAGE = """
Examples:
  python -m tests.simulator.crashes tests.testing.scripts --jobs 2       every point of every script
  python -m tests.simulator.crashes tests.testing.scripts --share 12     about one point in twelve
  python -m tests.simulator.crashes tests.testing.scripts --only reassign --at broker-0:9:state-2:50

A module has its scripts in a dictionary SCENARIOS, of pymq.testing.crashpoints.Scenario by name.
A point is a node, how many effects it has done, what is left of its disk, how many milliseconds it
is down, and after how many more effects it dies again, if it does.
"""
ROW = "{:40} {:>10} {:>8} {:>8} {:>7} {:>7}"
CHUNK = 8  # runs that a worker gets at a time


@define
class Row:
    """The results of the crashes of one script."""

    name: str
    boundaries: int = 0
    all_points: int = 0
    runs: int = 0
    kinds: set[tuple[str, str]] = Factory(set)  # kinds of effects that were crashed at
    all_kinds: set[tuple[str, str]] = Factory(set)
    failed: list[CrashRun] = Factory(list)

    def add(self, runs: Iterable[CrashRun]) -> None:
        """Add the results of some crashes."""
        for run in runs:
            self.runs += 1
            if run.problem:
                self.failed.append(run)


def main(arguments: Sequence[str] | None = None, out: TextIO = sys.stdout) -> int:
    """Run the scripts; returns 1 if a script's cluster was not whole at the end."""
    parser = argparse.ArgumentParser(
        "python -m tests.simulator.crashes",
        description=__doc__,
        epilog=USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("module", help="that has the scripts, as tests.testing.scripts")
    parser.add_argument("--only", action="append", default=[], help="a script; may be repeated")
    parser.add_argument("--at", type=CrashPoint.parse, help="one point, of one script")
    parser.add_argument("--share", type=int, default=1, help="try about one point in so many ...")
    parser.add_argument("--shift", type=int, default=0, help="... and with this, others")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    scenarios = load(options.module, options.only)
    if options.at is not None:
        return _one(scenarios, options.at, out)
    began = time.perf_counter()
    print(ROW.format("script", "boundaries", "points", "run", "kinds", "failed"), file=out)
    rows = []
    for row in enumerate_all(
        options.module, list(scenarios), options.share, options.shift, jobs=options.jobs
    ):
        rows.append(row)
        _show(row, out)
    _summarize(rows, options.module, out)
    print(f"{time.perf_counter() - began:.0f} s", file=out)
    return 1 if any(row.failed for row in rows) else 0


def load(module: str, only: Iterable[str] = ()) -> dict[str, Scenario]:
    """The scripts of a module, or some of them.

    Raises:
        KeyError: there is no script of one of the names in *only*.
    """
    found: Mapping[str, Scenario] = importlib.import_module(module).SCENARIOS
    return {name: found[name] for name in (only or found)}


def _one(scenarios: Mapping[str, Scenario], point: CrashPoint, out: TextIO) -> int:
    (scenario,) = scenarios.values()
    run = crash(scenario, point)
    print(f"{scenario.name} {point}: {run.problem or 'ok'}, digest {run.digest}", file=out)
    return 1 if run.problem else 0


def enumerate_all(
    module: str, names: Sequence[str], share: int = 1, shift: int = 0, *, jobs: int = 1
) -> Iterator[Row]:
    """Crash the scripts of *module* at all of their points, or at one of every *share* points."""
    if jobs < 2:
        for name in names:
            row, found = _plan(module, share, shift, name)
            row.add(_crash_all(module, name, found))
            yield row
        return
    with ProcessPoolExecutor(jobs) as pool:
        planned = list(pool.map(partial(_plan, module, share, shift), names))
        runs = [
            [
                pool.submit(_crash_all, module, row.name, found[at : at + CHUNK])
                for at in range(0, len(found), CHUNK)
            ]
            for row, found in planned
        ]
        for (row, _), futures in zip(planned, runs, strict=True):
            for future in futures:
                row.add(future.result())
            yield row


Where = tuple[CrashPoint, str]  # a crash point, and the effect there


def _plan(module: str, share: int, shift: int, name: str) -> tuple[Row, list[Where]]:
    """The points at which a script is to be crashed."""
    boundaries = survey(load(module, [name])[name])
    everything = points(boundaries)
    chosen = sample(boundaries, share, shift) if share > 1 else everything
    by_place = {(b.node, b.number): b for b in boundaries}
    found = [(point, by_place[point.node, point.boundary]) for point in chosen]
    row = Row(name, len(boundaries), len(everything))
    row.all_kinds = {boundary.kind for boundary in boundaries}
    row.kinds = {boundary.kind for _, boundary in found}
    return row, [(point, boundary.what) for point, boundary in found]


def _crash_all(module: str, name: str, found: Sequence[Where]) -> list[CrashRun]:
    scenario = load(module, [name])[name]
    return [crash(scenario, point, what) for point, what in found]


def _show(row: Row, out: TextIO) -> None:
    kinds = f"{len(row.kinds)}/{len(row.all_kinds)}"
    cells = (row.name, row.boundaries, row.all_points, row.runs, kinds, len(row.failed))
    print(ROW.format(*cells), file=out, flush=True)


def _summarize(rows: Sequence[Row], module: str, out: TextIO) -> None:
    """Print totals, and for each failure the command that repeats it."""
    columns = ("boundaries", "all_points", "runs")
    totals = [sum(getattr(row, column) for row in rows) for column in columns]
    failures = sum(len(row.failed) for row in rows)
    print(ROW.format(f"{len(rows)} scripts", *totals, "", failures), file=out)
    for row in rows:
        for run in row.failed:
            print(f"\n{row.name}, before {run.what}:\n{run.problem.rstrip()}", file=out)
            print(f"  to see it again: {command(module, row.name, run.point)}", file=out)


def command(module: str, name: str, point: CrashPoint) -> str:
    """The command that repeats one crash exactly."""
    return f"python -m tests.simulator.crashes {module} --only {name} --at {point}"


if __name__ == "__main__":
    sys.exit(main())
