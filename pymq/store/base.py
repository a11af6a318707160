"""The contract of a block store; :func:`pymq.testing.check_store` proves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymq.core.ready import Compact, Compacted, Recovered, RecoverFailed, Write, WriteFailed
from pymq.core.types import BlockId


class BlockStore(Protocol):
    """Keeps the batches of blocks, each block an append-only run of offsets.

    Only the loop calls it, from one thread at a time. :meth:`compact` is the exception: it touches
    sealed blocks only, so it may run in another thread at the same time.
    """

    def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
        """Carry out *writes* in their order; a write with ``sync`` is durable on return.

        All appends to one block are one system call and at most one sync. A write that fails is
        undone as far as possible and reported, once for each block; writes to other blocks go on.
        A failed sync is fatal for its block: every later write to it fails until it is recovered.
        States are saved first, all together; a later failure does not undo that.
        """
        ...

    def recover(self, block: BlockId, start: int, is_open: bool) -> Recovered | RecoverFailed:
        """Recover *block* and return its end. An open block that the store does not know is empty.

        The torn tail of an open block is cut off, durably. For any other damage the store returns
        a :class:`RecoverFailed` with :class:`~pymq.errors.CorruptBlock` and changes nothing. If the
        files cannot be read now, the error is another one, and the broker retries. It is fatal
        after a failed sync, and if an administrator must repair the files.
        """
        ...

    def read(
        self, block: BlockId, offset: int, end: int, max_bytes: int, *, verify: bool = False
    ) -> bytes:
        """Return whole batches, from the one that holds *offset* to the last one before *end*.

        As many as fit *max_bytes*; the first even if it is larger. Empty when *offset* is at the
        block's end. The store checks the headers; the reader checks the bodies. With *verify* the
        store checks the bodies, too, and returns only batches before the first damaged one.

        Raises:
            CorruptBlock: a header on the way is damaged; with *verify* also if the first body is
                damaged, and then ``details`` hold ``end``, the offset behind the batch.
            StoreError: the block cannot be read.
        """
        ...

    def find_time(self, block: BlockId, end: int, timestamp_ms: int) -> int | None:
        """Return the first offset before *end* whose record's time is at or after *timestamp_ms*.

        Exact to the record; None when all are older.

        Raises:
            CorruptBlock, StoreError: as for :meth:`read` with *verify*.
            CorruptBatch: a batch on the way cannot be decoded although its CRC is right: its
                producer sent it like this.
        """
        ...

    def compact(self, job: Compact) -> Compacted:
        """Compact the sealed blocks of *job*; readers see each block as before or as compacted."""
        ...

    def blocks(self) -> list[BlockId]:
        """List all blocks in order, also those without batches or with a saved state only."""
        ...

    def unsealed(self) -> list[BlockId]:
        """List those of :meth:`blocks` that this store does not know as sealed; cheap.

        A sealed block that was recovered as open counts as unsealed again.
        """
        ...

    def close(self) -> None:
        """Make everything durable and release it; closing twice is allowed."""
        ...
