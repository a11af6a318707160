"""Class decorators: ``@value`` for messages and other values, ``@define`` for objects with state.

============================  ====================================================================
``value`` is only slotted     A frozen attrs class takes four times as long to create, and every
                              request creates values. For the type checker it is frozen.
``value`` shares three        ``__eq__``, ``__hash__`` and ``__repr__`` serve all classes. To
methods                       generate them for each class took 30 ms of ``import pymq``.
attrs generates ``__init__``  on first use (:class:`_Later`), since this took half of an import,
                              and most processes use a third of the classes (docs/decisions/0069).
============================  ====================================================================

Keys on a hot path are ``NamedTuple`` classes instead.
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
        """Make a class of objects with state, which are compared by identity."""
        return _slotted(cls)

    def value(cls: type) -> type:
        """Make a class of values; see the module's docstring."""
        made = _slotted(cls)
        made.__eq__, made.__hash__, made.__repr__ = _Value.__eq__, _Value.__hash__, _Value.__repr__
        return made


class _Later:
    """A placeholder for an attribute that attrs generates when it is first read.

    There is no lock. Two threads that read the attribute at the same time generate it twice, with
    the same result.
    """

    __slots__ = ("_made", "_name", "_twin")

    def __init__(self, name: str, made: type, twin: dict[str, Any]) -> None:
        self._name = name
        self._made = made
        self._twin = twin  # a class with the same fields, which attrs processes

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
    """Return *cls* with slots for its fields, as ``attrs.define`` does, but no methods.

    Every field is an argument of ``__init__``. No class has a validator or a converter, because
    input is checked where it enters pymq.
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
        # `super()` reads the class from a closure cell, which still holds the original class.
        function = getattr(member, "__func__", None) or getattr(member, "fget", member)
        for cell in getattr(function, "__closure__", None) or ():
            if cell.cell_contents is cls:
                cell.cell_contents = made
    for name in ("__init__", "__attrs_attrs__"):
        type.__setattr__(made, name, _Later(name, made, twin))
    return made


_ARGS = "__match_args__"  # the names of all fields, for `match` and for _Value
_SHARED = ("__annotations__", "__module__", "__qualname__", "__attrs_post_init__")


class _Value:
    """The methods that all values share."""

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
