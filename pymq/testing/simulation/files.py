"""The operating system of a simulated process: its disk, the costs of operations, and failures."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random

from pymq.core.batch.columns import Buffer
from pymq.testing.simulation.disk import SimDisk, sync_each
from pymq.testing.simulation.process import Process

# Costs in microseconds. The cost of a sync varies: one in 64 takes ten times as long.
OP_US = 10
SYNC_US = 150
BYTES_PER_US = 1_000


class ProcessFiles:
    """A process's view of its disk; each operation is a boundary at which the process may die."""

    def __init__(self, disk: SimDisk, process: Process, dice: Random) -> None:
        self.disk = disk
        self.process = process
        self.slow = 1  # factor for all costs
        self.room: int | None = None  # bytes by which files may still grow; None: no limit
        self.failing: dict[str, int] = {}  # by operation: how many of the next calls fail
        self._dice = dice

    # --- changing operations ----------------------------------------------------------------------

    def _do(self, what: str, path: str, cost: int = OP_US) -> None:
        self.process.boundary(what)
        self.process.lag += cost * self.slow
        if self.failing.get(what, 0) > 0:
            self.failing[what] -= 1
            raise OSError(errno.EIO, "Input/output error", path)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write; a crash in the middle leaves any part of it."""
        data = b"".join(buffers)
        growth = position + len(data) - self.disk.size(handle)
        self._do("write", str(handle), OP_US + len(data) // BYTES_PER_US)
        if self.room is not None and growth > 0:
            if growth > self.room:
                fits = len(data) - growth + self.room
                if fits > 0:
                    self.disk.pwritev(handle, [data[:fits]], position)
                    self.room = 0
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room -= growth
        return self.disk.pwritev(handle, [data], position)

    def sync(self, handle: int) -> None:
        """Sync, or fail; after a failure the content of the disk is unknown."""
        bits = self._dice.getrandbits(16)
        cost = SYNC_US + (bits >> 8) // 2
        try:
            self._do("sync", str(handle), cost * 10 if bits & 63 == 0 else cost)
        except OSError:
            self.disk.lose(handle)
            raise
        self.disk.sync(handle)

    def sync_all(self, handles: Sequence[int]) -> list[OSError | None]:
        """Sync several files, one after the other."""
        return sync_each(self.sync, handles)

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        self._do("sync_dir", path, SYNC_US)
        self.disk.sync_dir(path)

    def create(self, path: str) -> int:
        """Create a file."""
        self._do("create", path)
        self._take_descriptor(path)
        if self.room is not None and self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return self.disk.create(path)

    def truncate(self, handle: int, size: int) -> None:
        """Truncate a file."""
        self._do("truncate", str(handle))
        if self.room is not None:
            self.room += max(0, self.disk.size(handle) - size)
        self.disk.truncate(handle, size)

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        self._do("rename", old)
        self.disk.rename(old, new)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self._do("unlink", path)
        self.disk.unlink(path)

    def mkdir(self, path: str) -> None:
        """Make a folder."""
        self._do("mkdir", path)
        self.disk.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Remove a folder."""
        self._do("rmdir", path)
        self.disk.rmdir(path)

    # --- reading operations -----------------------------------------------------------------------

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """Read."""
        self.process.lag += self.slow
        if self.failing.get("read", 0) > 0:
            self.failing["read"] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return self.disk.pread(handle, size, position)

    def _take_descriptor(self, path: str) -> None:
        if self.failing.get("descriptors", 0) > 0:
            self.failing["descriptors"] -= 1
            raise OSError(errno.EMFILE, "Too many open files", path)

    def open(self, path: str) -> int:
        """Open a file for reading and writing."""
        self._take_descriptor(path)
        return self.disk.open(path)

    def open_readonly(self, path: str) -> int:
        """Open a file for reading."""
        self._take_descriptor(path)
        return self.disk.open_readonly(path)

    def close(self, handle: int) -> None:
        """Close a file."""
        self.disk.close(handle)

    def size(self, handle: int) -> int:
        """Return the length of a file."""
        return self.disk.size(handle)

    def forget(self, handle: int, position: int) -> None:
        """Read from the disk again, not from the cache."""
        self.disk.forget(handle, position)

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        self._take_descriptor(path)
        return self.disk.list(path)

    def lock(self, path: str) -> int:
        """Take a lock file."""
        return self.disk.lock(path)

    def release(self) -> None:
        """Do nothing: there are no threads to stop."""
