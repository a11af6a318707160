"""Records and record batches: what users send, and how it travels, rests and is checked.

A batch is encoded once, in the producer. Every later hop (broker, disk, replica, consumer's socket)
moves its body by reference and reads its header only. The header is fixed, little-endian:

====  ====  ===============  ===========================================================  ==========
  at  size  field            meaning                                                      covered by
====  ====  ===============  ===========================================================  ==========
   0     4  magic            ``PMQB``                                                     header
   4     4  leader epoch     the epoch that appended the batch                            header
   8     8  base offset      offset of the first record                                   header
  16     8  durable          the offset before which all of the block was known durable,  header
                             on the broker that stamped the batch and when it did
  24     4  header CRC       CRC-32 of the header without this field
  28     4  batch CRC        CRC-32 of bytes 32.. of the header and of the body           header
  32     4  length           bytes of the whole batch, header included                    both
  36     1  version          1                                                            both
  37     1  body format      1: CBOR columns (pymq.core.columns); 2: Kafka v2 records     both
  38     2  attributes       bits 0-2 compression, 3 control, 4 compacted                 both
  40     8  producer id      -1: none                                                     both
  48     8  base sequence    the producer's number of the first record; -1: none          both
  56     4  epoch low        of the producer epoch, the lower half: what it raised          both
                             itself; of a control batch: its kind
  60     4  count            records in the body                                          both
  64     4  span             offsets that the batch covers; more than count once          both
                             compaction has taken records out
  68     2  columns          which columns are present                                    both
  70     2                   zero                                                         both
  72     8  first timestamp  milliseconds since 1970                                      both
  80     8  max timestamp                                                                 both
  88     4  raw length       bytes of the body before compression                         both
  92     4  epoch high       the upper half: how often its name was opened before it      both
====  ====  ===============  ===========================================================  ==========

The two CRCs divide the work. The batch CRC is the producer's and is never computed again: leader
epoch, base offset and durable lie outside it, so that the leader can stamp them. The header CRC is
the stamping broker's. A good header with a bad body is damage of known extent; a bad header may be
a torn write; a flipped bit anywhere is one or the other.

*Durable* tells these two apart after a power cut. What lies before it, in any batch of the block,
was safe on the disk: if it is bad now, the disk has lost it. What lies at or behind the largest one
may have been on its way, in sectors that a disk writes in any order. It is the block's start when
nothing is known, and never more than the base offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zlib import crc32

from pymq.core import columns, compression
from pymq.core.columns import Buffer, Headers
from pymq.errors import CorruptBatch

if TYPE_CHECKING:
    import pyarrow

MAGIC = b"PMQB"
VERSION = 1
COLUMNS_FORMAT = 1
KAFKA_FORMAT = 2

COMPRESSION_MASK = 0b111
CONTROL = 0b1000
COMPACTED = 0b10000
_ATTRIBUTES = COMPRESSION_MASK | CONTROL | COMPACTED

HEADER = struct.Struct("<4sIqqIIIBBHqqIIIHHqqII")
HEADER_SIZE = HEADER.size
_STAMPED = struct.Struct("<4sIqq")  # its first part, the leader's
_SIGNED = struct.Struct("<IBBHqqIIIHHqqII")  # its last part, the producer's
_CRC = struct.Struct("<I")
HEADER_CRC = 24  # where the header CRC lies; all before it is the leader's stamp
_REST = 28  # where the part of the header begins that follows the header CRC
SIGNED = 32  # where the part begins that the batch CRC covers

BATCH_BYTES_MAX = 64 << 20
COUNT_MAX = 1 << 24
NO_PRODUCER = -1
EPOCH_HALF = 32  # bits: below them a producer raises its epoch by itself, above them its name does
_LOW = (1 << EPOCH_HALF) - 1
_UNSTAMPED = _STAMPED.pack(MAGIC, 0, 0, 0)
_UNSTAMPED_CRC = crc32(_UNSTAMPED)


class ControlKind(IntEnum):
    """What a control batch is for; it stands where other batches have the producer's epoch."""

    BEGIN = 1  # a leader's first batch in its epoch (Raft's no-op)
    SEAL = 2  # no record comes after it in its block


class Record(NamedTuple):
    """One message, as a consumer gets it."""

    topic: str
    partition: str
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes
    headers: Headers = ()
    delivery_count: int = 1  # 1 the first time; counts on when it was not acknowledged


class RecordMetadata(NamedTuple):
    """Where a record was written."""

    topic: str
    partition: str
    offset: int  # -1 with ``acks="none"``, which is not answered
    timestamp_ms: int


