"""The header of a record batch. Most hops read the header only, not the body.

The header has a fixed size, is little-endian, and has these fields:

====  ====  ===============  ===========================================================  ==========
  at  size  field            meaning                                                      covered by
====  ====  ===============  ===========================================================  ==========
   0     4  magic            ``PMQB``                                                     header
   4     4  leader epoch     the epoch that appended the batch                            header
   8     8  base offset      offset of the first record                                   header
  16     8  durable          offset before which the whole block was known to be durable  header
                             on the stamping broker, when it stamped the batch
  24     4  header CRC       CRC-32 of the header without this field
  28     4  batch CRC        CRC-32 of bytes 32.. of the header and of the body           header
  32     4  length           bytes of the whole batch, header included                    both
  36     1  version          1                                                            both
  37     1  body format      1: CBOR columns (``columns.py``); 2: Kafka v2 records        both
  38     2  attributes       bits 0-2 compression, 3 control, 4 compacted, 5 delayed,     both
                             6 expires, 7 delayed copy, 8 routed,
                             9-12 priority of the records
  40     8  producer id      -1: none                                                     both
  48     8  base sequence    the producer's number of the first record; -1: none          both
  56     4  epoch low        lower half of the producer epoch, which the producer raises  both
                             itself; of a control batch: its kind
  60     4  count            records in the body                                          both
  64     4  span             offsets that the batch covers; more than count after         both
                             compaction has removed records
  68     2  columns          which columns are present                                    both
  70     2                   zero                                                         both
  72     8  first timestamp  milliseconds since 1970                                      both
  80     8  max timestamp                                                                 both
  88     4  raw length       bytes of the body before compression                         both
  92     4  epoch high       upper half: how often the producer's name was opened before  both
====  ====  ===============  ===========================================================  ==========

The producer computes the batch CRC once. Leader epoch, base offset and durable are outside of it,
so that brokers can stamp them. The stamping broker computes the header CRC. If only the body is
bad, the header says how many bytes are damaged. A bad header means damage or a torn write.

*Durable* distinguishes these two after a power cut. Bytes before the largest *durable* of the block
were on the disk; if such bytes are bad now, the disk has lost data. Bytes at or after that offset
may belong to an unfinished write, since a disk writes sectors in any order. *Durable* is the
block's start if nothing is known, and at most the base offset.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

from pymq.core.batch import columns
from pymq.core.batch.columns import Buffer
from pymq.errors import CorruptBatch

MAGIC = b"PMQB"
VERSION = 1
COLUMNS_FORMAT = 1
KAFKA_FORMAT = 2

COMPRESSION_MASK = 0b111
CONTROL = 0b1000
COMPACTED = 0b10000
DELAYED = 0b100000  # groups may get some records only after a time in the records' headers
EXPIRES = 0b1000000  # groups may get some records only before a time in the records' headers
# the batch holds copies, made by the leader, of records earlier in the log
DELAYED_COPY = 0b10000000
ROUTED = 0b100000000  # some records are for one group only
PRIORITY_SHIFT = 9
PRIORITY_MASK = 0b1111 << PRIORITY_SHIFT  # priority of all records of the batch, 0 to 9
NOTE = DELAYED | DELAYED_COPY  # both bits together: a note of the leader about delayed records
# attributes that a producer may set; only the broker itself sets DELAYED_COPY
PRODUCED = COMPRESSION_MASK | DELAYED | EXPIRES | DELAYED_COPY | ROUTED | PRIORITY_MASK
_ATTRIBUTES = PRODUCED | CONTROL | COMPACTED

HEADER = struct.Struct("<4sIqqIIIBBHqqIIIHHqqII")
HEADER_SIZE = HEADER.size
STAMPED = struct.Struct("<4sIqq")  # the fields of the stamping broker, at the start
SIGNED_PART = struct.Struct("<IBBHqqIIIHHqqII")  # the producer's fields, at the end
CRC = struct.Struct("<I")
HEADER_CRC = 24  # position of the header CRC, after the stamp
REST = 28  # position of the part after the header CRC
SIGNED = 32  # position of the part that the batch CRC covers

BATCH_BYTES_MAX = 64 << 20
COUNT_MAX = 1 << 24
NO_PRODUCER = -1
# A producer raises the lower half of its epoch itself; each new producer with the same name raises
# the upper half.
EPOCH_HALF = 32
EPOCH_LOW = (1 << EPOCH_HALF) - 1


class ControlKind(IntEnum):
    """The kinds of control batches; the field of the producer epoch holds the kind."""

    BEGIN = 1  # a leader's first batch in its epoch (Raft's no-op)
    SEAL = 2  # the end of the block's records


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
    count: int  # type: ignore[assignment] # hides tuple.count, which is never used
    span: int
    columns: int
    zero: int
    first_timestamp: int
    max_timestamp: int
    raw_length: int
    epoch_high: int

    @property
    def producer_epoch(self) -> int:
        """The epoch of the producer id; a higher one fences a lower one."""
        return self.epoch_high << EPOCH_HALF | self.epoch_low

    @property
    def end_offset(self) -> int:
        """The offset after the last one that the batch covers."""
        return self.base_offset + self.span

    @property
    def is_control(self) -> bool:
        """Whether the batch is internal to pymq; consumers never see it."""
        return bool(self.attributes & CONTROL)

    @property
    def is_hidden(self) -> bool:
        """Whether readers never see the batch: an internal one, or a copy of earlier records."""
        return bool(self.attributes & (CONTROL | DELAYED_COPY))

    @property
    def priority(self) -> int:
        """The priority of the records, 0 (the lowest) to 9."""
        return min((self.attributes & PRIORITY_MASK) >> PRIORITY_SHIFT, 9)

    @property
    def control_kind(self) -> int:
        """The :class:`ControlKind` of a control batch; 0 of any other batch."""
        return self.producer_epoch if self.attributes & CONTROL else 0


def header_crc(head: Buffer) -> int:
    """Compute the CRC of a header; its own CRC field is ignored."""
    view = memoryview(head)
    return crc32(view[REST:], crc32(view[:HEADER_CRC]))


def parse_header(data: Buffer, position: int = 0) -> Header:
    """Read and check the header at *position*, without the body.

    Raises:
        CorruptBatch: the header is cut short, its CRC does not match, or a field is out of range.
    """
    if len(data) - position < HEADER_SIZE:
        raise CorruptBatch("the header is cut short")
    header = Header._make(HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        raise CorruptBatch("no batch begins here: the magic is missing")
    if header_crc(memoryview(data)[position : position + HEADER_SIZE]) != header.header_crc:
        raise CorruptBatch("the header's CRC does not match")
    if header.version != VERSION:
        raise CorruptBatch(f"batch version {header.version} is unknown; a newer pymq wrote it")
    if (
        not HEADER_SIZE <= header.length <= BATCH_BYTES_MAX
        or header.raw_length > BATCH_BYTES_MAX
        or header.count > min(header.span, COUNT_MAX)
        # A record takes at least a byte, but the records of a Kafka batch may be compressed.
        or (header.count > header.raw_length and header.body_format != KAFKA_FORMAT)
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
