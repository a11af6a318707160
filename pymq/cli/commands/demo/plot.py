"""Draws the demo's result; importing this needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot, which has global state and opens windows

from pymq.cli.commands.demo.flights import Summary

MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
INK, FAINT, PALE = "#1f2933", "#8a94a0", "#e4e8ec"
BLUE, RED = "#2b6cb0", "#d9480f"


def draw(
    total: Summary, carriers: Sequence[tuple[str, Summary]], names: dict[str, str], file: str
) -> None:
    """Draw the carriers' delays beside the year's months."""
    figure = Figure(figsize=(12, 6.6), dpi=130, facecolor="white")
    grid = figure.add_gridspec(
        2,
        2,
        width_ratios=(1.35, 1),
        left=0.17,
        right=0.97,
        top=0.8,
        bottom=0.1,
        wspace=0.2,
        hspace=0.34,
    )
    figure.text(0.03, 0.925, "Leaving New York in 2013", fontsize=20, fontweight="bold", color=INK)
    figure.text(
        0.03,
        0.88,
        f"{total.flights:,} flights through a pymq topic: on average {total.mean_delay:.0f} minutes"
        f" late, {total.cancelled / max(1, total.flights):.1%} cancelled",
        fontsize=12,
        color=FAINT,
    )
    _delays(figure.add_subplot(grid[:, 0]), carriers, names)
    flights = figure.add_subplot(grid[0, 1])
    _months(
        flights, [n / 1000 for n in total.months], BLUE, "flights a month, in thousands", "{:.0f}"
    )
    rates = [
        100 * lost / max(1, all)
        for lost, all in zip(total.cancelled_months, total.months, strict=True)
    ]
    cancelled = figure.add_subplot(grid[1, 1])
    _months(cancelled, rates, RED, "cancelled, in percent of the month's flights", "{:.1f}")
    figure.savefig(file)


def _delays(axes: Axes, carriers: Sequence[tuple[str, Summary]], names: dict[str, str]) -> None:
    """Draw a line for each carrier, from the mean to the 90th percentile of its delay."""
    ranked = sorted(carriers, key=lambda carrier: -carrier[1].mean_delay)
    for place, (_, summary) in enumerate(ranked):
        low, high = sorted((summary.mean_delay, summary.p90_delay))
        axes.plot([low, high], [place, place], color=PALE, linewidth=5, solid_capstyle="round")
        axes.annotate(
            f"{summary.flights:,}",
            (high, place),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=FAINT,
        )
    places = range(len(ranked))
    means = [summary.mean_delay for _, summary in ranked]
    tenths = [summary.p90_delay for _, summary in ranked]
    axes.scatter(means, places, s=70, color=BLUE, zorder=3, label="mean delay")
    axes.scatter(tenths, places, s=70, color=RED, zorder=3, label="nine of ten left within")
    axes.set_yticks(places, [_short(names.get(code, code)) for code, _ in ranked])
    axes.invert_yaxis()
    axes.set_xlim(min(0, *means) - 3, max(1, *tenths) * 1.13)
    axes.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
    _plain(axes, "departure delay in minutes; in grey, the number of flights")
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    axes.legend(loc="lower right", fontsize=10, labelcolor=INK, edgecolor="white", framealpha=1)


def _months(axes: Axes, heights: Sequence[float], colour: str, title: str, label: str) -> None:
    bars = axes.bar(range(12), heights, color=colour, width=0.72)
    axes.bar_label(
        bars, [label.format(h) if h else "" for h in heights], fontsize=8.5, color=FAINT, padding=2
    )
    axes.set_xticks(range(12), [month[0] for month in MONTHS])
    axes.set_yticks([])
    axes.margins(y=0.16)
    _plain(axes, title)


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=10, labelcolor=INK)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _short(name: str) -> str:
    for ending in (" Inc.", " Co.", " Corporation"):
        name = name.removesuffix(ending)
    return name
