"""Reads tables with public readers of their formats, and logs for a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pymq
from pymq.core.batch.record import Record
from pymq.table.format.parquet import NAME, CommitFile, superseded

FORMATS = ("parquet", "delta", "iceberg")


def read(location: str, format: str) -> pa.Table:
    """Return all rows of a table, by the format's own reader."""
    if format == "parquet":
        return pq.read_table(location)
    if format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(location).to_pyarrow_table()
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(newest_metadata(location)).scan().to_arrow()


def newest_metadata(location: str) -> str:
    """Return the current metadata file of an Iceberg table, as its catalog names it."""
    import sqlite3

    base = sqlite3.connect(f"file:{location}/catalog.db?mode=ro", uri=True)
    try:
        (found,) = base.execute("select metadata_location from iceberg_tables").fetchone()
    finally:
        base.close()
    return str(found)


def exists(location: str, format: str) -> bool:
    """Whether there is a table with rows."""
    folder = Path(location)
    if format == "parquet":
        return any(folder.glob("*.parquet"))
    if format == "delta":
        return any(folder.glob("_delta_log/*.json"))
    if not (folder / "catalog.db").exists():
        return False
    import sqlite3

    base = sqlite3.connect(f"file:{location}/catalog.db?mode=ro", uri=True)
    try:
        return bool(base.execute("select count(*) from iceberg_tables").fetchone()[0])
    except sqlite3.OperationalError:
        return False  # The process was killed before it created the catalog's tables.
    finally:
        base.close()


def left_by_a_crash(location: str) -> pa.Table:
    """Return the rows of a Parquet table after a crash, without the rows of replaced files."""
    found = [NAME.fullmatch(path.name) for path in Path(location).glob("*.parquet")]
    files = [CommitFile(int(match[1]), int(match[2])) for match in found if match]
    kept, _ = superseded(files)
    return pa.concat_tables([pq.read_table(f"{location}/{file.name}") for file in kept])


def rows(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    """Return some columns in the order of partitions and offsets."""
    ordered = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    return list(zip(*(ordered.column(name).to_pylist() for name in columns), strict=True))


def log(mq: pymq.Client, topic: str) -> list[Record]:
    """Return all records of a topic in the order of partitions and offsets."""
    with mq.consumer(topic, mode="psb", offset="begin") as consumer:
        return sorted(consumer.until_end(), key=lambda each: (each.partition, each.offset))
