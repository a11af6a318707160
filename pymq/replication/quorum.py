"""Majorities of a fixed set of members."""

from __future__ import annotations

from collections.abc import Sequence


def majority(members: int) -> int:
    """The size of a majority of *members*: any two majorities share a member."""
    return members // 2 + 1


def reached(ends: Sequence[int]) -> int:
    """The highest offset that a majority of *ends*, one for each member, has reached."""
    return sorted(ends)[(len(ends) - 1) // 2]
