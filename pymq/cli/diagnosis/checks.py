"""One thing that ``pymq doctor`` has looked at."""

from __future__ import annotations

from typing import Literal

from pymq.core.values import value

State = Literal["ok", "warn", "fail"]


@value
class Finding:
    """What was looked at, how it is, and what to do next if it is not as it should be."""

    name: str
    state: State
    found: str
    next_step: str | None = None


def ok(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", found)


def warn(name: str, found: str, next_step: str) -> Finding:
    """It works, and should be looked at."""
    return Finding(name, "warn", found, next_step)


def fail(name: str, found: str, next_step: str) -> Finding:
    """It does not work."""
    return Finding(name, "fail", found, next_step)
