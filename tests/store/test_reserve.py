"""Zeros written ahead of small synced appends are never read as data, and never an obstacle."""

from __future__ import annotations

import errno
import shutil
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
    Truncate,
)
from pymq.core.types import BlockId
from pymq.store.file import appending
from pymq.store.file.file_store import FileStore
from pymq.store.verification.verify import verify
from tests.store.helpers import BLOCK, FaultyFiles, batch, file_of, raw, recover

OTHER = BlockId(BLOCK.topic_id, 4, 0)


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def store(
    tmp_path: Path, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FileStore]:
    """Make a store whose BLOCK has three batches and zeros behind them."""
    monkeypatch.setattr(appending, "RESERVE_FROM", 300)
    store = FileStore(str(tmp_path / "store"), files=files)
    assert not store.write([CreateBlock(BLOCK, 0, "t", "p")])
    for offset in (0, 3, 6):
        assert not store.write([Append(BLOCK, [batch(offset)], sync=True)])
    assert zeros(store) > 0
    yield store
    files.faults.clear()
    files.room = None
    store.close()


def used(*offsets: int) -> int:
    return len(raw([batch(offset) for offset in offsets]))


def zeros(store: FileStore) -> int:
    """Return how many zeros are in BLOCK's file behind its last batch."""
    data = file_of(Path(store.path)).read_bytes()
    last = data.rindex(b"PMQB")
    return len(data) - last - int.from_bytes(data[last + 32 : last + 36], "little")


def crashed(store: FileStore, to: Path) -> Path:
    """Return the folder as a killed process leaves it."""
    return shutil.copytree(store.path, to)


def test_small_appends_go_into_the_zeros(store: FileStore, files: FaultyFiles) -> None:
    path = file_of(Path(store.path))
    size = path.stat().st_size
    assert not store.write([Append(BLOCK, [batch(9)], sync=True)])
    assert path.stat().st_size == size, "the file need not become longer"
    assert store.read(BLOCK, 0, 12, 1 << 20) == raw([batch(offset) for offset in (0, 3, 6, 9)])
    for offset in range(12, 300, 3):
        assert not store.write([Append(BLOCK, [batch(offset)], sync=offset % 2 == 0)])
    assert len(store.read(BLOCK, 0, 300, 1 << 30)) == used(*range(0, 300, 3))
    writes = files.calls.count("pwritev")
    assert writes < 120, "zeros are written now and then, not each time"


def test_only_small_synced_appends_reserve(store: FileStore, files: FaultyFiles) -> None:
    assert not store.write([CreateBlock(OTHER, 0, "t", "p")])
    end = 0
    for size, sync in ((700, False), (700, False), (30_000, True), (30_000, True), (10, False)):
        assert not store.write([Append(OTHER, [batch(end, size=size)], sync)])
        end += 3
    found = store.recover(OTHER, 0, True)
    assert isinstance(found, Recovered)
    path = file_of(Path(store.path), OTHER)
    head = path.read_bytes().index(b"PMQB")
    assert path.stat().st_size == head + found.size


def test_a_large_append_goes_over_the_zeros(store: FileStore) -> None:
    assert not store.write([Append(BLOCK, [batch(9, size=50_000)], sync=False)])
    assert not store.write([Append(BLOCK, [batch(12)], sync=False)])
    assert zeros(store) == 0
    assert store.read(BLOCK, 9, 15, 1 << 20) == raw([batch(9, size=50_000), batch(12)])


def test_a_clean_close_leaves_no_zeros(store: FileStore) -> None:
    store.close()
    assert zeros(store) == 0
    found = recover(Path(store.path))
    assert isinstance(found, Recovered)
    assert (found.end, found.cut_bytes) == (9, 0)


def test_a_file_that_was_closed_meanwhile_is_cut_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appending, "RESERVE_FROM", 64)
    store = FileStore(str(tmp_path), handles_max=1)
    for block in (BLOCK, OTHER):
        assert not store.write([CreateBlock(block, 0, "t", "p")])
    for offset in range(0, 30, 3):
        for block in (BLOCK, OTHER):
            assert not store.write([Append(block, [batch(offset)], sync=True)])
    assert zeros(store)
    store.close()
    for block in (BLOCK, OTHER):
        data = file_of(tmp_path, block).read_bytes()
        assert data.endswith(raw([batch(27)]))


def test_sealing_leaves_no_zeros(store: FileStore, tmp_path: Path) -> None:
    assert not store.write([SealBlock(BLOCK)])
    assert zeros(store) == 0
    found = recover(crashed(store, tmp_path / "crashed"), is_open=False)
    assert isinstance(found, Recovered)
    assert found.end == 9


def test_zeros_behind_a_sealed_block_are_damage(store: FileStore, tmp_path: Path) -> None:
    path = crashed(store, tmp_path / "crashed")
    assert isinstance(recover(path, is_open=False), RecoverFailed)
    assert not store.write([SealBlock(BLOCK)])
    path = crashed(store, tmp_path / "sealed")
    with file_of(path).open("ab") as file:
        file.write(bytes(1000))
    assert not verify(str(path)).is_ok


