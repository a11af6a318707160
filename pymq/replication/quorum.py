"""Majorities of a fixed set of members."""

from __future__ import annotations

from collections.abc import Sequence


def majority(members: int) -> int:
    """Return the size of a majority of *members*; any two majorities share a member."""
    return members // 2 + 1


def reached(ends: Sequence[int]) -> int:
    """Return the highest offset that a majority of the members' *ends* has reached."""
    return sorted(ends)[(len(ends) - 1) // 2]
