"""What a majority of a fixed set of members agrees on."""

from __future__ import annotations

from collections.abc import Sequence


def majority(members: int) -> int:
    """The least number of *members* that any other majority must share one with."""
    return members // 2 + 1


def reached(ends: Sequence[int]) -> int:
    """The highest end that a majority of *ends*, one for each member, has reached."""
    return sorted(ends)[(len(ends) - 1) // 2]
