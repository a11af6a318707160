"""All goals at a glance, and how throughput changes with the size of a record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # no pyplot: nothing global, and no window
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.report import figure as number
from benchmarks.report import share as ratio
from benchmarks.report import summary
from benchmarks.runner import GoalResult, PartResult

INK, FAINT, PALE = "#1f2933", "#8a94a0", "#e4e8ec"
BLUE, RED, GREEN = "#2b6cb0", "#d9480f", "#2f855a"
SIZES_PART = "sizes"


def draw(results: Sequence[PartResult], machine: dict[str, Any], file: Path) -> None:
    """Write the picture to *file*."""
    curves = next((result for result in results if result.part.name == SIZES_PART), None)
    goals = [
        (result, found)
        for result in results
        for found in result.goals
        if found.goal.bound and found.reached
    ]
    height = max(4.5, 1.9 + 0.36 * len(goals), 7.0 if curves else 0)
    width = 14 if curves else 9
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    top = 1 - 1.15 / height
    grid = figure.add_gridspec(
        2,
        2 if curves else 1,
        width_ratios=(1.15, 1) if curves else None,
        left=3.3 / width,
        right=0.975,
        top=top,
        bottom=0.75 / height,
        wspace=0.2,
        hspace=0.42,
    )
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
    _goals(figure.add_subplot(grid[:, 0]), goals)
    if curves is not None:
        _curves(figure.add_subplot(grid[0, 1]), curves, "put")
        _curves(figure.add_subplot(grid[1, 1]), curves, "get")
    figure.savefig(file)


def _share(found: GoalResult) -> float:
    """How much of its goal was reached; more than 1 is better than asked for."""
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
    axes.set_xlim(low, high * (high / low) ** 0.55)  # room for what is written beside the points
    ticks = [
        t for t in (0.01, 0.03, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 100) if low <= t <= high * 1.01
    ]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
    axes.axvline(1, color=INK, linewidth=1, zorder=0)
    _plain(axes, "how much of each goal is reached; right of the line is better than asked for")


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


def _curves(axes: Axes, result: PartResult, what: str) -> None:
    """Records a second by size, one line a side."""
    for (name, side), colour in zip(result.sides.items(), (FAINT, BLUE), strict=False):
        found = [m for m in side.measures if m.startswith(f"{what} ")]
        sizes = [int(m.split()[1]) for m in found]
        rates = [side.median(m) or 0.0 for m in found]
        axes.plot(sizes, rates, "o-", color=colour, label=name, linewidth=2)
        above = name.startswith("pymq")
        for size, rate in zip(sizes, rates, strict=True):
            axes.annotate(
                f"{number(rate * size / 1e6)}",
                (size, rate),
                xytext=(0, 8 if above else -14),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=colour,
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(
        [10, 100, 1024, 4096, 16384, 65536], ["10 B", "100 B", "1 K", "4 K", "16 K", "64 K"]
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.margins(y=0.18)
    axes.legend(loc="lower left", fontsize=9, labelcolor=INK, frameon=False)
    title = {"put": "put, no fsync", "get": "get in bulk"}[what]
    _plain(axes, f"{title}: records/s by record size (at the points: MB/s)")
    axes.grid(axis="y", color=PALE, linewidth=0.8)


def _thousands(value: float, _: int) -> str:
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k"


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=INK, pad=8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=INK)
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
