"""The open files of a store; their number is bounded, and each is synced before it is closed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from pymq.core.types import BlockId
from pymq.errors import StoreError
from pymq.store.block.block_file import Pread
from pymq.store.block.stored_block import StoredBlock
from pymq.store.file.folder import Folder, explained
from pymq.store.file.os_files import store_error


class Handles:
    """Opens, syncs and closes the files of blocks, at most *most* open at a time."""

    def __init__(self, folder: Folder, most: int) -> None:
        self._folder = folder
        self._files = folder.files
        self._most = max(most, 1)
        # open blocks; the first is the next one to be closed
        self._open: dict[int, StoredBlock] = {}

    # --- opening and closing --------------------------------------------------------------------

    def open(self, block: StoredBlock) -> int:
        """Open the block's file, closing another file if too many are open."""
        path = self._folder.file(block.id)
        self.make_room()
        with explained("open", path):
            handle = self._files.open(path)
        return self.adopt(block, handle)

    def adopt(self, block: StoredBlock, handle: int) -> int:
        """Add a file that is already open."""
        block.handle, block.used = handle, True
        self._open[handle] = block
        return handle

    def make_room(self) -> None:
        """Close a file if the limit of open files is reached."""
        while len(self._open) >= self._most:
            handle, block = next(iter(self._open.items()))
            del self._open[handle]
            # The block was used since the last check, so move it to the end of the queue (second
            # chance).
            if block.used:
                block.used = False
                self._open[handle] = block
                continue
            # Sync before closing, because no process would get the error of a later write-back.
            self.try_sync(block)
            block.handle = -1
            self._files.close(handle)

    def let_go(self, id: BlockId) -> None:
        """Close all handles of the block's file without a sync."""
        for block in [block for block in self._open.values() if block.id == id]:
            handle, block.handle = block.handle, -1
            del self._open[handle]
            self._files.close(handle)

    def reader(self, block: StoredBlock) -> Pread:
        """Return a function that reads the block's file; without a file it returns no bytes."""
        if block.size == 0:
            return _nothing
        handle = block.handle if block.handle >= 0 else self.open(block)
        block.used = True
        return partial(self._files.pread, handle)

    def close(self) -> None:
        """Close all files without a sync."""
        for handle, block in self._open.items():
            block.handle = -1
            with contextlib.suppress(OSError):
                self._files.close(handle)
        self._open.clear()

    # --- syncing --------------------------------------------------------------------------------

    def sync(self, block: StoredBlock) -> None:
        """Sync the file of *block*.

        Raises:
            StoreError: this sync or an earlier one has failed; the block is unusable until
                recovered.
        """
        if block.failed is not None:
            raise block.failed
        if not block.unsynced:
            return
        try:
            self._files.sync(block.handle)
        except OSError as error:
            raise self._failed(block, error) from error
        block.unsynced = False

    def _failed(self, block: StoredBlock, error: OSError) -> StoreError:
        # The kernel has marked the pages clean, so a second sync would succeed without writing
        # anything (Rebello et al., ATC 2020). Only recovery, which reads from the disk, finds out
        # which data is there.
        block.failed = store_error(error, "sync", self._folder.file(block.id))
        return block.failed

    def try_sync(self, block: StoredBlock) -> StoreError | None:
        """Sync *block*; return the error instead of raising it."""
        try:
            self.sync(block)
        except StoreError as error:
            return error
        return None

    def sync_all(self, blocks: Sequence[StoredBlock]) -> list[StoreError | None]:
        """Sync several blocks in parallel; return the error of each."""
        if len(blocks) < 2:
            return [self.try_sync(block) for block in blocks]
        errors: list[StoreError | None] = [block.failed for block in blocks]
        asked = [at for at, block in enumerate(blocks) if block.unsynced and not block.failed]
        found = self._files.sync_all([blocks[at].handle for at in asked])
        for at, error in zip(asked, found, strict=True):
            if error is None:
                blocks[at].unsynced = False
            else:
                errors[at] = self._failed(blocks[at], error)
        return errors


def _nothing(size: int, position: int) -> bytes:
    return b""
