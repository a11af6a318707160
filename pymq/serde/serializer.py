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
    """``"json"``, ``"avro"`` or ``"protobuf"``: which rules decide what is compatible."""
    text: str
    """The schema itself, as JSON with sorted keys."""

    @cached_property
    def fingerprint(self) -> str:
        """The first 64 bits of the SHA-256 of format and text, as 16 hexadecimal digits."""
        return sha256(f"{self.format}\0{self.text}".encode()).hexdigest()[:16]


@attrs.frozen
class Codec(Generic[T]):
    """Encodes and decodes values of one type.

    The functions raise whatever they like for a value that does not fit; the caller turns it into
    :exc:`pymq.errors.ValueNotEncoded` or :exc:`pymq.errors.ValueNotDecoded`.
    """

    schema: Schema
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    decoder_for: Callable[[Schema], Callable[[bytes], T]] | None = None
    """Returns a decoder of values that were written with another schema (Avro's schema resolution);
    None if ``decode`` needs no writer's schema, as with JSON."""


class Serializer(Protocol):
    """Makes codecs; a class of your own needs this one method."""

    def codec(self, kind: type[T]) -> Codec[T]:
        """Return the codec for values of type *kind*.

        Raises:
            ConfigError: this serializer has no encoding for that type.
            MissingExtra: its library is not installed.
        """
        ...


def needs(package: str, error: ImportError) -> Exception:
    """Return the error of a serializer whose *package* cannot be imported."""
    return MissingExtra(f"this serializer needs {package}: pip install {package} ({error})")


def text_of(schema: Any) -> str:
    """Return a JSON schema as text that depends on nothing but its content."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))
