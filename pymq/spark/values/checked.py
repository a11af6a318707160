"""Checks the column of values of a query against the format and the schema of its options."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, StructType

from pymq.errors import ConfigError
from pymq.spark.options import ValueOptions
from pymq.spark.values.schema_types import is_columns, mismatches, required, type_of
from pymq.spark.values.value_columns import Writing

NAMED = 3  # differences that an error names


def source_type(values: ValueOptions) -> DataType | str:
    """Return the type of the column of a source, as text if only Spark can parse it.

    Raises:
        ConfigError: there is no schema, or it is invalid.
    """
    text = values.schema
    if text is None:
        raise ConfigError(
            f"option 'valueFormat' is {values.format!r}, and values have no schema: set the option "
            "'valueSchema', or give the query a schema in which 'value' is a struct. The registry "
            "has none for this topic"
        )
    if values.format == "arrow" and is_columns(text):
        return f"array<struct<{text}>>"
    if values.format == "json" and is_columns(text):
        return f"struct<{text}>"
    if values.format == "arrow":
        raise ConfigError("option 'valueSchema' of 'arrow' is a list of columns, 'a string, b int'")
    return type_of(values.format, text)


def check_type(format: str, kind: DataType) -> None:
    """Check that a column can hold values of a format.

    Raises:
        ConfigError: it cannot.
    """
    inner, wanted = kind, "a struct"
    if format == "arrow":
        wanted = "an array of structs, as a value holds several rows"
        inner = kind.elementType if isinstance(kind, ArrayType) else kind
        if inner is kind:
            inner = DataType()
    if not isinstance(inner, StructType):
        raise ConfigError(
            f"column 'value' is {kind.simpleString()}; with the option 'valueFormat' set to "
            f"{format!r} it is {wanted}"
        )


def check_rows(values: ValueOptions, kind: DataType) -> None:
    """Check that the rows of a sink fit the schema of their values.

    Raises:
        ConfigError: a column is missing, is not in the schema, or has another type.
    """
    if values.format == "binary":
        return
    check_type(values.format, kind)
    text = values.schema
    if text is None:
        if values.format in ("avro", "protobuf"):
            source_type(values)
        return
    if is_columns(text):
        raise ConfigError(
            "option 'valueSchema' of a sink is a schema as JSON; leave it out, and the column "
            "'value' says which fields there are"
        )
    assert isinstance(kind, StructType)
    why = mismatches(kind, type_of(values.format, text))
    why += [
        f"value.{name} is missing" for name in sorted(required(values.format, text) - {*kind.names})
    ]
    if why:
        raise ConfigError(f"the rows do not fit the schema of values: {'; '.join(why[:NAMED])}")


def writing(values: ValueOptions) -> Writing:
    """Return how the rows of a sink become values."""
    text = values.schema
    needed = frozenset[str]() if text is None else required(values.format, text)
    return Writing(values.format, text, values.null_tombstones, needed)
