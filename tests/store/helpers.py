"""Blocks to play with, a file system that fails when told to, and a disk that loses its power."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from pathlib import Path

from pymq.core.columns import Buffer
from pymq.core.ready import Append, CreateBlock, Recovered, RecoverFailed
from pymq.core.record import RecordBatch
from pymq.core.types import BlockId
from pymq.store.file import FileStore
from pymq.store.files import OsFiles

BLOCK = BlockId("ab" * 16, 3, 7)


def batch(
    offset: int, count: int = 3, *, epoch: int = 1, size: int = 20, durable: int | None = None
) -> RecordBatch:
    """*count* records, with keys and times; all before them is durable unless said otherwise."""
    numbers = range(offset, offset + count)
    made = RecordBatch.encode(
        [b"value %d " % number + bytes(size) for number in numbers],
        keys=[b"key %d" % (number % 5) for number in numbers],
        timestamps=[1_000 + number for number in numbers],
        timestamp_ms=1_000 + offset,
    )
    return made.stamp(offset, epoch, offset if durable is None else durable)


def raw(batches: Sequence[RecordBatch]) -> bytes:
    """The bytes of *batches*."""
    return b"".join(bytes(one.head) + bytes(one.body) for one in batches)


def fill(path: Path, count: int, *, block: BlockId = BLOCK, start: int = 0) -> list[RecordBatch]:
    """Make a store with one block of *count* batches, and close it."""
    batches = [batch(start + 3 * i) for i in range(count)]
    store = FileStore(str(path))
    assert not store.write(
        [CreateBlock(block, start, "orders", "eu"), Append(block, batches, True)]
    )
    store.close()
    return batches


def file_of(path: Path, block: BlockId = BLOCK, suffix: str = ".block") -> Path:
    """The path of one of the block's files."""
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
    """The real file system, failing at the operations in ``faults`` as often as they say."""

    def __init__(self) -> None:
        self.faults: dict[str, list[int]] = {}  # name of a method -> errors of its next calls
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
        there = max(self.size(handle) - position, 0)  # overwriting takes no room
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


class PowerCut(BaseException):
    """The machine stops here; no code of the store may catch it."""


class _Node:
    """A file: what is on disk, and what the programs see."""

    def __init__(self) -> None:
        self.durable = b""
        self.data = b""
        self.shortest = 0  # up to here what is on disk is what the programs see


