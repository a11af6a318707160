"""A disk in memory with the faults of real disks: lost and torn writes, no space, errors.

The disk replaces :class:`pymq.store.file.os_files.OsFiles` under a
:class:`pymq.store.file.file_store.FileStore`::

    disk = SimDisk()
    store = FileStore("/data", files=disk)
    ...
    disk.crash(random.Random(seed))  # the power fails; unsynced data may be lost
    store = FileStore("/data", files=disk)

Random numbers are arguments, so results depend only on them and on the earlier operations. To try
each place where the power may fail, run once and look at :attr:`SimDisk.operations`; then run again
with :attr:`SimDisk.cut_in` set to 0, 1, 2 and so on, or let :meth:`SimDisk.fork` copy the disk
before each operation.

A crash leaves a state that POSIX allows: see :mod:`pymq.testing.simulation.simulated_file` for
writes, and :mod:`pymq.testing.simulation.simulated_folders` for names.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence

from pymq.core.batch.columns import Buffer
from pymq.core.values import define
from pymq.errors import StoreLocked
from pymq.testing.simulation.simulated_file import SimFile
from pymq.testing.simulation.simulated_folders import Folders, Survival

__all__ = ["PowerCut", "SimDisk"]


class PowerCut(BaseException):
    """The power fails here; no code of a program under test may catch this."""


@define
class _Fault:
    operation: str
    path: str
    code: int
    times: int
    rng: random.Random | None


class SimDisk:
    """A file system in memory, to be used as the ``files`` of a store.

    Args:
        holes: whether later sectors may reach the disk without earlier ones.
        room: by how many bytes files may grow until the disk is full; None: without limit.
    """

    def __init__(self, *, holes: bool = True, room: int | None = None) -> None:
        self.holes = holes
        self.room = room
        self.cut_in = -1  # changing operations until the power fails; -1: the power does not fail
        self.operations = 0  # changing operations so far
        self._folders = Folders()
        self._handles: dict[int, SimFile] = {}
        self._locks: dict[int, str] = {}
        self._last = 2
        self._faults: list[_Fault] = []

    # --- faults of the disk -----------------------------------------------------------------------

    def crash(self, rng: random.Random, keep: str | Survival = "random") -> None:
        """Let the power fail and come back; *rng* decides which unsynced data is lost.

        With *keep* ``"none"`` the crash loses all unsynced data, with ``"all"`` no data; a
        :class:`Survival` decides part by part.
        """
        self.kill()
        survival = _Chance(rng, keep, self.holes) if isinstance(keep, str) else keep
        self._folders.crash(survival)

    def unsynced(self) -> tuple[list[tuple[str, str]], list[SimFile]]:
        """Return everything that a crash may lose, in order: names (folder, name), and files with
        writes.
        """
        return self._folders.unsynced()

    def kill(self) -> None:
        """End the processes that use the disk, as ``kill -9`` does: only their files are closed.

        Written data is kept, but is not durable yet. This also cancels faults, see :meth:`heal`.
        """
        self._handles.clear()
        self._locks.clear()
        self.heal()

    def heal(self) -> None:
        """Cancel all power cuts, faults and lack of space that have not happened yet."""
        self.cut_in, self.room = -1, None
        self._faults.clear()

    def wipe(self) -> None:
        """Replace the disk by an empty one; this ends the processes that use the disk."""
        self.kill()
        self._folders = Folders()

    def fork(self) -> SimDisk:
        """Return an independent copy of this disk, without open files.

        Data that is not durable on this disk is not durable on the copy either. A fork is cheap,
        because both disks share the data until one of them changes it. An unused fork serves as a
        snapshot.
        """
        made = SimDisk(holes=self.holes, room=self.room)
        made._folders = self._folders.fork()
        return made

    def flip(
        self, rng: random.Random, path: str | None = None, at: int | None = None
    ) -> tuple[str, int] | None:
        """Flip one bit in the file *path*, or in any file; return the file and the byte.

        The bit is in the byte *at*, or in any byte. The result is None if there is no data.
        """
        files = self._folders
        found = [name for name in self.paths() if path in (None, name) and files.file(name).data]
        if not found:
            return None
        name = rng.choice(found)
        file = files.file(name)
        position = rng.randrange(len(file.data)) if at is None else at
        file.flip(position, 1 << rng.randrange(8))
        return name, position

    def fail(
        self,
        operation: str,
        code: int = errno.EIO,
        *,
        path: str = "",
        times: int = 1,
        rng: random.Random | None = None,
    ) -> None:
        """Let the next *times* calls of *operation* on files with *path* in their name fail.

        *operation* is the name of a method of :class:`pymq.store.file.os_files.Files`. After a
        failed ``sync`` the kernel considers the written data clean: programs can read the data
        until :meth:`forget`, and a second sync does not write the data, only the file's length.
        *rng* decides which of the data is on the disk; without *rng* the disk has the old data.
        """
        self._faults.append(_Fault(operation, path, code, times, rng))

    def _check(self, operation: str, path: str) -> None:
        """Raise the error of a fault that is due."""
        for fault in self._faults:
            if fault.operation == operation and fault.path in path:
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                if operation == "sync":
                    self._lose(path, fault.rng)
                raise OSError(fault.code, os.strerror(fault.code), path)

    def lose(self, handle: int) -> None:
        """Let a sync fail: programs can still read the data, but no later sync writes it.

        Linux marks the pages clean, and a later sync reports success (Rebello et al., ATC 2020).
        """
        self._lose(self._handles[handle].path, None)

    def _lose(self, path: str, rng: random.Random | None) -> None:
        for file in self._handles.values():
            if file.path == path:
                file.lose(rng, holes=self.holes)

    def _step(self, operation: str, path: str) -> None:
        """Count a changing operation, and let the power or the operation fail if a failure
        is due.
        """
        if self.cut_in >= 0:
            if self.cut_in == 0:
                raise PowerCut
            self.cut_in -= 1
        self.operations += 1
        if self._faults:
            self._check(operation, path)

    # --- inspection -------------------------------------------------------------------------------

    def paths(self) -> list[str]:
        """The paths of all files, in order."""
        return sorted(self._folders.paths())

    def data(self, path: str) -> bytes:
        """The content of a file, as programs see it.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return bytes(self._folders.file(path).data)

    def put(self, path: str, data: bytes) -> None:
        """Set the content of a file in an existing folder, durably; creates a missing file."""
        self._folders.put(path, data)

    # --- the operations of pymq.store.file.os_files.Files -----------------------------------------

    def open(self, path: str) -> int:
        """Open an existing file for reading and writing."""
        file = self._folders.file(path)
        if self._faults:
            self._check("open", path)
        return self._opened(file)

    def _opened(self, file: SimFile) -> int:
        self._last += 1
        self._handles[self._last] = file
        return self._last

    def open_readonly(self, path: str) -> int:
        """Open an existing file for reading."""
        return self.open(path)

    def create(self, path: str) -> int:
        """Create a file, which must not exist, for reading and writing."""
        self._step("create", path)
        return self._opened(self._folders.add(path))

    def close(self, handle: int) -> None:
        """Close a file; unsynced writes may still be lost."""
        self._handles.pop(handle, None)
        self._locks.pop(handle, None)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write *buffers* one after the other from *position* on; return the number of bytes."""
        file = self._handles[handle]
        new = b"".join(buffers)
        if self.cut_in == 0 or self._faults or self.room is not None:
            return self._write_badly(file, new, position)
        self._step("pwritev", file.path)
        return file.write(new, position)

    def _write_badly(self, file: SimFile, new: bytes, position: int) -> int:
        if self.cut_in == 0:
            file.write(new, position)  # any part of the write may survive
        self._step("pwritev", file.path)
        if self.room is not None:
            there = max(len(file.data) - position, 0)  # overwriting needs no space
            part = new[: there + self.room]
            self.room -= max(len(part) - there, 0)
            if len(part) < len(new):
                if part:
                    file.write(part, position)
                raise OSError(errno.ENOSPC, "No space left on device", file.path)
        return file.write(new, position)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """Read *size* bytes at *position*; fewer only at the file's end."""
        file = self._handles[handle]
        if self._faults:
            self._check("pread", file.path)
        return bytes(file.data[position : position + size])

    def size(self, handle: int) -> int:
        """Return the length of the file in bytes."""
        return len(self._handles[handle].data)

    def sync(self, handle: int) -> None:
        """Make the file's data and length durable."""
        file = self._handles[handle]
        self._step("sync", file.path)
        file.sync()

    def sync_all(self, handles: Sequence[int]) -> list[OSError | None]:
        """Make several files durable, one after the other; return each one's error."""
        return sync_each(self.sync, handles)

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to *size* bytes; durable after the next :meth:`sync`."""
        file = self._handles[handle]
        self._step("truncate", file.path)
        if size < len(file.data):
            if self.room is not None:
                self.room += len(file.data) - size
            file.cut(size)
        elif size > len(file.data):
            file.write(bytes(size - len(file.data)), len(file.data))

    def forget(self, handle: int, position: int) -> None:
        """Drop the file's cache from *position* on, so that the disk is read again."""
        self._handles[handle].forget(position)

    def rename(self, old: str, new: str) -> None:
        """Rename a file inside its folder, replacing an existing file of the new name."""
        self._step("rename", old)
        self._give_back(self._folders.rename(old, new))

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self._step("unlink", path)
        self._give_back(self._folders.unlink(path))

    def _give_back(self, file: SimFile | None) -> None:
        if self.room is not None and file is not None:
            self.room += len(file.data)

    def mkdir(self, path: str) -> None:
        """Create one folder; do nothing if it exists."""
        self._step("mkdir", path)
        self._folders.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        self._step("rmdir", path)
        self._folders.rmdir(path)

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        if self._faults:
            self._check("list", path)
        return self._folders.list(path)

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable: created, renamed and removed ones."""
        self._step("sync_dir", path)
        self._folders.sync(path)

    def lock(self, path: str) -> int:
        """Take the lock file *path*; closing the handle, or :meth:`kill`, releases it."""
        if path in self._locks.values():
            raise StoreLocked(
                f"another store has {os.path.dirname(path)} open; close it or use another folder",
                file=path,
            )
        handle = self.open(path) if self._folders.has(path) else self.create(path)
        self._locks[handle] = path
        return handle

    def release(self) -> None:
        """Do nothing: there are no threads to release."""


@define
class _Chance:
    """Keeps unsynced writes as the random numbers decide, or none, or all."""

    rng: random.Random
    keep: str
    holes: bool

    def keeps(self, folder: str, name: str) -> bool:
        return self.keep == "all" or (self.keep != "none" and self.rng.random() >= 0.5)

    def content(self, file: SimFile) -> bytes:
        if self.keep == "all":
            return file.written()
        return file.synced() if self.keep == "none" else file.survived(self.rng, holes=self.holes)


def sync_each(sync: Callable[[int], None], handles: Sequence[int]) -> list[OSError | None]:
    """Sync files one after the other; return each one's error."""
    found: list[OSError | None] = []
    for handle in handles:
        try:
            sync(handle)
        except OSError as error:
            found.append(error)
        else:
            found.append(None)
    return found
