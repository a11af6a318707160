"""Marks, by which tests see where a machine has been, and invariants, which are always checked.

A mark stands at a branch that is easily never reached: a test that claims to be about it can ask
whether it was. Outside of tests a mark costs one comparison. An invariant is no ``assert``: it is
checked in production too, because a machine that has broken a rule of its own must stop before it
answers anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pymq.errors import InternalError

_counts: Counter[str] | None = None


class BrokenInvariant(InternalError):
    """A machine is in a state that must be impossible; it must not act any more."""


def mark(name: str) -> None:
    """Note that the program came by here."""
    if _counts is not None:
        _counts[name] += 1


@contextmanager
def counting(counts: Counter[str] | None = None) -> Iterator[Counter[str]]:
    """Count the marks passed within the ``with``; an outer one does not see what an inner saw."""
    global _counts  # noqa: PLW0603 # the one switch: a mark must cost next to nothing when off
    before = _counts
    _counts = Counter() if counts is None else counts
    try:
        yield _counts
    finally:
        _counts = before


def invariant(holds: bool, name: str, **facts: object) -> None:
    """Stop here unless *holds*.

    Raises:
        BrokenInvariant: it does not; *name* says which rule, and *facts* what was found.
    """
    if not holds:
        found = ", ".join(f"{key}={fact!r}" for key, fact in facts.items())
        raise BrokenInvariant(f"{name}: {found}" if found else name, **facts)
