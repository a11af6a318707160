"""The folders of the simulated disk: the names that programs see, and the names after a crash.

A name that was created, changed or removed since the last sync of its folder has its old or its new
state after a crash, independently of other names. Syncing the file itself does not help.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Protocol

from pymq.testing.simulation.simulated_file import SimFile

__all__ = ["Folders", "Survival"]

_Names = dict[str, SimFile | None]  # None: a folder


class Survival(Protocol):
    """Decides which unsynced changes survive; see :mod:`pymq.testing.simulation.remains`."""

    def keeps(self, folder: str, name: str) -> bool:
        """Whether a created, changed or removed name survives as it is now."""
        ...

    def content(self, file: SimFile) -> bytes:
        """Return the surviving content of a file with unsynced writes."""
        ...


class Folders:
    """All folders, and the files in them."""

    def __init__(self) -> None:
        self._names: dict[str, _Names] = {"/": {}}  # names in each folder, as programs see them
        self._durable: dict[str, _Names] = {"/": {}}  # names in each folder at its last sync

    # --- crashes ----------------------------------------------------------------------------------

    def crash(self, survival: Survival) -> None:
        """Lose unsynced changes, as *survival* decides."""
        names: dict[str, _Names] = {}
        files: dict[int, SimFile] = {}
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
            if file.is_unsynced:
                file.settle(survival.content(file))
        self._names = names
        self._durable = {folder: dict(left) for folder, left in names.items()}

    def unsynced(self) -> tuple[list[tuple[str, str]], list[SimFile]]:
        """Return everything that a crash may lose, in order: names (folder, name), and files with
        writes.
        """
        names: list[tuple[str, str]] = []
        files: dict[int, SimFile] = {}
        for folder in sorted({*self._names, *self._durable}):
            now, then = self._names.get(folder, {}), self._durable.get(folder, {})
            for name in sorted({*now, *then}):
                if name not in now or name not in then or now[name] is not then[name]:
                    names.append((folder, name))
                for file in (now.get(name), then.get(name)):
                    if file is not None and file.is_unsynced:
                        files[id(file)] = file
        return names, list(files.values())

    def fork(self) -> Folders:
        """Return a copy; both share the data until one of them changes it."""
        made = Folders()
        files: dict[int, SimFile] = {}

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

    # --- queries ----------------------------------------------------------------------------------

    def paths(self) -> Iterator[str]:
        """Return the paths of all files."""
        for folder, names in self._names.items():
            for name, file in names.items():
                if file is not None:
                    yield os.path.join(folder, name)

    def _place(self, path: str) -> tuple[_Names, str]:
        folder, _, name = path.rpartition("/")
        names = self._names.get(folder or "/")
        if names is None:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return names, name

    def file(self, path: str) -> SimFile:
        """Return the file at *path*, or raise the operating system's error."""
        names, name = self._place(path)
        if (file := names.get(name)) is None:
            if name in names:
                raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return file

    def has(self, path: str) -> bool:
        """Whether the path and its folder exist."""
        names, name = self._place(path)
        return name in names

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        if (names := self._names.get(path)) is None:
            above, name = self._place(path)
            if name in above:
                raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder", path)
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return sorted(names)

    # --- changes ----------------------------------------------------------------------------------

    def add(self, path: str) -> SimFile:
        """Create a file, which must not exist."""
        names, name = self._place(path)
        if name in names:
            raise FileExistsError(errno.EEXIST, "it exists", path)
        names[name] = file = SimFile(path, bytearray())
        return file

    def put(self, path: str, data: bytes) -> None:
        """Replace the content of a file durably; create the file if it does not exist."""
        names, name = self._place(path)
        if (file := names.get(name)) is None:
            file = names[name] = SimFile(path, bytearray())
            self._durable[path.rpartition("/")[0] or "/"][name] = file
        file.settle(data)

    def rename(self, old: str, new: str) -> SimFile | None:
        """Rename a file; return the file that had the new name."""
        (names, name), (others, other) = self._place(old), self._place(new)
        file = self.file(old)
        replaced = others.get(other)
        del names[name]
        others[other] = file
        file.path = new
        return replaced

    def unlink(self, path: str) -> SimFile:
        """Remove a file, and return it."""
        file = self.file(path)
        names, name = self._place(path)
        del names[name]
        return file

    def mkdir(self, path: str) -> None:
        """Create one folder unless it exists."""
        if path in self._names:
            return
        names, name = self._place(path)
        if name in names:
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder", path)
        names[name] = None
        self._names[path], self._durable[path] = {}, {}

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        names, name = self._place(path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        if self._names[path]:
            raise OSError(errno.ENOTEMPTY, "it is not empty", path)
        del names[name], self._names[path]

    def sync(self, path: str) -> None:
        """Make the names in a folder durable."""
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        self._durable[path] = dict(self._names[path])
