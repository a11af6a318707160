"""The Spark types of values that a schema describes.

==========  =====================================================================
format      schema
==========  =====================================================================
json        JSON Schema, as :mod:`pymq.serde` registers it, or a list of columns
avro        an Avro schema
arrow       a list of columns, such as ``item string, count long``
protobuf    the table of fields that :class:`pymq.serde.Protobuf` registers
==========  =====================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import types as T

from pymq.errors import ConfigError

REPEATED_MESSAGE = 11  # numbers of types as in FieldDescriptorProto
PROTOBUF_TYPES: dict[int, Callable[[], T.DataType]] = {
    1: T.DoubleType,
    2: T.FloatType,
    3: T.LongType,
    4: T.LongType,
    5: T.IntegerType,
    6: T.LongType,
    7: T.LongType,
    8: T.BooleanType,
    9: T.StringType,
    12: T.BinaryType,
    13: T.LongType,
    14: T.IntegerType,  # the number of an enumeration
    15: T.IntegerType,
    16: T.LongType,
    17: T.IntegerType,
    18: T.LongType,
}
_AVRO_TYPES: dict[str, Callable[[], T.DataType]] = {
    "boolean": T.BooleanType,
    "int": T.IntegerType,
    "long": T.LongType,
    "float": T.FloatType,
    "double": T.DoubleType,
    "bytes": T.BinaryType,
    "string": T.StringType,
    "enum": T.StringType,
    "fixed": T.BinaryType,
}
_AVRO_LOGICAL: dict[str, Callable[[], T.DataType]] = {
    "date": T.DateType,
    "timestamp-millis": T.TimestampType,
    "timestamp-micros": T.TimestampType,
    "local-timestamp-millis": T.TimestampNTZType,
    "local-timestamp-micros": T.TimestampNTZType,
    "uuid": T.StringType,
}
_JSON_TYPES: dict[str, Callable[[], T.DataType]] = {
    "boolean": T.BooleanType,
    "integer": T.LongType,
    "number": T.DoubleType,
    "string": T.StringType,
}
_JSON_TEXTS: dict[str, Callable[[], T.DataType]] = {
    "date-time": T.TimestampType,
    "date": T.DateType,
    "decimal": lambda: T.DecimalType(38, 18),
}


def is_columns(text: str) -> bool:
    """Whether a schema is a list of columns, which only Spark itself can parse."""
    return not text.lstrip().startswith(("{", "[", '"'))


def tree_of(text: str) -> Any:
    """Parse a schema.

    Raises:
        ConfigError: it is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"a schema of values is no JSON: {error}") from None


def type_of(format: str, text: str) -> T.DataType:
    """Return the Spark type of values with a schema.

    Raises:
        ConfigError: the schema is invalid, or Spark has no type for it.
    """
    tree = tree_of(text)
    try:
        if format == "avro":
            return _Avro().of(tree)
        if format == "protobuf":
            return protobuf_struct(tree["messages"], tree["message"], ())
        return _Json(tree).of(tree)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"this is no schema of the format {format!r}: {error!r}") from None


def _unknown(what: object) -> ConfigError:
    return ConfigError(
        f"Spark has no type for {what!r} in a schema of values; read the values as binary, or give "
        "the query a schema of its own without that field"
    )


def _struct(fields: Mapping[str, T.DataType]) -> T.StructType:
    return T.StructType([T.StructField(name, found) for name, found in fields.items()])


