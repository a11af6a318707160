"""A store's folder: names, the lock, and crash-safe ways to create, replace and remove files.

::

    path/FORMAT                                   says that this is a store, and its version
    path/LOCK                                     held while the store is open; the holder's pid
    path/states.log                               see pymq.store.file.states
    path/blocks/<topic id>/<partition>/
        00000007.block .ckpt .index .cut          see pymq.store.block.block_file
        00000007.clean                            see pymq.store.file.cleaned
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from pymq.core.batch.columns import Buffer
from pymq.core.types import BlockId, check_topic_id
from pymq.errors import InvalidRequest, StoreError
from pymq.store.file.os_files import Files, store_error

FORMAT = b"pymq block store\nversion 1\n"
BLOCK, CKPT, INDEX, CUT, CLEAN, TMP = ".block", ".ckpt", ".index", ".cut", ".clean", ".tmp"

LOAD_MAX = 1 << 28  # bytes; a checkpoint or an index is far smaller
_BLOCK_NAME = re.compile(r"(\d{8,})\.block")


class Folder:
    """The folder of one store; the errors of every method name the file."""

    def __init__(self, path: str, files: Files) -> None:
        self.path = os.path.abspath(path)  # the process may change its working directory
        self.files = files
        self._root = os.path.join(self.path, "blocks")
        self._durable: set[str] = set()  # folders whose own names are known to be durable
        self._lock: int | None = None

    # --- the whole folder -------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the folder; create it if it is missing.

        Raises:
            StoreLocked: another process has the folder open.
            StoreError: the folder is not a store of a known version, or cannot be written.
        """
        with explained("open", self.path):
            self._make(self.path)
            found = set(self.files.list(self.path)) - {"LOCK"}
        marker = os.path.join(self.path, "FORMAT")
        if found - {"FORMAT" + TMP} and "FORMAT" not in found:
            raise StoreError(
                f"{self.path} holds other files ({', '.join(sorted(found)[:3])}) and is no pymq "
                "store; choose an empty or a new folder",
                file=self.path,
            )
        with explained("lock", self.path):
            self._lock = self.files.lock(os.path.join(self.path, "LOCK"))
        try:
            if "FORMAT" in found:
                check_format(self.load(marker) or b"", marker)
            else:
                self._replace(marker, FORMAT)
            with explained("open", self._root):
                self._make(self._root)  # this also syncs the folder, and so all other names in it
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self.files.close(self._lock)
            self._lock = None

    def _make(self, path: str) -> None:
        """Create a folder and its parents, durably."""
        if path in self._durable:
            return
        above = os.path.dirname(os.path.abspath(path))
        try:
            self.files.mkdir(path)
        except FileNotFoundError:
            self._make(above)
            self.files.mkdir(path)
        if len(path) > len(self.path) and above not in self._durable:
            # Sync each level inside the store, and the levels above the store that were created
            # here.
            self._make(above)
        # Sync the folder even if it exists, because the process that created it may have died
        # before its sync.
        with contextlib.suppress(PermissionError):  # folders above the store's may refuse this
            self.files.sync_dir(above)
        self._durable.add(path)

    def blocks(self) -> dict[BlockId, bool]:
        """List the blocks that have a file; the value says whether the block has an index."""
        found: dict[BlockId, bool] = {}
        with explained("list", self._root):
            for topic_id in self.files.list(self._root):
                topic = os.path.join(self._root, topic_id)
                for partition in self._names(topic):
                    if not partition.isdecimal():
                        continue
                    names = self._names(f"{topic}/{partition}")
                    indexes = {name.removesuffix(INDEX) for name in names if name.endswith(INDEX)}
                    for match in filter(None, map(_BLOCK_NAME.fullmatch, names)):
                        block = BlockId(topic_id, int(partition), int(match[1]))
                        found[block] = match[1] in indexes
        return found

    def _names(self, path: str) -> list[str]:
        """List a folder; if the path is a file, the list is empty."""
        try:
            return self.files.list(path)
        except NotADirectoryError:
            return []

    # --- one block's files ----------------------------------------------------------------------

    def of(self, block: BlockId) -> str:
        """Return the folder of the block's partition.

        Raises:
            StoreError: the topic's id could point to a path outside of the store.
        """
        try:
            check_topic_id(block.topic_id)
        except InvalidRequest as error:
            raise StoreError(f"{self.path}: {error.message}", file=self.path) from None
        return os.path.join(self._root, block.topic_id, str(block.partition))

    def file(self, block: BlockId, suffix: str = BLOCK) -> str:
        """Return the path of one of the block's files."""
        return os.path.join(self.of(block), f"{block.number:08d}{suffix}")

    def suffixes(self, block: BlockId) -> list[str]:
        """Return the suffixes of the block's files, sorted."""
        prefix = f"{block.number:08d}"
        with explained("list", self.of(block)):
            try:
                names = self.files.list(self.of(block))
            except FileNotFoundError:
                return []
        return [name[len(prefix) :] for name in names if name.startswith(prefix + ".")]

    def numbers(self, block: BlockId, suffix: str) -> list[int]:
        """Return the numbers of the partition's blocks that have a file with a suffix, sorted."""
        with explained("list", self.of(block)):
            names = self._names(self.of(block))
        stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def create(self, block: BlockId, buffers: Sequence[Buffer], *, suffix: str = BLOCK) -> int:
        """Create a file with the content *buffers*, durably, and return its handle.

        The file gets its name only when its whole content is on disk, and replaces an existing
        file.
        """
        path = self.file(block, suffix)
        with explained("create", path):
            self._make(self.of(block))
            return self._create(path, buffers)

    def replace(self, block: BlockId, suffix: str, data: bytes) -> None:
        """Replace a small file by *data*, durably and atomically."""
        with explained("create", self.file(block, suffix)):
            self._make(self.of(block))
        self._replace(self.file(block, suffix), data)

    def _replace(self, path: str, data: bytes) -> None:
        with explained("create", path):
            self.files.close(self._create(path, [data]))

    def put(self, path: str, data: bytes) -> int:
        """Create or replace a file with the content *data*, durably, and return its handle."""
        with explained("create", path):
            return self._create(path, [data])

    def settle(self, block: BlockId) -> None:
        """Make the names of the block's files durable; a killed process may not have done so."""
        self._make(self.of(block))
        self.files.sync_dir(self.of(block))

    def _create(self, path: str, buffers: Sequence[Buffer]) -> int:
        draft = FileDraft(self.files, path)
        try:
            draft.append(buffers)
            draft.sync()
            return draft.take_place()
        finally:
            draft.close()

    def keep(self, block: BlockId, suffix: str, pieces: Iterable[bytes]) -> None:
        """Create a file of *pieces*, durably; all pieces together may be larger than memory."""
        path = self.file(block, suffix)
        with explained("create", path):
            draft = FileDraft(self.files, path)
            try:
                for piece in pieces:
                    draft.append([piece])
                draft.sync()
                self.files.close(draft.take_place())
            finally:
                draft.close()

    def draft(self, block: BlockId) -> FileDraft:
        """Begin a file that will replace the block's file."""
        with explained("create", self.file(block) + TMP):
            return FileDraft(self.files, self.file(block))

    def remove(self, block: BlockId, *suffixes: str) -> None:
        """Remove the existing files of a block among these, in this order and durably."""
        with explained("remove", self.file(block)):
            gone = False
            for suffix in suffixes:
                with contextlib.suppress(FileNotFoundError):
                    self.files.unlink(self.file(block, suffix))
                    gone = True
            if gone:
                with syncing(self.of(block)):
                    self.files.sync_dir(self.of(block))

    def remove_blocks(self, blocks: Sequence[BlockId]) -> None:
        """Remove all files of blocks of one partition durably, and the partition's folder if empty.

        The folder is listed and synced once for all blocks.
        """
        folder = self.of(blocks[0])
        with explained("list", folder):
            try:
                names = self.files.list(folder)
            except FileNotFoundError:
                return
        suffixes: dict[str, list[str]] = {f"{block.number:08d}": [] for block in blocks}
        for name in names:
            stem, dot, suffix = name.partition(".")
            if stem in suffixes:
                suffixes[stem].append(dot + suffix)
        found = False
        for block, there in zip(blocks, suffixes.values(), strict=True):
            # Remove the block file last: if a crash left only the other files, the block file would
            # seem to be lost.
            others = [s for s in there if s.endswith(TMP) or s == CLEAN or s.startswith(CUT)]
            for suffix in (*(s for s in (INDEX, CKPT, BLOCK) if s in there), *others):
                found = True
                with (
                    explained("remove", self.file(block)),
                    contextlib.suppress(FileNotFoundError),
                ):
                    self.files.unlink(self.file(block, suffix))
        if found:
            with explained("remove", folder), syncing(folder):
                self.files.sync_dir(folder)
            self.prune(blocks[0])

    def prune(self, block: BlockId) -> None:
        """Remove the folders of the block's partition and topic if they are empty."""
        with contextlib.suppress(OSError):  # usually the folders are not empty
            for path in (self.of(block), os.path.dirname(self.of(block))):
                self.files.rmdir(path)
                self._durable.discard(path)
                self.files.sync_dir(os.path.dirname(path))

    def load(self, path: str) -> bytes | None:
        """Read a small file; return None if it is missing."""
        with explained("read", path):
            try:
                handle = self.files.open_readonly(path)
            except FileNotFoundError:
                return None
            try:
                size = self.files.size(handle)
                if size > LOAD_MAX:
                    raise StoreError(f"{path} is too large: {size} bytes", file=path)
                return self.files.pread(handle, size, 0)
            finally:
                self.files.close(handle)


