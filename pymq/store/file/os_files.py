"""File operations: the stores call the operating system only through :class:`Files`.

The simulator implements these operations with a disk that loses unsynced data, tears writes, flips
bits, fills up or fails to sync. Methods raise plain :class:`OSError`; the store converts such
errors to errors for users with :func:`store_error`.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pymq.core.batch.columns import Buffer
from pymq.descriptors import opened
from pymq.errors import StoreError, StoreFull, StoreLocked

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Syncs per second (fdatasync of 64 files, each after 4 KB, on ext4 on virtio): 5,200 in one thread,
# 6,400 with 2 threads, 8,700 with 4, 11,000 with 8, 11,900 with 16. With 2 files: 4,000 in one
# thread, 5,100 with more.
SYNC_THREADS = 8

_IOV_MAX = 1024  # POSIX guarantees 16; Linux, macOS and the BSDs all allow 1024
_JOIN_MAX = (
    # join many buffers if they are smaller than this on average, because a write takes time for
    # each
    4096
)
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: also syncs the drive's cache
_FULL = (errno.ENOSPC, errno.EDQUOT)
# A file can be read without a check of the access policy, so only owner and group may read files.
FILE_MODE, FOLDER_MODE = 0o640, 0o750
# no file system compresses files by this ratio
_SPARSE_MIN, _SPARSE_RATIO = 1 << 30, 64
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_WRONG_KIND = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EFBIG, errno.ENOTSUP)
_LASTING = (*_DENIED, errno.ENOENT, *_WRONG_KIND)


class Files(Protocol):
    """The file system operations that a store needs. Handles are small integers."""

    def open(self, path: str) -> int:
        """Open an existing file for reading and writing."""
        ...

    def open_readonly(self, path: str) -> int:
        """Open an existing file for reading."""
        ...

    def create(self, path: str) -> int:
        """Create a file, which must not exist, for reading and writing."""
        ...

    def close(self, handle: int) -> None:
        """Close a file; unsynced data may still be lost."""
        ...

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write *buffers* one after the other from *position* on; return the number of bytes.

        After an error, any part of the buffers may be in the file.
        """
        ...

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """Read *size* bytes at *position*; fewer only at the file's end."""
        ...

    def size(self, handle: int) -> int:
        """Return the length of the file in bytes."""
        ...

    def sync(self, handle: int) -> None:
        """Make the file's data and length durable."""
        ...

    def sync_all(self, handles: Sequence[int]) -> list[OSError | None]:
        """Make several files durable, in parallel if that helps; return the error of each."""
        ...

    def truncate(self, handle: int, size: int) -> None:
        """Truncate the file to *size* bytes; this is durable after the next :meth:`sync`."""
        ...

    def forget(self, handle: int, position: int) -> None:
        """Drop the cached pages of the file from *position* on, so that reads go to the disk."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file inside its folder, replacing an existing file of that name."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file."""
        ...

    def mkdir(self, path: str) -> None:
        """Create one folder; do nothing if it exists."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make changes of the names in a folder durable: created, renamed and removed files."""
        ...

    def lock(self, path: str) -> int:
        """Lock the file *path*; closing the handle, or the end of the process, releases the lock.

        Raises:
            StoreLocked: another process or store holds the lock.
        """
        ...

    def release(self) -> None:
        """Release threads and similar resources, but no open files.

        Later calls create these resources again.
        """
        ...


def open_regular(path: str, flags: int) -> int:
    """Open a regular file of a store; refuse links, pipes and sparse files.

    Other users may have written to the folder. Without this check a link could point outside of the
    folder, a read of a pipe would never end, and a huge sparse file would take hours to read.

    Raises:
        OSError: the file cannot be opened, or is not a regular file of a sane size.
    """
    handle = opened(lambda: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE))
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise OSError(errno.ENOTSUP, "it is not a regular file", path)
    stored = found.st_blocks * 512
    if found.st_size > _SPARSE_MIN and stored * _SPARSE_RATIO < found.st_size:
        os.close(handle)
        what = f"it is sparse: {found.st_size} bytes long, with {stored} bytes on the disk"
        raise OSError(errno.EFBIG, what, path)
    return handle


