"""The typed columns of a registered schema.

=================================  ===========================================================
JSON schema, Avro                  column
=================================  ===========================================================
integer, long; int                 int64; int32
number, double; float              double; float
boolean                            boolean
string, enum, uuid, decimal, time  string (an Avro decimal: decimal)
date-time, timestamp-*             timestamp in UTC; a time without a zone is taken to be UTC
date                               date
base64, bytes, fixed               binary
array; object, record              list; struct
additionalProperties, map          map from string
a union of null and X              as X: every column may be null
other unions, any, recursion       string, with JSON
=================================  ===========================================================

In JSON, dates, times and base64 are converted only in top-level fields. In nested fields they stay
text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as kinds

from pymq.errors import ConfigError
from pymq.table.schema import joined

Prepare = Callable[[Any], Any]

TIME = pa.timestamp("us", "UTC")
WRAPPED = "value"  # the column for values that are not objects


class Column(NamedTuple):
    """One typed column."""

    name: str
    kind: pa.DataType
    plain: pa.DataType  # the type before texts are converted
    prepare: Prepare | None = None  # converts the decoder's values for Arrow


class Typed(NamedTuple):
    """A type of Arrow, and how values are converted to it."""

    plain: pa.DataType
    prepare: Prepare | None = None
    kind: pa.DataType | None = None  # the type that a text is converted to


def schema_of(columns: list[Column]) -> pa.Schema:
    """Return the columns as a schema."""
    return pa.schema([(column.name, column.kind) for column in columns])


def both(old: Column, new: Column) -> Column:
    """Return the column for values of two schemas, with the fields of both."""
    return Column(
        new.name,
        joined(new.name, old.kind, new.kind, widens=True),
        joined(new.name, old.plain, new.plain, widens=True),
        new.prepare or old.prepare,
    )


def plain_columns(schema: pa.Schema) -> list[Column]:
    """Return columns for values that are JSON objects with the fields of *schema*.

    Raises:
        ConfigError: JSON has no equivalent of a type.
    """
    return [Column(field.name, field.type, _plain(field.name, field.type)) for field in schema]


def _plain(name: str, kind: pa.DataType, *, is_inside: bool = False) -> pa.DataType:
    if kind in (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()):
        return kind
    if kinds.is_list(kind):
        return pa.list_(_plain(name, kind.value_type, is_inside=True))
    if kinds.is_struct(kind):
        return pa.struct([(each.name, _plain(name, each.type, is_inside=True)) for each in kind])
    if not is_inside and kind in (TIME, pa.date32(), pa.binary()):
        return pa.string()
    raise ConfigError(
        f"column {name!r}: JSON has no {kind} {'inside of a list or object' if is_inside else ''}"
    )


# --- JSON schema --------------------------------------------------------------------------------


def json_columns(text: str) -> list[Column]:
    """Return the columns of values with a JSON schema."""
    schema = json.loads(text)
    root = _Json(schema)
    found = root.resolve(schema, ())
    properties = None if found is None else found[0].get("properties")
    if not properties:
        return [_column(WRAPPED, root.of(schema, ()))]
    assert found is not None
    return [_column(name, root.of(each, found[1])) for name, each in properties.items()]


def _column(name: str, typed: Typed) -> Column:
    return Column(name, typed.kind or typed.plain, typed.plain, typed.prepare)


def _text(value: Any) -> Any:
    return None if value is None else json.dumps(value, separators=(",", ":"), default=str)


_AS_JSON = Typed(pa.string(), _text)
_JSON_TYPES = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_FORMATS = {"date-time": TIME, "date": pa.date32()}


class _Json:
    """Finds the types of a JSON schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def resolve(
        self, schema: Any, inside: tuple[str, ...]
    ) -> tuple[dict[str, Any], tuple[str, ...]] | None:
        """Follow references and unions with null; None if no simple type is left."""
        while isinstance(schema, dict):
            reference = schema.get("$ref")
            if reference is not None:
                if reference in inside:
                    return None
                inside = (*inside, reference)
                schema = self._root
                for name in reference.removeprefix("#/").split("/"):
                    schema = schema.get(name) if isinstance(schema, Mapping) else None
                continue
            several = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            if not several:
                return schema, inside
            rest = [each for each in several if each != {"type": "null"}]
            if len(rest) != 1:
                return None
            schema = rest[0]
        return None

    def of(self, schema: Any, inside: tuple[str, ...]) -> Typed:
        """Return the type of a field."""
        found = self.resolve(schema, inside)
        if found is None:
            return _AS_JSON
        schema, inside = found
        if "enum" in schema:
            return _choice(schema["enum"])
        kind = schema.get("type")
        if isinstance(kind, list):
            rest = [each for each in kind if each != "null"]
            kind = rest[0] if len(rest) == 1 else None
        if kind in _JSON_TYPES:
            return Typed(_JSON_TYPES[kind])
        if kind == "string":
            is_bytes = schema.get("contentEncoding") == "base64"
            return Typed(
                pa.string(), None, pa.binary() if is_bytes else _FORMATS.get(schema.get("format"))
            )
        if (
            kind == "array"
            and isinstance(schema.get("items"), dict)
            and "prefixItems" not in schema
        ):
            return _list(self.of(schema["items"], inside))
        if kind == "object" and schema.get("properties"):
            fields = schema["properties"].items()
            return _struct({name: self.of(each, inside) for name, each in fields})
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return _map(self.of(schema["additionalProperties"], inside))
        return _AS_JSON