class FileDraft:
    """A file that has a temporary name until it is complete and durable."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path, self._tmp = files, path, path + TMP
        # whether the handle must still be closed and the temporary file removed
        self._is_mine = True
        self._size = 0
        try:
            self._handle = files.create(self._tmp)
        except FileExistsError:  # a crash has left this file
            files.unlink(self._tmp)
            self._handle = files.create(self._tmp)

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append *buffers* to the file."""
        self._size += self._files.pwritev(self._handle, buffers, self._size)

    def sync(self) -> None:
        """Sync the file."""
        with syncing(self._path):
            self._files.sync(self._handle)

    def take_place(self) -> int:
        """Give the file its name, durably, and return its handle."""
        self._files.rename(self._tmp, self._path)
        with syncing(self._path):
            self._files.sync_dir(os.path.dirname(self._path))
        self._is_mine = False
        return self._handle

    def close(self) -> None:
        """Close and remove the file, unless it already has its final name."""
        if self._is_mine:
            self._is_mine = False
            self._files.close(self._handle)
            with contextlib.suppress(OSError):
                self._files.unlink(self._tmp)


def check_format(data: bytes, path: str) -> None:
    """Check the content of a FORMAT file.

    Raises:
        StoreError: the content is that of another version, or not that of a FORMAT file.
    """
    if data == FORMAT:
        return
    lines = data.split(b"\n")
    if lines[0] + b"\n" == FORMAT[: len(lines[0]) + 1]:
        version = lines[1][:32].decode("ascii", "replace") if len(lines) > 1 else "no version"
        raise StoreError(
            f"{path} says {version!r}; this pymq knows version 1: open the folder with the pymq "
            "that wrote it, or a newer one",
            file=path,
        )
    raise StoreError(f"{path} is not that of a pymq store; choose another folder", file=path)


@contextlib.contextmanager
def syncing(path: str) -> Iterator[None]:
    """Mark errors raised inside the block as failed syncs; see :func:`is_sync`."""
    try:
        yield
    except OSError as error:
        failed = store_error(error, "sync", path)
        failed.details["is_sync"] = True
        raise failed from error


def is_sync(error: StoreError) -> bool:
    """Whether *error* is a failed sync, after which the content of the disk is unknown."""
    return bool(error.details.get("is_sync"))


@contextlib.contextmanager
def explained(action: str, path: str) -> Iterator[None]:
    """Turn errors of the operating system into a :class:`StoreError` that names *path*."""
    try:
        yield
    except OSError as error:
        raise store_error(error, action, path) from error
