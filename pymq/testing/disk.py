"""A disk in memory that does what disks do: it forgets, tears, fills up, fails and rots.

It stands in for :class:`pymq.store.files.OsFiles` under a :class:`pymq.store.file.FileStore`::

    disk = SimDisk()
    store = FileStore("/data", files=disk)
    ...
    disk.crash(random.Random(seed))  # the power fails; what was not synced may be gone
    store = FileStore("/data", files=disk)

Nothing here is left to chance: all dice are arguments, and what they decide depends on them and on
the operations before alone. To try every place where the power may fail, run once and look at
:attr:`SimDisk.operations`; then run again with :attr:`SimDisk.cut_in` at 0, 1, 2 and so on, or let
:meth:`SimDisk.fork` copy the disk before each operation.

What a crash leaves is what POSIX allows, and no more than that:

* what was synced is there;
* of what was written to a file since its last sync any part is there, as sectors of 512 bytes, each
  on its own, and the length may be ahead of the data: then there are zeros;
* a name that was made, changed or removed since its folder was synced is as before or as now, each
  on its own. That the file itself was synced does not help.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from typing import Protocol

from pymq.core.columns import Buffer
from pymq.core.values import define
from pymq.errors import StoreLocked

__all__ = ["PowerCut", "SimDisk"]

SECTOR = 512
PAGE = 4096

_FAR = 1 << 62


class PowerCut(BaseException):
    """The machine stops here; no code of a program under test may catch it."""


class _File:
    """What programs see of a file, and what is needed to find out what the disk may have of it."""

    __slots__ = ("data", "dirty", "disk", "is_shared", "kept", "path", "undo")

    def __init__(self, path: str, data: bytearray) -> None:
        self.path = path  # its last name, to find it
        self.data = data  # as programs see it
        self.is_shared = False  # with the file of another disk: to be copied before it is changed
        self.kept = _FAR  # what is before this was not touched since the last sync
        # How to get back to what was last synced, step by step from the end: (position, what was
        # there, how long the file was). An append is undone by any step before it.
        self.undo: list[tuple[int, bytes, int]] = []
        # After a failed sync, what is really on the disk; the pages in memory count as clean. Of
        # those changed since then (from, to) is kept, or (length, -1) for a cut.
        self.disk: bytes | None = None
        self.dirty: list[tuple[int, int]] = []

    def touch(self, position: int, old: bytes, end: int) -> bytearray:
        """Get ready to change the file at *position*, where *old* is now; returns its content."""
        if self.is_shared:
            self.data, self.is_shared = bytearray(self.data), False
        if old or not self.undo:
            self.undo.append((position, old, len(self.data)))
        self.kept = min(self.kept, position)
        if self.disk is not None:
            self.dirty.append((position, end))
        return self.data

    def synced(self) -> bytes:
        """What was there at the last sync that succeeded."""
        if self.disk is not None:
            return self.disk
        data = bytearray(self.data)
        for position, old, length in reversed(self.undo):
            data[position : position + len(old)] = old
            del data[length:]
        return bytes(data)

    def sync(self) -> None:
        """Let the disk have all changes since the last sync, failed or not."""
        if self.disk is not None:
            disk = self.written()
            self.disk = None if disk == self.data else disk
            self.dirty.clear()
        self.undo.clear()
        self.kept = _FAR

    def written(self) -> bytes:
        """What would be on the disk if it were synced now."""
        if self.disk is None:
            return bytes(self.data)
        disk = bytearray(self.disk)
        for position, end in self.dirty:
            if end < 0:
                del disk[position:]
                continue
            page, stop = position - position % PAGE, min(end + -end % PAGE, len(self.data))
            disk.extend(bytes(max(page - len(disk), 0)))
            disk[page:stop] = self.data[page:stop]
        # The length is no page: that it has changed is not forgotten.
        del disk[len(self.data) :]
        return bytes(disk.ljust(len(self.data), b"\0"))

    def settle(self, data: bytes) -> None:
        """All of the file is on the disk, and it is *data*."""
        self.data, self.is_shared, self.kept = bytearray(data), False, _FAR
        self.undo.clear()
        self.disk = None
        self.dirty.clear()

    def copy(self) -> _File:
        self.is_shared = True
        made = _File(self.path, self.data)
        made.is_shared, made.kept, made.disk = True, self.kept, self.disk
        made.undo, made.dirty = self.undo.copy(), self.dirty.copy()
        return made


@define
class _Fault:
    operation: str
    path: str
    code: int
    times: int
    rng: random.Random | None


_Names = dict[str, "_File | None"]  # None: a folder


class Survival(Protocol):
    """What becomes of all that was not synced; see :mod:`pymq.testing.remains`."""

    def keeps(self, folder: str, name: str) -> bool:
        """Whether a name that was made, changed or removed is as it is now, and not as before."""
        ...

    def content(self, file: _File) -> bytes:
        """What is there of a file that was written."""
        ...


class SimDisk:
    """A file system in memory, to be used as the ``files`` of a store.

    Args:
        holes: whether later sectors may make it to the disk when earlier ones do not.
        room: by how many bytes files may grow until the disk is full; None: for ever.
    """

    def __init__(self, *, holes: bool = True, room: int | None = None) -> None:
        self.holes = holes
        self.room = room
        self.cut_in = -1  # changing operations until the power fails; -1: it does not
        self.operations = 0  # changing operations so far
        self._names: dict[str, _Names] = {"/": {}}  # of each folder, as programs see them
        self._durable: dict[str, _Names] = {"/": {}}  # as they were when the folder was synced
        self._handles: dict[int, _File] = {}
        self._locks: dict[int, str] = {}
        self._last = 2
        self._faults: list[_Fault] = []

    # --- what happens to disks ------------------------------------------------------------------

    def crash(self, rng: random.Random, keep: str | Survival = "random") -> None:
        """Let the power fail: lose what may be lost, as *rng* decides, and come back.

        With *keep* ``"none"`` all of it is lost, with ``"all"`` nothing is; or it is decided there.
        """
        self.kill()
        survival = _Chance(self, rng, keep) if isinstance(keep, str) else keep
        names: dict[str, _Names] = {}
        files: dict[int, _File] = {}
        folders = ["/"]
        while folders:
            folder = folders.pop()
            now, then = self._names.get(folder, {}), self._durable.get(folder, {})
            names[folder] = left = {}
            for name in sorted({*now, *then}):
                source = now
                is_same = name in now and name in then and now[name] is then[name]
                if not is_same and not survival.keeps(folder, name):
                    source = then
                if name in source:
                    left[name] = file = source[name]
                    if file is None:
                        folders.append(os.path.join(folder, name))
                    else:
                        files[id(file)] = file
        for file in files.values():
            if file.undo or file.disk is not None:
                file.settle(survival.content(file))
        self._names = names
        self._durable = {folder: dict(left) for folder, left in names.items()}

    def _survived(self, file: _File, rng: random.Random) -> bytes:
        """What a crash leaves of a file."""
        old, new, kept = file.synced(), file.written(), file.kept
        if file.disk is not None:
            kept = len(new) if old.startswith(new) else 0
        if len(new) <= kept and len(new) < len(old):  # only cut: that is one step of the journal
            return rng.choice((old, new))
        low, high = sorted((len(old), len(new)))
        size = rng.choice((low, high, rng.randint(low, high)))
        kept = min(kept, low)
        how = rng.random()
        found = bytearray(size)
        found[:kept] = new[:kept]
        at = kept
        if self.holes:
            share = rng.choice((0.0, 0.3, 0.7, 1.0))
            while at < size:
                end = min(at - at % SECTOR + SECTOR, size)
                piece = (new if rng.random() < share else old)[at:end]
                found[at : at + len(piece)] = piece
                at = end
        else:
            torn = rng.choice((kept, size, rng.randint(kept, size)))
            for piece, at in ((new[kept:torn], kept), (old[torn:size], torn)):
                found[at : at + len(piece)] = piece
        return old if how < 0.1 else bytes(found)

    def unsynced(self) -> tuple[list[tuple[str, str]], list[_File]]:
        """What a crash may lose: names (folder, name), and files that were written; in order."""
        names: list[tuple[str, str]] = []
        files: dict[int, _File] = {}
        for folder in sorted({*self._names, *self._durable}):
            now, then = self._names.get(folder, {}), self._durable.get(folder, {})
            for name in sorted({*now, *then}):
                if name not in now or name not in then or now[name] is not then[name]:
                    names.append((folder, name))
                for file in (now.get(name), then.get(name)):
                    if file is not None and (file.undo or file.disk is not None):
                        files[id(file)] = file
        return names, list(files.values())

    def kill(self) -> None:
        """End the processes that use the disk, as ``kill -9`` does: files are closed, no more.

        What was written is there, but still not durable. It heals as well, see :meth:`heal`.
        """
        self._handles.clear()
        self._locks.clear()
        self.heal()

    def heal(self) -> None:
        """Call off the power cut, the faults and the lack of room that are still to come."""
        self.cut_in, self.room = -1, None
        self._faults.clear()

    def wipe(self) -> None:
        """Put an empty disk in its place; the processes that use it are ended."""
        self.kill()
        self._names, self._durable = {"/": {}}, {"/": {}}

    def fork(self) -> SimDisk:
        """Return a disk that is like this one and goes its own way, with nothing open.

        What is not durable here is not durable there. It costs little: data is shared until one
        side changes it. A fork that nobody uses is a snapshot.
        """
        made = SimDisk(holes=self.holes, room=self.room)
        files: dict[int, _File] = {}

        def copied(names: _Names) -> _Names:
            found: _Names = {}
            for name, file in names.items():
                if file is None:
                    found[name] = None
                else:
                    found[name] = files.get(id(file)) or files.setdefault(id(file), file.copy())
            return found

        made._names = {folder: copied(names) for folder, names in self._names.items()}
        made._durable = {folder: copied(names) for folder, names in self._durable.items()}
        return made

    def flip(self, rng: random.Random, path: str | None = None) -> tuple[str, int] | None:
        """Flip one bit, of the file *path* or of any; returns which file and which byte it was.

        None when there is nothing to flip.
        """
        found = [name for name in self.paths() if path in (None, name) and self._file(name).data]
        if not found:
            return None
        name = rng.choice(found)
        file = self._file(name)
        position = rng.randrange(len(file.data))
        data, bit = bytearray(file.data), 1 << rng.randrange(8)
        data[position] ^= bit
        file.data, file.is_shared = data, False
        if file.disk is not None and position < len(file.disk):
            rotten = bytearray(file.disk)
            rotten[position] ^= bit
            file.disk = bytes(rotten)
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

        *operation* is the name of a method of :class:`pymq.store.files.Files`. After a ``sync``
        that fails the kernel holds what was written for clean: it is seen until it is forgotten,
        and a second sync will do nothing about it, except for the length. Of what the disk has
        *rng* decides; without it that is what it had before.
        """
        self._faults.append(_Fault(operation, path, code, times, rng))

    def _check(self, operation: str, path: str) -> None:
        """Fail if that is due."""
        for fault in self._faults:
            if fault.operation == operation and fault.path in path:
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                if operation == "sync":
                    self._lose(path, fault.rng)
                raise OSError(fault.code, os.strerror(fault.code), path)

    def lose(self, handle: int) -> None:
        """A sync has failed: what was written will not be, though it can be read until then.

        Linux marks the pages clean; a later sync says that all is well (Rebello et al., ATC 2020).
        """
        self._lose(self._handles[handle].path, None)

    def _lose(self, path: str, rng: random.Random | None) -> None:
        for file in self._handles.values():
            if file.path == path and (file.undo or file.disk is not None):
                file.disk = self._survived(file, rng) if rng else file.synced()
                file.undo.clear()
                file.dirty.clear()
                file.kept = _FAR

    def _step(self, operation: str, path: str) -> None:
        """Count an operation that changes something."""
        if self.cut_in >= 0:
            if self.cut_in == 0:
                raise PowerCut
            self.cut_in -= 1
        self.operations += 1
        if self._faults:
            self._check(operation, path)

    # --- looking inside -------------------------------------------------------------------------

    def paths(self) -> list[str]:
        """The paths of all files, in order."""
        return sorted(self._paths())

    def _paths(self) -> Iterator[str]:
        for folder, names in self._names.items():
            for name, file in names.items():
                if file is not None:
                    yield os.path.join(folder, name)

    def data(self, path: str) -> bytes:
        """What a file holds, as programs see it.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return bytes(self._file(path).data)

    def put(self, path: str, data: bytes) -> None:
        """Give a file in an existing folder other content, durably; made when it is not there."""
        names, name = self._place(path)
        if (file := names.get(name)) is None:
            file = names[name] = self._durable[path.rpartition("/")[0] or "/"][name] = _File(
                path, bytearray()
            )
        file.settle(data)

    # --- the operations of pymq.store.files.Files -----------------------------------------------

    def _place(self, path: str) -> tuple[_Names, str]:
        folder, _, name = path.rpartition("/")
        names = self._names.get(folder or "/")
        if names is None:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return names, name

    def _file(self, path: str) -> _File:
        names, name = self._place(path)
        if (file := names.get(name)) is None:
            if name in names:
                raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return file

    def open(self, path: str) -> int:
        """Open an existing file for reading and writing."""
        file = self._file(path)
        if self._faults:
            self._check("open", path)
        self._last += 1
        self._handles[self._last] = file
        return self._last

    def open_readonly(self, path: str) -> int:
        """Open an existing file for reading."""
        return self.open(path)

    def create(self, path: str) -> int:
        """Create a file, which must not exist, for reading and writing."""
        self._step("create", path)
        names, name = self._place(path)
        if name in names:
            raise FileExistsError(errno.EEXIST, "it exists", path)
        names[name] = file = _File(path, bytearray())
        self._last += 1
        self._handles[self._last] = file
        return self._last

    def close(self, handle: int) -> None:
        """Let go of a file; what was not synced may still be lost."""
        self._handles.pop(handle, None)
        self._locks.pop(handle, None)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write *buffers* one behind the other from *position* on; return how many bytes."""
        file = self._handles[handle]
        new = b"".join(buffers)
        if self.cut_in == 0 or self._faults or self.room is not None:
            return self._write_badly(file, new, position)
        self._step("pwritev", file.path)
        return self._write(file, new, position)

    @staticmethod
    def _write(file: _File, new: bytes, position: int) -> int:
        size, end = len(file.data), position + len(new)
        if position == size:
            data = file.touch(position, b"", end)
            data += new
        else:
            data = file.touch(position, bytes(file.data[position:end]), end)
            if position > size:
                data.extend(bytes(position - size))
            data[position:end] = new
        return len(new)

    def _write_badly(self, file: _File, new: bytes, position: int) -> int:
        if self.cut_in == 0:
            self._write(file, new, position)  # any part of it may be there afterwards
        self._step("pwritev", file.path)
        if self.room is not None:
            there = max(len(file.data) - position, 0)  # overwriting takes no room
            part = new[: there + self.room]
            self.room -= max(len(part) - there, 0)
            if len(part) < len(new):
                if part:
                    self._write(file, part, position)
                raise OSError(errno.ENOSPC, "No space left on device", file.path)
        return self._write(file, new, position)

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
        found: list[OSError | None] = []
        for handle in handles:
            try:
                self.sync(handle)
            except OSError as error:
                found.append(error)
            else:
                found.append(None)
        return found

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to *size* bytes; durable after the next :meth:`sync`."""
        file = self._handles[handle]
        self._step("truncate", file.path)
        if size < len(file.data):
            data = file.touch(size, bytes(file.data[size:]), -1)
            if self.room is not None:
                self.room += len(data) - size
            del data[size:]
        elif size > len(file.data):
            self._write(file, bytes(size - len(file.data)), len(file.data))

    def forget(self, handle: int, position: int) -> None:
        """Drop what is cached of the file from *position* on, so that the disk is read again."""
        file = self._handles[handle]
        if file.disk is not None and not file.dirty:
            position -= position % PAGE
            length = len(file.data)  # that is no page, and stays
            file.data, file.is_shared = file.data[:position], False
            file.data += file.disk[position:length]
            file.data.extend(bytes(length - len(file.data)))
            if file.data == file.disk:
                file.disk = None

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in the same folder, replacing what had it."""
        self._step("rename", old)
        (names, name), (others, other) = self._place(old), self._place(new)
        file = self._file(old)
        self._give_back(others.get(other))
        del names[name]
        others[other] = file
        file.path = new

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self._step("unlink", path)
        self._give_back(self._file(path))
        names, name = self._place(path)
        del names[name]

    def _give_back(self, file: _File | None) -> None:
        if self.room is not None and file is not None:
            self.room += len(file.data)

    def mkdir(self, path: str) -> None:
        """Make one folder; nothing to do when it is there already."""
        self._step("mkdir", path)
        if path in self._names:
            return
        names, name = self._place(path)
        if name in names:
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder", path)
        names[name] = None
        self._names[path], self._durable[path] = {}, {}

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        self._step("rmdir", path)
        names, name = self._place(path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        if self._names[path]:
            raise OSError(errno.ENOTEMPTY, "it is not empty", path)
        del names[name], self._names[path]

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        if self._faults:
            self._check("list", path)
        if (names := self._names.get(path)) is None:
            above, name = self._place(path)
            if name in above:
                raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder", path)
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return sorted(names)

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable: those made, renamed and removed."""
        self._step("sync_dir", path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        self._durable[path] = dict(self._names[path])

    def lock(self, path: str) -> int:
        """Take the lock file *path*; closing the handle, or :meth:`kill`, gives it back."""
        if path in self._locks.values():
            raise StoreLocked(
                f"another has {os.path.dirname(path)} open; close it or choose another folder",
                file=path,
            )
        names, name = self._place(path)
        handle = self.open(path) if name in names else self.create(path)
        self._locks[handle] = path
        return handle

    def release(self) -> None:
        """There are no threads to let go of."""


@define
class _Chance:
    """Dice decide, or nothing is kept, or all of it."""

    disk: SimDisk
    rng: random.Random
    keep: str

    def keeps(self, folder: str, name: str) -> bool:
        return self.keep == "all" or (self.keep != "none" and self.rng.random() >= 0.5)

    def content(self, file: _File) -> bytes:
        if self.keep == "all":
            return file.written()
        return file.synced() if self.keep == "none" else self.disk._survived(file, self.rng)
