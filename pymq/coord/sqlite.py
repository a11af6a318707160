"""A coordinator backend in one SQLite file: durable, embedded, used by one process at a time.

The whole tree is in memory, as in :mod:`pymq.coord.memory`. The backend reads the file once, when
it is opened. Each commit is one transaction with one fsync, before the tree adopts the commit and
answers. Sessions end with the process, so ephemeral nodes are never written.

The file is locked exclusively (so SQLite needs no shared-memory file). SQLite has no checksums, so
it would not notice a changed byte or a lost row, and a wrong end offset would lose records. So each
row has a checksum, and one row holds the number of nodes and the sum of their checksums.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakValueDictionary

from pymq.coord.memory import MemoryCoordinator, MemoryTree
from pymq.coord.tree import CommitPlan
from pymq.core.metadata.coordination import CoordRequest, Entry
from pymq.errors import (
    Closed,
    CorruptMetadata,
    ForkedError,
    StoreError,
    StoreFull,
    StoreLocked,
)

__all__ = ["SqliteCoordinator", "SqliteTree", "read_entries"]

SCHEMA_VERSION = 1

_MASK = 0xFFFF_FFFF

_SCHEMA = (
    "CREATE TABLE schema (version INTEGER NOT NULL, opens INTEGER NOT NULL,"
    " nodes INTEGER NOT NULL, total INTEGER NOT NULL)",
    "CREATE TABLE nodes (path TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL,"
    " crc INTEGER NOT NULL) WITHOUT ROWID",
    f"INSERT INTO schema VALUES ({SCHEMA_VERSION}, 0, 0, 0)",
)


class SqliteTree(MemoryTree):
    """The tree in the file at *path*, shared by the :class:`SqliteCoordinator` of this process.

    Opening creates a missing file, but not a missing folder. Opening raises :class:`StoreLocked`
    while another process or another ``SqliteTree`` has the file open, :class:`CorruptMetadata` if
    the file is damaged or not of pymq, :class:`StoreFull` or :class:`StoreError` for errors of the
    system.

    If the disk is full, ``submit`` raises :class:`StoreFull`; the commit has then changed nothing
    and can be retried. After any other failure the content of the disk is unknown, so every later
    request raises :class:`StoreError` until the file is opened again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._file = _File(os.path.abspath(os.fspath(path)))
        try:
            entries = self._file.open()
            try:
                self._tree.restore(entries)
            except CorruptMetadata as error:
                raise CorruptMetadata(f"{self.path} is damaged: {error}") from None
        except BaseException:
            self._file.close()
            raise
        # The count of openings makes session names unique over restarts, so that logs identify a
        # node's owner.
        self._prefix = f"session-{self._file.opens}."

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._file.path

    def close(self) -> None:
        """End all sessions and close the file. Closing twice is allowed.

        In a forked child this method does nothing, because the child's copy of the tree may be half
        changed.
        """
        if self._file.is_inherited:
            return
        with self._lock:
            for client in list(self._clients.values()):
                client.close()
            self._file.close()

    def _join(self, client: MemoryCoordinator, session: str | None) -> str:
        self._file.check_process()
        return super()._join(client, session)

    def _end(self, session: str) -> None:
        if not self._file.is_inherited:
            super()._end(session)

    def _carry_out(self, client: MemoryCoordinator, request: CoordRequest) -> None:
        self._file.check()
        super()._carry_out(client, request)

    def _keep(self, plan: CommitPlan) -> None:
        kept = [entry for entry in plan.changes.values() if entry and entry.owner is None]
        before = map(self._tree.get, plan.changes)
        gone = [entry for entry in before if entry and entry.owner is None]
        if gone or kept:  # otherwise only ephemeral nodes have changed, which needs no fsync
            self._file.replace(gone, kept)


class SqliteCoordinator(MemoryCoordinator):
    """One session on a :class:`SqliteTree`. ``submit`` returns when a commit is on the disk."""

    _own: SqliteTree | None = None

    def __init__(self, tree: SqliteTree, *, session: str | None = None) -> None:
        super().__init__(tree, session=session)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, session: str | None = None) -> SqliteCoordinator:
        """Open a session with its own tree, which it closes at its end. Errors are those of
        SqliteTree.
        """
        tree = SqliteTree(path)
        coordinator = cls(tree, session=session)
        coordinator._own = tree
        return coordinator

    def close(self) -> None:
        """End the session; a session from :meth:`open` also closes the file."""
        super().close()
        if self._own is not None:
            self._own.close()


