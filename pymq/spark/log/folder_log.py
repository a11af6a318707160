"""Reads an embedded queue's folder from its files, without a broker and without locks.

Sealed blocks never change. The owner may append to the open block, or seal it, during a read. A
reader ignores an incomplete last batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from pymq.controller.state.image import Image
from pymq.coord.sqlite import read_entries
from pymq.core.batch.offset_index import Index
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.nodes import BlockNode
from pymq.core.types import INTERNAL_PREFIX, BlockId
from pymq.errors import (
    CorruptBatch,
    CorruptMetadata,
    OffsetOutOfRange,
    StoreError,
    UnknownPartition,
    UnknownTopic,
)
from pymq.nodes.embedded import METADATA, broker_folders
from pymq.spark.backfill import BlockSpan
from pymq.spark.log.block_files import OpenedAhead, verified
from pymq.spark.log.topic_log import Topic
from pymq.spark.planning import Range
from pymq.store.block.block_file import HEAD_MAX, FileHead, Known, Walk, Window, corrupt, walk
from pymq.store.file.folder import INDEX, Folder
from pymq.store.file.os_files import OsFiles

CKPT = ".ckpt"
TRIES = 5  # a copy of the metadata taken during a change is inconsistent
SETTLED_NS = 2_000_000_000
# bytes of a read, which stay in the CPU cache until they are checked and copied
READ_BYTES = 512 << 10

State = tuple[tuple[int, int, int], ...]  # of each file: inode, size, mtime


def metadata_state(path: str) -> State:
    """Return a fingerprint that changes with the metadata at *path*; empty if there is none."""
    found = []
    for name in (path, path + "-wal"):
        try:
            # `os.stat` is not enough: on a network file system only opening refreshes the
            # attributes.
            with open(name, "rb") as file:
                about = os.fstat(file.fileno())
        except OSError:
            continue  # If the file cannot be read, its later use raises the error.
        found.append((about.st_ino, about.st_size, about.st_mtime_ns))
    return tuple(found)


def is_settled(state: State, looked_ns: int) -> bool:
    """Whether the files are so old that a change would show: mtimes are coarse."""
    return all(looked_ns - changed > SETTLED_NS for _, _, changed in state)


class FolderLog:
    """The log in an embedded folder, read from its files.

    The first use reads topics and blocks; :meth:`look` reads them again.
    """

    def __init__(self, path: str) -> None:
        self._files = OsFiles(sync_threads=1)
        self._folder = Folder(path, self._files)
        self._image: Image | None = None
        self._metadata = os.path.join(path, METADATA)
        self._state: State = ()  # state of the metadata in the image
        self._looked_ns = 0  # when that state was read

    def look(self) -> None:
        """Refresh the image; read the metadata only if its files may have changed."""
        state = metadata_state(self._metadata)
        if state != self._state or not is_settled(state, self._looked_ns):
            self._image = None

    # --- topics and offsets ---------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones."""
        return sorted(name for name in self._tree().topics if not name.startswith(INTERNAL_PREFIX))

    def topic(self, name: str) -> Topic:
        """Describe a topic.

        Raises:
            UnknownTopic: no topic has that name.
        """
        found = self._tree().topic(name)
        return Topic(found.node.id, tuple(found.partitions))

    def bounds(
        self, topic: str, partitions: Sequence[str], topic_id: str = ""
    ) -> Mapping[str, tuple[int, int]]:
        """Return the start and end offsets of the partitions."""
        found = {}
        for partition in partitions:
            blocks = self._blocks(topic, partition, topic_id)
            last_id, last = blocks[-1]
            end = last.end if last.end is not None else self._end(last_id, last)
            found[partition] = (blocks[0][1].start, end)
        return found

    def blocks(
        self, topic: str, partitions: Sequence[str], topic_id: str = ""
    ) -> Mapping[str, Sequence[BlockSpan]]:
        """Return the sealed blocks of the partitions, in order."""
        return {
            partition: [
                BlockSpan(block.start, block.end, block.size)
                for _, block in self._blocks(topic, partition, topic_id)
                if block.end is not None
            ]
            for partition in partitions
        }

    def at_time(
        self, topic: str, partitions: Sequence[str], timestamp_ms: int, topic_id: str = ""
    ) -> Mapping[str, int]:
        """Return the first offset at or after a time; the end if all records are older."""
        return {each: self._at_time(topic, each, timestamp_ms, topic_id) for each in partitions}

    def _at_time(self, topic: str, partition: str, timestamp_ms: int, topic_id: str) -> int:
        end = 0
        for id, block in self._blocks(topic, partition, topic_id):
            if block.end is not None and block.max_timestamp < timestamp_ms:
                end = block.end
                continue
            end = block.end if block.end is not None else self._end(id, block)
            with self._open(id) as handle:
                for batch in self._read(id, handle, block, block.start, end, 1 << 20):
                    if batch.header.max_timestamp >= timestamp_ms and not batch.header.is_hidden:
                        for offset, time in zip(batch.offsets, batch.timestamps, strict=True):
                            if time >= timestamp_ms:
                                return offset
        return end

    def _tree(self) -> Image:
        if self._image is None:
            path = self._metadata
            if not os.path.exists(path):
                raise StoreError(f"{self._folder.path} is no pymq folder: it has no {METADATA}")
            if broker_folders(self._folder.path):
                raise StoreError(
                    f"{self._folder.path} holds several brokers, and its files alone do not tell "
                    "what is committed; only the folder of one broker can be read so"
                )
            self._state, self._looked_ns = metadata_state(path), time.time_ns()
            for left in reversed(range(TRIES)):
                try:
                    self._image = Image.load(read_entries(path))
                except CorruptMetadata:
                    if not left:
                        raise
                else:
                    break
        assert self._image is not None
        return self._image

    def _blocks(self, topic: str, partition: str, topic_id: str) -> list[tuple[BlockId, BlockNode]]:
        found = self._tree().topic(topic)
        if topic_id not in ("", found.node.id):
            why = "was deleted and created again since the request"
            raise UnknownTopic(f"topic {topic!r} {why}")
        image = found.partitions.get(partition)
        if image is None:
            raise UnknownPartition(f"topic {topic!r} has no partition {partition!r}")
        name = partial(BlockId, found.node.id, image.node.index)
        return [(name(block.number), block) for block in image.blocks.values()]

    # --- records --------------------------------------------------------------------------------

    def read(self, wanted: Range, fetch_bytes: int) -> Iterator[EncodedBatch]:
        """Yield all batches that overlap a range, CRC checked, in order.

        Raises:
            OffsetOutOfRange: the start of the range has been removed.
            UnknownTopic: the topic was deleted; a topic of the same name may exist now.
            CorruptBlock: a file is damaged.
        """
        position = wanted.start
        blocks = [
            (id, block, wanted.end if block.end is None else min(wanted.end, block.end))
            for id, block in self._blocks_from(wanted, position)
            if block.start < wanted.end and (block.end is None or block.end > position)
        ]
        with OpenedAhead(self._open, [id for id, _, _ in blocks]) as opened:
            for id, block, end in blocks:
                with opened.next() as handle:
                    for batch in self._read(id, handle, block, position, end, fetch_bytes):
                        yield batch.at(wanted.topic, wanted.partition)
                        position = batch.end_offset
                if position < end:
                    self._image = None
                    # Retention may have removed the file.
                    self._blocks_from(wanted, position)
                    path = self._folder.file(id)
                    raise corrupt(path, 0, position, f"it ends before offset {end}")

    def _blocks_from(self, wanted: Range, position: int) -> list[tuple[BlockId, BlockNode]]:
        blocks = self._blocks(wanted.topic, wanted.partition, wanted.topic_id)
        start = blocks[0][1].start
        if start > position:
            raise OffsetOutOfRange(
                f"{wanted.topic}/{wanted.partition} begins at offset {start}, after {position}",
                start=start,
            )
        return blocks

    def _read(
        self, id: BlockId, handle: int, block: BlockNode, start: int, end: int, size: int
    ) -> Iterator[EncodedBatch]:
        """Yield the batches of one block that overlap ``range(start, end)``."""
        if handle < 0:
            return
        window = Window(partial(self._pread, handle), self._files.size(handle))
        window.chunk = min(size, READ_BYTES)
        path = self._folder.file(id)
        at = self._head_size(id, handle)
        if start > block.start:
            at = self._seek(id, at, start)
        offset = block.start  # of the batch at the position, as far as it is known
        while at < window.size:
            try:
                header = window.header(at)
                offset = header.base_offset
                if offset >= end:
                    return
                if header.end_offset > start:
                    body = window.piece(at, header.length, header.length)
                    yield verified(EncodedBatch.parse(body))
            except CorruptBatch as error:
                raise corrupt(path, at, max(offset, start), error.message) from None
            at += header.length
            offset = header.end_offset
            if offset >= end:
                return

    def _seek(self, id: BlockId, first: int, offset: int) -> int:
        """Return the position of a batch that begins at or before *offset*; at least *first*."""
        for suffix in (INDEX, CKPT):
            known = self._known(id, suffix)
            if known is not None and (found := known.index.find(offset)) is not None:
                return max(first, found)
        return first

    def _end(self, id: BlockId, block: BlockNode) -> int:
        """Return where the open block ends now: after its last complete batch.

        Behind that batch are preallocated zeros or an incomplete batch. A complete batch may end in
        zeros, so the search begins at the front of the file.
        """
        with self._open(id) as handle:
            if handle < 0:
                return block.start  # The block is empty.
            first = self._head_size(id, handle)
            pread = partial(self._pread, handle)
            known = self._known(id, CKPT)
            found = Walk(first, block.start, 0)
            if known is not None and known.position >= first:
                found = Walk(known.position, known.end, known.epoch)
            window = Window(pread, self._files.size(handle))
            return walk(window, found, Index(), found.position).end

    @contextmanager
    def _open(self, id: BlockId) -> Iterator[int]:
        """Open the file of a block for reading; -1 if there is none."""
        path = self._folder.file(id)
        try:
            handle = self._files.open_readonly(path)
        except FileNotFoundError:
            yield -1
            return
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}", file=path) from error
        try:
            yield handle
        finally:
            self._files.close(handle)

    def _pread(self, handle: int, size: int, position: int) -> bytes:
        return self._files.pread(handle, size, position)

    def _head_size(self, id: BlockId, handle: int) -> int:
        data = self._files.pread(handle, HEAD_MAX, 0)
        try:
            return FileHead.from_bytes(data)[1]
        except CorruptMetadata as error:
            raise corrupt(self._folder.file(id), 0, 0, f"file header: {error.message}") from None

    def _known(self, id: BlockId, suffix: str) -> Known | None:
        """Read a small file beside the block; None if it is missing or damaged."""
        try:
            with open(self._folder.file(id, suffix), "rb") as file:
                return Known.from_bytes(file.read())
        except (FileNotFoundError, CorruptMetadata):
            return None
