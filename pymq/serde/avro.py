"""Values by Avro, in its binary encoding without a container (Avro 1.12 specification)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from io import BytesIO
from typing import Any

import attrs

from pymq.errors import ConfigError
from pymq.serde.serializer import Codec, Schema, T, needs, text_of


class Avro:
    """Avro by fastavro; readers resolve the writer's schema, which is in the registry.

    Values are dicts, or instances of a dataclass or an attrs class whose fields are those of the
    record. Nested records are dicts.

    Args:
        schema: an Avro schema, as JSON text or as a dict.
    """

    def __init__(self, schema: str | Mapping[str, Any]) -> None:
        self._schema = schema

    def codec(self, kind: type[T]) -> Codec[T]:
        """Return the codec for values of type *kind*."""
        try:
            import fastavro
        except ImportError as error:
            raise needs("fastavro", error) from None
        source = json.loads(self._schema) if isinstance(self._schema, str) else dict(self._schema)
        try:
            own = fastavro.parse_schema(source)
        except Exception as error:
            # Fastavro has several exception classes of its own for errors in a schema.
            raise ConfigError(f"no Avro schema: {error}") from None
        into, out_of = _conversions(kind)

        def encode(value: T) -> bytes:
            data = BytesIO()
            fastavro.schemaless_writer(data, own, out_of(value), strict_allow_default=True)
            return data.getvalue()

        def decoder(writer: Any) -> Callable[[bytes], T]:
            def decode(data: bytes) -> T:
                stream = BytesIO(data)
                found = fastavro.schemaless_reader(stream, writer, own)
                if stream.read(1):
                    raise ValueError("bytes are left after the value")
                value: T = into(found)
                return value

            return decode

        def decoder_for(schema: Schema) -> Callable[[bytes], T]:
            return decoder(fastavro.parse_schema(json.loads(schema.text)))

        return Codec(Schema("avro", text_of(source)), encode, decoder(own), decoder_for)


def _conversions(kind: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return two functions: one converts fastavro's values to values of the type, the other does
    the reverse.
    """
    if isinstance(kind, type) and attrs.has(kind):
        return lambda found: kind(**found), lambda value: _checked(kind, attrs.asdict, value)
    if isinstance(kind, type) and is_dataclass(kind):
        return lambda found: kind(**found), lambda value: _checked(kind, asdict, value)
    return lambda found: found, lambda value: value


def _checked(kind: type[Any], convert: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} is expected, not {type(value).__name__}")
    return convert(value)