class _Json:
    """Types of a JSON Schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._within: tuple[str, ...] = ()  # the references on the path to the present one

    def of(self, schema: Any) -> T.DataType:
        """Return the type of values of *schema*, which is a part of the root schema."""
        if not isinstance(schema, dict):
            raise _unknown(schema)
        if (name := schema.get("$ref")) is not None:
            return self._of_reference(str(name))
        if (several := schema.get("anyOf") or schema.get("oneOf")) is not None:
            some = [each for each in several if each.get("type") != "null"]
            if len(some) != 1:
                raise _unknown(schema)
            return self.of(some[0])
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((each for each in kind if each != "null"), None)
        if kind == "object":
            if "properties" in schema:
                return _struct({name: self.of(e) for name, e in schema["properties"].items()})
            if isinstance(inner := schema.get("additionalProperties"), dict):
                return T.MapType(T.StringType(), self.of(inner))
        elif kind == "array" and isinstance(schema.get("items"), dict):
            return T.ArrayType(self.of(schema["items"]))
        elif kind == "string" and schema.get("contentEncoding") == "base64":
            return T.BinaryType()
        elif kind == "string" and (make := _JSON_TEXTS.get(schema.get("format", ""))):
            return make()
        elif kind in _JSON_TYPES:
            return _JSON_TYPES[kind]()
        raise _unknown(schema)

    def _of_reference(self, name: str) -> T.DataType:
        if name in self._within:
            raise ConfigError(f"Spark has no types that contain themselves, as {name!r} does")
        found = self._root
        for step in name.removeprefix("#/").split("/"):
            found = found[step]
        self._within += (name,)
        try:
            return self.of(found)
        finally:
            self._within = self._within[:-1]


class _Avro:
    """Types of an Avro schema."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._within: tuple[str, ...] = ()

    def of(self, schema: Any, space: str = "") -> T.DataType:
        """Return the type of values of *schema*; *space* is the enclosing namespace."""
        if isinstance(schema, list):
            some = [each for each in schema if each != "null"]
            if len(some) != 1:
                raise _unknown(schema)
            return self.of(some[0], space)
        if isinstance(schema, str):
            if schema in _AVRO_TYPES:
                return _AVRO_TYPES[schema]()
            full = schema if schema in self._named else f"{space}.{schema}"
            if full in self._within:
                raise ConfigError(f"Spark has no types that contain themselves, as {full!r} does")
            if full not in self._named:
                raise _unknown(schema)
            return self._of_tree(self._named[full], space)
        return self._of_tree(schema, space)

    def _of_tree(self, schema: dict[str, Any], space: str) -> T.DataType:
        kind, logical = schema["type"], schema.get("logicalType", "")
        if isinstance(kind, dict | list):
            return self.of(kind, space)
        if logical == "decimal":
            return T.DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
        if logical in _AVRO_LOGICAL:
            return _AVRO_LOGICAL[logical]()
        if logical.startswith(("time-", "duration")):
            raise _unknown(logical)
        if kind == "array":
            return T.ArrayType(self.of(schema["items"], space))
        if kind == "map":
            return T.MapType(T.StringType(), self.of(schema["values"], space))
        space = str(schema.get("namespace", space))
        if "name" in schema:
            name = str(schema["name"])
            full = name if "." in name or not space else f"{space}.{name}"
            self._named[full] = schema
        if kind != "record":
            return self.of(kind, space)
        self._within += (full,)
        try:
            return _struct({str(e["name"]): self.of(e["type"], space) for e in schema["fields"]})
        finally:
            self._within = self._within[:-1]


def protobuf_struct(
    messages: Mapping[str, Any], name: str, within: tuple[str, ...]
) -> T.StructType:
    """Return the type of a message, of the *messages* in a registered schema."""
    if name in within:
        raise ConfigError(f"Spark has no types that contain themselves, as {name!r} does")
    found: dict[str, T.DataType] = {}
    for field in messages[name].values():
        if field["type"] == REPEATED_MESSAGE:
            inner: T.DataType = protobuf_struct(messages, field["of"], (*within, name))
        elif field["type"] in PROTOBUF_TYPES:
            inner = PROTOBUF_TYPES[field["type"]]()
        else:
            raise _unknown(field)
        found[str(field["name"])] = T.ArrayType(inner) if field["repeated"] else inner
    return _struct(found)


# --- what a column must be to be written with a schema ------------------------------------------

_WIDER: dict[type[T.DataType], tuple[type[T.DataType], ...]] = {
    T.ByteType: (T.IntegerType, T.LongType),
    T.ShortType: (T.IntegerType, T.LongType),
    T.IntegerType: (T.LongType,),
    T.FloatType: (T.DoubleType,),
}


def required(format: str, text: str) -> frozenset[str]:
    """Return the names of the outermost fields that each value must have."""
    tree = tree_of(text)
    if format == "avro":
        fields = tree.get("fields", ()) if isinstance(tree, dict) else ()
        return frozenset(e["name"] for e in fields if "default" not in e and not _is_null(e))
    if format == "protobuf":
        fields = tree["messages"][tree["message"]].values()
        return frozenset(field["name"] for field in fields if field["required"])
    while "$ref" in tree:
        found = tree_of(text)
        for step in str(tree["$ref"]).removeprefix("#/").split("/"):
            found = found[step]
        tree = found
    return frozenset(tree.get("required", ()))


def _is_null(field: Mapping[str, Any]) -> bool:
    return isinstance(field["type"], list) and "null" in field["type"]


def mismatches(column: T.DataType, wanted: T.DataType, at: str = "value") -> list[str]:
    """Return why a column does not fit the type of a schema; nothing if it does."""
    if isinstance(column, T.StructType) and isinstance(wanted, T.StructType):
        found = []
        for field in column.fields:
            if field.name not in wanted.names:
                found.append(f"{at}.{field.name} is not in the schema")
            else:
                there = wanted[field.name].dataType
                found += mismatches(field.dataType, there, f"{at}.{field.name}")
        return found
    if isinstance(column, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return mismatches(column.elementType, wanted.elementType, f"{at}[]")
    if isinstance(column, T.MapType) and isinstance(wanted, T.MapType):
        return mismatches(column.valueType, wanted.valueType, f"{at}[]")
    if isinstance(column, T.DecimalType) and isinstance(wanted, T.DecimalType):
        return []
    if type(column) is type(wanted) or type(wanted) in _WIDER.get(type(column), ()):
        return []
    return [f"{at} is {column.simpleString()}, and {wanted.simpleString()} in the schema"]
