"""The format of a block's files, and how to walk through the batches.

Every block has up to three files, named after its number, and rarely a fourth:

``00000007.block``  a file header, then the batches, one after the other ``00000007.ckpt``   a
checkpoint: the part of the file known good, and a snapshot taken there ``00000007.index``  the same
without a snapshot, written when the block is sealed ``00000007.cut``    whole batches that recovery
has cut off the block's end; then ``.cut2`` and so
                    on. Only people read these files

An open block may end in zeros, which the store writes in advance so that appends need not extend
the file.

The file header and the two small files have the same frame: ``8s magic, u32 version, u32 length``,
that many bytes of CBOR, and ``u32 CRC-32`` of everything before. All integers are little-endian.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any
from zlib import crc32

from pymq.core import cbor
from pymq.core.batch.header import (
    HEADER_CRC,
    HEADER_SIZE,
    MAGIC,
    SIGNED,
    Header,
    header_crc,
    parse_header,
)
from pymq.core.batch.offset_index import GAP, Index
from pymq.core.batch.record import EncodedBatch
from pymq.core.types import BlockId
from pymq.core.values import Factory, define, value
from pymq.errors import CorruptBatch, CorruptBlock, CorruptMetadata, InvalidRequest

BLOCK_MAGIC = b"pymq-blk"
KNOWN_MAGIC = b"pymq-idx"
VERSION = 1
HEAD_MAX = 4096  # bytes of a file header: two names of 249 letters and some small fields

CHUNK = 1 << 20

_FRAME = struct.Struct("<8sII")
_CRC = struct.Struct("<I")

Pread = Callable[[int, int], bytes]  # (size, position) -> bytes; fewer bytes only at the file's end


def frame(magic: bytes, item: Any) -> bytes:
    """Encode *item* as the content of a small file."""
    body = cbor.dumps(item)
    data = _FRAME.pack(magic, VERSION, len(body)) + body
    return data + _CRC.pack(crc32(data))


def unframe(magic: bytes, data: bytes) -> tuple[Any, int]:
    """Decode the result of :func:`frame`; *data* may continue after it.

    Returns:
        The item and its number of bytes.

    Raises:
        CorruptMetadata: *data* is something else, of another version, or damaged.
    """
    if len(data) < _FRAME.size:
        raise CorruptMetadata("the file is cut short")
    found, version, length = _FRAME.unpack_from(data)
    if found != magic:
        raise CorruptMetadata("this is not a file of pymq: the magic is missing")
    if version != VERSION:
        raise CorruptMetadata(f"file version {version} is unknown; a newer pymq wrote it")
    end = _FRAME.size + length
    if len(data) < end + _CRC.size:
        raise CorruptMetadata("the file is cut short")
    if _CRC.unpack_from(data, end)[0] != crc32(memoryview(data)[:end]):
        raise CorruptMetadata("the CRC does not match")
    try:
        return cbor.loads(data[_FRAME.size : end]), end + _CRC.size
    except InvalidRequest as error:
        raise CorruptMetadata(error.message) from None


@value
class FileHead:
    """The header of a block file, which identifies the block."""

    block: BlockId
    start: int  # offset of the first record
    topic: str  # names, for people who inspect the file
    partition: str

    def to_bytes(self) -> bytes:
        """Encode the file header."""
        block = self.block
        return frame(
            BLOCK_MAGIC,
            {
                "topic_id": block.topic_id,
                "partition": block.partition,
                "number": block.number,
                "start": self.start,
                "topic": self.topic,
                "partition_name": self.partition,
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[FileHead, int]:
        """Decode the file header; return it and the position of the first batch.

        Raises:
            CorruptMetadata: the header is damaged, or is not that of a block file.
        """
        item, size = unframe(BLOCK_MAGIC, data)
        kinds = {
            "topic_id": str,
            "partition": int,
            "number": int,
            "start": int,
            "topic": str,
            "partition_name": str,
        }
        if type(item) is not dict or {k: type(v) for k, v in item.items()} != kinds:
            raise CorruptMetadata("the file header lacks a field")
        block = BlockId(item["topic_id"], item["partition"], item["number"])
        return cls(block, item["start"], item["topic"], item["partition_name"]), size


@value
class Known:
    """The part of a block file that is known to be good: all bytes before *position*."""

    block: BlockId
    start: int
    end: int  # the offset after the last record before position
    position: int  # 0 if the file does not exist yet
    epoch: int  # epoch of the last batch
    last: int  # position of the last batch; -1 if there is none
    # CRC of that batch's header, which shows that this index or checkpoint belongs to the block
    # file
    last_crc: int
    index: Index
    snapshot: bytes | None

    def to_bytes(self) -> bytes:
        """Encode this object as the content of a ``.ckpt`` or ``.index`` file."""
        return frame(
            KNOWN_MAGIC,
            [
                self.block.topic_id,
                self.block.partition,
                self.block.number,
                self.start,
                self.end,
                self.position,
                self.epoch,
                self.last,
                self.last_crc,
                self.index.to_bytes(),
                self.snapshot,
            ],
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Known:
        """Decode the content of a file that :meth:`to_bytes` has encoded.

        Raises:
            CorruptMetadata: the file is damaged; the caller continues without it.
        """
        item, size = unframe(KNOWN_MAGIC, data)
        if size != len(data) or type(item) is not list or len(item) != 11:
            raise CorruptMetadata("the file has the wrong length")
        topic_id, partition, number = item[:3]
        numbers, index, snapshot = item[3:9], item[9], item[10]
        if (
            type(topic_id) is not str
            or not {int}.issuperset(map(type, (partition, number, *numbers)))
            or type(index) is not bytes
            or type(snapshot) not in (bytes, type(None))
        ):
            raise CorruptMetadata("a field has the wrong type")
        block = BlockId(topic_id, partition, number)
        start, end, position, epoch, last, last_crc = numbers
        indexed = Index.from_bytes(index)
        return cls(block, start, end, position, epoch, last, last_crc, indexed, snapshot)


# --- walking ------------------------------------------------------------------------------------


class Window:
    """A view of a file that moves forward and holds one chunk in memory."""

    def __init__(self, pread: Pread, size: int) -> None:
        self.pread = pread
        self.size = size  # length of the file; nothing beyond it is read
        self.chunk = CHUNK  # bytes read at once
        self._base = 0
        self._data = memoryview(b"")

    def piece(self, position: int, size: int, least: int = 1) -> memoryview:
        """Return up to *size* bytes at *position*, but at least *least* if the file has as many."""
        start = position - self._base
        have = len(self._data) - start
        if start < 0 or have < min(least, self.size - position):
            want = min(max(self.chunk, least), self.size - position)
            self._data = memoryview(self.pread(want, position))
            self._base, start = position, 0
        return self._data[start : start + size]

    def header(self, position: int) -> Header:
        """Parse the batch header at *position*.

        Raises:
            CorruptBatch: there is no sound header at *position*.
        """
        if position + HEADER_SIZE > self.size:
            raise CorruptBatch("the header is cut short")
        return parse_header(self.piece(position, HEADER_SIZE, HEADER_SIZE))

    def verify(self, header: Header, position: int) -> None:
        """Check the batch CRC piece by piece, so that a large batch needs little memory.

        Raises:
            CorruptBatch: the CRC does not match.
        """
        crc, at, end = 0, position + SIGNED, position + header.length
        while at < end:
            piece = self.piece(at, end - at)
            if not piece:
                raise CorruptBatch("the body is cut short")
            crc = crc32(piece, crc)
            at += len(piece)
        if crc != header.batch_crc:
            raise CorruptBatch("the batch CRC does not match")


@define
class Walk:
    """The batches found so far, and the fault that ended the walk."""

    position: int  # the first byte after the last good batch
    end: int  # the offset that the next batch must have
    epoch: int  # epoch of the last good batch
    last: int = -1
    last_crc: int = 0
    headers: list[Header] = Factory(list)
    fault: str | None = None  # the fault at position; None if the file ends there


def check_chain(header: Header, end: int, epoch: int) -> None:
    """Check that a batch may follow a batch that ends at *end* and was appended in *epoch*.

    Raises:
        CorruptBatch: the batch does not follow.
    """
    if header.base_offset != end:
        raise CorruptBatch(f"the batch begins at offset {header.base_offset} instead of {end}")
    if header.leader_epoch < epoch:
        raise CorruptBatch(f"the batch is of epoch {header.leader_epoch}, after one of {epoch}")
    if header.span == 0:
        raise CorruptBatch("the batch covers no offset")


def walk(window: Window, found: Walk, index: Index, verify_from: int) -> Walk:
    """Continue *found* up to the window's end or the first fault, filling *index*.

    Bodies are checked from position *verify_from* on; before that position only headers are read.
    """
    headers, size = found.headers, window.size
    while found.position < size:
        position = found.position
        window.chunk = CHUNK if position >= verify_from else GAP
        try:
            header = window.header(position)
            check_chain(header, found.end, found.epoch)
            if position + header.length > size:
                raise CorruptBatch("the body is cut short")
            if position >= verify_from:
                window.verify(header, position)
        except CorruptBatch as error:
            found.fault = error.message
            break
        headers.append(header)
        index.add(header, position)
        found.position = position + header.length
        found.end = header.end_offset
        found.epoch = header.leader_epoch
        found.last, found.last_crc = position, header.header_crc
    return found


def is_whole(head: memoryview) -> bool:
    """Whether a header was written completely, even if a newer pymq wrote it."""
    return bool(
        len(head) == HEADER_SIZE
        and head[:4] == MAGIC
        and _CRC.unpack_from(head, HEADER_CRC)[0] == header_crc(head)
    )


@define
class Behind:
    """The bytes that follow the fault of a walk."""

    # whether there is a sound header at the fault that does not belong there
    is_misplaced: bool = False
    # position of a later batch whose *durable* is after the offset at the fault
    attested: int | None = None
    has_batches: bool = False  # whether at least one batch is whole
    end: int = 0  # the position after the last batch, whole or not


def look_behind(window: Window, found: Walk) -> Behind:
    """Search the bytes after the fault of *found*, to distinguish damage from a torn write.

    The search ends at the first batch whose *durable* is after the offset at the fault. The search
    reads each byte once, and checks bodies until it finds a whole batch.
    """
    behind, position = Behind(), found.position
    if is_whole(window.piece(position, HEADER_SIZE, HEADER_SIZE)):
        try:
            header = window.header(position)
            check_chain(header, found.end, found.epoch)
        except CorruptBatch:
            # This is not a torn write, but a batch of a newer version, or a misplaced batch.
            behind.is_misplaced = True
            return behind
        # Only the body is damaged. Skip the body, because a batch inside the body would be the
        # payload of a record.
        position = behind.end = min(position + header.length, window.size)
    else:
        position += 1
    while (at := find_magic(window, position)) is not None:
        position = at
        try:
            header = window.header(position)
        except CorruptBatch:
            behind.has_batches |= is_whole(window.piece(position, HEADER_SIZE, HEADER_SIZE))
            position += 1
            continue
        if header.base_offset <= found.end or header.leader_epoch < found.epoch:
            position += 1  # the batch is out of order, so it is part of the payload of a record
        elif header.durable > found.end:
            behind.attested = position
            return behind
        elif position + header.length > window.size:
            position += 1
        else:
            if not behind.has_batches:
                with contextlib.suppress(CorruptBatch):
                    window.verify(header, position)
                    behind.has_batches = True
            position = behind.end = position + header.length
    return behind


def find_magic(window: Window, position: int) -> int | None:
    """Return the next position where a batch may begin; None if there is no room for a header."""
    while position + HEADER_SIZE <= window.size:
        piece = bytes(window.piece(position, CHUNK, HEADER_SIZE))
        if len(piece) < HEADER_SIZE:
            break  # another process has truncated the file
        at = piece.find(MAGIC)
        if at >= 0:
            return position + at
        position += len(piece) - len(MAGIC) + 1
    return None


def data_end(pread: Pread, start: int, size: int) -> int:
    """Return the position, at least *start*, from which on all bytes up to *size* are zero."""
    while size > start:
        at = max(start, size - CHUNK)
        if piece := pread(size - at, at).rstrip(b"\0"):
            return at + len(piece)
        size = at
    return start


def corrupt(path: str, position: int, offset: int, what: str) -> CorruptBlock:
    """Return the error for damage of a block file."""
    return CorruptBlock(
        f"{path} is damaged at byte {position}, offset {offset}: {what}; nothing was changed. "
        "Run verify() on the folder to see all of it, then restore the file from another replica "
        "or a backup",
        file=path,
        position=position,
        offset=offset,
    )


def damaged(path: str, position: int, batch: EncodedBatch, error: CorruptBatch) -> CorruptBlock:
    """Return the error for a batch with a sound header and a damaged body."""
    found = corrupt(path, position, batch.base_offset, error.message)
    crc = crc32(batch.body, crc32(memoryview(batch.head)[SIGNED:]))
    details = {**found.details, "end": batch.end_offset, "found_crc": crc}
    return CorruptBlock(found.message, **details)


def check_head(data: bytes, path: str, block: BlockId, start: int | None) -> tuple[FileHead, int]:
    """Decode the file header of *block*, and check that it belongs to this block and to *start*.

    Raises:
        CorruptBlock: the header belongs to another block or is damaged.
    """
    try:
        head, size = FileHead.from_bytes(data)
    except CorruptMetadata as error:
        raise corrupt(path, 0, start or 0, f"file header: {error.message}") from None
    if head.block != block:
        raise corrupt(path, 0, head.start, f"this is block {head.block}, misplaced as {block}")
    if start is not None and head.start != start:
        raise corrupt(path, 0, head.start, f"the block begins at {head.start}, not at {start}")
    return head, size