class SimDisk:
    """A file system in memory that forgets what was not synced, as POSIX allows.

    At a crash each name that was changed since its folder was synced is as before or as after, on
    its own; of the bytes written since a file was synced any part is there. With *holes* later
    sectors may have made it where earlier ones have not.
    """

    def __init__(self, dice: random.Random, *, holes: bool = False) -> None:
        self.dice = dice
        self.holes = holes
        self.cut_in = -1  # operations until the power fails; -1: it does not
        self.names: dict[str, dict[str, _Node | None]] = {
            "/": {}
        }  # folder -> name -> file or folder
        self.durable: dict[str, dict[str, _Node | None]] = {"/": {}}
        self.handles: dict[int, _Node] = {}
        self.last = 2

    # --- the power ------------------------------------------------------------------------------

    def _step(self) -> None:
        if self.cut_in == 0:
            raise PowerCut
        self.cut_in -= 1

    def crash(self) -> None:
        """Lose what may be lost, and come back."""
        self.cut_in = -1
        self.handles.clear()
        for folder, names in self.names.items():
            durable = self.durable[folder]
            for name in sorted({*names, *durable}):
                if names.get(name, 0) is not durable.get(name, 0) and self.dice.random() < 0.5:
                    self._set(names, name, durable)
                self._set(durable, name, names)
        nodes = {id(node): node for names in self.names.values() for node in names.values() if node}
        for node in nodes.values():
            node.data = node.durable = self._survived(node)
            node.shortest = len(node.data)
        for folder in list(self.names):  # folders that lost their name
            above, _, name = folder.rpartition("/")
            if folder != "/" and name not in self.names.get(above or "/", {}):
                del self.names[folder], self.durable[folder]

    @staticmethod
    def _set(names: dict[str, _Node | None], name: str, source: dict[str, _Node | None]) -> None:
        if name in source:
            names[name] = source[name]
        else:
            names.pop(name, None)

    def _survived(self, node: _Node) -> bytes:
        old, new = node.durable, node.data
        if old == new:
            return new
        kept = node.shortest
        if len(new) <= kept and len(new) < len(old):  # only cut: that is one step of the journal
            return self.dice.choice([old, new])
        ends = (min(len(old), len(new)), max(len(old), len(new)))
        size = self.dice.choice([*ends, self.dice.randint(*ends)])
        found = bytearray(new[:kept].ljust(size, b"\0"))[:size]
        torn = self.dice.randint(kept, size) if size > kept else kept
        for at in range(kept, size):
            is_there = at < torn
            if self.holes:
                is_there = random.Random(f"{torn} {at // 512}").random() < 0.7
            source = new if is_there else old
            found[at] = source[at] if at < len(source) else 0
        return bytes(found)

    # --- the operations -------------------------------------------------------------------------

    def _place(self, path: str) -> tuple[dict[str, _Node | None], str]:
        folder, _, name = path.rpartition("/")
        if (folder or "/") not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return self.names[folder or "/"], name

    def _handle(self, node: _Node) -> int:
        self.last += 1
        self.handles[self.last] = node
        return self.last

    def open(self, path: str) -> int:
        names, name = self._place(path)
        if (node := names.get(name)) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._handle(node)

    open_readonly = open

    def create(self, path: str) -> int:
        self._step()
        names, name = self._place(path)
        if name in names:
            raise FileExistsError(errno.EEXIST, "exists", path)
        node = names[name] = _Node()
        return self._handle(node)

    def close(self, handle: int) -> None:
        self.handles.pop(handle, None)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        node = self.handles[handle]
        assert position <= len(node.data), "a hole"
        if self.cut_in == 0:
            self._put(node, data[: self.dice.randint(0, len(data))], position)
        self._step()
        self._put(node, data, position)
        return len(data)

    @staticmethod
    def _put(node: _Node, data: bytes, position: int) -> None:
        node.data = node.data[:position] + data + node.data[position + len(data) :]
        node.shortest = min(node.shortest, position)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        return self.handles[handle].data[position : position + size]

    def size(self, handle: int) -> int:
        return len(self.handles[handle].data)

    def sync(self, handle: int) -> None:
        self._step()
        node = self.handles[handle]
        node.durable, node.shortest = node.data, len(node.data)

    def truncate(self, handle: int, size: int) -> None:
        self._step()
        node = self.handles[handle]
        node.data = node.data[:size]
        node.shortest = min(node.shortest, size)

    def forget(self, handle: int, position: int) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self._step()
        (names, name), (others, other) = self._place(old), self._place(new)
        if name not in names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        others[other] = names.pop(name)

    def unlink(self, path: str) -> None:
        self._step()
        names, name = self._place(path)
        if names.get(name) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del names[name]

    def mkdir(self, path: str) -> None:
        self._step()
        names, name = self._place(path)
        if name not in names:
            names[name] = None
            self.names[path], self.durable[path] = {}, {}

    def rmdir(self, path: str) -> None:
        self._step()
        if self.names[path]:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        names, name = self._place(path)
        del names[name], self.names[path], self.durable[path]

    def list(self, path: str) -> list[str]:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return sorted(self.names[path])

    def sync_dir(self, path: str) -> None:
        self._step()
        self.durable[path] = dict(self.names[path])

    def lock(self, path: str) -> int:
        names, name = self._place(path)
        return self._handle(names.setdefault(name, None) or _Node())
