"""Coverage marks, which tests count, and invariants, which are always checked.

A mark is placed in a rarely taken branch, so that a test can assert that the branch was taken.
Outside of tests a mark costs one comparison. Unlike an ``assert``, an invariant is checked in
production too: if a state machine (a class with ``step``, ``tick`` and ``ready``) has broken one of
its rules, it must stop before it answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pymq.errors import InternalError

_counts: Counter[str] | None = None


class BrokenInvariant(InternalError):
    """A machine is in an impossible state and must stop."""


def mark(name: str) -> None:
    """Count that this line was executed, if marks are counted."""
    if _counts is not None:
        _counts[name] += 1


@contextmanager
def counting(counts: Counter[str] | None = None) -> Iterator[Counter[str]]:
    """Count marks within the ``with`` block.

    A block does not count the marks within an inner block.
    """
    global _counts  # noqa: PLW0603 # the one switch: a mark must cost next to nothing when off
    before = _counts
    _counts = Counter() if counts is None else counts
    try:
        yield _counts
    finally:
        _counts = before


def invariant(holds: bool, name: str, **facts: object) -> None:
    """Check an invariant.

    Raises:
        BrokenInvariant: *holds* is false; *name* is the rule, and *facts* are its values.
    """
    if not holds:
        found = ", ".join(f"{key}={fact!r}" for key, fact in facts.items())
        raise BrokenInvariant(f"{name}: {found}" if found else name, **facts)
