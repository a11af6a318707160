"""Schemas of tables: adds new columns to a schema, and fits rows of an older schema to the
newer one.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds

from pymq.errors import ConfigError, SchemaIncompatible

_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_WIDER = ({pa.int32(), pa.int64()}, {pa.float32(), pa.float64()})


def parse_columns(text: str) -> pa.Schema:
    """Parse columns as ``"carrier string, delay long"``.

    Raises:
        ConfigError: the text is no list of names and types.
    """
    fields: dict[str, pa.DataType] = {}
    for part in text.split(","):
        name, _, kind = part.strip().partition(" ")
        found = _TYPES.get(kind.strip().lower())
        if not name or found is None:
            raise ConfigError(
                f"columns {text!r}: {part.strip()!r} is no name and type; types are "
                f"{', '.join(_TYPES)}"
            )
        if name in fields:
            raise ConfigError(f"columns {text!r}: {name!r} is there twice")
        fields[name] = found
    return pa.schema(list(fields.items()))


def normal(schema: pa.Schema) -> pa.Schema:
    """Return the schema with one type in place of several equivalent types, and all columns
    nullable.

    Engines return ``large_string`` or ``string_view`` for a string, and name items differently.
    """
    return pa.schema([(field.name, _normal(field.type)) for field in schema])


def _normal(kind: pa.DataType) -> pa.DataType:
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if (
        kinds.is_large_binary(kind)
        or kinds.is_binary_view(kind)
        or kinds.is_fixed_size_binary(kind)
    ):
        return pa.binary()
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_list_view(kind):
        return pa.list_(_normal(kind.value_type))
    if kinds.is_map(kind):
        return pa.map_(_normal(kind.key_type), _normal(kind.item_type))
    if kinds.is_struct(kind):
        return pa.struct([(field.name, _normal(field.type)) for field in kind])
    return kind


def union(old: pa.Schema, new: pa.Schema, *, widens: bool = False) -> pa.Schema:
    """Return the columns of *old*, in their order, and then the columns that only *new* has.

    With *widens*, the type of a number may grow from four bytes to eight. Tables do not use
    *widens*.

    Raises:
        SchemaIncompatible: a column changes its type.
    """
    names = set(new.names)
    fields = [
        (each.name, joined(each.name, each.type, new.field(each.name).type, widens=widens))
        if each.name in names
        else (each.name, each.type)
        for each in old
    ]
    known = set(old.names)
    return pa.schema([*fields, *((each.name, each.type) for each in new if each.name not in known)])


def joined(name: str, old: pa.DataType, new: pa.DataType, *, widens: bool) -> pa.DataType:
    """Return the type of a column whose type changes from *old* to *new*; see :func:`union`."""
    if old == new:
        return old
    if widens and {old, new} in _WIDER:
        return pa.int64() if kinds.is_integer(old) else pa.float64()
    if kinds.is_struct(old) and kinds.is_struct(new):
        inside = union(pa.schema(list(old)), pa.schema(list(new)), widens=widens)
        return pa.struct(list(inside))
    if kinds.is_list(old) and kinds.is_list(new):
        return pa.list_(joined(name, old.value_type, new.value_type, widens=widens))
    raise SchemaIncompatible(
        f"column {name!r} was {old} and is {new} now, and a column keeps its type; begin "
        "a new table at another location",
        problems=[f"{name}: {old}, {new}"],
    )


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return *rows* with the columns of *schema*; columns that *rows* lacks are null."""
    found = [
        _fit(rows.column(field.name), field.type)
        if field.name in rows.column_names
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(found, schema=schema)


def _fit(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if kinds.is_struct(kind) or (kinds.is_list(kind) and kinds.is_nested(kind.value_type)):
        return pa.chunked_array([_fit_nested(chunk, kind) for chunk in column.chunks], kind)
    return column.cast(kind)


def _fit_nested(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Add the fields that objects inside of *array* lack."""
    if array.type == kind:
        return array
    if kinds.is_struct(kind) and kinds.is_struct(array.type):
        names = [field.name for field in array.type]
        parts = [
            _fit_nested(array.field(field.name), field.type)
            if field.name in names
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if kinds.is_list(kind) and kinds.is_list(array.type):
        if array.offset:  # Arrow takes no mask for a slice.
            array = array.take(pa.array(range(len(array))))
        mask = array.is_null() if array.null_count else None
        inner = _fit_nested(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, inner, type=kind, mask=mask)
    return array.cast(kind)
