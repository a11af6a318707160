"""The picture of all goals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # no pyplot: no global state, and no window
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.report import figure as number
from benchmarks.report import share as ratio
from benchmarks.report import summary
from benchmarks.runner import GoalResult, PartResult

INK, FAINT, PALE = "#1f2933", "#8a94a0", "#e4e8ec"
BLUE, RED, GREEN = "#2b6cb0", "#d9480f", "#2f855a"


def draw(results: Sequence[PartResult], machine: dict[str, Any], file: Path) -> None:
    """Write the picture to *file*."""
    goals = [
        (result, found)
        for result in results
        for found in result.goals
        if found.goal.bound and found.reached
    ]
    width, height = 10, max(4.5, 1.9 + 0.36 * len(goals))
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    top = 1 - 1.15 / height
    figure.text(
        0.4 / width,
        1 - 0.45 / height,
        f"pymq beside its peers: {summary(results)}",
        fontsize=17,
        fontweight="bold",
        color=INK,
    )
    figure.text(
        0.4 / width,
        1 - 0.75 / height,
        f"{machine['cpu']}, {machine['cores']} cores, {machine['file_system']}, Python "
        f"{machine['python']}, pymq {machine['pymq']}; median of {machine['runs']}, "
        f"{machine['scale']}, {machine['date'][:10]}",
        fontsize=9.5,
        color=FAINT,
    )
    place = (3.3 / width, 0.75 / height, 0.975 - 3.3 / width, top - 0.75 / height)
    _goals(figure.add_axes(place), goals)
    figure.savefig(file)


def _share(found: GoalResult) -> float:
    """Return the reached share of a goal; above 1, the goal is exceeded."""
    assert found.reached is not None
    goal = found.goal
    if goal.at_least is not None:
        return found.reached / goal.at_least
    assert goal.at_most is not None
    return goal.at_most / max(found.reached, goal.at_most / 1000)


def _goals(axes: Axes, goals: Sequence[tuple[PartResult, GoalResult]]) -> None:
    for place, (result, found) in enumerate(goals):
        share = _share(found)
        colour = GREEN if found.is_met else RED
        axes.plot([1, share], [place, place], color=colour, linewidth=3, solid_capstyle="round")
        axes.plot(share, place, "o", color=colour, markersize=7)
        axes.annotate(
            _said(result, found),
            (max(1, share), place),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=INK,
        )
    names = [_name(result, found) for result, found in goals]
    axes.set_yticks(range(len(goals)), names, fontsize=9)
    axes.set_ylim(len(goals) - 0.4, -0.6)
    axes.set_xscale("log")
    shares = [_share(found) for _, found in goals] or [1.0]
    low, high = min(0.5, *shares) * 0.8, max(2.0, *shares)
    axes.set_xlim(low, high * (high / low) ** 0.55)  # space for the text beside the points
    ticks = [
        t for t in (0.01, 0.03, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 100) if low <= t <= high * 1.01
    ]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
    axes.axvline(1, color=INK, linewidth=1, zorder=0)
    plain(axes, "how much of each goal is reached; right of the line is better than asked for")


def _name(result: PartResult, found: GoalResult) -> str:
    side = found.goal.ours.side.removeprefix("pymq").strip() or "pymq"
    measure = found.goal.ours.measure
    what = side if measure in {"put", "get"} else f"{side}: {measure}"
    return f"{result.part.name}  {what}"


def _said(result: PartResult, found: GoalResult) -> str:
    assert found.reached is not None
    wanted = f"goal {found.goal.bound} {found.goal.note}".strip()
    if found.goal.peers:
        return f"{ratio(found.reached)}x {found.peer} ({wanted})"
    unit = result.part.unit(found.goal.ours.measure).name
    return f"{number(found.reached)} {unit} ({wanted})"


def plain(axes: Axes, title: str) -> None:
    """Remove a plot's empty decoration."""
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=INK)
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
