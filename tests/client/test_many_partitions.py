"""Topics with many partitions in the folder of an embedded queue."""

from __future__ import annotations

from pathlib import Path

import pytest

import pymq
from pymq.store.file.os_files import OsFiles

COUNT = 1_000


def test_many_partitions_are_made_and_deleted_without_a_sync_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creating and deleting thousands of partitions in one turn is fast, because there is no sync
    for each.
    """
    syncs = 0

    def counted(call: str) -> None:
        real = getattr(OsFiles, call)

        def count(*args: object) -> object:
            nonlocal syncs
            syncs += 1
            return real(*args)

        monkeypatch.setattr(OsFiles, call, count)

    counted("sync")
    counted("sync_dir")
    with pymq.open(tmp_path / "queue") as mq:
        mq.create_topic("few")
        before = syncs
        mq.create_topic("many", partitions=COUNT)
        assert len(mq.describe_topic("many").partitions) == COUNT
        mq.delete_topic("many")
        assert syncs - before < COUNT // 10
        assert mq.topics() == ["few"]
    assert len(list((tmp_path / "queue").glob("**/blocks/*"))) <= 1
