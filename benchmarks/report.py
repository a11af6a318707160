"""Results as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.model import Part, Unit
from benchmarks.runner import GoalResult, PartResult, SideResult

MARKS = {True: "met", False: "MISSED", None: ""}
PROBLEM = 60  # characters of a problem in the table; the JSON has the whole text
HEAD = ("", "", "median", "lowest to highest", "ratio", "goal", "")


def figure(value: float) -> str:
    """Format a number with about three significant digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def share(value: float) -> str:
    """Format a ratio.

    Small ratios get more digits, so that a reader can see that a ratio is just below its goal.
    """
    return f"{value:.3f}" if value < 2 else figure(value)


def rows(result: PartResult) -> list[tuple[str, ...]]:
    """Return a part's rows: one per side and measure, and more for a side with several goals."""
    found: list[tuple[str, ...]] = []
    for name, side in result.sides.items():
        if problem := _problem(side):
            found.append((name, "", "-", problem, "", "", ""))
        for measure in side.measures:
            unit = result.part.unit(measure)
            goals = [g for g in result.goals if g.goal.ours == (name, measure)]
            start = (name, *_measured(unit, measure, side.median(measure), side.spread(measure)))
            if not goals:
                found.append((*start, "", "", ""))
            for goal in goals:
                found.append((*start, *_goal(goal)))
                start = ("", "", "", "")
    return found


def curves(result: PartResult) -> list[tuple[str, ...]]:
    """Return the table of a part along an axis: one row per side and measure, one column
    per step.
    """
    steps = sorted(
        {step for side in result.sides.values() for _, step in map(split, side.measures)}
    )
    found = [("", "", *(compact(step) for step in steps))]
    for name, side in result.sides.items():
        if problem := _problem(side):
            found.append((name, problem, *[""] * len(steps)))
        for what in dict.fromkeys(what for what, _ in map(split, side.measures)):
            values = [side.median(f"{what} {step}") for step in steps]
            unit = next(result.part.unit(m).name for m in side.measures if split(m)[0] == what)
            cells = ("" if value is None else figure(value) for value in values)
            found.append((name, f"{what}, {unit}", *cells))
    return found


def split(measure: str) -> tuple[str, int]:
    """Split a name into the measure and the step of the axis."""
    what, _, step = measure.rpartition(" ")
    return what, int(step)


def compact(step: int) -> str:
    """Format a round number, short."""
    for unit, size in (("M", 10**6), ("k", 10**3)):
        if step >= size and step % size == 0:
            return f"{step // size}{unit}"
    for unit, size in (("Mi", 1 << 20), ("Ki", 1 << 10)):
        if step >= size and step % size == 0:
            return f"{step // size}{unit}"
    return str(step)


def _problem(side: SideResult) -> str | None:
    problem = side.error or (f"missing: {side.missing}" if side.missing else None)
    return problem and problem[:PROBLEM]


def _measured(
    unit: Unit, measure: str, median: float | None, spread: tuple[float, float]
) -> tuple[str, str, str]:
    assert median is not None
    low, high = spread
    return measure, f"{figure(median)} {unit.name}", f"{figure(low)} .. {figure(high)}"


def _goal(found: GoalResult) -> tuple[str, str, str]:
    if found.reached is None:
        return "-", found.goal.bound, "not measured"
    ratio = f"{share(found.reached)}x {found.peer}" if found.goal.peers else ""
    return ratio, f"{found.goal.bound} {found.goal.note}".strip(), MARKS[found.is_met]


def show(results: Sequence[PartResult], machine: dict[str, Any]) -> None:
    """Print everything, with rich if it is installed."""
    print(_machine(machine))
    try:
        _show_rich(results)
    except ModuleNotFoundError:
        _show_plain(results)
    print(summary(results))


def _table(result: PartResult) -> list[tuple[str, ...]]:
    """Return all rows, the heading first."""
    return curves(result) if result.part.axis else [HEAD, *rows(result)]