class Header(NamedTuple):
    """A batch's header, field by field as on disk."""

    magic: bytes
    leader_epoch: int
    base_offset: int
    durable: int
    header_crc: int
    batch_crc: int
    length: int
    version: int
    body_format: int
    attributes: int
    producer_id: int
    base_sequence: int
    epoch_low: int
    count: int  # type: ignore[assignment] # hides tuple.count, which nobody asks of a header
    span: int
    columns: int
    zero: int
    first_timestamp: int
    max_timestamp: int
    raw_length: int
    epoch_high: int

    @property
    def producer_epoch(self) -> int:
        """What tells a producer from those that had its id before; a higher one fences a lower."""
        return self.epoch_high << EPOCH_HALF | self.epoch_low

    @property
    def end_offset(self) -> int:
        """The offset after the last one that the batch covers."""
        return self.base_offset + self.span

    @property
    def is_control(self) -> bool:
        """Whether the batch is pymq's own; consumers never see it."""
        return bool(self.attributes & CONTROL)

    @property
    def control_kind(self) -> int:
        """What a control batch is for, see :class:`ControlKind`; 0 of another batch."""
        return self.producer_epoch if self.attributes & CONTROL else 0


def header_crc(head: Buffer) -> int:
    """Compute the CRC of a header as it should be, whatever the one in it says."""
    view = memoryview(head)
    return crc32(view[_REST:], crc32(view[:HEADER_CRC]))


