"""Runs of batches that follow each other: what a read returns, and what a leader sends."""

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
    """Iterate over the batches that follow each other in *data*.

    Raises:
        CorruptBatch: *data* is not a run of whole batches.
    """
    position = 0
    while position < len(data):
        batch = EncodedBatch.parse(data, position)
        position += batch.header.length
        yield batch


def clip(data: bytes, offset: int) -> bytes:
    """Let *data* begin at *offset*, should its first batch begin before it and hold nothing.

    Compaction merges batches that it has emptied, so what one broker holds as a single batch may
    have ended elsewhere in the middle of it. Batches that still hold records are never merged.

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
    """Check the batches in *data*, which another broker stamped, and say *durable* in each anew.

    A follower does this with what its leader sends: *durable* speaks of the disk of the broker that
    keeps the batch, so a follower puts in what *its own* disk holds for certain, which is at most
    where *data* begins. Header and body of each batch are checked, and that it follows on the one
    before: the next offset, of no earlier epoch. Whether the first one follows on the log is left
    to the caller. Bodies are not copied.

    Raises:
        CorruptBatch: *data* is not an unbroken run of whole, sound batches.
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
            raise CorruptBatch(f"the CRC of the batch at offset {base} does not hold", offset=base)
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
