"""The store in memory, for tests, simulations and queues that may be lost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from pymq.core.batch.columns import Buffer
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
from pymq.core.values import Factory, define
from pymq.errors import (
    Closed,
    CorruptBlock,
    InternalError,
    InvalidRequest,
    OffsetOutOfRange,
    PymqError,
    StoreError,
)
from pymq.store.block.compaction import compacted, is_due, last_offsets
from pymq.store.block.stored_block import check_append, first_at


@define
class _Block:
    start: int
    end: int  # the offset after the last batch
    epoch: int = 0  # of the last batch
    batches: list[EncodedBatch] = Factory(list)
    is_sealed: bool = False
    # (the block's end at the time of the checkpoint, state)
    checkpoint: tuple[int, bytes] | None = None
    clean: int | None = None  # bytes of all blocks up to this one, if they were compacted together

    @property
    def size(self) -> int:
        return sum(batch.size for batch in self.batches)

    def put(self, batches: list[EncodedBatch]) -> None:
        """Replace the block's batches."""
        self.batches, self.end, self.epoch = batches, self.start, 0
        if batches:
            last = batches[-1].header
            self.end, self.epoch = last.base_offset + last.span, last.leader_epoch

    def at(self, offset: int) -> int:
        """Return the index in ``batches`` of the batch that holds *offset*."""
        return bisect_right(self.batches, offset, key=lambda batch: batch.base_offset) - 1