def read_entries(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """Return the entries of the file at *path*, which must not be open; does not change the file.

    After a crash SQLite recovers a file before reading, which would change the file. So this
    function opens a copy.

    Raises:
        CorruptMetadata: the file is damaged or not of pymq.
        StoreError: the file cannot be read.
    """
    import shutil  # imported on demand: opening a queue does not need these modules
    import tempfile

    source = os.fspath(path)
    with tempfile.TemporaryDirectory(prefix="pymq-") as folder:
        copy = os.path.join(folder, os.path.basename(source))
        try:
            shutil.copyfile(source, copy)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(source + "-wal", copy + "-wal")
        except OSError as error:
            raise StoreError(f"{source} cannot be read: {error.strerror}", file=source) from error
        try:
            tree = SqliteTree(copy)
        except StoreError as error:
            error.message = error.message.replace(copy, source)
            error.details["file"] = source
            raise
        try:
            return tree.entries()
        finally:
            tree.close()


def _checksum(entry: Entry) -> int:
    return zlib.crc32(entry.data, zlib.crc32(f"{entry.version} {entry.path}".encode()))


class _File:
    """The SQLite file: reads it once, writes transactions, translates errors."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.opens = 0  # number of openings, including this one
        self._nodes = 0
        self._total = 0  # sum of all checksums, modulo 2**32
        self._failure: StoreError | None = None
        self._pid = os.getpid()
        self._db: sqlite3.Connection | None = None

    def open(self) -> list[Entry]:
        """Lock and read the file, or create it; return all nodes, ordered by path."""
        self._make()
        with self._translated():
            # Do not wait for the lock, because its holder keeps it until the end of the process.
            self._db = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False
            )
            _open_files[id(self)] = self
            return self._open(self._db)

    def _make(self) -> None:
        """Create an empty private file; SQLite gives its journal the same mode.

        An existing file is checked without opening it, because closing it again would release the
        lock of another connection of this process (POSIX locks belong to the process).
        """
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640))
        except FileExistsError:
            if not stat.S_ISREG(os.lstat(self.path).st_mode):
                what = f"{self.path} is not a regular file"
                raise StoreError(what, file=self.path) from None
        except OSError as error:
            cause = error.strerror or str(error)
            raise StoreError(f"{self.path} cannot be opened: {cause}", file=self.path) from error

    def _open(self, db: sqlite3.Connection) -> list[Entry]:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        # Check before writing anything, even the journal mode, because the file may belong to
        # another program.
        is_new = self._check_schema(db)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA journal_size_limit=4194304")  # the journal shrinks after a large commit
        db.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA if is_new else ():
            db.execute(statement)
        row = db.execute("SELECT opens + 1, nodes, total FROM schema").fetchone()
        self.opens, self._nodes, self._total = row
        entries = self._read(db)
        # The first write is done only now, after all checks. It also shows, before the first
        # commit, that the file is writable.
        db.execute("UPDATE schema SET opens = ?", (self.opens,))
        db.execute("COMMIT")
        return entries

    def _check_schema(self, db: sqlite3.Connection) -> bool:
        """Return whether the file is new.

        Raises :class:`CorruptMetadata` if the file does not belong to pymq.
        """
        found = dict(db.execute("SELECT name, type FROM sqlite_master"))
        if not found:
            return True
        # Views could return computed rows, and triggers could change written rows.
        is_ours = found.get("schema") == "table" and found.get("nodes") in ("table", None)
        if not is_ours or not {"table", "index"}.issuperset(found.values()):
            raise CorruptMetadata(f"{self.path} is an SQLite file, but not one of pymq")
        versions = [version for (version,) in db.execute("SELECT version FROM schema")]
        if versions != [SCHEMA_VERSION]:
            raise CorruptMetadata(
                f"{self.path} has schema version {versions}; this pymq knows {SCHEMA_VERSION}"
            )
        return False

    def _read(self, db: sqlite3.Connection) -> list[Entry]:
        entries = []
        total = 0
        for path, version, data, crc in db.execute("SELECT * FROM nodes ORDER BY path"):
            entry = Entry(path, data, version)
            if not isinstance(data, bytes) or _checksum(entry) != crc:
                raise CorruptMetadata(f"{self.path} is damaged: node {path!r} has changed")
            entries.append(entry)
            total += crc
        if (len(entries), total & _MASK) != (self._nodes, self._total):
            raise CorruptMetadata(
                f"{self.path} is damaged: {len(entries)} nodes where {self._nodes} were written"
            )
        return entries

    def replace(self, gone: Sequence[Entry], kept: Sequence[Entry]) -> None:
        """Replace *gone* by *kept* in one durable transaction.

        Raises :class:`StoreFull` if nothing was changed, :class:`StoreError` if the outcome is
        unknown.
        """
        assert self._db is not None
        rows = [(entry.path, entry.version, entry.data, _checksum(entry)) for entry in kept]
        nodes = self._nodes + len(kept) - len(gone)
        total = (self._total + sum(row[3] for row in rows) - sum(map(_checksum, gone))) & _MASK
        try:
            with self._translated():
                self._db.execute("BEGIN IMMEDIATE")
                paths = [(entry.path,) for entry in gone]
                self._db.executemany("DELETE FROM nodes WHERE path = ?", paths)
                self._db.executemany("INSERT INTO nodes VALUES (?, ?, ?, ?)", rows)
                self._db.execute("UPDATE schema SET nodes = ?, total = ?", (nodes, total))
                self._db.execute("COMMIT")
        except StoreFull:
            self._roll_back()
            raise
        except StoreError as error:
            # After a failed fsync the commit may be on the disk or not; only a new read shows
            # which.
            self._failure = error
            raise
        self._nodes, self._total = nodes, total

    def _roll_back(self) -> None:
        assert self._db is not None
        try:
            with self._translated():
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
        except StoreError as error:
            self._failure = error
            raise

    @property
    def is_inherited(self) -> bool:
        """Whether this is a child of the process that opened the file."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raise in a child of the process that opened the file."""
        if self.is_inherited:
            raise ForkedError(f"{self.path} was opened by process {self._pid}; open it again here")

    def check(self) -> None:
        """Raise if the file cannot be used: in a forked child, when closed, or after a failure."""
        self.check_process()
        if self._failure is not None:
            raise StoreError(f"{self.path} failed before and must be opened again: {self._failure}")
        if self._db is None:
            raise Closed(f"{self.path} was closed")

    def close(self) -> None:
        """Close the file; in a forked child do nothing."""
        if self._db is None or self.is_inherited:
            return
        self._db.close()
        self._db = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> StoreError:
        # The low byte is the kind of the error, the other bytes its place. Errors that Python
        # detects, such as text that is not UTF-8, have no code; such an error means that a row is
        # damaged.
        name = getattr(error, "sqlite_errorname", "no code")
        match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF:
            case sqlite3.SQLITE_NOTADB:
                return CorruptMetadata(f"{self.path} is not an SQLite file ({error})")
            # the file's tables are not those of pymq
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_ERROR:
                return CorruptMetadata(f"{self.path} is damaged: {error} ({name})")
            case sqlite3.SQLITE_FULL:
                return StoreFull(f"no space left to write {self.path} ({error})")
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreLocked(f"{self.path} is open elsewhere; one process has it at a time")
            case _:
                return StoreError(f"{self.path}: {error} ({name})")


_open_files: WeakValueDictionary[int, _File] = WeakValueDictionary()


def _abandon() -> None:
    """Keep a forked child from ever closing the connections that it inherited.

    At the child's exit SQLite would consider the child the owner of the lock, and delete the
    journal that the parent is still writing. So each connection gets an extra reference, which
    keeps it open.
    """
    for file in list(_open_files.values()):
        if file._db is not None:
            import ctypes  # on demand: it is slow to load, and forks are rare

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(file._db))


os.register_at_fork(after_in_child=_abandon)