def test_truncating_leaves_no_zeros(store: FileStore) -> None:
    assert not store.write([Truncate(BLOCK, 3)])
    assert zeros(store) == 0
    assert not store.write([Append(BLOCK, [batch(3, epoch=2)], sync=True)])
    assert store.read(BLOCK, 0, 6, 1 << 20) == raw([batch(0), batch(3, epoch=2)])


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_crash_leaves_zeros_and_nothing_to_report(
    store: FileStore, tmp_path: Path, checkpoint: bool
) -> None:
    if checkpoint:
        assert not store.write([Checkpoint(BLOCK, b"state")])
        assert zeros(store), "a checkpoint does not cut"
    path = crashed(store, tmp_path / "crashed")
    report = verify(str(path))
    assert not report.problems
    assert (report.batches, report.blocks[0].end) == (3, 9)
    found = recover(path)
    assert isinstance(found, Recovered)
    assert (found.end, found.size, found.cut_bytes) == (9, used(0, 3, 6), 0)
    assert found.snapshot == (b"state" if checkpoint else None)
    assert len(found.headers) == (0 if checkpoint else 3)
    assert file_of(path).read_bytes().endswith(raw([batch(6)])), "they are cut"


def test_zeros_do_not_hide_what_a_checkpoint_knew(store: FileStore, tmp_path: Path) -> None:
    assert not store.write([Checkpoint(BLOCK, b"state")])
    path = crashed(store, tmp_path / "crashed")
    data = file_of(path).read_bytes()
    begin = data.rindex(b"PMQB")
    file_of(path).write_bytes(data[:begin] + bytes(len(data) - begin))
    assert not verify(str(path)).is_ok
    assert isinstance(recover(path), RecoverFailed)


def test_what_is_behind_zeros_is_judged(store: FileStore, tmp_path: Path) -> None:
    """A torn write into the zeros is truncated.

    If a batch behind the zeros shows that the data before it was durable, nothing is truncated.
    """
    for durable, end in ((9, 9), (10, None)):
        path = crashed(store, tmp_path / str(durable))
        data = bytearray(file_of(path).read_bytes())
        at = data.rindex(b"PMQB") + batch(6).size + 77
        late = raw([batch(12, durable=durable)])
        data[at : at + len(late)] = late
        file_of(path).write_bytes(data)
        found = recover(path)
        if end is None:
            assert isinstance(found, RecoverFailed)
        else:
            assert isinstance(found, Recovered)
            assert (found.end, found.cut_bytes) == (9, 77 + len(late))
            assert file_of(path, suffix=".cut").exists()


def test_a_full_disk_does_without(store: FileStore, files: FaultyFiles) -> None:
    """With space for the records but not for the zeros, the appends succeed."""
    end = 9
    files.room = 3 * batch(0).size
    length = file_of(Path(store.path)).stat().st_size
    while file_of(Path(store.path)).stat().st_size <= length:
        assert not store.write([Append(BLOCK, [batch(end)], sync=True)])
        end += 3
    for _ in range(2):
        assert not store.write([Append(BLOCK, [batch(end)], sync=True)])
        end += 3
    assert store.write([Append(BLOCK, [batch(end)], sync=True)]), "now it is really full"
    assert zeros(store) == 0
    assert store.read(BLOCK, 0, end, 1 << 30) == raw([batch(o) for o in range(0, end, 3)])


def test_zeros_that_cannot_be_taken_back_are_fatal(store: FileStore, files: FaultyFiles) -> None:
    assert not store.write([Truncate(BLOCK, 6)])
    files.faults["pwritev"] = [errno.EIO]
    files.faults["truncate"] = [errno.EIO]
    (failed,) = store.write([Append(BLOCK, [batch(6)], sync=True)])
    assert failed.fatal
    found = store.recover(BLOCK, 0, True)
    assert isinstance(found, Recovered)
    assert found.end == 6


def test_a_failed_append_into_the_zeros_is_undone(store: FileStore, files: FaultyFiles) -> None:
    files.faults["pwritev"] = [errno.EIO]
    (failed,) = store.write([Append(BLOCK, [batch(9)], sync=True)])
    assert not failed.fatal
    assert zeros(store) == 0
    assert not store.write([Append(BLOCK, [batch(9, epoch=2)], sync=True)])
    assert store.read(BLOCK, 9, 12, 1) == raw([batch(9, epoch=2)])


def test_a_seal_that_cannot_cut_off_the_zeros_may_be_asked_for_again(
    store: FileStore, files: FaultyFiles
) -> None:
    """A seal that cannot remove the zeros may be retried, and loses nothing."""
    files.faults["truncate"] = [errno.EIO]
    (failed,) = store.write([SealBlock(BLOCK)])
    assert not failed.fatal
    assert not store.write([Append(BLOCK, [batch(9)], sync=True)])
    assert not store.write([SealBlock(BLOCK)])
