"""Compaction of files: reads each sealed block and writes the surviving records to a new file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from pymq.core.batch.record import EncodedBatch
from pymq.core.ready import Compact, Compacted
from pymq.core.types import BlockId
from pymq.errors import PymqError, StoreError
from pymq.store.block.compaction import compacted, is_due, last_offsets
from pymq.store.block.stored_block import StoredBlock, check_append
from pymq.store.file import cleaned
from pymq.store.file.cleaned import Cleaned
from pymq.store.file.folder import FileDraft, Folder, explained
from pymq.store.file.os_files import Files, store_error

_REWRITE_BYTES = 1 << 20  # bytes in each write


class Rewriting:
    """A compaction of one partition.

    A compaction may run at the same time as all other calls of the store, because sealed blocks do
    not change.

    Args:
        folder: the folder of the blocks.
        files: the file system.
        find: returns a sealed block.
        replace: replaces a block's file by a draft, unless the block has changed meanwhile.
        note: saves the note that blocks are clean, unless the last of them was removed meanwhile.
    """

    def __init__(
        self,
        folder: Folder,
        files: Files,
        find: Callable[[BlockId], StoredBlock],
        replace: Callable[[StoredBlock, StoredBlock, FileDraft], None],
        note: Callable[[Cleaned], None],
    ) -> None:
        self._folder = folder
        self._files = files
        self._find = find
        self._replace = replace
        self._note = note

    def run(self, job: Compact) -> Compacted:
        """Rewrite the blocks of *job*; return their new sizes in bytes."""
        sizes: list[tuple[BlockId, int]] = []
        failure: Exception | None = None
        try:
            if not self._is_due(job):
                return Compacted(job.topic, job.partition, ())
            last: dict[bytes, int] = {}
            for id in job.blocks:
                last_offsets(self._batches(id), last)
            for id in job.blocks:
                size = self._rewrite(id, last, job.tombstones_before_ms)
                sizes.append((id, size))
            with contextlib.suppress(OSError, StoreError):  # the note only avoids needless work
                self._note(Cleaned(job.blocks[-1], sum(size for _, size in sizes)))
        except OSError as error:
            failure = store_error(error, "compact", self._folder.of(job.blocks[0]))
        except PymqError as error:
            failure = error
        return Compacted(job.topic, job.partition, tuple(sizes), failure)

    def _is_due(self, job: Compact) -> bool:
        """Whether enough bytes were appended since the last compaction."""
        known = cleaned.load(self._folder, job.blocks[0]) if job.blocks else None
        through, clean = (known.block.number, known.size) if known else (-1, 0)
        new = [self._find(id) for id in job.blocks if id.number > through]
        return is_due(clean, sum(b.size - b.start_position for b in new), job.min_dirty)

    def _batches(self, id: BlockId) -> Iterator[EncodedBatch]:
        """Read and check all batches of a sealed block, with a separate handle."""
        block, path = self._find(id), self._folder.file(id)
        with explained("read", path):
            handle = self._files.open_readonly(path)
            try:
                yield from block.batches(partial(self._files.pread, handle), path)
            finally:
                self._files.close(handle)

    def _rewrite(self, id: BlockId, last: dict[bytes, int], tombstones_before_ms: int) -> int:
        """Replace a block's file by a compacted one; return the bytes of its batches."""
        old = self._find(id)
        new = StoredBlock(old.head)
        new.start_position = new.size = new.length = old.start_position
        draft = self._folder.draft(id)
        try:
            draft.append([old.head.to_bytes()])
            chunk: list[EncodedBatch] = []
            size = 0
            for batch in compacted(self._batches(id), last, tombstones_before_ms):
                chunk.append(batch)
                size += batch.size
                if size >= _REWRITE_BYTES:
                    self._extend(new, draft, chunk)
                    chunk, size = [], 0
            self._extend(new, draft, chunk)
            if new.size == old.size:  # nothing was removed
                return old.size - old.start_position
            draft.sync()
            self._replace(old, new, draft)
            return new.size - new.start_position
        finally:
            draft.close()

    def _extend(self, block: StoredBlock, draft: FileDraft, batches: list[EncodedBatch]) -> None:
        if batches:
            draft.append(check_append(block.id, block.end, block.epoch, batches))
            block.add(batches)
