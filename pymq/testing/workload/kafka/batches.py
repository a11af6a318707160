"""Kafka's record batches, as a client writes and reads them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from pymq.core.batch.columns import Buffer
from pymq.core.batch.kafka import codecs, records
from pymq.core.batch.kafka.batch import (
    KAFKA_HEADER,
    KAFKA_HEADER_SIZE,
    LENGTH_FROM,
    MAGIC_V2,
    SIGNED_FROM,
    KafkaHeader,
    crc32c_function,
)
from pymq.core.batch.kafka.records import KafkaRecords

_FRONT = struct.Struct(">qiibI")
_SIGNED = struct.Struct(">hiqqqhii")
_GZIP_BITS = 31  # zlib's number for the format of gzip


class BadBatch(ValueError):
    """A broker has sent bytes that are no batch."""


def encode_batch(
    values: Sequence[bytes],
    keys: Sequence[bytes | None],
    time_ms: int,
    producer: tuple[int, int, int] = (-1, -1, -1),
    *,
    is_packed: bool = False,
) -> bytes:
    """Return a batch of records; *producer* is (id, epoch, first sequence)."""
    count = len(values)
    data = records.encode(range(count), [0] * count, keys, values, [()] * count)
    if is_packed:
        packing = zlib.compressobj(1, zlib.DEFLATED, _GZIP_BITS)
        data = packing.compress(data) + packing.flush()
    codec = codecs.GZIP if is_packed else codecs.NONE
    signed = _SIGNED.pack(codec, count - 1, time_ms, time_ms, *producer, count) + data
    length = _FRONT.size - LENGTH_FROM + len(signed)
    return _FRONT.pack(0, length, -1, MAGIC_V2, crc32c_function()(signed)) + signed


def read_batches(data: Buffer) -> Iterator[tuple[KafkaHeader, KafkaRecords]]:
    """Read the batches of a fetch.

    Raises:
        BadBatch: the bytes are no batches, or a CRC is wrong.
    """
    crc32c, view, at = crc32c_function(), memoryview(bytes(data)), 0
    while at < len(view):
        if len(view) - at < KAFKA_HEADER_SIZE:
            raise BadBatch("a batch is cut short")
        header = KafkaHeader._make(KAFKA_HEADER.unpack_from(view, at))
        end = at + header.length + LENGTH_FROM
        if header.magic != MAGIC_V2 or end > len(view):
            raise BadBatch(f"a batch of magic {header.magic} with {header.length} bytes")
        if crc32c(view[at + SIGNED_FROM : end]) != header.crc:
            raise BadBatch(f"the CRC of the batch at {header.base_offset} is wrong")
        body = codecs.unpack(
            header.attributes & codecs.CODEC_MASK, view[at + KAFKA_HEADER_SIZE : end]
        )
        found = KafkaRecords([], [], [], [], [])
        if header.size:
            found = records.decode(body, header.size)
        yield header, found
        at = end
