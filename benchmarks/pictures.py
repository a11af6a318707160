"""Both pictures of a run: the reached share of each goal, and the growth curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import growth_plot, plot
from benchmarks.runner import PartResult


def draw(
    results: Sequence[PartResult], machine: dict[str, Any], goals: Path, curves: Path
) -> list[Path]:
    """Write those pictures that have data; return their files."""
    written = []
    if plain := [result for result in results if not result.part.axis]:
        plot.draw(plain, machine, goals)
        written.append(goals)
    if growing := [each for each in results if each.part.axis and growth_plot.measures(each)]:
        growth_plot.draw(growing, machine, curves)
        written.append(curves)
    return written
