"""A base class for stores that wrap another store and change or observe some calls."""

from __future__ import annotations

from collections.abc import Sequence

from pymq.core.ready import Compact, Compacted, Recovered, RecoverFailed, Write, WriteFailed
from pymq.core.types import BlockId
from pymq.store.base import BlockStore


class WrappedStore:
    """Forwards each call to *store*; the contract is that of :class:`BlockStore`."""

    def __init__(self, store: BlockStore) -> None:
        self.store = store

    def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
        """Carry out *writes* in their order; a write with ``sync`` is durable on return."""
        return self.store.write(writes)

    def recover(self, block: BlockId, start: int, is_open: bool) -> Recovered | RecoverFailed:
        """Recover *block* and return its end."""
        return self.store.recover(block, start, is_open)

    def read(
        self, block: BlockId, offset: int, end: int, max_bytes: int, *, verify: bool = False
    ) -> bytes:
        """Return whole batches, from the one that holds *offset* to the last one before *end*."""
        return self.store.read(block, offset, end, max_bytes, verify=verify)

    def find_time(self, block: BlockId, end: int, timestamp_ms: int) -> int | None:
        """Return the first offset before *end* whose record's time is at or after a time."""
        return self.store.find_time(block, end, timestamp_ms)

    def compact(self, job: Compact) -> Compacted:
        """Compact the sealed blocks of *job*."""
        return self.store.compact(job)

    def blocks(self) -> list[BlockId]:
        """List the blocks of the store, in order."""
        return self.store.blocks()

    def unsealed(self) -> list[BlockId]:
        """List the blocks that are not sealed."""
        return self.store.unsealed()

    def close(self) -> None:
        """Make everything durable and release it."""
        self.store.close()