def _show_rich(results: Sequence[PartResult]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = 150
    for result in results:
        table = Table(
            title=f"{result.part.name}: {result.part.title}",
            title_justify="left",
            min_width=min(console.width, 100),  # so that the title fits above a narrow table
            title_style="bold",
            box=None,
            pad_edge=False,
            padding=(0, 2, 0, 0),
        )
        head, *body = _table(result)
        for index, name in enumerate(head):
            is_number = index >= 2 if result.part.axis else index in {2, 3}
            table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
        for row in body:
            style = {"met": "green", "MISSED": "bold red"}.get(row[-1], "")
            table.add_row(*row[:-1], Text(row[-1], style=style))
        console.print(table)
        console.print()


def _show_plain(results: Sequence[PartResult]) -> None:
    for result in results:
        print(f"{result.part.name}: {result.part.title}")
        body = _table(result)
        widths = [max(len(row[i]) for row in body) for i in range(len(body[0]))]
        for row in body:
            print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
        print()


def _machine(machine: dict[str, Any]) -> str:
    found = {"Python": machine["python"], "SQLite": machine["sqlite"], "pymq": machine["pymq"]}
    versions = ", ".join(f"{k} {v}" for k, v in (found | machine["packages"]).items())
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, {machine['file_system']} at {machine['folder']}",
        versions,
        f"{machine['scale']}, {machine['runs']} runs of each in turn; load "
        f"{machine['load']} before, {machine['load_after']} after; {machine['seconds']} s",
    ]
    if machine["file_system"] in {"tmpfs", "ramfs"}:
        lines.append("This is memory, not a disk: nothing here says anything about durability.")
    return "\n".join(lines) + "\n"


def summary(results: Sequence[PartResult]) -> str:
    """Return how many goals were met, and which goals were not."""
    goals = [goal for result in results for goal in result.goals if goal.goal.bound]
    met = sum(goal.is_met is True for goal in goals)
    text = f"{met} of {len(goals)} goals met"
    unmeasured = sum(goal.reached is None for goal in goals)
    return text + (f", {unmeasured} not measured" if unmeasured else "")


def as_json(results: Sequence[PartResult], machine: dict[str, Any]) -> dict[str, Any]:
    """Return everything as JSON, down to each run."""
    return {
        "machine": machine,
        "parts": [
            {
                "name": result.part.name,
                "title": result.part.title,
                "axis": result.part.axis,
                "sides": [
                    {
                        "name": name,
                        "setting": side.side.setting,
                        "missing": side.missing,
                        "error": side.error,
                        "trace": side.trace,
                        "median": {measure: side.median(measure) for measure in side.measures},
                        "units": {m: result.part.unit(m).name for m in side.measures},
                        "runs": side.runs,
                    }
                    for name, side in result.sides.items()
                ],
                "goals": [
                    {
                        "side": found.goal.ours.side,
                        "measure": found.goal.ours.measure,
                        "peer": found.peer,
                        "at_least": found.goal.at_least,
                        "at_most": found.goal.at_most,
                        "reached": found.reached,
                        "met": found.is_met,
                    }
                    for found in result.goals
                ],
            }
            for result in results
        ],
    }


def from_json(found: dict[str, Any], parts: Sequence[Part]) -> list[PartResult]:
    """Load the JSON of :func:`as_json`, for *parts* and sides that still exist."""
    known = {part.name: part for part in parts}
    results = []
    for told in found["parts"]:
        if (part := known.get(told["name"])) is None:
            continue
        names = {side.name for side in part.sides}
        results.append(
            PartResult(
                part,
                {
                    each["name"]: SideResult(
                        part.side(each["name"]),
                        each["runs"],
                        each["missing"],
                        each["error"],
                        each["trace"],
                    )
                    for each in told["sides"]
                    if each["name"] in names
                },
            )
        )
    return results
