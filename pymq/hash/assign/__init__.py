"""Which consumer of a group takes which partitions: :func:`assignor` finds the rule by its name.

A new rule is one file with one function under ``@register("name")``; the tests of ``tests/hash``
then run over it as well.
"""

from __future__ import annotations

from pymq.hash.assign import range as _range
from pymq.hash.assign import ring as _ring
from pymq.hash.assign import sticky as _sticky
from pymq.hash.assign.base import Assignment, Assignor, Partition, assignor, names, register

__all__ = ["Assignment", "Assignor", "Partition", "assignor", "names", "register"]

# The submodule ``range`` hides the built-in of that name in this file, and only in this file.
_BUILT_IN = (_range, _ring, _sticky)  # importing them has registered them
