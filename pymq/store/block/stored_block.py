"""The file store's object for a block: its end, the positions in its file, and its reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.columns import Buffer
from pymq.core.batch.header import BATCH_BYTES_MAX, HEADER_SIZE, MAGIC, header_crc, parse_header
from pymq.core.batch.offset_index import GAP, Index
from pymq.core.batch.record import EncodedBatch
from pymq.core.types import BlockId
from pymq.errors import CorruptBatch, InternalError, OffsetOutOfRange, StoreError
from pymq.store.block.block_file import (
    FileHead,
    Known,
    Pread,
    Walk,
    Window,
    check_chain,
    corrupt,
    damaged,
    walk,
)

# The fields of the batch header that a walk needs: magic, base offset, header CRC, length, version,
# span, max timestamp.
_HEAD = Struct("<4s4xq8xI4xIB27xI12xq8x")
assert _HEAD.size == HEADER_SIZE


class StoredBlock:
    """A block: its offsets, and the positions of its batches in its file.

    Ten thousand idle blocks must fit in memory, so unused parts are None, and paths are not stored.
    """

    __slots__ = (
        "ckpt_end",
        "end",
        "epoch",
        "failed",
        "handle",
        "head",
        "hint",
        "id",
        "index",
        "index_end",
        "is_passive",
        "is_sealed",
        "last",
        "last_crc",
        "length",
        "may_reserve",
        "size",
        "start_position",
        "unsynced",
        "used",
    )

    def __init__(self, head: FileHead) -> None:
        self.id = head.block
        self.head = head
        self.end = head.start
        self.epoch = 0  # epoch of the last batch
        self.last = -1  # position of the last batch
        self.last_crc = 0
        self.size = 0  # bytes of header and batches; 0 while there is no file
        self.length = 0  # length of the file: more than *size* if zeros were written ahead
        self.may_reserve = True  # False after a write of zeros found no space on the disk
        self.start_position = 0  # position of the first batch
        self.index: Index | None = None
        self.handle = -1  # -1 if the file is not open
        self.used = False  # whether the block was used since the last search for a handle to close
        self.unsynced = False
        self.is_sealed = False
        self.is_passive = False  # whether the block was loaded only for reads, without recovery
        self.ckpt_end = self.index_end = -1  # end offsets in .ckpt and .index
        # the error of a failed sync; each further call raises it
        self.failed: StoreError | None = None
        self.hint = (-1, 0)  # (offset, position) of the last read's end, for sequential reads

    @property
    def start(self) -> int:
        """Offset of the first record."""
        return self.head.start

    # --- growing and shrinking ------------------------------------------------------------------

    def add(self, batches: Sequence[EncodedBatch]) -> None:
        """Add *batches*, which were written to the file, to the index."""
        index = self.index
        if index is None:
            index = self.index = Index()
        size = self.size
        for batch in batches:
            header = batch.header
            index.add(header, size)
            self.last = size
            size += header.length
        self.size = size
        self.length = max(self.length, size)
        self.end = header.base_offset + header.span
        self.epoch, self.last_crc = header.leader_epoch, header.header_crc

    def stand(self, found: Walk, index: Index) -> None:
        """Adopt end, size and index from a walk through the whole file."""
        self.index = index
        self.size = self.length = found.position
        self.end, self.epoch = found.end, found.epoch
        self.last, self.last_crc = found.last, found.last_crc
        self.hint = (-1, 0)

    def cut(self, end: int, pread: Pread, path: str) -> None:
        """Drop the batches from offset *end* on; a batch must begin there.

        Raises:
            InternalError: *end* lies inside a batch.
        """
        index = Index.from_bytes(self.index.to_bytes()) if self.index else Index()
        position = index.cut(end)
        found = Walk(self.start_position, self.start, 0)
        if end > self.start and position is not None:
            header = Window(pread, self.size).header(position)
            found = Walk(position, header.base_offset, header.leader_epoch)
            window = Window(pread, self.size)
            while found.end < end and not found.fault:
                header = window.header(found.position)
                walk(Window(pread, found.position + header.length), found, index, self.size)
            if found.fault:
                raise corrupt(path, found.position, found.end, found.fault)
            if found.end != end:
                raise InternalError(
                    f"block {self.id} cannot end at {end}, inside the batch "
                    f"[{header.base_offset}, {found.end})"
                )
        self.stand(found, index)

    def known(self, snapshot: bytes | None) -> Known:
        """Return the description of the current file for a checkpoint or index."""
        return Known(
            self.id,
            self.start,
            self.end,
            self.size,
            self.epoch,
            self.last,
            self.last_crc,
            self.index or Index(),
            snapshot,
        )

    # --- reading --------------------------------------------------------------------------------

    def read(self, pread: Pread, path: str, offset: int, end: int, max_bytes: int) -> bytes:
        """Read batches; see :meth:`pymq.store.base.BlockStore.read`."""
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(
                f"block {self.id} holds the offsets {self.start} to {self.end}, not {offset}"
            )
        end = min(end, self.end)
        if offset >= end or self.index is None:
            return b""
        start = self._seek(pread, path, offset)
        limit = self._limit(pread, path, start, end, max_bytes)
        data = pread(limit - start, start)
        stop, following = self._span(data, path, start, offset, end)
        if stop > len(data):  # the first batch is larger than max_bytes
            data = pread(stop, start)
            stop, following = self._span(data, path, start, offset, end)
        if stop:
            self.hint = (following, start + stop)
        return data if stop == len(data) else data[:stop]

    def verified(self, data: bytes, path: str) -> bytes:
        """Return the part of *data*, which was just read, before the first damaged body.

        Raises:
            CorruptBlock: the first body is damaged.
        """
        start, good = self.hint[1] - len(data), 0
        for batch in split(data):
            try:
                batch.verify()
            except CorruptBatch as error:
                if good == 0:
                    raise damaged(path, start, batch, error) from None
                break
            good += batch.size
        return data[:good]

    def _seek(self, pread: Pread, path: str, offset: int) -> int:
        """Return the position of the batch that holds *offset*."""
        hint, position = self.hint
        if hint == offset:
            return position
        index = self.index
        found = index.find(offset) if index else None
        if found is None:
            raise corrupt(path, self.start_position, offset, "the index lacks this offset")
        position = found
        window = Window(pread, self.size)
        data, at = memoryview(b""), 0
        while True:
            if len(data) - at < HEADER_SIZE:
                data = memoryview(pread(min(GAP, self.size - position), position))
                at = 0
            base, length, span, _ = head_at(data, at, path, position, offset)
            if offset < base + span:
                return position
            position += length
            at += length
            if position >= window.size:
                raise corrupt(path, position, offset, "the index leads beyond the file's end")

    def _limit(self, pread: Pread, path: str, start: int, end: int, max_bytes: int) -> int:
        """Return the position at which to end a read, so that few bytes are read in vain."""
        index = self.index
        limit = min(self.size, start + max(max_bytes, HEADER_SIZE))
        if index is not None:
            if end < self.end and (after := index.position_after(end)) is not None:
                limit = min(limit, after)
            if limit < self.size and (boundary := index.boundary(limit)) > start:
                # All large batches are in the index. If the batch that begins here does not fit,
                # end the read before this batch, which saves a copy to cut off the batch's first
                # part.
                head = pread(HEADER_SIZE, boundary)
                if boundary + head_at(head, 0, path, boundary, -1)[1] > limit:
                    limit = boundary
        return limit

    def _span(self, data: bytes, path: str, start: int, offset: int, end: int) -> tuple[int, int]:
        """Check the headers in *data*, which was read at *start*.

        Returns:
            The bytes of the whole batches that begin before *end* (or the length of the first
            batch if it is longer than *data*), and the offset after them.
        """
        at, size, expected = 0, len(data), -1
        while size - at >= HEADER_SIZE:
            base, length, span, _ = head_at(data, at, path, start + at, offset)
            if expected < 0:
                if not base <= offset < base + span:
                    raise corrupt(path, start, offset, f"offset {base} is found in its place")
                expected = base
            elif base != expected:
                raise corrupt(path, start + at, expected, f"offset {base} is found in its place")
            if base >= end:
                break
            if at + length > size:
                if at == 0 and start + length <= self.size:
                    return length, base + span
                break
            at += length
            expected += span
        else:
            if at == 0:
                raise corrupt(path, start, offset, "the file has become shorter")
        return at, expected

    def batches(self, pread: Pread, path: str) -> Iterator[EncodedBatch]:
        """Yield all batches, checked.

        Raises:
            CorruptBlock: a batch is damaged.
        """
        position, end = self.start_position, self.start
        while position < self.size:
            try:
                length = parse_header(pread(HEADER_SIZE, position)).length
                batch = EncodedBatch.parse(pread(length, position)).verify()
                check_chain(batch.header, end, 0)
            except CorruptBatch as error:
                raise corrupt(path, position, end, error.message) from None
            yield batch
            position, end = position + length, batch.end_offset

    def find_time(self, pread: Pread, path: str, end: int, timestamp_ms: int) -> int | None:
        """Find the offset of a time; see :meth:`pymq.store.base.BlockStore.find_time`."""
        position = self.index.find_time(timestamp_ms) if self.index else None
        if position is None:
            return None
        data, at = memoryview(b""), 0
        while position < self.size:
            if len(data) - at < HEADER_SIZE:
                data = memoryview(pread(min(GAP, self.size - position), position))
                at = 0
            base, length, _, latest = head_at(data, at, path, position, -1)
            if base >= end:
                return None
            if latest >= timestamp_ms:
                found = self._first_at(pread(length, position), path, position, timestamp_ms)
                if found is not None:
                    return found if found < end else None
            position += length
            at += length
        return None

    def _first_at(self, data: bytes, path: str, position: int, timestamp_ms: int) -> int | None:
        try:
            batch = EncodedBatch.parse(data)
        except CorruptBatch as error:
            raise corrupt(path, position, -1, error.message) from None
        try:
            batch.verify()
        except CorruptBatch as error:
            raise damaged(path, position, batch, error) from None
        return first_at(batch, timestamp_ms)


def head_at(
    data: bytes | memoryview, at: int, path: str, position: int, offset: int
) -> tuple[int, int, int, int]:
    """Check the batch header in *data* and return (base offset, length, span, max timestamp).

    This function makes the same checks as :func:`pymq.core.batch.header.parse_header`, but creates
    no object, because a read of 1 MiB may check thousands of headers.

    Raises:
        CorruptBlock: the header is damaged.
    """
    if len(data) - at < HEADER_SIZE:
        raise corrupt(path, position, offset, "the header is cut short")
    magic, base, crc, length, version, span, latest = _HEAD.unpack_from(data, at)
    head = data[at : at + HEADER_SIZE]
    if (
        magic != MAGIC
        or header_crc(head) != crc
        or version != 1
        or not HEADER_SIZE <= length <= BATCH_BYTES_MAX
    ):
        raise corrupt(path, position, offset, "the batch header is damaged")
    return base, length, span, latest


def first_at(batch: EncodedBatch, timestamp_ms: int) -> int | None:
    """Return the offset of the first record of *batch* that is not older than *timestamp_ms*.

    Control batches are skipped, because consumers never see them, and their time is the leader's
    clock.

    Raises:
        CorruptBatch: the CRC is right but the columns cannot be decoded: the producer sent a bad
            batch. ``details`` hold ``offset`` and ``end``, the offset after the batch.
    """
    if batch.header.is_hidden:
        return None
    try:
        times = zip(batch.offsets, batch.timestamps, strict=True)
    except CorruptBatch as error:
        raise CorruptBatch(
            f"the times in the batch [{batch.base_offset}, {batch.end_offset}) cannot be read: "
            f"{error.message}; the batch was damaged when it came",
            offset=batch.base_offset,
            end=batch.end_offset,
        ) from None
    return next((offset for offset, time in times if time >= timestamp_ms), None)


def check_append(
    id: BlockId, end: int, epoch: int, batches: Sequence[EncodedBatch]
) -> list[Buffer]:
    """Check that *batches* continue a block that ends at *end* in *epoch*; return their buffers.

    Raises:
        InternalError: the batches do not continue the block.
    """
    buffers: list[Buffer] = []
    for batch in batches:
        header, head, body = batch.header, batch.head, batch.body
        if (
            header.base_offset != end
            or header.leader_epoch < epoch
            or len(head) + len(body) != header.length
            or not header.span
        ):
            raise InternalError(
                f"block {id} ends at {end} in epoch {epoch}; the batch [{header.base_offset}, "
                f"{header.end_offset}) of epoch {header.leader_epoch} cannot follow"
            )
        end += header.span
        epoch = header.leader_epoch
        buffers += (head, body)
    return buffers
