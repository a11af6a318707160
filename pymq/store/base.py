"""The contract of a block store; :func:`pymq.testing.check_store` proves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymq.core.ready import Compact, Compacted, Recovered, RecoverFailed, Write, WriteFailed
from pymq.core.types import BlockId


class BlockStore(Protocol):
    """Keeps the batches of blocks, each block an append-only run of offsets.

    Only the loop calls it, from one thread at a time, except for :meth:`compact`, which may run in
    another thread beside the rest, since it touches sealed blocks only.
    """

    def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
        """Do *writes* in their order; what asks for a sync is durable on return.

        All appends to one block are one system call and at most one sync. A write that fails is
        undone as far as possible and reported, once a block; the writes to other blocks go on. A
        failed sync is fatal for its block: every later write to it fails until it is recovered.
        The states to be saved come first, all of them together; what is saved stays saved.
        """
        ...

    def recover(self, block: BlockId, start: int, is_open: bool) -> Recovered | RecoverFailed:
        """Find out where *block* ends. A block that is not there is empty when it is open.

        The torn tail of an open block is cut off, durably; any other damage is a
        :class:`RecoverFailed` with :class:`~pymq.errors.CorruptBlock`, and nothing is changed.
        What cannot be read now is one with another error, and asked for again; it is fatal if
        something could not be synced, or somebody has to do something about the files.
        """
        ...

    def read(
        self, block: BlockId, offset: int, end: int, max_bytes: int, *, verify: bool = False
    ) -> bytes:
        """Return whole batches, from the one that holds *offset* to the last one before *end*.

        As many as fit *max_bytes*; the first even if it is larger. Empty when *offset* is at the
        block's end. The headers are checked, the bodies are not: that is the reader's part. With
        *verify* they are, and what is returned ends before the first one that is damaged.

        Raises:
            CorruptBlock: a header on the way is damaged; with *verify*, or the first body, and
                ``details`` also hold ``end``, the offset behind the batch.
            StoreError: the block cannot be read.
        """
        ...

    def find_time(self, block: BlockId, end: int, timestamp_ms: int) -> int | None:
        """Return the first offset before *end* whose record's time is at or after *timestamp_ms*.

        Exact to the record; None when all are older.

        Raises:
            CorruptBlock, StoreError: as for :meth:`read` with *verify*.
            CorruptBatch: a batch on the way is what its producer sent, and cannot be decoded.
        """
        ...

    def compact(self, job: Compact) -> Compacted:
        """Rewrite the sealed blocks of *job*; a block appears either as before or rewritten."""
        ...

    def blocks(self) -> list[BlockId]:
        """List the blocks that are there, in order.

        One that was created, and one that has only a state, are there as well.
        """
        ...

    def unsealed(self) -> list[BlockId]:
        """List those of :meth:`blocks` that are not sealed, as far as this store knows; cheap.

        A block that was recovered as open after it was sealed is one of them again.
        """
        ...

    def close(self) -> None:
        """Make everything durable and let go of it; closing twice is allowed."""
        ...