class OsFiles:
    """The real file system.

    Args:
        sync_threads: how many files to sync in parallel; 1: without threads.
    """

    def __init__(self, sync_threads: int = SYNC_THREADS) -> None:
        self._sync_threads = sync_threads
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0  # the process to which the pool's threads belong
        self._making = threading.Lock()  # several stores may share the file system

    def open(self, path: str) -> int:
        """Open an existing file for reading and writing."""
        return open_regular(path, os.O_RDWR)

    def open_readonly(self, path: str) -> int:
        """Open an existing file for reading."""
        return open_regular(path, os.O_RDONLY)

    def create(self, path: str) -> int:
        """Create a file, which must not exist, for reading and writing."""
        return opened(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE))

    def close(self, handle: int) -> None:
        """Close a file; unsynced data may still be lost."""
        if handle in _locks:
            _locks.remove(handle)
            # A child process that is being forked inherits this handle and would keep the lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write *buffers* at *position*, in one system call if the kernel accepts all bytes."""
        if len(buffers) > 8:
            total = sum(map(len, buffers))
            if len(buffers) > _IOV_MAX or total < len(buffers) * _JOIN_MAX:
                buffers = (b"".join(buffers),)
        written = os.pwritev(handle, buffers, position)
        total = sum(map(len, buffers))
        if written < total:
            # The kernel stops early at 2 GiB, on a signal, or when the disk is full; if the disk is
            # full, the next call raises the error.
            rest = memoryview(b"".join(buffers))
            while written < total:
                written += os.pwrite(handle, rest[written:], position + written)
        return written

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """Read *size* bytes at *position*; fewer only at the file's end."""
        return os.pread(handle, size, position)

    def size(self, handle: int) -> int:
        """Return the length of the file in bytes."""
        return os.fstat(handle).st_size

    def sync(self, handle: int) -> None:
        """Make the file's data and length durable."""
        if _FULL_SYNC is not None:
            fcntl.fcntl(handle, _FULL_SYNC)
        else:
            os.fdatasync(handle)

    def sync_all(self, handles: Sequence[int]) -> list[OSError | None]:
        """Make several files durable, in parallel; return the error of each."""
        if len(handles) < 2 or self._sync_threads < 2:
            return [self._try_sync(handle) for handle in handles]
        with self._making:
            pool = self._pool
            if pool is None or self._pid != os.getpid():  # threads do not survive a fork
                # created on demand, since many stores never need it
                from concurrent.futures import ThreadPoolExecutor

                pool = self._pool = ThreadPoolExecutor(self._sync_threads, "pymq-sync")
                self._pid = os.getpid()
        return list(pool.map(self._try_sync, handles))

    def _try_sync(self, handle: int) -> OSError | None:
        try:
            self.sync(handle)
        except OSError as error:
            return error
        return None

    def truncate(self, handle: int, size: int) -> None:
        """Truncate the file to *size* bytes; this is durable after the next :meth:`sync`."""
        os.ftruncate(handle, size)

    def forget(self, handle: int, position: int) -> None:
        """Drop the cached pages of the file from *position* on, if the system supports that."""
        if hasattr(os, "posix_fadvise"):
            # The kernel keeps a page that the range covers only in part, so begin at the page's
            # first byte.
            position -= position % mmap.PAGESIZE
            os.posix_fadvise(handle, position, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, old: str, new: str) -> None:
        """Rename a file inside its folder, replacing an existing file of that name."""
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        """Create one folder; do nothing if it exists."""
        try:
            os.mkdir(path, FOLDER_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                what = "it is a file, not a folder"
                raise NotADirectoryError(errno.ENOTDIR, what, path) from None

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(opened(lambda: os.listdir(path)))

    def sync_dir(self, path: str) -> None:
        """Make changes of the names in a folder durable: created, renamed and removed files."""
        handle = opened(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, path: str) -> int:
        """Lock the file *path* and write this process's id into it."""
        handle = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.pwrite(handle, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            pid = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise StoreLocked(
                f"process {pid} has {os.path.dirname(path)} open; stop it or choose another folder",
                pid=pid,
                file=path,
            ) from None
        except OSError:
            os.close(handle)
            raise
        _locks.add(handle)
        return handle

    def release(self) -> None:
        """End the sync threads; later calls start new ones."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown()


_locks: set[int] = set()  # handles of lock files that this process holds


def _leave_locks() -> None:
    """Release the inherited locks in a forked child.

    A child that inherits the handle shares the lock: the file would stay locked until the last
    child has ended, even if the parent has closed its store or is dead. This function redirects the
    handles to the null device instead of closing them, because the child's copy of the store may
    still close these numbers.
    """
    if _locks:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for handle in _locks:
            os.dup2(nothing, handle, inheritable=False)
        os.close(nothing)
        _locks.clear()


os.register_at_fork(after_in_child=_leave_locks)


def is_lasting(error: OSError) -> bool:
    """Whether a change of the files has caused *error*, so that retries cannot help."""
    return error.errno in _LASTING


def store_error(error: OSError, action: str, path: str) -> StoreError:
    """Return a :class:`StoreError` for *error* that names *path* and the next step."""
    if isinstance(error, StoreError):
        return error
    cause = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFull(
            f"cannot {action} {path}: the disk is full ({cause}); free some space. "
            "Nothing acknowledged is lost",
            file=path,
        )
    advice = ""
    if error.errno in _DENIED:
        advice = "; give this process permission to write to the folder, or choose another folder"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "; raise the limit of open files (ulimit -n) or lower handles_max"
    elif error.errno == errno.EIO:
        advice = "; the disk may be failing, look into the system's log"
    told = StoreError(f"cannot {action} {path}: {cause}{advice}", file=path)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        told.details["passes"] = True  # a retry may succeed when other files are closed
    told.errno = error.errno  # for callers that distinguish passing errors from lasting ones
    return told
