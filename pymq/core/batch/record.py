"""Records, and their encoding as record batches.

The producer encodes a batch once. Every later hop (broker, disk, replica, consumer's socket) moves
its body by reference and reads its header only (:mod:`pymq.core.batch.header`). The leader also
validates the body once (:mod:`pymq.core.batch.batch_validation`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zlib import crc32

from pymq.core.batch import columns, compression
from pymq.core.batch.columns import Buffer, Headers
from pymq.core.batch.header import (
    COLUMNS_FORMAT,
    COMPACTED,
    COMPRESSION_MASK,
    CONTROL,
    CRC,
    EPOCH_HALF,
    EPOCH_LOW,
    HEADER,
    HEADER_CRC,
    HEADER_SIZE,
    KAFKA_FORMAT,
    MAGIC,
    NO_PRODUCER,
    REST,
    SIGNED,
    SIGNED_PART,
    STAMPED,
    VERSION,
    Header,
    parse_header,
)
from pymq.errors import CorruptBatch

if TYPE_CHECKING:
    from array import array

TIME_MAX = 1 << 63  # milliseconds; times are 64-bit integers
_UNSTAMPED = STAMPED.pack(MAGIC, 0, 0, 0)
_UNSTAMPED_CRC = crc32(_UNSTAMPED)


class Record(NamedTuple):
    """A record, as delivered to a consumer."""

    topic: str
    partition: str
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes
    headers: Headers = ()
    delivery_count: int = 1  # 1 at first; rises with each redelivery


class RecordMetadata(NamedTuple):
    """The place of a written record."""

    topic: str
    partition: str
    offset: int  # -1 with ``acks="none"``: the producer gets no acknowledgement
    timestamp_ms: int


def _pack_all(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    timestamps: Sequence[int] | None,
    headers: Sequence[Headers] | None,
) -> tuple[bytes, int]:
    """Encode the columns that are not empty; returns the body and the bits of its columns."""
    parts, present = [columns.encode_bytes(values)], columns.VALUES
    if keys is not None and any(key is not None for key in keys):
        parts.append(columns.encode_bytes(keys))
        present |= columns.KEYS
    if timestamps is not None and timestamps.count(timestamps[0]) != len(timestamps):
        first = timestamps[0]
        parts.append(columns.encode_numbers([time - first for time in timestamps]))
        present |= columns.TIMESTAMPS
    if headers is not None and any(headers):
        parts.append(columns.encode_headers(headers))
        present |= columns.HEADERS
    return columns.pack(parts), present


def check_times(first: int, deltas: array[int]) -> None:
    """Check that times fit 64 bits.

    Raises:
        CorruptBatch: a time does not fit.
    """
    if deltas.itemsize == 4 and abs(first) < TIME_MAX >> 1:
        return  # The usual case: 32-bit deltas cannot overflow, and a scan would cost too much.
    if first + min(deltas) < -TIME_MAX or first + max(deltas) >= TIME_MAX:
        raise CorruptBatch("a record's time has more than 64 bits")


class EncodedBatch:
    """An encoded batch of records of one partition, whose columns are decoded on access.

    A batch is immutable: stamping it makes a new batch that shares the body.
    """

    __slots__ = (
        "_columns",
        "body",
        "has_keys",
        "head",
        "header",
        "is_sound",
        "partition",
        "topic",
    )

    def __init__(
        self,
        head: Buffer,
        body: Buffer,
        header: Header,
        topic: str = "",
        partition: str = "",
        *,
        is_sound: bool = False,
    ) -> None:
        # Whether this process has encoded or validated the body.
        self.is_sound = is_sound
        self.has_keys: bool | None = None  # whether every record has a key, if that is known
        self.head = head
        self.body = body
        self.header = header
        self.topic = topic
        self.partition = partition
        self._columns: dict[int, memoryview] | None = None

    # --- encoding ---------------------------------------------------------------------------------

    @classmethod
    def encode(
        cls,
        values: Sequence[bytes],
        *,
        timestamp_ms: int,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        timestamps: Sequence[int] | None = None,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = 0,
        base_sequence: int = -1,
        codec: int = compression.NONE,
        attributes: int = 0,
        width: int | None = columns.ANY,
    ) -> Self:
        """Encode records, given as columns of equal length.

        Columns that are None or without content are left out. *timestamps* holds each record's time
        in milliseconds; without *timestamps*, all records have *timestamp_ms*. *width* is the
        result of :func:`pymq.core.batch.columns.width_of` for the values, if it is known.
        """
        first = last = timestamp_ms
        if keys is None and headers is None and timestamps is None:
            raw, present = columns.pack_values(values, width), columns.VALUES
        else:
            raw, present = _pack_all(values, keys, timestamps, headers)
            if timestamps is not None:
                first, last = timestamps[0], max(timestamps)
        body = compression.compress(codec, raw) if codec else raw
        if len(body) >= len(raw):
            # The body did not shrink: do not make readers unpack it.
            codec, body = compression.NONE, raw
        signed = (
            HEADER_SIZE + len(body),
            VERSION,
            COLUMNS_FORMAT,
            attributes | codec,
            producer_id,
            base_sequence,
            producer_epoch & EPOCH_LOW,
            len(values),
            len(values),
            present,
            0,
            first,
            last,
            len(raw),
            producer_epoch >> EPOCH_HALF,
        )
        # Like ``sealed``, but each field is packed once, because this runs for every request.
        packed = SIGNED_PART.pack(*signed)
        batch_crc = crc32(body, crc32(packed))
        rest = CRC.pack(batch_crc) + packed
        head_crc = crc32(rest, _UNSTAMPED_CRC)
        head = _UNSTAMPED + CRC.pack(head_crc) + rest
        header = tuple.__new__(Header, (MAGIC, 0, 0, 0, head_crc, batch_crc, *signed))
        return cls(head, body, header, is_sound=True)

    @classmethod
    def of_columns(cls, count: int, encoded: Mapping[int, bytes], first: int, last: int) -> Self:
        """Make a batch from columns that are already encoded (:mod:`pymq.core.batch.columns`).

        Args:
            count: the number of records.
            encoded: columns by their bits.
            first: the first record's time in milliseconds since 1970; other times are relative.
            last: the largest time.
        """
        raw = columns.pack([encoded[bit] for bit in sorted(encoded)])
        header = Header(
            MAGIC,
            0,
            0,
            0,
            0,
            0,
            HEADER_SIZE + len(raw),
            VERSION,
            COLUMNS_FORMAT,
            compression.NONE,
            NO_PRODUCER,
            -1,
            0,
            count,
            count,
            sum(encoded),
            0,
            first,
            last,
            len(raw),
            0,
        )
        return cls.sealed(header, raw)

    @classmethod
    def control(cls, payload: bytes, *, timestamp_ms: int, kind: int = 0) -> Self:
        """Make a batch with one record for brokers; consumers never see the batch."""
        return cls.encode(
            [payload], timestamp_ms=timestamp_ms, attributes=CONTROL, producer_epoch=kind
        )

    @classmethod
    def gap(cls, base_offset: int, span: int, leader_epoch: int) -> Self:
        """Make a batch without records that covers *span* offsets; for compaction."""
        raw = columns.pack([columns.encode_bytes([])])
        return cls.sealed(
            Header(
                MAGIC,
                leader_epoch,
                base_offset,
                base_offset,  # Only sealed blocks are compacted, and sealed blocks are durable.
                0,
                0,
                HEADER_SIZE + len(raw),
                VERSION,
                COLUMNS_FORMAT,
                COMPACTED,
                NO_PRODUCER,
                -1,
                0,
                0,
                span,
                columns.VALUES,
                0,
                0,
                0,
                len(raw),
                0,
            ),
            raw,
        )

    @classmethod
    def sealed(cls, header: Header, body: Buffer) -> Self:
        """Make a batch and compute both of its CRCs; the CRC fields of *header* are ignored."""
        packed = HEADER.pack(*header)
        signed = packed[SIGNED:]
        batch_crc = crc32(body, crc32(signed))
        rest = CRC.pack(batch_crc) + signed
        head_crc = crc32(rest, crc32(packed[:HEADER_CRC]))
        head = packed[:HEADER_CRC] + CRC.pack(head_crc) + rest
        # ``_replace`` would cost as much as the rest of this method.
        sealed = Header._make((*header[:4], head_crc, batch_crc, *header[6:]))
        return cls(head, body, sealed)

    def stamp(self, base_offset: int, leader_epoch: int, durable: int) -> EncodedBatch:
        """Return this batch with its place in the log; only the leader calls this.

        *durable* is the offset before which the whole block is durable on this broker.
        """
        stamped = STAMPED.pack(MAGIC, leader_epoch, base_offset, durable)
        rest = bytes(self.head[REST:])
        head_crc = crc32(rest, crc32(stamped))
        head = stamped + CRC.pack(head_crc) + rest
        stamp = (MAGIC, leader_epoch, base_offset, durable, head_crc)
        header = tuple.__new__(Header, stamp + self.header[5:])  # half as expensive as ``_make``
        return EncodedBatch(
            head, self.body, header, self.topic, self.partition, is_sound=self.is_sound
        )

    def renamed(self, producer_id: int, producer_epoch: int, base_sequence: int) -> EncodedBatch:
        """Return this batch with another producer's id, epoch and sequence, without decoding it."""
        header = self.header._replace(producer_id=producer_id)
        renamed = EncodedBatch(self.head, self.body, header, is_sound=self.is_sound)
        return renamed.numbered(producer_epoch, base_sequence)

    def numbered(self, producer_epoch: int, base_sequence: int) -> EncodedBatch:
        """Return this batch with another epoch and sequence; only its producer calls this."""
        header = self.header._replace(
            epoch_low=producer_epoch & EPOCH_LOW,
            epoch_high=producer_epoch >> EPOCH_HALF,
            base_sequence=base_sequence,
        )
        sealed = EncodedBatch.sealed(header, self.body)
        sealed.is_sound = self.is_sound
        return sealed

    def keep(self, chosen: Sequence[int]) -> EncodedBatch:
        """Return the batch with only the records at the ascending indexes *chosen*; for compaction.

        The result covers the same offsets, so the log has no gap. The result has body format 1,
        even if this batch has format 2.
        """
        offsets, values = self.offsets, self.values  # each access decodes the column
        parts, present = [columns.encode_bytes([values[i] for i in chosen])], columns.VALUES
        if self.column(columns.KEYS) is not None:
            keys = self.keys
            parts.append(columns.encode_bytes([keys[i] for i in chosen]))
            present |= columns.KEYS
        if self.column(columns.TIMESTAMPS) is not None and chosen:
            first, times = self.header.first_timestamp, self.timestamps
            parts.append(columns.encode_numbers([times[i] - first for i in chosen]))
            present |= columns.TIMESTAMPS
        if self.column(columns.HEADERS) is not None:
            headers = self.headers
            parts.append(columns.encode_headers([headers[i] for i in chosen]))
            present |= columns.HEADERS
        if chosen:
            base = self.header.base_offset
            parts.append(columns.encode_numbers([offsets[i] - base for i in chosen]))
            present |= columns.OFFSETS
        raw = columns.pack(parts)
        codec = self.header.attributes & COMPRESSION_MASK
        body = compression.compress(codec, raw) if codec else raw
        header = self.header._replace(
            length=HEADER_SIZE + len(body),
            body_format=COLUMNS_FORMAT,
            attributes=self.header.attributes | COMPACTED,
            count=len(chosen),
            columns=present,
            raw_length=len(raw),
        )
        kept = EncodedBatch.sealed(header, body)
        return EncodedBatch(kept.head, body, kept.header, self.topic, self.partition)

    # --- decoding -------------------------------------------------------------------------------

    @classmethod
    def parse(cls, data: Buffer, position: int = 0) -> Self:
        """Read the batch at *position*: check the header and the length, and copy nothing.

        Raises:
            CorruptBatch: the header is bad or the body is cut short.
        """
        header = parse_header(data, position)
        if len(data) - position < header.length:
            raise CorruptBatch("the body is cut short")
        view = memoryview(data)
        start = position + HEADER_SIZE
        return cls(view[position:start], view[start : position + header.length], header)

    def verify(self) -> Self:
        """Check the batch CRC.

        Raises:
            CorruptBatch: the CRC does not match.
        """
        if crc32(self.body, crc32(memoryview(self.head)[SIGNED:])) != self.header.batch_crc:
            raise CorruptBatch(
                f"the CRC of the batch at offset {self.header.base_offset} does not match",
                offset=self.header.base_offset,
            )
        return self

    def at(self, topic: str, partition: str) -> Self:
        """Set the partition that the records of this batch report."""
        self.topic, self.partition = topic, partition
        return self

    def __len__(self) -> int:
        return self.header.count

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
        return self.header.base_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last one that the batch covers."""
        return self.header.end_offset

    @property
    def size(self) -> int:
        """Bytes of the whole encoded batch."""
        return self.header.length

    def column(self, bit: int) -> memoryview | None:
        """Return an encoded column (:mod:`pymq.core.batch.columns`); None if it is absent."""
        if self._columns is None:
            header, body = self.header, self.body
            if header.body_format == KAFKA_FORMAT:
                from pymq.core.batch.kafka.batch import encoded_columns  # lazy: few queues need it

                self._columns = encoded_columns(header, body)
                return self._columns.get(bit)
            if header.body_format != COLUMNS_FORMAT:
                raise CorruptBatch(
                    f"body format {header.body_format} cannot be read by this version"
                )
            codec = header.attributes & COMPRESSION_MASK
            if codec:
                body = compression.decompress(codec, memoryview(body), header.raw_length)
            self._columns = columns.unpack(body, header.columns)
        return self._columns.get(bit)

    @property
    def values(self) -> list[bytes]:
        """Each record's value."""
        column = self.column(columns.VALUES)
        if column is None:
            raise CorruptBatch("the batch has no values")
        return columns.decode_bytes(column, self.header.count)

    @property
    def keys(self) -> list[bytes | None]:
        """Each record's key, or None."""
        column = self.column(columns.KEYS)
        if column is None:
            return [None] * self.header.count
        return columns.decode_optional_bytes(column, self.header.count)

    @property
    def timestamps(self) -> list[int]:
        """Each record's time in milliseconds since 1970."""
        column = self.column(columns.TIMESTAMPS)
        first = self.header.first_timestamp
        if column is None:
            return [first] * self.header.count
        deltas = columns.unpack_numbers(column, self.header.count)
        check_times(first, deltas)
        return [first + delta for delta in deltas]

    @property
    def headers(self) -> list[Headers]:
        """Each record's headers, a tuple of (name, value)."""
        column = self.column(columns.HEADERS)
        if column is None:
            return [()] * self.header.count
        return columns.decode_headers(column, self.header.count)

    @property
    def offsets(self) -> Sequence[int]:
        """Each record's offset; a ``range`` unless compaction has removed records."""
        base = self.header.base_offset
        column = self.column(columns.OFFSETS)
        if column is None:
            return range(base, base + self.header.count)
        deltas = columns.decode_numbers(column, self.header.count)
        if any(a >= b for a, b in pairwise(deltas)) or not (
            deltas[0] >= 0 and deltas[-1] < self.header.span
        ):
            raise CorruptBatch("the offsets of the batch do not rise within its span")
        return [base + delta for delta in deltas]

    def records(self, delivery_count: int = 1) -> list[Record]:
        """Return the batch's records."""
        values = self.values  # reading the values first checks the record count in the header
        count = self.header.count
        rows: Any = zip(
            (self.topic,) * count,
            (self.partition,) * count,
            self.offsets,
            self.timestamps,
            self.keys,
            values,
            self.headers,
            (delivery_count,) * count,
            strict=True,
        )
        return list(map(Record._make, rows))

    def __repr__(self) -> str:
        header = self.header
        return (
            f"<RecordBatch {self.topic}/{self.partition} [{header.base_offset}, "
            f"{header.end_offset}) count={header.count} bytes={header.length}>"
        )
