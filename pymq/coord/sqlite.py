"""A coordinator backend in one SQLite file: durable, embedded, of one process at a time.

The whole tree is in memory, as in :mod:`pymq.coord.memory`; the file is read once, when it is
opened, and each commit is one transaction with one fsync before it is adopted and answered.
Sessions end with the process, so ephemeral nodes are never written: after a crash they are simply
not there.

The file is locked exclusively (which also spares SQLite its shared-memory file). SQLite has no
checksums and would not notice a changed byte or a lost row, and a wrong end offset loses records.
So each row carries a checksum, and one row the number of nodes and the sum of their checksums.
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

    The file is made when absent, its folder is not. Opening raises :class:`StoreLocked` while
    another process or another ``SqliteTree`` has the file, :class:`CorruptMetadata` when it is
    damaged or not pymq's, :class:`StoreFull` and :class:`StoreError` as the system says.

    A commit that finds the disk full raises :class:`StoreFull` from ``submit`` and has changed
    nothing; it may be tried again. After any other failure nobody knows what the disk holds, so
    every later request raises :class:`StoreError` until the file is opened again.
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
        # Names are not used again after a restart: a log line says whose node it was.
        self._prefix = f"session-{self._file.opens}."

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._file.path

    def close(self) -> None:
        """End all sessions and let go of the file. Closing twice is allowed.

        In a forked child this does nothing: the tree may be a copy in the middle of a change.
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
        if gone or kept:  # else only ephemeral nodes changed: no fsync
            self._file.replace(gone, kept)


class SqliteCoordinator(MemoryCoordinator):
    """One session on a :class:`SqliteTree`. ``submit`` returns once a commit is on the disk."""

    _own: SqliteTree | None = None

    def __init__(self, tree: SqliteTree, *, session: str | None = None) -> None:
        super().__init__(tree, session=session)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, session: str | None = None) -> SqliteCoordinator:
        """A session on a tree of its own, which is closed with it. Raises as SqliteTree does."""
        tree = SqliteTree(path)
        coordinator = cls(tree, session=session)
        coordinator._own = tree
        return coordinator

    def close(self) -> None:
        """End the session and, if it was made by :meth:`open`, let go of the file."""
        super().close()
        if self._own is not None:
            self._own.close()


def read_entries(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """What is in the file at *path*, which nobody may have open; it is not changed in any way.

    SQLite cannot read a file that a crash has left without tidying up first. So this opens a copy.

    Raises:
        CorruptMetadata: it is damaged or not pymq's.
        StoreError: it cannot be read.
    """
    import shutil  # only now: opening a queue needs neither
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
    """The SQLite file: read once, written transaction by transaction, its errors translated."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.opens = 0  # how often the file was opened, this time included
        self._nodes = 0
        self._total = 0  # of all checksums, modulo 2**32
        self._failure: StoreError | None = None
        self._pid = os.getpid()
        self._db: sqlite3.Connection | None = None

    def open(self) -> list[Entry]:
        """Lock and read the file, making it when absent; all nodes, ordered by path."""
        self._make()
        with self._translated():
            # Nobody waits for a lock: who has the file keeps it until its process ends.
            self._db = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False
            )
            _open_files[id(self)] = self
            return self._open(self._db)

    def _make(self) -> None:
        """Make an empty file that others cannot read; SQLite gives its journal the same mode.

        A file that is there is looked at, and not opened: closing it would let go of the lock that
        another connection of this process has (POSIX locks belong to the process).
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
        # Look before writing anything, even the journal mode: the file may be someone else's.
        is_new = self._check_schema(db)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA journal_size_limit=4194304")  # one large commit does not stay for ever
        db.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA if is_new else ():
            db.execute(statement)
        row = db.execute("SELECT opens + 1, nodes, total FROM schema").fetchone()
        self.opens, self._nodes, self._total = row
        entries = self._read(db)
        # Only now that all is well does the file change. This first write also finds out, before
        # anybody relies on it, whether writing is possible at all.
        db.execute("UPDATE schema SET opens = ?", (self.opens,))
        db.execute("COMMIT")
        return entries

    def _check_schema(self, db: sqlite3.Connection) -> bool:
        """Whether the file is new. Raises :class:`CorruptMetadata` if it is not one of ours."""
        found = dict(db.execute("SELECT name, type FROM sqlite_master"))
        if not found:
            return True
        # A view could compute what it shows, and a trigger change what is written.
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
        """Replace *gone* by *kept* in one durable transaction, or raise and have done nothing."""
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
            # A failed fsync may or may not have kept the commit; only reading it again can tell.
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
        """Raise if the file cannot be used any more: forked, closed, or failed before."""
        self.check_process()
        if self._failure is not None:
            raise StoreError(f"{self.path} failed before and must be opened again: {self._failure}")
        if self._db is None:
            raise Closed(f"{self.path} was closed")

    def close(self) -> None:
        """Let go of the file. A forked child leaves it alone."""
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
        # The low byte is the kind of error, the rest says where it happened. Errors that Python
        # finds, such as text that is not UTF-8, have no code; they mean that a row is damaged.
        name = getattr(error, "sqlite_errorname", "no code")
        match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF:
            case sqlite3.SQLITE_NOTADB:
                return CorruptMetadata(f"{self.path} is not an SQLite file ({error})")
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_ERROR:  # or its tables are not ours
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

    SQLite would take itself for the owner of the lock and, on the child's way out, delete the
    journal that the parent goes on writing to. So each connection gets a reference too many.
    """
    for file in list(_open_files.values()):
        if file._db is not None:
            import ctypes  # only here: it is slow to load, and forks are rare

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(file._db))


os.register_at_fork(after_in_child=_abandon)
