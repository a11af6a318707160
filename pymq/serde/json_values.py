"""Values by the JSON of the standard library.

A shape reads, writes and describes one type. Each codec makes the shapes of classes once. Shapes
refer to each other by class name, so that a class may contain itself.

=====================================  =========================================================
type                                   JSON
=====================================  =========================================================
None, bool, int, float, str            the same; an int is read where a float is expected
bytes                                  text in base64
datetime, date, time                   text in ISO 8601
UUID, Decimal                          text
Enum, Literal                          the value
list, set, frozenset, tuple[X, ...]    array
tuple[X, Y]                            array of that length
dict[str, X]                           object
dataclass, attrs, TypedDict,           object by field names; fields with a default may be missing,
NamedTuple                             unknown fields are ignored
X | Y                                  the first type that fits
object, Any                            any value that JSON has
=====================================  =========================================================
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from pymq.errors import ConfigError
from pymq.serde.serializer import Codec, Schema, T, text_of

Convert = Callable[[Any], Any]


class Json:
    """JSON by the standard library, for the types of the table in its module."""

    def codec(self, kind: type[T]) -> Codec[T]:
        """Return the codec for values of type *kind*."""
        shapes = _Shapes()
        shape = shapes.of(kind)
        described = dict(shape.schema)
        if shapes.classes:
            described["$defs"] = {name: found.schema for name, found in shapes.classes.items()}

        def encode(value: T) -> bytes:
            plain = shape.write(value)
            text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return text.encode()

        def decode(data: bytes) -> T:
            found: T = shape.read(json.loads(data))
            return found

        return Codec(Schema("json", text_of(described)), encode, decode)


@attrs.frozen
class JsonType:
    """A shape: reads, writes and describes values of one type."""

    read: Convert
    write: Convert
    schema: dict[str, Any]


def _wrong(expected: str, found: object) -> ValueError:
    return ValueError(f"{expected} is expected, not {str(found)[:40]!r}")


def _exact(kind: type, name: str, schema: dict[str, Any]) -> JsonType:
    """Return the shape of a type that JSON has, too."""

    def check(found: Any) -> Any:
        if type(found) is not kind:
            raise _wrong(name, found)
        return found

    return JsonType(check, check, schema)


def _float(found: Any) -> float:
    if type(found) not in (int, float) or not math.isfinite(found):
        raise _wrong("a number", found)
    return float(found)


def _text(
    kind: type, name: str, read: Callable[[str], Any], write: Convert, schema: dict[str, Any]
) -> JsonType:
    """Return the shape of a type that is text in JSON."""

    def parse(found: Any) -> Any:
        if type(found) is not str:
            raise _wrong(name, found)
        try:
            return read(found)
        except (ValueError, ArithmeticError):
            raise _wrong(name, found) from None

    def format(value: Any) -> str:
        # A datetime is also a date, and would lose its time of day.
        if type(value) is not kind and not (isinstance(value, kind) and kind is not datetime.date):
            raise _wrong(name, value)
        return str(write(value))

    return JsonType(parse, format, {"type": "string", **schema})


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_SIMPLE: dict[Any, JsonType] = {
    bool: _exact(bool, "true or false", {"type": "boolean"}),
    int: _exact(int, "an integer", {"type": "integer"}),
    float: JsonType(_float, _float, {"type": "number"}),
    str: _exact(str, "a text", {"type": "string"}),
    type(None): _exact(type(None), "null", {"type": "null"}),
    None: _exact(type(None), "null", {"type": "null"}),
    Any: JsonType(lambda found: found, lambda value: value, {}),
    object: JsonType(lambda found: found, lambda value: value, {}),
    bytes: _text(bytes, "base64", _from_base64, _to_base64, {"contentEncoding": "base64"}),
    uuid.UUID: _text(uuid.UUID, "a UUID", uuid.UUID, str, {"format": "uuid"}),
    decimal.Decimal: _text(
        decimal.Decimal, "a decimal number", decimal.Decimal, str, {"format": "decimal"}
    ),
    datetime.datetime: _text(
        datetime.datetime,
        "a date and time in ISO 8601",
        datetime.datetime.fromisoformat,
        datetime.datetime.isoformat,
        {"format": "date-time"},
    ),
    datetime.date: _text(
        datetime.date,
        "a date in ISO 8601",
        datetime.date.fromisoformat,
        datetime.date.isoformat,
        {"format": "date"},
    ),
    datetime.time: _text(
        datetime.time,
        "a time in ISO 8601",
        datetime.time.fromisoformat,
        datetime.time.isoformat,
        {"format": "time"},
    ),
}


class _Shapes:
    """The shapes of one codec."""

    def __init__(self) -> None:
        self.classes: dict[str, JsonType] = {}  # by the name of the class
        self._kinds: dict[str, type] = {}

    def of(self, kind: Any) -> JsonType:
        """Return the shape of a type.

        Raises:
            ConfigError: JSON has no form for the type.
        """
        try:
            if kind in _SIMPLE:
                return _SIMPLE[kind]
        except TypeError:
            pass  # an unhashable type is not in this table
        origin = typing.get_origin(kind)
        if origin is not None:
            return self._of_generic(kind, origin, typing.get_args(kind))
        if isinstance(kind, typing.NewType):
            return self.of(kind.__supertype__)
        if isinstance(kind, type):
            if issubclass(kind, enum.Enum):
                return _choice([member.value for member in kind], kind, lambda v: v.value)
            if kind in (list, set, frozenset, tuple, dict):
                return self._of_generic(kind, kind, (Any, ...) if kind is tuple else (Any, Any))
            if (fields := _fields(kind)) is not None:
                return self._of_class(kind, fields)
        raise ConfigError(
            f"JSON has no form for {kind!r}: use a dataclass, an attrs class, a TypedDict or "
            "another serializer of pymq.serde"
        )

    def _of_generic(self, kind: Any, origin: Any, args: tuple[Any, ...]) -> JsonType:
        if origin is typing.Annotated:
            return self.of(args[0])
        if origin in (typing.Required, typing.NotRequired):
            return self.of(args[0])
        if origin is typing.Literal:
            return _choice([*args], lambda found: found, lambda value: value)
        if origin in (typing.Union, types.UnionType):
            return _union([self.of(each) for each in args])
        if origin is tuple and args[-1:] != (...,):
            return _fixed([self.of(each) for each in args])
        if origin in (list, set, frozenset, tuple, Sequence, Iterable):
            make = list if origin in (Sequence, Iterable) else origin
            return _array(self.of(args[0]), make)
        if origin in (dict, Mapping) and args[0] in (str, Any):
            return _object(self.of(args[1]))
        raise ConfigError(f"JSON has no form for {kind!r}")

    def _of_class(self, kind: type, fields: list[_Field]) -> JsonType:
        name = kind.__qualname__
        if self._kinds.setdefault(name, kind) is not kind:
            raise ConfigError(f"two classes of the name {name!r} in one schema")

        # the class is looked up at each call, because it may contain itself
        def read(found: Any) -> Any:
            return self.classes[name].read(found)

        def write(value: Any) -> Any:
            return self.classes[name].write(value)

        reference = JsonType(read, write, {"$ref": f"#/$defs/{name}"})
        if name not in self.classes:
            self.classes[name] = reference
            self.classes[name] = _record(kind, [(f, self.of(f.kind)) for f in fields])
        return reference


@attrs.frozen
class _Field:
    """A field of a class."""

    name: str
    kind: Any
    is_required: bool


def _fields(kind: type) -> list[_Field] | None:
    """Return the fields of a class; None for a class without fields.

    Raises:
        ConfigError: a field's type cannot be found.
    """
    if not (
        attrs.has(kind)
        or dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    ):
        return None
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise ConfigError(f"{kind.__name__}: {error}; types must be global names") from None
    if attrs.has(kind):
        rows = [(f.name, f.default is attrs.NOTHING) for f in attrs.fields(kind) if f.init]
    elif dataclasses.is_dataclass(kind):
        none = dataclasses.MISSING
        rows = [
            (f.name, f.default is none and f.default_factory is none)
            for f in dataclasses.fields(kind)
            if f.init
        ]
    elif typing.is_typeddict(kind):
        required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined] # a TypedDict
        # Python does not recognise NotRequired if annotations are strings (PEP 563).
        rows = [
            (name, name in required and typing.get_origin(hint) is not typing.NotRequired)
            for name, hint in hints.items()
        ]
    else:
        names, defaults = kind._fields, kind._field_defaults  # type: ignore[attr-defined] # a NamedTuple
        rows = [(name, name not in defaults) for name in names]
    return [_Field(name, hints.get(name, Any), required) for name, required in rows]


def _record(kind: type, fields: list[tuple[_Field, JsonType]]) -> JsonType:
    """Return the shape of a class."""
    is_dict = typing.is_typeddict(kind)
    readers = [(f.name, shape.read, f.is_required) for f, shape in fields]
    writers = [(f.name, shape.write) for f, shape in fields]

    def read(found: Any) -> Any:
        if type(found) is not dict:
            raise _wrong(kind.__name__, found)
        given = {}
        for name, convert, is_required in readers:
            if name in found:
                try:
                    given[name] = convert(found[name])
                except ValueError as error:
                    raise _inside(name, error) from None
            elif is_required:
                raise ValueError(f"{name} is missing")
        return given if is_dict else kind(**given)

    expected: Any = dict if is_dict else kind

    def write(value: Any) -> Any:
        if not isinstance(value, expected):
            raise _wrong(kind.__name__, value)
        out = {}
        for name, convert in writers:
            if is_dict and name not in value:
                continue
            try:
                out[name] = convert(value[name] if is_dict else getattr(value, name))
            except ValueError as error:
                raise _inside(name, error) from None
        if is_dict and (lacking := [n for n, _, needed in readers if needed and n not in out]):
            raise ValueError(f"{lacking[0]} is missing")
        return out

    schema = {
        "type": "object",
        "properties": {f.name: shape.schema for f, shape in fields},
        "required": sorted(f.name for f, _ in fields if f.is_required),
    }
    return JsonType(read, write, schema)


def _inside(name: str, error: ValueError) -> ValueError:
    before, _, rest = str(error).partition(": ")
    path, why = (before, rest) if rest else ("", before)
    joined = name if not path else f"{name}{path}" if path[0] == "[" else f"{name}.{path}"
    return ValueError(f"{joined}: {why}")


def _choice(values: list[Any], make: Convert, plain: Convert) -> JsonType:
    """Return the shape of a value that must be one of *values*."""
    if not all(type(each) in (str, int, bool, type(None)) for each in values):
        raise ConfigError(f"JSON cannot tell these values apart: {values!r}")

    def find(found: Any) -> Any:
        # 1 and True are equal in Python, but not in JSON.
        if not any(found == each and type(found) is type(each) for each in values):
            raise _wrong(f"one of {', '.join(map(repr, values))}", found)
        return found

    def read(found: Any) -> Any:
        return make(find(found))

    def write(value: Any) -> Any:
        try:
            return find(plain(value))
        except AttributeError:
            raise _wrong("a member of the enum", value) from None

    return JsonType(read, write, {"enum": values})


def _union(shapes: list[JsonType]) -> JsonType:
    """Return a shape that uses the first fitting type."""

    def first(converts: list[Convert]) -> Convert:
        def convert(item: Any) -> Any:
            problem: ValueError | None = None
            for each in converts:
                try:
                    return each(item)
                except ValueError as error:
                    problem = problem or error
            assert problem is not None
            raise problem

        return convert

    return JsonType(
        first([shape.read for shape in shapes]),
        first([shape.write for shape in shapes]),
        {"anyOf": [shape.schema for shape in shapes]},
    )


def _array(inner: JsonType, make: Any) -> JsonType:
    def each(convert: Convert, items: Iterable[Any]) -> list[Any]:
        out: list[Any] = []
        try:
            out.extend(map(convert, items))
        except ValueError as error:
            raise _inside(f"[{len(out)}]", error) from None
        return out

    def read(found: Any) -> Any:
        if type(found) is not list:
            raise _wrong("an array", found)
        return make(each(inner.read, found))

    def write(value: Any) -> Any:
        if not isinstance(value, make):
            raise _wrong(f"a {make.__name__}", value)
        return each(inner.write, value)

    return JsonType(read, write, {"type": "array", "items": inner.schema})


def _fixed(shapes: list[JsonType]) -> JsonType:
    def each(items: Any, kind: Any, converts: list[Convert]) -> list[Any]:
        if not isinstance(items, kind) or len(items) != len(converts):
            raise _wrong(f"an array of {len(converts)}", items)
        return [convert(item) for convert, item in zip(converts, items, strict=True)]

    return JsonType(
        lambda found: tuple(each(found, list, [shape.read for shape in shapes])),
        lambda value: each(value, tuple, [shape.write for shape in shapes]),
        {
            "type": "array",
            "prefixItems": [shape.schema for shape in shapes],
            "minItems": len(shapes),
            "maxItems": len(shapes),
        },
    )


def _object(inner: JsonType) -> JsonType:
    def each(items: Any, convert: Convert) -> dict[str, Any]:
        if not isinstance(items, dict):
            raise _wrong("an object", items)
        out = {}
        for name, item in items.items():
            if type(name) is not str:
                raise _wrong("a text as key", name)
            try:
                out[name] = convert(item)
            except ValueError as error:
                raise _inside(name, error) from None
        return out

    return JsonType(
        lambda found: each(found, inner.read),
        lambda value: each(value, inner.write),
        {"type": "object", "additionalProperties": inner.schema},
    )
