"""The header of a record batch, which is all that most of those who pass a batch on look at.

It is fixed, little-endian:

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
  37     1  body format      1: CBOR columns (pymq.core.batch.columns); 2: Kafka v2 records     both
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
_ATTRIBUTES = COMPRESSION_MASK | CONTROL | COMPACTED

HEADER = struct.Struct("<4sIqqIIIBBHqqIIIHHqqII")
HEADER_SIZE = HEADER.size
STAMPED = struct.Struct("<4sIqq")  # its first part, the leader's
SIGNED_PART = struct.Struct("<IBBHqqIIIHHqqII")  # its last part, the producer's
CRC = struct.Struct("<I")
HEADER_CRC = 24  # where the header CRC lies; all before it is the leader's stamp
REST = 28  # where the part of the header begins that follows the header CRC
SIGNED = 32  # where the part begins that the batch CRC covers

BATCH_BYTES_MAX = 64 << 20
COUNT_MAX = 1 << 24
NO_PRODUCER = -1
EPOCH_HALF = 32  # bits: below them a producer raises its epoch by itself, above them its name does
EPOCH_LOW = (1 << EPOCH_HALF) - 1


class ControlKind(IntEnum):
    """What a control batch is for; it stands where other batches have the producer's epoch."""

    BEGIN = 1  # a leader's first batch in its epoch (Raft's no-op)
    SEAL = 2  # no record comes after it in its block


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
    return crc32(view[REST:], crc32(view[:HEADER_CRC]))


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
