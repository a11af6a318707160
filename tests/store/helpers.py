"""Blocks for tests, and a file system with planned failures."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from pymq.core.batch.columns import Buffer
from pymq.core.batch.record import EncodedBatch
from pymq.core.ready import Append, CreateBlock, Recovered, RecoverFailed
from pymq.core.types import BlockId
from pymq.store.file.file_store import FileStore
from pymq.store.file.os_files import OsFiles

BLOCK = BlockId("ab" * 16, 3, 7)


def batch(
    offset: int, count: int = 3, *, epoch: int = 1, size: int = 20, durable: int | None = None
) -> EncodedBatch:
    """Return *count* records with keys and times.

    All records before the batch are durable unless given otherwise.
    """
    numbers = range(offset, offset + count)
    made = EncodedBatch.encode(
        [b"value %d " % number + bytes(size) for number in numbers],
        keys=[b"key %d" % (number % 5) for number in numbers],
        timestamps=[1_000 + number for number in numbers],
        timestamp_ms=1_000 + offset,
    )
    return made.stamp(offset, epoch, offset if durable is None else durable)


def raw(batches: Sequence[EncodedBatch]) -> bytes:
    """Return the bytes of *batches*."""
    return b"".join(bytes(one.head) + bytes(one.body) for one in batches)


def fill(path: Path, count: int, *, block: BlockId = BLOCK, start: int = 0) -> list[EncodedBatch]:
    """Make a store with one block of *count* batches, and close it."""
    batches = [batch(start + 3 * i) for i in range(count)]
    store = FileStore(str(path))
    assert not store.write(
        [CreateBlock(block, start, "orders", "eu"), Append(block, batches, True)]
    )
    store.close()
    return batches


def file_of(path: Path, block: BlockId = BLOCK, suffix: str = ".block") -> Path:
    """Return the path of one of the block's files."""
    folder = path / "blocks" / block.topic_id / str(block.partition)
    return folder / f"{block.number:08d}{suffix}"


def recover(path: Path, *, is_open: bool = True, start: int = 0) -> Recovered | RecoverFailed:
    """Recover the block in a store opened for that alone."""
    store = FileStore(str(path))
    try:
        return store.recover(BLOCK, start, is_open)
    finally:
        store.close()


class FaultyFiles(OsFiles):
    """The real file system, with failures of the operations in ``faults``."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, list[int]] = {}  # errors of the next calls, by method
        self.room: int | None = None  # bytes by which files may still grow
        self.calls: list[str] = []

    def _maybe_fail(self, name: str) -> None:
        self.calls.append(name)
        if self.faults.get(name) and (code := self.faults[name].pop(0)):
            raise OSError(code, errno.errorcode[code])

    def create(self, path: str) -> int:
        self._maybe_fail("create")
        return super().create(path)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        self._maybe_fail("pwritev")
        if self.room is None:
            return super().pwritev(handle, buffers, position)
        data = b"".join(buffers)
        there = max(self.size(handle) - position, 0)  # overwriting takes no space
        part = data[: there + self.room]
        self.room -= max(len(part) - there, 0)
        super().pwritev(handle, [part], position)
        if len(part) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        self._maybe_fail("pread")
        return super().pread(handle, size, position)

    def sync(self, handle: int) -> None:
        self._maybe_fail("sync")
        super().sync(handle)

    def sync_dir(self, path: str) -> None:
        self._maybe_fail("sync_dir")
        super().sync_dir(path)

    def truncate(self, handle: int, size: int) -> None:
        self._maybe_fail("truncate")
        if self.room is not None:
            self.room += max(self.size(handle) - size, 0)
        super().truncate(handle, size)

    def rename(self, old: str, new: str) -> None:
        self._maybe_fail("rename")
        super().rename(old, new)

    def forget(self, handle: int, position: int) -> None:
        self.calls.append("forget")
        super().forget(handle, position)
