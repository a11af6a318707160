"""The peers, each with its best settings (measured)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.model import Job, Measures, Stopwatch

INSERT = "INSERT INTO records (value) VALUES (?)"


def sqlite(folder: Path, synchronous: str) -> sqlite3.Connection:
    """Open a log in sqlite3, WAL.

    With pages of 16 KiB, puts of 100-byte values are as fast as with the default of 4 KiB, and puts
    of 1-KiB values 1.6 times as fast; longer intervals between checkpoints gain nothing.
    """
    db = sqlite3.connect(folder / "log.sqlite", isolation_level=None)
    db.execute("PRAGMA page_size = 16384")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, value BLOB)")
    return db


def sqlite_put(db: sqlite3.Connection, groups: Iterable[Sequence[bytes]]) -> None:
    """Put with one transaction per batch."""
    for group in groups:
        db.execute("BEGIN")
        db.executemany(INSERT, zip(group, strict=False))
        db.execute("COMMIT")


def sqlite_get(db: sqlite3.Connection, after: int = 0, limit: int = -1) -> int:
    """Read everything, or *limit* rows, in chunks of a thousand; return the number of bytes."""
    total = 0
    query = "SELECT value FROM records WHERE id > ? ORDER BY id LIMIT ?"
    cursor = db.execute(query, (after, limit))
    while rows := cursor.fetchmany(1000):
        total += sum([len(row[0]) for row in rows])
    return total


def run_sqlite_put(
    job: Job, groups: Sequence[Sequence[bytes]], size: int, synchronous: str
) -> Measures:
    """Measure puts, from the first to the last commit."""
    count = sum(map(len, groups))
    job.warm(3 * count * size)
    db = sqlite(job.folder, synchronous)
    sqlite_put(db, groups[: max(1, len(groups) // 20)])
    with Stopwatch() as watch:
        sqlite_put(db, groups)
    db.close()
    return {"put": watch.rate(count)}
