"""Functions of columns: values from and to structs, in any part of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, StructType

from pymq.errors import ConfigError, ValueNotDecoded, ValueNotEncoded
from pymq.spark.values.codecs import ValueCodec, codec
from pymq.spark.values.schema_types import is_columns, type_of

if TYPE_CHECKING:
    from pyspark.sql import Column

FORMATS = ("json", "avro", "protobuf")


def from_value(column: Column | str, format: str, schema: str, *, mode: str = "FAILFAST") -> Column:
    """Return a column of structs, decoded from a column of values.

    Args:
        column: of binary values; null stays null.
        format: ``"json"``, ``"avro"`` or ``"protobuf"``.
        schema: as the option ``valueSchema``.
        mode: ``"PERMISSIVE"`` makes a value that cannot be decoded null.

    Raises:
        ConfigError: an argument is wrong.
    """
    _check(format)
    if mode not in ("FAILFAST", "PERMISSIVE"):
        raise ConfigError(f"mode={mode!r} is 'FAILFAST' or 'PERMISSIVE'")
    kind: DataType
    if format == "json" and is_columns(schema):
        kind, text = StructType.fromDDL(schema), None
    else:
        kind, text = type_of(format, schema), schema
    wanted = to_arrow_type(kind, timezone="UTC")

    def decode(values: Iterator[pa.Array]) -> Iterator[pa.Array]:
        made = _cached(format, text, wanted)
        for array in values:
            items = [_decoded(made, each, mode) for each in array.to_pylist()]
            yield pa.array(items, wanted)

    return _udf(decode, kind)(column)


def to_value(column: Column | str, format: str, schema: str | None = None) -> Column:
    """Return a column of values, encoded from a column of structs; the reverse of
    :func:`from_value`.

    JSON needs no *schema*. Null stays null.
    """
    _check(format)
    text = None if schema is not None and is_columns(schema) else schema

    def encode(values: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for array in values:
            made = _cached(format, text, array.type)
            items = [_encoded(made, each) for each in array.to_pylist()]
            yield pa.array(items, pa.binary())

    return _udf(encode, BinaryType())(column)


def _check(format: str) -> None:
    if format not in FORMATS:
        raise ConfigError(f"format={format!r} is none of {', '.join(FORMATS)}")


def _udf(work: Callable[..., Any], kind: DataType) -> Callable[..., Column]:
    # Annotations are strings in this module; Spark needs types.
    work.__annotations__ = {"values": Iterator[pa.Array], "return": Iterator[pa.Array]}
    make: Any = arrow_udf  # Spark's type hints reject annotations set at run time.
    made: Callable[..., Column] = make(work, kind)
    return made


@lru_cache(64)
def _cached(format: str, text: str | None, kind: pa.DataType) -> ValueCodec:
    return codec(format, text, kind)


def _decoded(made: ValueCodec, data: bytes | None, mode: str) -> Any:
    if data is None:
        return None
    try:
        return made.decode(data)
    except Exception as error:
        if mode == "PERMISSIVE":
            return None
        raise ValueNotDecoded(
            f"a value cannot be decoded: {error}; with mode='PERMISSIVE' it becomes null"
        ) from error


def _encoded(made: ValueCodec, item: Any) -> bytes | None:
    if item is None:
        return None
    try:
        return made.encode(item)
    except Exception as error:
        raise ValueNotEncoded(f"a struct does not fit the schema: {error}") from error
