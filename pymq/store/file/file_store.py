"""The store with files, which brokers use.

A block gets its file with its first batch, and the file gets its name only when that batch is
durable. So an idle block needs no file, and a crash never removes a file with acknowledged records.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import assert_never

from pymq.core.batch.record import EncodedBatch
from pymq.core.ready import (
    Append,
    Checkpoint,
    Compact,
    Compacted,
    CreateBlock,
    Recovered,
    RecoverFailed,
    RemoveBlock,
    SaveState,
    SealBlock,
    Sync,
    Truncate,
    Write,
    WriteFailed,
)
from pymq.core.types import BlockId
from pymq.errors import Closed, InvalidRequest, PymqError, StoreError
from pymq.store.block.block_file import FileHead
from pymq.store.block.stored_block import StoredBlock
from pymq.store.file import cleaned, recovery
from pymq.store.file.appending import Appending
from pymq.store.file.cleaned import Cleaned
from pymq.store.file.folder import BLOCK, CKPT, INDEX, FileDraft, Folder, is_sync
from pymq.store.file.handles import Handles
from pymq.store.file.os_files import Files, OsFiles, is_lasting, store_error
from pymq.store.file.states import Changes, States

_Action = Callable[[BlockId, StoredBlock | None], None]


class FileStore:
    """Keeps blocks as files in the folder *path*, which it locks.

    Args:
        path: the folder of a store, or an empty folder; created if it is missing.
        files: the file system; the simulator passes a simulated one.
        handles_max: the most files that may be open at once.

    Raises:
        StoreLocked: another process has the folder open.
        StoreError: the folder is not a store of a known version, or cannot be written.
        CorruptBlock: the saved states of replicas are damaged.
    """

    def __init__(
        self,
        path: str,
        *,
        files: Files | None = None,
        handles_max: int = 256,
    ) -> None:
        self.files: Files = files or OsFiles()
        self._folder = Folder(path, self.files)
        self._blocks: dict[BlockId, StoredBlock] = {}
        self._handles = Handles(self._folder, handles_max)
        self._appending = Appending(self._folder, self._handles)
        # Compaction may run in its own thread. It holds this lock only while it opens or swaps a
        # file, so that a handle in another thread stays valid from its lookup to its use.
        self._lock = threading.RLock()
        self._closed = False
        self._folder.open()
        self._states = States(self._folder)
        try:
            self._states.open()
        except BaseException:
            self._states.close()
            self._folder.close()
            raise

    @property
    def path(self) -> str:
        """The store's folder."""
        return self._folder.path

    # --- writing --------------------------------------------------------------------------------

    def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
        """Carry out *writes* in their order; a write with ``sync`` is durable on return."""
        if self._closed:
            raise Closed(f"the store {self.path} was closed")
        failed: dict[BlockId, WriteFailed] = {}
        with self._lock:
            if len(writes) == 1 and type(append := writes[0]) is Append:
                # The fast path: a single append needs no grouping, which would add to the latency
                # of each sync. With cold processor caches each avoided call saves a microsecond.
                id, sync = append.block, append.sync
                block = self._blocks.get(id)
                try:
                    self._appending.append(append.batches, sync, id, block)
                    if sync and block is not None and block.unsynced:
                        self._handles.sync(block)
                except (OSError, PymqError) as error:
                    self._note(id, error, failed)
            else:
                self._write_all(writes, failed)
        return list(failed.values())

    def _write_all(self, writes: Sequence[Write], failed: dict[BlockId, WriteFailed]) -> None:
        pending: dict[BlockId, list[EncodedBatch]] = {}
        syncs: dict[BlockId, None] = {}
        kinds = (SaveState, RemoveBlock)
        # the last write of each block
        states = {write.block: write for write in writes if type(write) in kinds}
        if states:
            self._save({w.block: w.state for w in states.values() if type(w) is SaveState}, failed)
        gone: list[BlockId] = []
        for write in writes:
            block = write.block
            if block in failed:
                continue
            if type(write) is RemoveBlock:
                pending.pop(block, None)
                gone.append(block)
                continue
            if gone:
                self._remove(gone, failed)
                gone = []
            if type(write) is Append:
                if (batches := pending.get(block)) is None:
                    pending[block] = list(write.batches)
                else:
                    batches += write.batches
                if write.sync:
                    syncs[block] = None
            elif type(write) is Sync:
                syncs[block] = None
            elif type(write) is not SaveState:
                if batches := pending.pop(block, None):
                    self._attempt(block, failed, partial(self._appending.append, batches, False))
                if block not in failed:
                    self._attempt(block, failed, partial(self._other, write))
        self._remove(gone, failed)
        for block, batches in pending.items():
            self._attempt(block, failed, partial(self._appending.append, batches, block in syncs))
        self._sync([block for block in syncs if block not in failed], failed)
        # Remove states last, because after a crash no block may have records without a state.
        gone = [block for block, write in states.items() if type(write) is RemoveBlock]
        self._save({block: None for block in gone if self._states.get(block) is not None}, failed)

    def _save(self, states: Changes, failed: dict[BlockId, WriteFailed]) -> None:
        """Save the states of replicas (term and vote, for example)."""
        for id in states:
            block = self._blocks.get(id)
            problem = (block.failed if block else None) or self._states.problem(id)
            if id not in failed and problem is not None:
                failed[id] = WriteFailed(id, problem, True)
        states = {id: state for id, state in states.items() if id not in failed}
        if not states:
            return
        try:
            self._states.save(states)
        except OSError as error:
            for id in states:
                fatal = self._states.problem(id)
                failed[id] = WriteFailed(id, fatal or error, fatal is not None)
                if (block := self._blocks.get(id)) is not None:
                    block.failed = block.failed or fatal

    def _attempt(self, id: BlockId, failed: dict[BlockId, WriteFailed], action: _Action) -> None:
        try:
            action(id, self._blocks.get(id))
        except (OSError, PymqError) as error:
            self._note(id, error, failed)

    def _note(self, id: BlockId, error: Exception, failed: dict[BlockId, WriteFailed]) -> None:
        """Report a failed write; a failed sync also marks its block as failed."""
        if not isinstance(error, OSError):
            failed[id] = WriteFailed(id, error, False)
            return
        cause = store_error(error, "write", self._folder.file(id))
        block = self._blocks.get(id)
        if block is not None and is_sync(cause):
            block.failed = cause
        failed[id] = WriteFailed(id, cause, block is not None and block.failed is not None)

    def _other(self, write: Write, id: BlockId, block: StoredBlock | None) -> None:
        if block is not None and block.failed is not None:
            raise block.failed
        if isinstance(write, CreateBlock):
            self._create(write, block)
            return
        block = block or self._load(id)
        match write:
            case Truncate():
                self._truncate(block, write.end)
            case SealBlock():
                self._seal(block)
            case Checkpoint():
                self._handles.sync(block)
                block.ckpt_end = block.end
                self._folder.replace(id, CKPT, block.known(write.snapshot).to_bytes())
            case Append() | Sync() | SaveState() | RemoveBlock():
                raise AssertionError("gathered before")
            case _:
                assert_never(write)

    def _create(self, write: CreateBlock, block: StoredBlock | None) -> None:
        if (block is None or block.is_passive) and self._folder.suffixes(write.block):
            found = self.recover(write.block, write.start, is_open=True)
            if isinstance(found, RecoverFailed):
                raise found.error
            block = self._blocks[write.block]
        head = FileHead(write.block, write.start, write.topic, write.partition)
        if block is None:
            self._blocks[write.block] = StoredBlock(head)
        elif block.start != write.start:
            raise InvalidRequest(
                f"block {write.block} exists and begins at {block.start}, not at {write.start}"
            )
        elif block.size == 0:
            block.head = head  # the block was recovered without a file, so its head had no names

    def _truncate(self, block: StoredBlock, end: int) -> None:
        if end < block.start:
            raise InvalidRequest(
                f"block {block.id} begins at {block.start}, it cannot end at {end}"
            )
        if end >= block.end:
            return
        path = self._folder.file(block.id)
        block.cut(end, self._handles.reader(block), path)
        try:
            # Remove the checkpoint and the index first. They describe the longer file, so after a
            # crash the shorter file would look damaged.
            if block.ckpt_end > end:
                self._folder.remove(block.id, CKPT)
                block.ckpt_end = -1
            if block.index_end > end:
                self._folder.remove(block.id, INDEX)
                block.index_end = -1
            self.files.truncate(block.handle, block.size)
        except OSError as error:
            block.failed = store_error(error, "truncate", path)
            raise
        block.unsynced = True
        self._handles.sync(block)
        if block.is_sealed:
            self._seal(block)

    def _seal(self, block: StoredBlock) -> None:
        if block.size == 0:
            self._appending.begin(block, [], [])
        self._appending.trim(block)
        self._handles.sync(block)
        block.is_sealed = True
        try:
            block.index_end = block.end
            self._folder.replace(block.id, INDEX, block.known(None).to_bytes())
        except StoreError as error:
            if is_sync(error):
                raise
            # The index only saves time, so a block can be sealed on a full disk, too.

    def _remove(self, ids: Iterable[BlockId], failed: dict[BlockId, WriteFailed]) -> None:
        """Remove blocks; the folder of a partition is listed and synced once for all its blocks."""
        folders: dict[tuple[str, int], dict[BlockId, None]] = {}
        for id in ids:
            folders.setdefault((id.topic_id, id.partition), {})[id] = None
        for blocks in folders.values():
            try:
                for id in blocks:
                    self._blocks.pop(id, None)
                    self._handles.let_go(id)
                self._folder.remove_blocks(list(blocks))
            except (OSError, PymqError) as error:
                for id in blocks:
                    self._note(id, error, failed)

    def _sync(self, ids: Iterable[BlockId], failed: dict[BlockId, WriteFailed]) -> None:
        known = [block for id in ids if (block := self._blocks.get(id)) is not None]
        blocks = [block for block in known if block.unsynced or block.failed]
        for block, error in zip(blocks, self._handles.sync_all(blocks), strict=True):
            if error is not None:
                failed[block.id] = WriteFailed(block.id, error, True)

    # --- recovery -------------------------------------------------------------------------------

    def recover(self, block: BlockId, start: int, is_open: bool) -> Recovered | RecoverFailed:
        """Recover *block* and return its end. If an open block has no file, it is empty."""
        if self._closed:
            raise Closed(f"the store {self.path} was closed")
        with self._lock:
            before = self._blocks.pop(block, None)
            try:
                self._states.recover(block)
                self._handles.let_go(block)
                suffixes = self._folder.suffixes(block)
                found = StoredBlock(before.head if before else FileHead(block, start, "", ""))
                if BLOCK in suffixes:
                    self._handles.open(found)
                state = self._states.get(block)
                answer = recovery.recover(self._folder, found, suffixes, start, is_open, state)
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._handles.let_go(block)
                path = self._folder.file(block)
                cause = store_error(error, "recover", path)
                return RecoverFailed(block, cause, fatal=is_sync(cause) or is_lasting(cause))
            self._blocks[block] = found
            if found.is_sealed and found.index_end < found.end:
                self._attempt(block, {}, partial(self._other, SealBlock(block)))
            return answer

    def _load(self, id: BlockId) -> StoredBlock:
        """Load a block that was not recovered, such as a sealed block that is rarely read."""
        if self._closed:
            raise Closed(f"the store {self.path} was closed")
        path, suffixes = self._folder.file(id), self._folder.suffixes(id)
        if BLOCK not in suffixes:
            raise StoreError(f"{path} does not exist: this store has no block {id}", file=path)
        block = StoredBlock(FileHead(id, 0, "", ""))
        try:
            self._handles.open(block)
            recovery.load(self._folder, block, suffixes)
        except OSError:
            self._handles.let_go(id)
            raise
        self._blocks[id] = block
        return block

    # --- reading --------------------------------------------------------------------------------

    def _find(self, id: BlockId) -> StoredBlock:
        block = self._blocks.get(id) or self._load(id)
        if block.failed is not None:
            raise block.failed
        return block

    def read(
        self, block: BlockId, offset: int, end: int, max_bytes: int, *, verify: bool = False
    ) -> bytes:
        """Return whole batches, from the one that holds *offset* up to *end*, at least one."""
        path = self._folder.file(block)
        try:
            with self._lock:
                found = self._find(block)
                data = found.read(self._handles.reader(found), path, offset, end, max_bytes)
                return found.verified(data, path) if verify else data
        except OSError as error:
            raise store_error(error, "read", path) from error

    def find_time(self, block: BlockId, end: int, timestamp_ms: int) -> int | None:
        """Return the first offset before *end* whose record is not older than *timestamp_ms*."""
        path = self._folder.file(block)
        try:
            with self._lock:
                found = self._find(block)
                return found.find_time(self._handles.reader(found), path, end, timestamp_ms)
        except OSError as error:
            raise store_error(error, "read", path) from error

    # --- the rest -------------------------------------------------------------------------------

    def compact(self, job: Compact) -> Compacted:
        """Compact the sealed blocks of *job*; readers see each block as before or as compacted."""
        from pymq.store.file.rewriting import Rewriting  # lazily: few topics are compacted

        find, replace, note = self._sealed, self._replace, self._note_cleaned
        return Rewriting(self._folder, self.files, find, replace, note).run(job)

    def _sealed(self, id: BlockId) -> StoredBlock:
        with self._lock:
            block = self._find(id)
            if not block.is_sealed:
                raise InvalidRequest(f"block {id} is open; only sealed blocks are compacted")
            return block

    def _replace(self, old: StoredBlock, new: StoredBlock, draft: FileDraft) -> None:
        """Replace *old* by *new*, the compacted file."""
        id = old.id
        with self._lock:
            if self._blocks.get(id) is not old or old.end != new.end:
                raise InvalidRequest(f"block {id} was changed or removed meanwhile")
            snapshot = recovery.snapshot_at(self._folder, old)
            # Index and checkpoint hold positions in the old file, so remove them before the swap.
            self._folder.remove(id, INDEX, CKPT)
            self._handles.let_go(id)
            del self._blocks[id]  # if a step below fails, the next read loads the block again
            self.files.close(draft.take_place())
            self._blocks[id] = new
            self._seal(new)
            if snapshot is not None:
                new.ckpt_end = new.end
                self._folder.replace(id, CKPT, new.known(snapshot).to_bytes())

    def _note_cleaned(self, found: Cleaned) -> None:
        with self._lock:
            if BLOCK in self._folder.suffixes(found.block):
                cleaned.save(self._folder, found)

    def blocks(self) -> list[BlockId]:
        """List the blocks of the store, in order."""
        return sorted({*self._folder.blocks(), *self._blocks, *self._states.blocks()})

    def unsealed(self) -> list[BlockId]:
        """List the blocks that this store does not know to be sealed; this is cheap."""
        sealed = self._folder.blocks()
        known = self._blocks.items()
        sealed.update({id: block.is_sealed for id, block in known if not block.is_passive})
        return sorted(id for id in {*sealed, *self._states.blocks()} if not sealed.get(id))

    def close(self) -> None:
        """Make everything durable and release all resources; closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        errors: dict[BlockId, WriteFailed] = {}
        try:
            self._sync([id for id, block in self._blocks.items() if not block.failed], errors)
            for block in list(self._blocks.values()):
                if block.failed is None:
                    with contextlib.suppress(OSError):  # if this fails, recovery truncates the file
                        self._appending.trim(block)
        finally:
            self._handles.close()
            self._states.close()
            self._blocks.clear()
            self._folder.close()
            self.files.release()
        for failed in errors.values():
            raise failed.error