def parse_header(data: Buffer, position: int = 0) -> Header:
    """Read and check the header at *position*; the body is neither needed nor looked at.

    Raises:
        CorruptBatch: it is cut short, its CRC does not hold, or a field is out of its range.
    """
    if len(data) - position < HEADER_SIZE:
        raise CorruptBatch("the header is cut short")
    header = Header._make(HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        raise CorruptBatch("no batch begins here: the magic is missing")
    if header_crc(memoryview(data)[position : position + HEADER_SIZE]) != header.header_crc:
        raise CorruptBatch("the header's CRC does not hold")
    if header.version != VERSION:
        raise CorruptBatch(f"batch version {header.version} is not known; a newer pymq wrote it")
    if (
        not HEADER_SIZE <= header.length <= BATCH_BYTES_MAX
        or header.raw_length > BATCH_BYTES_MAX
        or header.count > min(header.span, COUNT_MAX, header.raw_length)  # a record takes a byte
        or (
            not header.attributes & COMPRESSION_MASK
            and header.raw_length != header.length - HEADER_SIZE
        )
        or not 0 <= header.durable <= header.base_offset
        or header.attributes & ~_ATTRIBUTES
        or header.columns & ~columns.ALL
        or header.zero
    ):
        raise CorruptBatch("a field of the header is out of its range")
    return header


class RecordBatch:
    """Some records of one partition, encoded; columns are decoded when first looked at.

    A batch is immutable: stamping gives a new one that shares the body.
    """

    __slots__ = ("_columns", "body", "head", "header", "partition", "topic")

    def __init__(
        self, head: Buffer, body: Buffer, header: Header, topic: str = "", partition: str = ""
    ) -> None:
        self.head = head
        self.body = body
        self.header = header
        self.topic = topic
        self.partition = partition
        self._columns: dict[int, memoryview] | None = None

    # --- making one -----------------------------------------------------------------------------

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
    ) -> Self:
        """Encode records, given as columns of equal length.

        Columns that are None or say nothing are left out. *timestamps* holds each record's own
        time in milliseconds; without it all have *timestamp_ms*.
        """
        parts, present = [columns.encode_bytes(values)], columns.VALUES
        if keys is not None and any(key is not None for key in keys):
            parts.append(columns.encode_bytes(keys))
            present |= columns.KEYS
        first = last = timestamp_ms
        if timestamps is not None:
            first, last = timestamps[0], max(timestamps)
            if first != last or min(timestamps) != first:
                parts.append(columns.encode_numbers([time - first for time in timestamps]))
                present |= columns.TIMESTAMPS
        if headers is not None and any(headers):
            parts.append(columns.encode_headers(headers))
            present |= columns.HEADERS
        raw = columns.pack(parts)
        body = compression.compress(codec, raw) if codec else raw
        if len(body) >= len(raw):
            codec, body = compression.NONE, raw  # It did not shrink: spare every reader the work.
        signed = (
            HEADER_SIZE + len(body),
            VERSION,
            COLUMNS_FORMAT,
            attributes | codec,
            producer_id,
            base_sequence,
            producer_epoch & _LOW,
            len(values),
            len(values),
            present,
            0,
            first,
            last,
            len(raw),
            producer_epoch >> EPOCH_HALF,
        )
        # What ``_seal`` does, but this is done for every request: each field is packed once.
        packed = _SIGNED.pack(*signed)
        batch_crc = crc32(body, crc32(packed))
        rest = _CRC.pack(batch_crc) + packed
        head_crc = crc32(rest, _UNSTAMPED_CRC)
        head = _UNSTAMPED + _CRC.pack(head_crc) + rest
        header = tuple.__new__(Header, (MAGIC, 0, 0, 0, head_crc, batch_crc, *signed))
        return cls(head, body, header)

    @classmethod
    def control(cls, payload: bytes, *, timestamp_ms: int, kind: int = 0) -> Self:
        """A batch of one record that brokers read and consumers never see."""
        return cls.encode(
            [payload], timestamp_ms=timestamp_ms, attributes=CONTROL, producer_epoch=kind
        )

    @classmethod
    def gap(cls, base_offset: int, span: int, leader_epoch: int) -> Self:
        """A batch without records that covers *span* offsets; only compaction makes one."""
        raw = columns.pack([columns.encode_bytes([])])
        return cls._seal(
            Header(
                MAGIC,
                leader_epoch,
                base_offset,
                base_offset,  # Only sealed blocks are compacted, and all of them is durable.
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
    def _seal(cls, header: Header, body: bytes) -> Self:
        """Compute both CRCs over *header*, whose own CRC fields are ignored, and *body*."""
        packed = HEADER.pack(*header)
        signed = packed[SIGNED:]
        batch_crc = crc32(body, crc32(signed))
        rest = _CRC.pack(batch_crc) + signed
        head_crc = crc32(rest, crc32(packed[:HEADER_CRC]))
        head = packed[:HEADER_CRC] + _CRC.pack(head_crc) + rest
        # Not ``_replace``: it costs as much as all the rest of this method.
        sealed = Header._make((*header[:4], head_crc, batch_crc, *header[6:]))
        return cls(head, body, sealed)

    def stamp(self, base_offset: int, leader_epoch: int, durable: int) -> RecordBatch:
        """Return this batch at its place in the log; only the leader calls this.

        *durable* is the offset before which all of the block is on disk for certain.
        """
        stamped = _STAMPED.pack(MAGIC, leader_epoch, base_offset, durable)
        rest = bytes(self.head[_REST:])
        head_crc = crc32(rest, crc32(stamped))
        head = stamped + _CRC.pack(head_crc) + rest
        stamp = (MAGIC, leader_epoch, base_offset, durable, head_crc)
        header = tuple.__new__(Header, stamp + self.header[5:])  # half of what ``_make`` costs
        return RecordBatch(head, self.body, header, self.topic, self.partition)

    def numbered(self, producer_epoch: int, base_sequence: int) -> RecordBatch:
        """Return this batch under other numbers of its producer; only the producer calls this."""
        header = self.header._replace(
            epoch_low=producer_epoch & _LOW,
            epoch_high=producer_epoch >> EPOCH_HALF,
            base_sequence=base_sequence,
        )
        return RecordBatch._seal(header, bytes(self.body))

    def keep(self, chosen: Sequence[int]) -> RecordBatch:
        """Return the batch with only the records at the indexes *chosen*, which rise.

        The batch goes on covering the same offsets, so that the log stays gapless; compaction is
        the only caller.
        """
        offsets, values = self.offsets, self.values  # each decodes its column: look once
        parts, present = [columns.encode_bytes([values[i] for i in chosen])], columns.VALUES
        if self.header.columns & columns.KEYS:
            keys = self.keys
            parts.append(columns.encode_bytes([keys[i] for i in chosen]))
            present |= columns.KEYS
        if self.header.columns & columns.TIMESTAMPS and chosen:
            first, times = self.header.first_timestamp, self.timestamps
            parts.append(columns.encode_numbers([times[i] - first for i in chosen]))
            present |= columns.TIMESTAMPS
        if self.header.columns & columns.HEADERS:
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
            attributes=self.header.attributes | COMPACTED,
            count=len(chosen),
            columns=present,
            raw_length=len(raw),
        )
        kept = RecordBatch._seal(header, body)
        return RecordBatch(kept.head, body, kept.header, self.topic, self.partition)

    # --- reading one ----------------------------------------------------------------------------

    @classmethod
    def parse(cls, data: Buffer, position: int = 0) -> Self:
        """Read the batch at *position*: header checked, body only bounded, nothing copied.

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
            CorruptBatch: it does not hold.
        """
        if crc32(self.body, crc32(memoryview(self.head)[SIGNED:])) != self.header.batch_crc:
            raise CorruptBatch(
                f"the CRC of the batch at offset {self.header.base_offset} does not hold",
                offset=self.header.base_offset,
            )
        return self

    def at(self, topic: str, partition: str) -> Self:
        """Name the partition that the batch came from, for the records made of it."""
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
        """Bytes of the whole batch, as it travels and rests."""
        return self.header.length

    @property
    def is_control(self) -> bool:
        """Whether the batch is pymq's own; consumers never see it."""
        return self.header.is_control

    @property
    def batch_count(self) -> int:
        """Records of the whole batch."""
        return self.header.count

    @property
    def batch_crc(self) -> int:
        """The producer's CRC."""
        return self.header.batch_crc

    def _column(self, bit: int) -> memoryview | None:
        if self._columns is None:
            header, body = self.header, self.body
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
        column = self._column(columns.VALUES)
        if column is None:
            raise CorruptBatch("the batch has no values")
        return columns.decode_bytes(column, self.header.count)

    @property
    def keys(self) -> list[bytes | None]:
        """Each record's key, or None."""
        column = self._column(columns.KEYS)
        if column is None:
            return [None] * self.header.count
        return columns.decode_optional_bytes(column, self.header.count)

    @property
    def timestamps(self) -> list[int]:
        """Each record's time in milliseconds since 1970."""
        column = self._column(columns.TIMESTAMPS)
        first = self.header.first_timestamp
        if column is None:
            return [first] * self.header.count
        return [first + delta for delta in columns.decode_numbers(column, self.header.count)]

    @property
    def headers(self) -> list[Headers]:
        """Each record's headers, a tuple of (name, value)."""
        column = self._column(columns.HEADERS)
        if column is None:
            return [()] * self.header.count
        return columns.decode_headers(column, self.header.count)

    @property
    def offsets(self) -> Sequence[int]:
        """Each record's offset; a ``range`` as long as compaction has taken nothing out."""
        base = self.header.base_offset
        column = self._column(columns.OFFSETS)
        if column is None:
            return range(base, base + self.header.count)
        deltas = columns.decode_numbers(column, self.header.count)
        if any(a >= b for a, b in pairwise(deltas)) or not (
            deltas[0] >= 0 and deltas[-1] < self.header.span
        ):
            raise CorruptBatch("the offsets of the batch do not rise within its span")
        return [base + delta for delta in deltas]

    def records(self, delivery_count: int = 1) -> list[Record]:
        """Make the batch's records."""
        values = self.values  # first: this tells whether there are as many as the header says
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

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return the columns ``key value topic partition offset timestamp headers`` as Arrow.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        from pymq.core.arrow import to_arrow  # only now: pyarrow is an extra

        return to_arrow(self)

    def __repr__(self) -> str:
        header = self.header
        return (
            f"<RecordBatch {self.topic}/{self.partition} [{header.base_offset}, "
            f"{header.end_offset}) count={header.count} bytes={header.length}>"
        )


def split(data: Buffer) -> Iterator[RecordBatch]:
    """Iterate over the batches that follow each other in *data*.

    Raises:
        CorruptBatch: *data* is not a run of whole batches.
    """
    position = 0
    while position < len(data):
        batch = RecordBatch.parse(data, position)
        position += batch.header.length
        yield batch


def restamp(data: Buffer, durable: int) -> list[RecordBatch]:
    """Check the batches in *data*, which another broker stamped, and say *durable* in each anew.

    A follower does this with what its leader sends: *durable* speaks of the disk of the broker that
    keeps the batch, so a follower puts in what *its own* disk holds for certain, which is at most
    where *data* begins. Header and body of each batch are checked, and that it follows on the one
    before: the next offset, of no earlier epoch. Whether the first one follows on the log is left
    to the caller. Bodies are not copied.

    Raises:
        CorruptBatch: *data* is not an unbroken run of whole, sound batches.
    """
    batches: list[RecordBatch] = []
    view, size, position, end, epoch = memoryview(data), len(data), 0, -1, 0
    while position < size:
        header = parse_header(view, position)
        _, leader_epoch, base, _, _, batch_crc, length, *_ = header
        body, after = position + HEADER_SIZE, position + length
        if after > size:
            raise CorruptBatch("the body is cut short")
        if crc32(view[position + SIGNED : after]) != batch_crc:
            raise CorruptBatch(f"the CRC of the batch at offset {base} does not hold", offset=base)
        if (base != end and position) or leader_epoch < epoch or not header.span:
            raise CorruptBatch(
                f"the batch [{base}, {base + header.span}) of epoch {leader_epoch} does not follow "
                f"on offset {end} of epoch {epoch}",
                offset=base,
            )
        end, epoch = base + header.span, leader_epoch
        own = min(durable, base)
        stamped = _STAMPED.pack(MAGIC, epoch, base, own)
        rest = bytes(view[position + _REST : body])
        head_crc = crc32(rest, crc32(stamped))
        stamp = (MAGIC, epoch, base, own, head_crc)
        batches.append(
            RecordBatch(
                stamped + _CRC.pack(head_crc) + rest,
                view[body:after],
                Header._make((*stamp, *header[5:])),
            )
        )
        position = after
    return batches
