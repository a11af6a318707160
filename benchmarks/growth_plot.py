"""How pymq grows, as pictures: one row per part, one panel per measure, one line per side."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from benchmarks.plot import BLUE, FAINT, INK, PALE, plain
from benchmarks.report import compact, figure, split
from benchmarks.runner import PartResult

PANEL = 2.5  # inches; the documentation shows four side by side in ten
HEAD = 1.0
APART = 0.13  # distance between two names, as a share of the axis


def draw(results: Sequence[PartResult], machine: dict[str, Any], file: Path) -> None:
    """Write the picture to *file*."""
    panels = [measures(result) for result in results]
    columns = max(map(len, panels), default=1)
    width, height = 0.6 + PANEL * 1.1 * columns, HEAD + PANEL * len(results)
    picture = Figure(figsize=(width, height), dpi=100, facecolor="white")
    picture.text(
        0.3 / width,
        1 - 0.42 / height,
        "How pymq grows",
        fontsize=17,
        fontweight="bold",
        color=INK,
    )
    picture.text(
        0.3 / width,
        1 - 0.7 / height,
        f"{machine['cpu']}, {machine['cores']} cores, {machine['file_system']}, Python "
        f"{machine['python']}, pymq {machine['pymq']}; {machine['scale']}, {machine['date'][:10]}",
        fontsize=9.5,
        color=FAINT,
    )
    grid = picture.add_gridspec(
        len(results),
        columns,
        left=0.75 / width,
        right=1 - 0.25 / width,
        top=1 - (HEAD + 0.45) / height,
        bottom=0.5 / height,
        wspace=0.22,
        hspace=0.5,
    )
    for row, (result, kinds) in enumerate(zip(results, panels, strict=True)):
        for column, what in enumerate(kinds):
            _panel(picture.add_subplot(grid[row, column]), result, what)
    picture.savefig(file)


def measures(result: PartResult) -> list[str]:
    """Return the measures along the axis, in the order of the sides."""
    names = [m for side in result.sides.values() for m in side.measures]
    return list(dict.fromkeys(split(name)[0] for name in names))


def _panel(axes: Axes, result: PartResult, what: str) -> None:
    seen: set[int] = set()
    unit = ""
    for name, side in result.sides.items():
        steps = sorted(step for kind, step in map(split, side.measures) if kind == what)
        if not steps:
            continue
        seen.update(steps)
        unit = result.part.unit(f"{what} {steps[0]}").name
        values = [side.median(f"{what} {step}") or 0.0 for step in steps]
        colour = BLUE if side.side.is_ours else FAINT
        axes.plot(steps, values, "o-", color=colour, label=name, linewidth=2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(seen)))
    told = _apart(sorted(seen))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: compact(round(x)) if round(x) in told else "")
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_short))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.margins(y=0.25)
    low, high = axes.get_ylim()
    if high / low < 30:  # a logarithmic axis would show noise as a slope
        low, high = axes.set_ylim(low / 3, high * 3)
    # The axis has few powers of ten; more labels between them let a reader read off a value.
    between = (1.0,) if high / low > 1e3 else (1.0, 3.0) if high / low > 30 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=between))
    plain(axes, f"{result.part.name}  {what}, {unit}")
    axes.set_xlabel(result.part.axis, fontsize=9, color=FAINT)
    axes.tick_params(labelsize=8.5)
    axes.grid(axis="y", color=PALE, linewidth=0.8)
    if len(axes.lines) > 1:
        axes.legend(fontsize=8.5, labelcolor=INK, frameon=False)


def _apart(steps: Sequence[int]) -> set[int]:
    """Return the *steps* whose names fit side by side on an axis."""
    least = APART * log(steps[-1] / steps[0]) if steps else 0.0
    told: list[int] = []
    for step in steps:
        if not told or log(step / told[-1]) >= least:
            told.append(step)
    return set(told)


def _short(value: float, _: int) -> str:
    for unit, size in ((" M", 1e6), (" k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return figure(value) if value < 1 else f"{value:g}"