def _choice(values: list[Any]) -> Typed:
    types = {type(each) for each in values if each is not None}
    simple = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}
    return Typed(simple[types.pop()]) if len(types) == 1 and types <= set(simple) else _AS_JSON


def _list(inner: Typed) -> Typed:
    prepare = inner.prepare
    if prepare is None:
        return Typed(pa.list_(inner.plain))
    return Typed(
        pa.list_(inner.plain),
        lambda found: list(map(prepare, found)) if isinstance(found, list) else found,
    )


def _struct(fields: Mapping[str, Typed]) -> Typed:
    kind = pa.struct([(name, each.plain) for name, each in fields.items()])
    work = {name: each.prepare for name, each in fields.items() if each.prepare is not None}
    if not work:
        return Typed(kind)

    def prepare(found: Any) -> Any:
        if not isinstance(found, dict):
            return found
        return {**found, **{name: do(found.get(name)) for name, do in work.items()}}

    return Typed(kind, prepare)


def _map(inner: Typed) -> Typed:
    do = inner.prepare or (lambda found: found)

    def prepare(found: Any) -> Any:
        # Only an object becomes pairs; another value becomes text, so that no list passes as a map.
        return (
            [(name, do(each)) for name, each in found.items()]
            if type(found) is dict
            else (found and str(found))
        )

    return Typed(pa.map_(pa.string(), inner.plain), prepare)


# --- Avro ---------------------------------------------------------------------------------------

_AVRO_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
    "date": pa.date32(),
    "timestamp-millis": TIME,
    "timestamp-micros": TIME,
    "local-timestamp-millis": TIME,
    "local-timestamp-micros": TIME,
}


def avro_columns(text: str) -> list[Column]:
    """Return the columns of values with an Avro schema."""
    schema = json.loads(text)
    names: dict[str, Any] = {}
    if isinstance(schema, dict) and schema.get("type") == "record":
        names[schema["name"]] = None
        return [_column(each["name"], _avro(each["type"], names)) for each in schema["fields"]]
    return [_column(WRAPPED, _avro(schema, names))]


def _avro(schema: Any, names: dict[str, Any]) -> Typed:
    """Return the type; *names* are the named types so far, None while one is being defined."""
    if isinstance(schema, list):
        rest = [each for each in schema if each != "null"]
        return _avro(rest[0], names) if len(rest) == 1 else _AS_JSON
    if isinstance(schema, str):
        if schema in _AVRO_TYPES:
            return Typed(_AVRO_TYPES[schema])
        return _avro(names[schema], names) if names.get(schema) is not None else _AS_JSON
    kind = schema["type"]
    logical = schema.get("logicalType")
    if logical == "decimal":
        return Typed(pa.decimal128(schema["precision"], schema.get("scale", 0)))
    if logical in _AVRO_TYPES:
        return Typed(_AVRO_TYPES[logical])
    if logical in ("uuid", "time-millis", "time-micros"):
        return Typed(pa.string(), lambda found: None if found is None else str(found))
    if kind == "array":
        return _list(_avro(schema["items"], names))
    if kind == "map":
        return _map(_avro(schema["values"], names))
    if kind == "record":
        names[schema["name"]] = None
        found = _struct({each["name"]: _avro(each["type"], names) for each in schema["fields"]})
        names[schema["name"]] = schema
        return found
    if kind in ("enum", "fixed"):
        names[schema["name"]] = schema
    return (
        _avro(kind, names)
        if not isinstance(kind, str)
        else Typed(_AVRO_TYPES.get(kind, pa.string()))
    )
