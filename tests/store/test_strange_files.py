"""A folder with files of an attacker that no store has written."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from pymq.coord.sqlite import SqliteTree
from pymq.core.ready import RecoverFailed
from pymq.core.types import BlockId
from pymq.errors import CorruptMetadata, StoreError
from pymq.store.file.file_store import FileStore
from pymq.store.file.folder import Folder
from pymq.store.file.os_files import OsFiles
from pymq.store.verification.verify import verify
from tests.store.helpers import BLOCK, file_of, fill, recover

TIB = 1 << 40


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_sparse(path: Path) -> None:
    os.truncate(path, TIB)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


STRANGE = [replace_by_pipe, make_sparse, replace_by_link]


@pytest.mark.parametrize("change", STRANGE)
@pytest.mark.timeout(30)
def test_a_block_that_is_no_regular_file_is_refused(change: object, tmp_path: Path) -> None:
    """A pipe, which would block forever, or a sparse file of 1 TiB is refused."""
    assert callable(change)
    fill(tmp_path, 3)
    change(file_of(tmp_path))
    found = recover(tmp_path)
    assert isinstance(found, RecoverFailed)
    report = verify(str(tmp_path))
    assert not report.is_ok
    assert any(str(file_of(tmp_path)) == problem.file for problem in report.problems)


@pytest.mark.parametrize("suffix", [".ckpt", ".index", ".clean"])
@pytest.mark.parametrize("change", STRANGE)
@pytest.mark.timeout(30)
def test_what_is_beside_a_block_is_looked_at_with_care(
    change: object, suffix: str, tmp_path: Path
) -> None:
    assert callable(change)
    fill(tmp_path, 3)
    path = file_of(tmp_path, suffix=suffix)
    path.write_bytes(b"x")
    change(path)
    report = verify(str(tmp_path))  # verify() ends, and raises no MemoryError
    assert any(str(path) == problem.file for problem in report.problems)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """If the lock file is a link, the store does not write its process id over the link's
    target.
    """
    fill(tmp_path / "data", 1)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    lock = tmp_path / "data" / "LOCK"
    lock.unlink()
    lock.symlink_to(precious)
    with pytest.raises(StoreError):
        FileStore(str(tmp_path / "data"))
    verify(str(tmp_path / "data"))
    assert precious.read_text() == "precious"


def test_verify_does_not_look_at_blocks_elsewhere(tmp_path: Path) -> None:
    """verify() does not check blocks outside the folder, nor report "clean" for them."""
    fill(tmp_path / "data", 1)
    blocks = tmp_path / "data" / "blocks"
    blocks.rename(tmp_path / "elsewhere")
    blocks.symlink_to(tmp_path / "elsewhere")
    report = verify(str(tmp_path / "data"))
    assert not report.is_ok
    assert "link" in str(report)


@pytest.mark.parametrize("topic_id", ["../../outside", "..", "", "a/b"])
def test_no_block_lies_outside_of_its_store(topic_id: str, tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "data"), OsFiles())
    with pytest.raises(StoreError, match="not the id of a topic"):
        folder.file(BlockId(topic_id, 0, 0))


def test_files_are_not_for_others(tmp_path: Path) -> None:
    """Files are not readable by other users, who could read records past the policy."""
    before = os.umask(0)
    try:
        fill(tmp_path / "data", 3)
        SqliteTree(tmp_path / "metadata.db").close()
    finally:
        os.umask(before)
    made = [tmp_path / "data", tmp_path / "metadata.db", *(tmp_path / "data").rglob("*")]
    assert file_of(tmp_path / "data") in made
    assert {path.name: oct(path.stat().st_mode & 0o027) for path in made} == {
        path.name: "0o0" for path in made
    }


@pytest.mark.timeout(30)
def test_metadata_that_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.db")
    with pytest.raises(StoreError, match="regular file"):
        SqliteTree(tmp_path / "pipe.db")
    path = tmp_path / "view.db"
    SqliteTree(path).close()
    db = sqlite3.connect(path)
    db.executescript("ALTER TABLE nodes RENAME TO other; CREATE VIEW nodes AS SELECT * FROM other")
    db.close()
    with pytest.raises(CorruptMetadata):
        SqliteTree(path)


def test_a_block_is_where_its_store_puts_it(tmp_path: Path) -> None:
    """The tests above use the file that the store uses."""
    fill(tmp_path, 1)
    assert str(file_of(tmp_path)) == Folder(str(tmp_path), OsFiles()).file(BLOCK)
