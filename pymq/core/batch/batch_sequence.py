"""Sequences of consecutive batches, as a read returns them and a leader sends them."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from pymq.core.batch.columns import Buffer
from pymq.core.batch.header import (
    CRC,
    HEADER_SIZE,
    MAGIC,
    REST,
    SIGNED,
    STAMPED,
    Header,
    parse_header,
)
from pymq.core.batch.record import EncodedBatch
from pymq.errors import CorruptBatch


def split(data: Buffer) -> Iterator[EncodedBatch]:
    """Iterate over the consecutive batches in *data*.

    Raises:
        CorruptBatch: *data* is not a sequence of whole batches.
    """
    position = 0
    while position < len(data):
        batch = EncodedBatch.parse(data, position)
        position += batch.header.length
        yield batch


def clip(data: bytes, offset: int) -> bytes:
    """Return *data* from *offset* on. If the first batch has records and begins before *offset*,
    the batch is returned whole; a batch without records is shortened.

    Compaction merges empty batches, so *offset* may be a batch's end on one broker and inside a
    merged batch on another. Compaction never merges batches with records.

    Raises:
        CorruptBatch: the first batch is damaged.
    """
    first = parse_header(data)
    if first.count or not first.base_offset < offset < first.end_offset:
        return data
    EncodedBatch.parse(data).verify()
    rest = EncodedBatch.gap(offset, first.end_offset - offset, first.leader_epoch)
    return bytes(rest.head) + bytes(rest.body) + data[first.length :]


def restamp(data: Buffer, durable: int) -> list[EncodedBatch]:
    """Check the batches in *data*, which another broker stamped, and stamp them with *durable*.

    A follower calls this for batches of its leader. *durable* describes the disk of the broker that
    stores the batch, so the follower passes the offset before which *its own* disk holds all
    batches. This offset is at most the start of *data*. The function checks header and body of each
    batch, and that each batch begins where the previous one ends and has no earlier epoch. The
    caller checks that the first batch continues the log. Bodies are not copied.

    Raises:
        CorruptBatch: *data* is not an unbroken sequence of whole, sound batches.
    """
    batches: list[EncodedBatch] = []
    view, size, position, end, epoch = memoryview(data), len(data), 0, -1, 0
    while position < size:
        header = parse_header(view, position)
        _, leader_epoch, base, _, _, batch_crc, length, *_ = header
        body, after = position + HEADER_SIZE, position + length
        if after > size:
            raise CorruptBatch("the body is cut short")
        if crc32(view[position + SIGNED : after]) != batch_crc:
            raise CorruptBatch(f"the CRC of the batch at offset {base} does not match", offset=base)
        if (base != end and position) or leader_epoch < epoch or not header.span:
            raise CorruptBatch(
                f"the batch [{base}, {base + header.span}) of epoch {leader_epoch} does not follow "
                f"on offset {end} of epoch {epoch}",
                offset=base,
            )
        end, epoch = base + header.span, leader_epoch
        own = min(durable, base)
        stamped = STAMPED.pack(MAGIC, epoch, base, own)
        rest = bytes(view[position + REST : body])
        head_crc = crc32(rest, crc32(stamped))
        stamp = (MAGIC, epoch, base, own, head_crc)
        batches.append(
            EncodedBatch(
                stamped + CRC.pack(head_crc) + rest,
                view[body:after],
                Header._make((*stamp, *header[5:])),
            )
        )
        position = after
    return batches
