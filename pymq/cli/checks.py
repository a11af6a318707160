"""One thing that ``pymq doctor`` has looked at."""

from __future__ import annotations

from typing import Literal

from pymq.core.values import value

State = Literal["ok", "warn", "fail"]


@value
class Check:
    """What was looked at, how it is, and what to do next if it is not as it should be."""

    name: str
    state: State
    found: str
    next_step: str | None = None


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name, "ok", found)


def warn(name: str, found: str, next_step: str) -> Check:
    """It works, and should be looked at."""
    return Check(name, "warn", found, next_step)


def fail(name: str, found: str, next_step: str) -> Check:
    """It does not work."""
    return Check(name, "fail", found, next_step)
