"""Work on many blocks at once needs one operation for each block, not one for each of its files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pymq.core.ready import CreateBlock, RemoveBlock, SealBlock
from pymq.core.types import BlockId
from pymq.store.file.file_store import FileStore
from pymq.store.file.os_files import OsFiles

TOPIC = "0123456789abcdef0123456789abcdef"


class Counting(OsFiles):
    """Files that count their operations."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def list(self, path: str) -> list[str]:
        self.calls["list"] += 1
        return super().list(path)

    def sync_dir(self, path: str) -> None:
        self.calls["sync_dir"] += 1
        super().sync_dir(path)


def filled(path: Path, files: Counting, blocks: int) -> FileStore:
    store = FileStore(str(path), files=files)
    for number in range(blocks):
        block = BlockId(TOPIC, 0, number)
        assert not store.write([CreateBlock(block, 0, "t", "0"), SealBlock(block)])
    files.calls.clear()
    return store


def test_retention_of_many_blocks_lists_and_syncs_their_folder_once(tmp_path: Path) -> None:
    """Retention lists and syncs a folder once for all blocks; once for each took 16 s for 5,000."""
    files = Counting()
    store = filled(tmp_path, files, 50)
    assert not store.write([RemoveBlock(BlockId(TOPIC, 0, number)) for number in range(49)])
    assert files.calls == {"list": 1, "sync_dir": 1}
    assert store.blocks() == [BlockId(TOPIC, 0, 49)]
    assert not store.write([RemoveBlock(BlockId(TOPIC, 0, 49))])
    assert store.blocks() == []
    assert list((tmp_path / "blocks").iterdir()) == []
    store.close()


def test_a_block_that_cannot_be_removed_fails_with_its_partition_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Counting()
    store = filled(tmp_path, files, 3)
    other = BlockId(TOPIC, 1, 0)
    assert not store.write([CreateBlock(other, 0, "t", "1"), SealBlock(other)])
    unlink = OsFiles.unlink

    def broken(self: OsFiles, path: str) -> None:
        if path.endswith("/0/00000001.block"):
            raise PermissionError(13, "no")
        unlink(self, path)

    monkeypatch.setattr(OsFiles, "unlink", broken)
    ids = [BlockId(TOPIC, 0, number) for number in range(3)]
    failed = store.write([RemoveBlock(id) for id in (*ids, other)])
    assert [failure.block for failure in failed] == ids
    monkeypatch.undo()
    assert store.blocks() == ids[1:]
    store.close()
