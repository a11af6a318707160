"""How values are written: ``@value`` for what travels or is compared, ``@define`` for what lives.

A frozen attrs class costs four times as much to create as one that is only slotted, and values are
created for every request. So ``value`` is frozen for the type checker, which rejects every
assignment, and merely slotted when the program runs.

``value`` also leaves comparing, hashing and showing to three functions that serve all classes:
writing them anew for each of more than a hundred classes took 30 ms of every ``import pymq``. What
is a key on a hot path is a ``NamedTuple`` instead.

And attrs is asked for the rest of a class, its ``__init__`` and what it knows of the fields, when
somebody first wants it (:class:`_Later`). To generate that took half of the time that ``import
pymq`` took, and most processes use a third of the classes (docs/decisions/0069).
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
        return _slotted(cls)

    def value(cls: type) -> type:
        """Make a class of values; see the top of the module."""
        made = _slotted(cls)
        made.__eq__, made.__hash__, made.__repr__ = _Value.__eq__, _Value.__hash__, _Value.__repr__
        return made


class _Later:
    """Stands in a class for what attrs will generate, and lets it do so when it is looked up.

    Nothing is locked: two threads that come at once generate the same twice.
    """

    __slots__ = ("_made", "_name", "_twin")

    def __init__(self, name: str, made: type, twin: dict[str, Any]) -> None:
        self._name = name
        self._made = made
        self._twin = twin  # the body of a class with the same fields

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        made = self._made
        twin = attrs.define(
            type(made.__name__, made.__bases__, dict(self._twin)), eq=False, repr=False, slots=False
        )
        for name, found in vars(twin).items():
            if name == "__init__" or name.startswith("__attrs_"):
                setattr(made, name, found)
        found = vars(made)[self._name]
        return found.__get__(instance, owner) if hasattr(found, "__get__") else found


def _slotted(cls: type) -> type:
    """*cls* with slots for its fields, as ``attrs.define`` makes it but for what comes later.

    Every field is an argument of ``__init__``, and no class has a validator or a converter: what
    comes from outside is checked where it enters.
    """
    body = dict(vars(cls))
    hints = body.get("__annotations__", {})
    own = [name for name, hint in hints.items() if "ClassVar[" not in str(hint)]
    known = [name for base in reversed(cls.__mro__[1:-1]) for name in vars(base).get(_ARGS, ())]
    twin = {name: body.pop(name) for name in own if name in body}
    twin |= {name: body[name] for name in _SHARED if name in body}
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    slots = [name for name in own if name not in known]
    has_weakref = any("__weakref__" in vars(base) for base in cls.__mro__[1:])
    body["__slots__"] = (*slots,) if has_weakref else (*slots, "__weakref__")
    body[_ARGS] = tuple(dict.fromkeys([name for name in known if name not in own] + own))
    made = type(cls)(cls.__name__, cls.__bases__, body)
    for member in body.values():
        # What `super()` looks at is the class that was there when the method was compiled.
        function = getattr(member, "__func__", None) or getattr(member, "fget", member)
        for cell in getattr(function, "__closure__", None) or ():
            if cell.cell_contents is cls:
                cell.cell_contents = made
    for name in ("__init__", "__attrs_attrs__"):
        type.__setattr__(made, name, _Later(name, made, twin))
    return made


_ARGS = "__match_args__"  # the names of all fields: for `match`, and for what is in _Value
_SHARED = ("__annotations__", "__module__", "__qualname__", "__attrs_post_init__")


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
