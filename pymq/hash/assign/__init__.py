"""Assignors divide partitions among the members of a group; :func:`assignor` finds one by name.

To add an assignor, write a file with one function under ``@register("name")``; the tests in
``tests/hash`` run over all assignors.
"""

from __future__ import annotations

from pymq.hash.assign import range as _range
from pymq.hash.assign import ring as _ring
from pymq.hash.assign import sticky as _sticky
from pymq.hash.assign.base import Assignment, Assignor, Partition, assignor, names, register

__all__ = ["Assignment", "Assignor", "Partition", "assignor", "names", "register"]

# The submodule ``range`` hides the built-in function, in this file only.
_BUILT_IN = (_range, _ring, _sticky)  # the import registers them
