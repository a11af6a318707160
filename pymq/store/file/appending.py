"""Appends batches to block files, and writes zeros in advance for small synced appends.

After an append that makes the file longer, a sync also has to write the file system's journal. So
the store writes and syncs zeros in advance, and small synced appends overwrite these zeros. One
record and its sync then take 217 instead of 285 us with 1 KB, and 245 instead of 382 us with 8 KB.
(Medians of 2,200 measurements, interleaved, on ext4 on virtio, on a busy machine; 64 KiB of zeros
are as good as 256.)
"""

from __future__ import annotations

from pymq.core.batch.columns import Buffer
from pymq.core.batch.record import EncodedBatch
from pymq.core.types import BlockId
from pymq.errors import InvalidRequest
from pymq.store.block.stored_block import StoredBlock, check_append
from pymq.store.file.folder import Folder
from pymq.store.file.handles import Handles
from pymq.store.file.os_files import store_error

RESERVE_MOST = 256 << 10  # bytes of zeros that are written at once ...
# ... in a block of at least this size, so that ten thousand idle blocks take no space
RESERVE_FROM = 16 << 10
# ... for a write smaller than this; for larger writes the zeros do not pay
RESERVE_BELOW = 16 << 10
_ZEROS = memoryview(bytes(RESERVE_MOST))


class Appending:
    """Appends to block files, and undoes writes that failed."""

    def __init__(self, folder: Folder, handles: Handles) -> None:
        self._folder = folder
        self._files = folder.files
        self._handles = handles

    def append(
        self, batches: list[EncodedBatch], sync: bool, id: BlockId, block: StoredBlock | None
    ) -> None:
        """Write *batches* at the end of the block; with *sync* the caller will sync them next.

        Raises:
            InvalidRequest: the block is not open.
            InternalError: the batches do not continue the block.
            StoreError, OSError: the write has failed and was undone.
        """
        if block is None or block.is_sealed:
            what = "is not open here; create or recover it first" if block is None else "is sealed"
            raise InvalidRequest(f"block {id} {what}")
        if block.failed is not None:
            raise block.failed
        buffers = check_append(id, block.end, block.epoch, batches)
        if not buffers:
            return
        if block.size == 0:
            self.begin(block, batches, buffers)
            return
        handle = block.handle
        if handle < 0:
            handle = self._handles.open(block)
        block.used = block.unsynced = True
        if sync and block.length - block.size < RESERVE_BELOW and block.size >= RESERVE_FROM:
            self._reserve(block, sum(map(len, buffers)))
        try:
            self._files.pwritev(handle, buffers, block.size)
        except OSError:
            self._undo(block)
            raise
        block.add(batches)

    def begin(self, block: StoredBlock, batches: list[EncodedBatch], buffers: list[Buffer]) -> None:
        """Create the file with the first batches; it is durable on return."""
        head = block.head.to_bytes()
        self._handles.make_room()
        self._handles.adopt(block, self._folder.create(block.id, [head, *buffers]))
        block.start_position = block.size = block.length = len(head)
        if batches:
            block.add(batches)

    def trim(self, block: StoredBlock) -> None:
        """Cut off the zeros that were written in advance; this is durable after the next sync."""
        if block.length > block.size:
            handle = block.handle if block.handle >= 0 else self._handles.open(block)
            self._files.truncate(handle, block.size)
            block.length = block.size
            block.unsynced = True

    def _reserve(self, block: StoredBlock, needed: int) -> None:
        """Write zeros in advance for small writes, as many bytes as the block has, if there is
        space.
        """
        is_there = block.size + needed <= block.length
        if is_there or needed >= RESERVE_BELOW or not block.may_reserve:
            return
        size = min(block.size, RESERVE_MOST)
        try:
            self._files.pwritev(block.handle, [_ZEROS[:size]], block.size)
        except OSError:
            block.may_reserve = False
            self._undo(block)
            if block.failed is not None:
                raise block.failed from None
        else:
            block.length = block.size + size

    def _undo(self, block: StoredBlock) -> None:
        """Truncate the file to its end before a failed write."""
        try:
            self._files.truncate(block.handle, block.size)
        except OSError as error:
            block.failed = store_error(error, "undo a write to", self._folder.file(block.id))
        else:
            block.length = block.size
