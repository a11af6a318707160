"""The contract of a block store; :func:`pymq.testing.check_store` tests it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymq.core.ready import Compact, Compacted, Recovered, RecoverFailed, Write, WriteFailed
from pymq.core.types import BlockId


class BlockStore(Protocol):
    """Keeps the batches of blocks; a block is an append-only range of offsets.

    Only the loop calls the store, from one thread at a time. :meth:`compact` is the exception: it
    changes only sealed blocks, so another thread may run it at the same time.
    """

    def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
        """Carry out *writes* in their order; a write with ``sync`` is durable on return.

        All appends to one block take one system call and at most one sync. A failed write is undone
        as far as possible and reported once for each block; writes to other blocks continue. A
        failed sync is fatal for its block: every later write to the block fails until the block is
        recovered. States are saved first, all together; a later failure does not undo this.
        """
        ...

    def recover(self, block: BlockId, start: int, is_open: bool) -> Recovered | RecoverFailed:
        """Recover *block* and return its end. An open block that the store does not know is empty.

        The store truncates a torn write at the end of an open block, durably. If there is any other
        damage, the store returns a :class:`RecoverFailed` with :class:`~pymq.errors.CorruptBlock`
        and changes nothing. If the files cannot be read now, the store returns a different error,
        and the broker retries. The error is fatal after a failed sync, or if an administrator must
        repair the files.
        """
        ...

    def read(
        self, block: BlockId, offset: int, end: int, max_bytes: int, *, verify: bool = False
    ) -> bytes:
        """Return whole batches, from the one that holds *offset* to the last one before *end*.

        Returns as many batches as fit into *max_bytes*, but at least the first. The result is empty
        if *offset* is the block's end. The store checks the headers; the reader checks the bodies.
        With *verify* the store checks the bodies, too, and returns only batches before the first
        damaged one.

        Raises:
            CorruptBlock: a header in the range is damaged, or, with *verify*, the first body; in
                this case ``details`` hold ``end``, the offset after the batch.
            StoreError: the block cannot be read.
        """
        ...

    def find_time(self, block: BlockId, end: int, timestamp_ms: int) -> int | None:
        """Return the first offset before *end* whose record's time is at or after *timestamp_ms*.

        The result is the offset of a single record, not of its batch; None if all records are
        older.

        Raises:
            CorruptBlock, StoreError: as for :meth:`read` with *verify*.
            CorruptBatch: a batch in the range cannot be decoded although its CRC is right: the
                producer sent a bad batch.
        """
        ...

    def compact(self, job: Compact) -> Compacted:
        """Compact the sealed blocks of *job*; readers see each block as before or as compacted."""
        ...

    def blocks(self) -> list[BlockId]:
        """List all blocks in order, including those without batches or with only a saved state."""
        ...

    def unsealed(self) -> list[BlockId]:
        """List the blocks of :meth:`blocks` that this store does not know to be sealed; this is
        cheap.

        A sealed block that was recovered as an open block counts as unsealed again.
        """
        ...

    def close(self) -> None:
        """Make everything durable and release all resources; closing twice is allowed."""
        ...
