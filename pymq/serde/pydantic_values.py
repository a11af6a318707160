"""Values by pydantic."""

from __future__ import annotations

from pymq.errors import ConfigError
from pymq.serde.serializer import Codec, Schema, T, needs, text_of


class Pydantic:
    """JSON by pydantic: models, and all types that a ``TypeAdapter`` takes."""

    def codec(self, kind: type[T]) -> Codec[T]:
        """Return the codec for values of type *kind*."""
        try:
            from pydantic import PydanticUserError, TypeAdapter
        except ImportError as error:
            raise needs("pydantic", error) from None
        try:
            adapter = TypeAdapter(kind)
            schema = Schema("json", text_of(adapter.json_schema()))
        except PydanticUserError as error:
            raise ConfigError(f"pydantic has no JSON for {kind!r}: {error}") from None

        def encode(value: T) -> bytes:
            # Pydantic checks a model at its creation; this function checks other values.
            return adapter.dump_json(adapter.validate_python(value), warnings="error")

        return Codec(schema, encode, adapter.validate_json)
