"""Checks values before Arrow converts them: Arrow would convert 1.5 to 1, and a text to a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

Check = Callable[[Any], Any]


def check_for(kind: pa.DataType) -> Check:
    """Return a function that checks a value for a column of type *kind*, and returns the value.

    The returned function raises TypeError for a value of another type.
    """
    if kinds.is_boolean(kind):
        return _exact(bool)
    if kinds.is_integer(kind):
        return _exact(int)
    if kinds.is_floating(kind):
        return _number
    if kinds.is_string(kind):
        return _exact(str)
    if kinds.is_map(kind):
        return _entries(check_for(kind.item_type))
    if kinds.is_list(kind):
        return _items(check_for(kind.value_type))
    if kinds.is_struct(kind):
        return _fields({field.name: check_for(field.type) for field in kind})
    return lambda value: value  # dates, bytes and decimals come from Avro's decoder alone


def _exact(kind: type) -> Check:
    def check(value: Any) -> Any:
        if value is not None and type(value) is not kind:
            raise TypeError(f"{kind.__name__} is expected, not {type(value).__name__}")
        return value

    return check


def _number(value: Any) -> Any:
    if value is None:
        return None
    if type(value) not in (int, float):
        raise TypeError(f"a number is expected, not {type(value).__name__}")
    return float(value)


def _items(check: Check) -> Check:
    def each(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not list:
            raise TypeError(f"a list is expected, not {type(value).__name__}")
        return list(map(check, value))

    return each


def _entries(check: Check) -> Check:
    def each(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not list:
            raise TypeError(f"an object is expected, not {type(value).__name__}")
        return [(name, check(item)) for name, item in value]

    return each


def _fields(checks: dict[str, Check]) -> Check:
    def each(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not dict:
            raise TypeError(f"an object is expected, not {type(value).__name__}")
        return {name: check(value.get(name)) for name, check in checks.items()}

    return each