class MemoryStore:
    """Keeps blocks in memory until it is closed."""

    def __init__(self) -> None:
        self._blocks: dict[BlockId, _Block] = {}
        self._states: dict[BlockId, bytes] = {}
        self._closed = False

    # --- writing --------------------------------------------------------------------------------

    def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
        """Carry out *writes* in their order."""
        if self._closed:
            raise _closed()
        failed: dict[BlockId, WriteFailed] = {}
        # Blocks are independent of each other. Consecutive appends to one block are one write,
        # which succeeds or fails as a whole.
        by_block: dict[BlockId, list[Write]] = {}
        # States are saved first; for each block, the last SaveState or RemoveBlock counts.
        states: dict[BlockId, SaveState | RemoveBlock] = {}
        for write in writes:
            by_block.setdefault(write.block, []).append(write)
            if type(write) is SaveState or type(write) is RemoveBlock:
                states[write.block] = write
        for state in states.values():
            if type(state) is SaveState:
                self._states[state.block] = state.state
        for block, own in by_block.items():
            try:
                appends: list[Append] = []
                for write in own:
                    if type(write) is Append:
                        appends.append(write)
                        continue
                    if appends:
                        self._append(block, appends)
                        appends = []
                    self._write(write)
                if appends:
                    self._append(block, appends)
            except PymqError as error:
                failed[block] = WriteFailed(block, error, fatal=False)
            else:
                if type(states.get(block)) is RemoveBlock:
                    self._states.pop(block, None)
        return list(failed.values())

    def _write(self, write: Write) -> None:
        if isinstance(write, (Sync, SaveState)):
            return
        if isinstance(write, RemoveBlock):
            self._blocks.pop(write.block, None)
            return
        block = self._blocks.get(write.block)
        if isinstance(write, CreateBlock):
            block = self._blocks.setdefault(write.block, _Block(write.start, write.start))
            if block.start != write.start:
                raise InvalidRequest(f"block {write.block} begins at {block.start}")
            return
        if block is None:
            raise _unknown(write.block)
        match write:
            case Append():
                self._append(write.block, [write])
            case Truncate(end=end):
                self._truncate(block, end)
            case SealBlock():
                block.is_sealed = True
            case Checkpoint():
                block.checkpoint = (block.end, write.snapshot)

    def _append(self, id: BlockId, appends: list[Append]) -> None:
        """Carry out successive appends to one block as one write."""
        block = self._blocks.get(id)
        if block is None:
            raise _unknown(id)
        if block.is_sealed:
            raise InvalidRequest(f"block {id} is sealed")
        batches = appends[0].batches
        for append in appends[1:]:
            batches = batches + append.batches
        check_append(id, block.end, block.epoch, batches)
        for batch in batches:
            # A batch from a socket is in a buffer that is reused, so keep a copy.
            kept = EncodedBatch(bytes(batch.head), bytes(batch.body), batch.header)
            block.batches.append(kept)
        block.put(block.batches)

    def _truncate(self, block: _Block, end: int) -> None:
        if end < block.start:
            raise InvalidRequest(f"the block begins at {block.start}, it cannot end at {end}")
        if end >= block.end:
            return
        at = block.at(end)
        if block.batches[at].base_offset != end:
            raise InternalError(f"the block cannot end at {end}, inside {block.batches[at]}")
        block.put(block.batches[:at])
        if block.checkpoint and block.checkpoint[0] > end:
            block.checkpoint = None

    # --- recovery -------------------------------------------------------------------------------

    def recover(self, block: BlockId, start: int, is_open: bool) -> Recovered | RecoverFailed:
        """Recover *block* and return its end. An unknown open block is empty."""
        self._check_open()
        found = self._blocks.get(block)
        if found is None and is_open:
            found = self._blocks[block] = _Block(start, start)
        if found is None or found.start != start:
            return RecoverFailed(block, CorruptBlock(f"there is no block {block} from {start}"))
        found.is_sealed = not is_open
        after, snapshot = found.checkpoint or (start, None)
        headers = [batch.header for batch in found.batches if batch.base_offset >= after]
        state = self._states.get(block)
        return Recovered(block, start, found.end, found.size, snapshot, headers, 0, state)

    def blocks(self) -> list[BlockId]:
        """List the blocks of the store, in order."""
        return sorted({*self._blocks, *self._states})

    def unsealed(self) -> list[BlockId]:
        """List the blocks that are not sealed."""
        sealed = {id for id, block in self._blocks.items() if block.is_sealed}
        return [id for id in self.blocks() if id not in sealed]

    # --- reading --------------------------------------------------------------------------------

    def _find(self, id: BlockId) -> _Block:
        self._check_open()
        if (block := self._blocks.get(id)) is None:
            raise StoreError(f"this store has no block {id}")
        return block

    def read(
        self, block: BlockId, offset: int, end: int, max_bytes: int, *, verify: bool = False
    ) -> bytes:
        """Return whole batches, from the one that holds *offset* up to *end*, at least one.

        Bodies are not checked, even with *verify*, because there is no disk that could have damaged
        them. If a batch was damaged before the append, the reader gets an error when it decodes the
        batch.
        """
        found = self._find(block)
        if not found.start <= offset <= found.end:
            raise OffsetOutOfRange(
                f"block {block} holds the offsets {found.start} to {found.end}, not {offset}"
            )
        parts: list[Buffer] = []
        size = 0
        for at in range(max(found.at(offset), 0), len(found.batches)):
            batch = found.batches[at]
            size += batch.size
            if offset >= min(end, found.end) or batch.base_offset >= end:
                break
            if parts and size > max_bytes:
                break
            parts += [batch.head, batch.body]
        return b"".join(parts)

    def find_time(self, block: BlockId, end: int, timestamp_ms: int) -> int | None:
        """Return the first offset before *end* whose record is not older than *timestamp_ms*."""
        for batch in self._find(block).batches:
            if batch.header.max_timestamp >= timestamp_ms:
                found = first_at(batch, timestamp_ms)
                if found is not None:
                    return found if found < end else None
        return None

    # --- the rest -------------------------------------------------------------------------------

    def compact(self, job: Compact) -> Compacted:
        """Compact the sealed blocks of *job*."""
        sizes: list[tuple[BlockId, int]] = []
        try:
            if not self._is_due(job):
                return Compacted(job.topic, job.partition, ())
            last: dict[bytes, int] = {}
            for id in job.blocks:
                if not self._find(id).is_sealed:
                    raise InvalidRequest(f"block {id} is open; only sealed blocks are compacted")
                last_offsets(self._find(id).batches, last)
            for id in job.blocks:
                block = self._find(id)
                block.put(list(compacted(block.batches, last, job.tombstones_before_ms)))
                block.clean = None
                sizes.append((id, block.size))
            self._find(job.blocks[-1]).clean = sum(size for _, size in sizes)
        except PymqError as error:
            return Compacted(job.topic, job.partition, tuple(sizes), error)
        return Compacted(job.topic, job.partition, tuple(sizes))

    def _is_due(self, job: Compact) -> bool:
        """Whether enough bytes were appended since the last compaction."""
        clean = dirty = 0
        for block in map(self._find, job.blocks):
            dirty += block.size
            if block.clean is not None:
                clean, dirty = block.clean, 0
        return is_due(clean, dirty, job.min_dirty)

    def close(self) -> None:
        """Drop all blocks; closing twice is allowed."""
        self._closed = True
        self._blocks.clear()
        self._states.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()


def _closed() -> Closed:
    return Closed("the store was closed")


def _unknown(id: BlockId) -> InvalidRequest:
    return InvalidRequest(f"block {id} is not open here; create it first")
