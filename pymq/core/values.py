"""How values are written: ``@value`` for what travels or is compared, ``@define`` for what lives.

A frozen attrs class costs four times as much to create as one that is only slotted, and values are
created for every request. So ``value`` is frozen for the type checker, which rejects every
assignment, and merely slotted when the program runs.

``value`` also leaves comparing, hashing and showing to three functions that serve all classes:
writing them anew for each of more than a hundred classes took 30 ms of every ``import pymq``. What
is a key on a hot path is a ``NamedTuple`` instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs import Factory, field

__all__ = ["Factory", "define", "field", "value"]

if TYPE_CHECKING:
    from attrs import define
    from attrs import frozen as value
else:

    def define(cls: type) -> type:
        """Make a class of things that live: each is equal to itself alone."""
        return attrs.define(cls, eq=False)

    def value(cls: type) -> type:
        """Make a class of values; see the top of the module."""
        made = attrs.define(cls, eq=False, repr=False)
        made.__eq__, made.__hash__, made.__repr__ = _Value.__eq__, _Value.__hash__, _Value.__repr__
        return made


class _Value:
    """What all values do in the same way."""

    __match_args__: tuple[str, ...]  # attrs puts the names of all fields here

    def _fields(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__match_args__])

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        same: bool = _Value._fields(self) == _Value._fields(other)
        return same

    def __hash__(self) -> int:
        return hash((self.__class__.__qualname__, _Value._fields(self)))

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in self.__match_args__]
        return f"{self.__class__.__name__}({', '.join(shown)})"
