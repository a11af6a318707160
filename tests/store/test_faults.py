"""Full and failing disks: no acknowledged record is lost, and errors name the next step."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pymq.core.ready import (
    Append,
    Checkpoint,
    CreateBlock,
    Recovered,
    RecoverFailed,
    SealBlock,
    Sync,
    Truncate,
    WriteFailed,
)
from pymq.core.types import BlockId
from pymq.errors import CorruptBlock, StoreError, StoreFull
from pymq.store.file.file_store import FileStore
from tests.store.helpers import BLOCK, FaultyFiles, batch, file_of, fill, raw

OTHER = BlockId(BLOCK.topic_id, 4, 0)


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def store(tmp_path: Path, files: FaultyFiles) -> Iterator[FileStore]:
    """Make a store with one batch each in BLOCK and OTHER."""
    store = FileStore(str(tmp_path), files=files)
    for block in (BLOCK, OTHER):
        assert not store.write([CreateBlock(block, 0, "t", "p"), Append(block, [batch(0)], True)])
    yield store
    files.faults.clear()
    files.room = None
    store.close()


def test_a_full_disk(store: FileStore, files: FaultyFiles) -> None:
    """The store undoes a write that does not fit.

    The block stays usable, and other blocks continue.
    """
    for room in (0, 1, 100, batch(3).size, 2 * batch(3).size - 1):
        files.room = room
        (failed,) = store.write([Append(BLOCK, [batch(3), batch(6)], sync=True)])
        assert isinstance(failed.error, StoreFull)
        assert "free some space" in str(failed.error)
        assert str(store.path) in str(failed.error)
        assert not failed.fatal
        assert store.read(BLOCK, 0, 99, 1 << 20) == raw([batch(0)])
    files.room = None
    assert not store.write([Append(BLOCK, [batch(3), batch(6)], sync=True)])
    assert store.read(BLOCK, 0, 99, 1 << 20) == raw([batch(0), batch(3), batch(6)])
    found = store.recover(BLOCK, 0, True)
    assert isinstance(found, Recovered)
    assert (found.end, found.cut_bytes) == (9, 0)


def test_a_full_disk_when_the_file_is_made(store: FileStore, files: FaultyFiles) -> None:
    new = BlockId(BLOCK.topic_id, 9, 0)
    assert not store.write([CreateBlock(new, 0, "t", "p")])
    files.room = 10
    (failed,) = store.write([Append(new, [batch(0)], sync=True)])
    assert isinstance(failed.error, StoreFull)
    assert not failed.fatal
    assert not list(Path(store.path).rglob("*.tmp"))
    files.room = None
    assert not store.write([Append(new, [batch(0)], sync=True)])
    assert store.read(new, 0, 3, 1) == raw([batch(0)])


def test_a_full_disk_does_not_keep_a_block_from_being_sealed(
    store: FileStore, files: FaultyFiles
) -> None:
    files.room = 10
    assert not store.write([SealBlock(BLOCK)])
    (failed,) = store.write([Checkpoint(OTHER, b"state")])
    assert isinstance(failed.error, StoreFull)
    files.room = None
    found = store.recover(BLOCK, 0, False)
    assert isinstance(found, Recovered)
    assert found.end == 3
    assert file_of(Path(store.path), suffix=".index").exists()


def test_one_block_fails_and_others_go_on(store: FileStore, files: FaultyFiles) -> None:
    files.faults["pwritev"] = [errno.EIO]
    (failed,) = store.write([Append(BLOCK, [batch(3)], True), Append(OTHER, [batch(3)], True)])
    assert (failed.block, failed.fatal) == (BLOCK, False)
    assert "disk may be failing" in str(failed.error)
    assert store.read(OTHER, 3, 6, 1) == raw([batch(3)])


def test_a_write_that_cannot_be_undone_is_fatal(store: FileStore, files: FaultyFiles) -> None:
    files.room = 50
    files.faults["truncate"] = [errno.EIO]
    (failed,) = store.write([Append(BLOCK, [batch(3)], sync=False)])
    assert failed.fatal
    files.room = None
    assert store.write([Append(BLOCK, [batch(3)], sync=False)])[0].fatal
    found = store.recover(BLOCK, 0, True)
    assert isinstance(found, Recovered)
    assert (found.end, found.cut_bytes) == (3, 50)
    assert not store.write([Append(BLOCK, [batch(3)], sync=True)])


@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_failed_sync_is_fatal(store: FileStore, files: FaultyFiles, side_by_side: bool) -> None:
    """After a failed sync the store never syncs again, because a second sync would succeed without
    making the data durable.
    """
    files.faults["sync"] = [errno.EIO]
    writes = [Append(BLOCK, [batch(3)], True)]
    failed = store.write([*writes, Append(OTHER, [batch(3)], True)] if side_by_side else writes)
    assert len(failed) == 1
    block = failed[0].block
    assert failed[0].fatal
    assert "sync" in str(failed[0].error)
    syncs = files.calls.count("sync")
    for write in (
        Append(block, [batch(6)], sync=False),
        Sync(block),
        Checkpoint(block, b""),
        SealBlock(block),
        Truncate(block, 0),
    ):
        (again,) = store.write([write])
        assert again.fatal
    with pytest.raises(StoreError, match="sync"):
        store.read(block, 0, 3, 100)
    assert files.calls.count("sync") == syncs

    files.calls.clear()
    found = store.recover(block, 0, True)
    assert isinstance(found, Recovered)
    assert files.calls.index("sync") < files.calls.index("forget") < len(files.calls) - 1
    assert not store.write([Append(block, [batch(found.end)], sync=True)])


@pytest.mark.parametrize("operation", ["sync", "sync_dir"])
def test_a_failed_sync_of_a_new_file_is_fatal(
    store: FileStore, files: FaultyFiles, operation: str
) -> None:
    new = BlockId(BLOCK.topic_id, 4, 1)
    assert not store.write([CreateBlock(new, 0, "t", "p")])
    files.faults[operation] = [errno.EIO]
    (failed,) = store.write([Append(new, [batch(0)], sync=True)])
    assert failed.fatal
    assert store.write([Append(new, [batch(0)], sync=True)])[0].fatal
    found = store.recover(new, 0, True)
    assert isinstance(found, Recovered)
    assert found.end in (0, 3)


def test_a_failed_sync_when_a_file_is_closed_is_not_forgotten(tmp_path: Path) -> None:
    """A file is closed because another one needs the handle: if its sync fails, its next write
    raises the error.
    """
    files = FaultyFiles()
    store = FileStore(str(tmp_path), files=files, handles_max=1)
    for block in (BLOCK, OTHER):
        assert not store.write([CreateBlock(block, 0, "t", "p"), Append(block, [batch(0)], True)])
    assert not store.write([Append(OTHER, [batch(3)], sync=False)])
    files.faults["sync"] = [errno.EIO]
    assert not store.write([Append(BLOCK, [batch(3)], sync=False)])
    for write in (Sync(OTHER), Append(OTHER, [batch(6)], sync=False)):
        (failed,) = store.write([write])
        assert (failed.block, failed.fatal) == (OTHER, True)
    store.close()


def test_closing_reports_a_failed_sync(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = FileStore(str(tmp_path), files=files)
    assert not store.write([CreateBlock(BLOCK, 0, "t", "p"), Append(BLOCK, [batch(0)], True)])
    assert not store.write([Append(BLOCK, [batch(3)], sync=False)])
    files.faults["sync"] = [errno.EIO]
    with pytest.raises(StoreError, match="sync"):
        store.close()
    FileStore(str(tmp_path)).close()  # the lock was released nevertheless


def test_an_unreadable_block(store: FileStore, files: FaultyFiles) -> None:
    files.faults["pread"] = [errno.EIO]
    with pytest.raises(StoreError, match="cannot read") as caught:
        store.read(BLOCK, 0, 3, 100)
    assert not isinstance(caught.value, CorruptBlock)
    assert store.read(BLOCK, 0, 3, 100) == raw([batch(0)])


def test_a_block_that_cannot_be_recovered_now(store: FileStore, files: FaultyFiles) -> None:
    """A block may recover on the next try; after a failed sync it needs a restart.

    If an administrator must repair the files, the error says that.
    """
    for fault, number, is_fatal in (
        ("pread", errno.EIO, False),
        ("sync", errno.EIO, True),
        ("pread", errno.EACCES, True),
    ):
        files.faults[fault] = [number]
        failed = store.recover(BLOCK, 0, True)
        assert isinstance(failed, RecoverFailed)
        assert isinstance(failed.error, StoreError)
        assert not isinstance(failed.error, CorruptBlock)
        assert failed.fatal == is_fatal
    found = store.recover(BLOCK, 0, True)
    assert isinstance(found, Recovered)
    assert found.end == 3


def test_a_truncation_that_fails_is_fatal(store: FileStore, files: FaultyFiles) -> None:
    assert not store.write([Append(BLOCK, [batch(3)], sync=True)])
    files.faults["truncate"] = [errno.EIO]
    (failed,) = store.write([Truncate(BLOCK, 3)])
    assert failed.fatal
    found = store.recover(BLOCK, 0, True)
    assert isinstance(found, Recovered)
    assert found.end == 6


def test_too_many_open_files(store: FileStore, files: FaultyFiles) -> None:
    new = BlockId(BLOCK.topic_id, 9, 0)
    files.faults["create"] = [errno.EMFILE]
    (failed,) = store.write([CreateBlock(new, 0, "t", "p"), Append(new, [batch(0)], True)])
    assert "ulimit -n" in str(failed.error)
    assert not failed.fatal


# --- the real thing -----------------------------------------------------------------------------


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """Return an empty file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NOT TESTED: a small file system cannot be mounted here: {error}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(mount: Path) -> None:
    store = FileStore(str(mount))
    assert not store.write([CreateBlock(BLOCK, 0, "t", "p"), Append(BLOCK, [batch(0)], True)])
    end = 3
    failed: list[WriteFailed] = []
    while not failed:
        big = batch(end, size=20_000)
        failed = store.write([Append(BLOCK, [big], sync=True)])
        end += 0 if failed else 3
    assert isinstance(failed[0].error, StoreFull)
    assert not failed[0].fatal
    assert not store.write([Append(BLOCK, [batch(end)], sync=True)]), "what fits is still written"
    end += 3
    assert not store.write([SealBlock(BLOCK)])
    store.close()
    store = FileStore(str(mount))
    found = store.recover(BLOCK, 0, True)
    assert isinstance(found, Recovered)
    assert (found.end, found.cut_bytes) == (end, 0)
    store.close()


def test_a_folder_that_cannot_be_written(mount: Path) -> None:
    fill(mount, 3)
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    with pytest.raises(StoreError, match="permission to write"):
        FileStore(str(mount))
    with pytest.raises(StoreError, match="permission to write"):
        FileStore(str(mount / "new"))


def test_a_folder_of_someone_else() -> None:
    """Root may write anywhere, so the test becomes the user nobody.

    Other users may not write anyway.
    """
    become = "os.setuid(65534); " if os.geteuid() == 0 else ""
    code = f"import os, sys; from pymq.store.file.file_store import FileStore; {become}"
    code += "FileStore(sys.argv[1])"
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        fill(store, 1)
        Path(folder).chmod(0o555)
        store.chmod(0o555)
        (store / "LOCK").chmod(0o444)
        for path in (store, Path(folder) / "new"):
            done = subprocess.run(
                [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
            )
            assert "pymq.errors.StoreError: cannot" in done.stderr
            assert str(path) in done.stderr
            assert "give this process permission to write" in done.stderr
        store.chmod(0o755)
        Path(folder).chmod(0o755)
