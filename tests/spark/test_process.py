"""What a Python process of Spark keeps: its look at a folder, and what it need not look through."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

import pyarrow as pa

import pymq
from pymq.embedded import METADATA
from pymq.spark import process
from pymq.spark.folder import FolderLog, is_settled, metadata_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_only_a_process_of_sparks_daemon_stops_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    process.settle()
    assert gc.get_freeze_count() == 0
    main = ModuleType("__main__")
    main.__spec__ = find_spec(process.DAEMON)
    assert main.__spec__ is not None
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(process, "_caches", {})
    try:
        process.settle()
        count = gc.get_freeze_count()
        assert count > 10_000
        kept = [[] for _ in range(1000)]  # type: ignore[var-annotated] # they stay empty
        process.settle()
        assert gc.get_freeze_count() <= count
        assert len(kept) == 1000
    finally:
        gc.unfreeze()


@pytest.mark.spark
def test_tasks_run_in_processes_of_that_daemon(spark: SparkSession) -> None:
    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pymq.spark.process import is_daemons

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"there": [is_daemons()]})

    (found,) = spark.range(1).mapInArrow(ask, "there boolean").collect()
    assert found.there


def test_a_folder_is_looked_at_again_when_it_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    with pymq.open(str(folder)) as mq:
        mq.create_topic("old")
    log, path = FolderLog(str(folder)), str(folder / METADATA)
    log.look()
    assert log.topics() == ["old"]
    long_ago = time.time_ns() - 10 * 60 * 1_000_000_000
    for name in (path, path + "-wal"):
        if os.path.exists(name):
            os.utime(name, ns=(long_ago, long_ago))
    log.look()
    first = log._tree()
    log.look()
    assert log._tree() is first  # Nothing has changed for a long time.
    with pymq.open(str(folder)) as mq:
        mq.create_topic("new")
        log.look()
        assert log.topics() == ["new", "old"]
        # What has just changed may change again without a difference in its times.
        assert not is_settled(metadata_state(path), time.time_ns())
        mq.delete_topic("old")
        log.look()
        assert log.topics() == ["new"]
