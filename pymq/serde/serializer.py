"""The interface of a serializer, and the schema that a codec writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeVar

import attrs

from pymq.errors import MissingExtra

T = TypeVar("T")


@attrs.frozen(slots=False)
class Schema:
    """The schema of a topic's values."""

    format: str
    """``"json"``, ``"avro"`` or ``"protobuf"``: selects the rules of compatibility."""
    text: str
    """The schema itself, as JSON with sorted keys."""

    @cached_property
    def fingerprint(self) -> str:
        """The first 64 bits of the SHA-256 of format and text, as 16 hexadecimal digits."""
        return sha256(f"{self.format}\0{self.text}".encode()).hexdigest()[:16]


@attrs.frozen
class Codec(Generic[T]):
    """Encodes and decodes values of one type.

    The functions may raise any exception for a value that does not fit; the caller converts it to
    :exc:`pymq.errors.ValueNotEncoded` or :exc:`pymq.errors.ValueNotDecoded`.
    """

    schema: Schema
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    decoder_for: Callable[[Schema], Callable[[bytes], T]] | None = None
    """Returns a decoder for values of another schema (Avro's schema resolution).

    None if ``decode`` does not need the writer's schema, as with JSON.
    """


class Serializer(Protocol):
    """Makes codecs; your own serializer needs only this method."""

    def codec(self, kind: type[T]) -> Codec[T]:
        """Return the codec for values of type *kind*.

        Raises:
            ConfigError: this serializer has no encoding for that type.
            MissingExtra: the library of the serializer is not installed.
        """
        ...


def needs(package: str, error: ImportError) -> Exception:
    """Return the error of a serializer whose *package* is not installed."""
    return MissingExtra(f"this serializer needs {package}: pip install {package} ({error})")


def text_of(schema: Any) -> str:
    """Return a JSON schema as text that depends only on its content."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))
