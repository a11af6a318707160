"""Both stores fulfil the contract under any order of operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymq.store.file.file_store import FileStore
from pymq.store.memory import MemoryStore
from pymq.testing import check_store
from tests.seeds import seeds
from tests.store.helpers import BLOCK, file_of, fill, raw


def test_file_store(tmp_path: Path) -> None:
    check_store(lambda: FileStore(str(tmp_path / "store")))


def test_file_store_with_few_handles(tmp_path: Path) -> None:
    check_store(lambda: FileStore(str(tmp_path / "store"), handles_max=1))


def test_stray_files_are_no_blocks(tmp_path: Path) -> None:
    batches = fill(tmp_path, 1)
    for path in (tmp_path / "blocks", file_of(tmp_path).parent, file_of(tmp_path).parent.parent):
        (path / ".DS_Store").write_text("")
        (path / "12").write_text("")
    store = FileStore(str(tmp_path))
    assert store.blocks() == [BLOCK]
    assert store.read(BLOCK, 0, 3, 1) == raw(batches)
    store.close()


def test_memory_store() -> None:
    check_store(MemoryStore, durable=False)


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_file_store_does_what_a_list_does(tmp_path: Path, seed: int) -> None:
    """Random operations, with reopening in between, compared with a list of batches."""
    check_store(lambda: FileStore(str(tmp_path), handles_max=2), seed=seed, steps=800)


@pytest.mark.parametrize("seed", range(1, 5))
def test_memory_store_does_what_a_list_does(seed: int) -> None:
    check_store(MemoryStore, durable=False, seed=seed, steps=800)
