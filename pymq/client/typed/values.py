"""Encodes the values of a typed topic, and decodes records written with other schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Never, TypeVar

from pymq.core.batch.columns import Headers
from pymq.core.batch.record import Record
from pymq.errors import PymqError, ValueNotDecoded, ValueNotEncoded
from pymq.serde.serializer import Codec

if TYPE_CHECKING:
    from pymq.client.typed.registry import SchemaRegistry

T = TypeVar("T")

SCHEMA_HEADER = "pymq.schema"  # the fingerprint of the schema with which a value was written


class TypedRecord(NamedTuple, Generic[T]):
    """A record whose value has been decoded."""

    topic: str
    partition: str
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: T
    headers: Headers
    delivery_count: int
    raw: Record
    """The record with the encoded value."""


Bad = tuple[Record, ValueNotDecoded]


class Values(Generic[T]):
    """The values of one topic, with one codec."""

    def __init__(self, topic: str, codec: Codec[T], registry: SchemaRegistry) -> None:
        self.topic = topic
        self.codec = codec
        self._registry = registry
        self._own = codec.schema.fingerprint.encode()
        self.header = (SCHEMA_HEADER, self._own)
        self._decoders: dict[bytes, Callable[[bytes], T]] = {self._own: codec.decode}

    def encode(self, value: T) -> bytes:
        """Encode a value.

        Raises:
            ValueNotEncoded: the value does not fit the type.
        """
        try:
            return self.codec.encode(value)
        except Exception as error:
            raise ValueNotEncoded(f"not a value of topic {self.topic!r}: {error}") from error

    def unknown(self, records: Iterable[Record]) -> set[bytes]:
        """Return the fingerprints of schemas that :meth:`learn` has to look up first."""
        if self.codec.decoder_for is None:
            return set()
        written = {_fingerprint(record) for record in records}
        return {each for each in written if each is not None and each not in self._decoders}

    def learn(self, fingerprints: Iterable[bytes]) -> None:
        """Look up schemas in the registry; a schema that is not registered stays unknown."""
        make = self.codec.decoder_for
        assert make is not None
        for fingerprint in fingerprints:
            schema = self._registry.find(fingerprint.decode(errors="replace"))
            if schema is None or schema.format != self.codec.schema.format:
                continue
            try:
                self._decoders[fingerprint] = make(schema)
            except Exception as error:
                self._decoders[fingerprint] = _failing(error)

    def decode(self, records: Sequence[Record]) -> tuple[list[TypedRecord[T]], list[Bad]]:
        """Decode records; returns the decoded ones, and the failed ones with their errors."""
        good, bad = list[TypedRecord[T]](), list[Bad]()
        decoders, plain = self._decoders, self.codec.decode
        needs_writer = self.codec.decoder_for is not None
        for record in records:
            # A value without a schema header counts as a value of this topic's own schema.
            written = _fingerprint(record) if needs_writer else None
            decode = plain if written is None else decoders.get(written)
            try:
                if decode is None:
                    assert written is not None
                    raise LookupError(f"its schema {written.decode(errors='replace')} is not known")
                value = decode(record.value)
            except Exception as error:
                bad.append((record, _error(record, error)))
                continue
            topic, partition, offset, time, key, _, headers, count = record
            good.append(
                TypedRecord(topic, partition, offset, time, key, value, headers, count, record)
            )
        return good, bad


def _fingerprint(record: Record) -> bytes | None:
    for name, found in record.headers:
        if name == SCHEMA_HEADER:
            return found
    return None


def _error(record: Record, error: Exception) -> ValueNotDecoded:
    found = ValueNotDecoded(
        f"the value of {record.topic}/{record.partition} offset {record.offset} cannot be decoded: "
        f"{error}",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )
    found.__cause__ = error
    return found


def _failing(error: Exception) -> Callable[[bytes], Never]:
    """Return a decoder for a schema that cannot be read."""
    why = error if isinstance(error, PymqError) else ValueError(f"its schema is bad: {error}")

    def decode(data: bytes) -> Never:
        raise why

    return decode
