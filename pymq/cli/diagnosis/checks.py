"""The result of one check of ``pymq doctor``."""

from __future__ import annotations

from typing import Literal

from pymq.core.values import value

State = Literal["ok", "warn", "fail"]


@value
class Finding:
    """The result of a check: what was checked, its state, and the next step if something is
    wrong.
    """

    name: str
    state: State
    found: str
    next_step: str | None = None


def ok(name: str, found: str) -> Finding:
    """Return a passed check."""
    return Finding(name, "ok", found)


def warn(name: str, found: str, next_step: str) -> Finding:
    """Return a warning: the checked thing works, but needs attention."""
    return Finding(name, "warn", found, next_step)


def fail(name: str, found: str, next_step: str) -> Finding:
    """Return a failed check."""
    return Finding(name, "fail", found, next_step)
