"""Values by msgspec: the fastest serializer, and strict about types."""

from __future__ import annotations

from pymq.errors import ConfigError
from pymq.serde.serializer import Codec, Schema, T, needs, text_of


class Msgspec:
    """JSON by msgspec, for ``msgspec.Struct``, dataclasses, attrs and builtins."""

    def codec(self, kind: type[T]) -> Codec[T]:
        """Return the codec for values of type *kind*."""
        try:
            import msgspec
        except ImportError as error:
            raise needs("msgspec", error) from None
        try:
            schema = Schema("json", text_of(msgspec.json.schema(kind)))
            decode = msgspec.json.Decoder(kind).decode
        except TypeError as error:
            raise ConfigError(f"msgspec has no JSON for {kind!r}: {error}") from None
        plain = msgspec.json.Encoder().encode

        def encode(value: T) -> bytes:
            if not isinstance(value, kind):
                raise TypeError(f"{kind.__name__} is expected, not {type(value).__name__}")
            return plain(value)

        is_class = isinstance(kind, type)  # False for types such as list[int]
        return Codec(schema, encode if is_class else plain, decode)
