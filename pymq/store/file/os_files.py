"""The seam to the operating system: every file operation of the stores goes through :class:`Files`.

A simulator puts a disk of its own behind it, one that loses what was not synced, tears writes,
flips bits, fills up or fails to sync. What it must know: methods raise plain :class:`OSError`, as
the operating system would; the store makes errors for users of them with :func:`store_error`.
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

# fdatasync of 64 files, each after 4 KB, on ext4 on virtio: 5,200/s one after the other, 6,400 with
# 2 threads, 8,700 with 4, 11,000 with 8, 11,900 with 16; of 2 files 4,000 and 5,100 with any.
SYNC_THREADS = 8

_IOV_MAX = 1024  # POSIX guarantees 16; Linux, macOS and the BSDs all allow 1024
_JOIN_MAX = (
    4096  # many parts smaller than this on average are cheaper joined: a write pays per part
)
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: a sync of the drive, too
_FULL = (errno.ENOSPC, errno.EDQUOT)
# What is in a store may be read past any policy, so only its owner and its group read the files.
FILE_MODE, FOLDER_MODE = 0o640, 0o750
_SPARSE_MIN, _SPARSE_RATIO = 1 << 30, 64  # bytes; file systems that compress do not get there
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_WRONG_KIND = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EFBIG, errno.ENOTSUP)
_LASTING = (*_DENIED, errno.ENOENT, *_WRONG_KIND)


class Files(Protocol):
    """A file system, as far as a store needs one. Handles are small integers."""

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
        """Let go of a file; what was not synced may still be lost."""
        ...

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write *buffers* one behind the other from *position* on; return how many bytes.

        After an error any part of it may be there.
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
        """Make several files durable, side by side if that helps; return each one's error."""
        ...

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to *size* bytes; durable after the next :meth:`sync`."""
        ...

    def forget(self, handle: int, position: int) -> None:
        """Drop what is cached of the file from *position* on, so that the disk is read again."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in the same folder, replacing what had it."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file."""
        ...

    def mkdir(self, path: str) -> None:
        """Make one folder; nothing to do when it is there already."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable: those made, renamed and removed."""
        ...

    def lock(self, path: str) -> int:
        """Take the lock file *path*; closing the handle, or dying, gives it back.

        Raises:
            StoreLocked: someone else has it.
        """
        ...

    def release(self) -> None:
        """Let go of whatever is held beside open files; it is taken again when it is needed."""
        ...


def open_regular(path: str, flags: int) -> int:
    """Open a file that holds what a store wrote, and nothing else that has a name.

    Whoever hands over a folder decides what is in it. A link would lead out of the folder, a pipe
    would never end, and a sparse file is long and has next to nothing in it, so reading it takes
    hours.

    Raises:
        OSError: it cannot be opened, or is not a regular file of a sane size.
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
        sync_threads: how many files to sync side by side; with 1 there are no threads.
    """

    def __init__(self, sync_threads: int = SYNC_THREADS) -> None:
        self._sync_threads = sync_threads
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0  # of the process that the pool's threads are in
        self._making = threading.Lock()  # Several stores may share the file system.

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
        """Let go of a file; what was not synced may still be lost."""
        if handle in _locks:
            _locks.remove(handle)
            # A child in the midst of its fork has it, too: closed here only, it would stay locked.
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write *buffers* at *position*, in one system call if the kernel takes all of it."""
        if len(buffers) > 8:
            total = sum(map(len, buffers))
            if len(buffers) > _IOV_MAX or total < len(buffers) * _JOIN_MAX:
                buffers = (b"".join(buffers),)
        written = os.pwritev(handle, buffers, position)
        total = sum(map(len, buffers))
        if written < total:
            # The kernel stops early at 2 GiB, on a signal, or when the disk fills up; in the last
            # case the next call says so.
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
        """Make several files durable, side by side; return each one's error."""
        if len(handles) < 2 or self._sync_threads < 2:
            return [self._try_sync(handle) for handle in handles]
        with self._making:
            pool = self._pool
            if pool is None or self._pid != os.getpid():  # threads do not survive a fork
                from concurrent.futures import ThreadPoolExecutor  # only now: many never need it

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
        """Cut the file to *size* bytes; durable after the next :meth:`sync`."""
        os.ftruncate(handle, size)

    def forget(self, handle: int, position: int) -> None:
        """Drop what is cached of the file from *position* on, where the system can do that."""
        if hasattr(os, "posix_fadvise"):
            # A page of which only a part is named stays, so begin at the page's first byte.
            position -= position % mmap.PAGESIZE
            os.posix_fadvise(handle, position, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in the same folder, replacing what had it."""
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        """Make one folder; nothing to do when it is there already."""
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
        """Make the names in a folder durable: those made, renamed and removed."""
        handle = opened(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, path: str) -> int:
        """Take the lock file *path* and write this process's id into it."""
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
        """End the threads that sync; new ones begin when they are needed."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown()


_locks: set[int] = set()  # handles of lock files that this process holds


def _leave_locks() -> None:
    """Keep no lock in a forked child.

    Such a lock is everybody's who has the file open by inheritance: it would be there until the
    last child has ended, though the parent has closed its store, or is dead. The numbers stay
    taken, for whoever closes them in the child takes them for his own.
    """
    if _locks:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for handle in _locks:
            os.dup2(nothing, handle, inheritable=False)
        os.close(nothing)
        _locks.clear()


os.register_at_fork(after_in_child=_leave_locks)


def is_lasting(error: OSError) -> bool:
    """Whether it is what somebody has done to the files, and no disk comes by by itself."""
    return error.errno in _LASTING


def store_error(error: OSError, action: str, path: str) -> StoreError:
    """Turn an error of the operating system into one that names *path* and says what to do."""
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
        told.details["passes"] = True  # as soon as others let go of some
    told.errno = error.errno  # for who tells what may pass from what lasts
    return told
