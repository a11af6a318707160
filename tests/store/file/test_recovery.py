"""Recovery after a crash: the store cuts a torn tail, refuses damage, and changes nothing else."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from zlib import crc32

import pytest

from pymq.core.batch.header import HEADER_SIZE
from pymq.core.batch.record import EncodedBatch
from pymq.core.ready import (
    Append,
    Checkpoint,
    CreateBlock,
    Recovered,
    RecoverFailed,
    RemoveBlock,
    SealBlock,
)
from pymq.core.types import BlockId
from pymq.errors import CorruptBlock, StoreError, StoreFull
from pymq.store.file.file_store import FileStore
from pymq.store.verification.verify import verify
from tests.store.helpers import BLOCK, FaultyFiles, batch, file_of, fill, raw, recover


def ended(path: Path, *, is_open: bool = True) -> tuple[int, int]:
    """Recover the block; return its end, and the size of the removed tail."""
    found = recover(path, is_open=is_open)
    assert isinstance(found, Recovered), found
    return found.end, found.cut_bytes


def refused(path: Path, *, is_open: bool = True) -> CorruptBlock:
    """Recover the block, which must fail without changing the file; return the error."""
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "LOCK"}
    found = recover(path, is_open=is_open)
    assert isinstance(found, RecoverFailed), found
    assert isinstance(found.error, CorruptBlock)
    after = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "LOCK"}
    assert before == after
    assert str(path) in str(found.error)
    return found.error


def works(path: Path, end: int) -> None:
    """Check that the block continues at *end*: append, read, reopen."""
    store = FileStore(str(path))
    assert isinstance(store.recover(BLOCK, 0, True), Recovered)
    assert not store.write([Append(BLOCK, [batch(end, epoch=9)], sync=True)])
    assert store.read(BLOCK, end, end + 3, 1) == raw([batch(end, epoch=9)])
    store.close()
    assert ended(path) == (end + 3, 0)


def mark(path: Path, *, seal: bool = False) -> None:
    """Checkpoint the block, or seal it."""
    store = FileStore(str(path))
    assert isinstance(store.recover(BLOCK, 0, True), Recovered)
    assert not store.write([SealBlock(BLOCK) if seal else Checkpoint(BLOCK, b"state")])
    store.close()


# --- torn tails ---------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_cut_at_any_byte_of_the_last_batch(tmp_path: Path, checkpoint: bool) -> None:
    """A cut in the last batch, also below the checkpoint, leaves the file as before the
    last write.
    """
    fill(tmp_path / "full", 4)
    if checkpoint:
        mark(tmp_path / "full")
    last = batch(9).size
    for lost in range(1, last + 1):
        path = tmp_path / "torn"
        shutil.copytree(tmp_path / "full", path)
        file = file_of(path)
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size - lost)
        end, cut = ended(path)
        assert end == 9
        if lost > last - HEADER_SIZE:  # zeros at the end of a torn header are no data
            assert cut == (last if checkpoint else len(raw([batch(9)])[:-lost].rstrip(b"\0")))
        else:
            assert cut == (last if checkpoint else last - lost)
        assert ended(path) == (9, 0)
        if lost % 50 == 1:
            works(path, 9)
        shutil.rmtree(path)


@pytest.mark.parametrize(
    "tail",
    [
        b"\0",
        bytes(5_000),
        bytes(3 << 20),
        b"PMQ",
        b"garbage that is no batch",
        raw([batch(12)])[:-1],
        raw([batch(12)])[:HEADER_SIZE] + bytes(500),
        bytes(HEADER_SIZE) + raw([batch(12)])[HEADER_SIZE:],
        raw([batch(12)])[:-20] + bytes(20),
        raw([batch(12)])[:-20] + bytes(20) + bytes(4096),
        raw([batch(12)])[:-20] + bytes(20) + b"x" * 4096,
        raw([batch(3)])[1:],  # a valid batch of earlier offsets, behind a torn byte
    ],
)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_torn_tail_is_cut(tmp_path: Path, tail: bytes, checkpoint: bool) -> None:
    fill(tmp_path, 4)
    if checkpoint:
        mark(tmp_path)
    with file_of(tmp_path).open("ab") as file:
        file.write(tail)
    cut = len(tail.rstrip(b"\0"))  # zeros at the end are no data ...
    if tail[:HEADER_SIZE] == bytes(batch(12).head):  # ... unless a header covers them
        cut = max(cut, min(len(tail), batch(12).size))
    assert ended(tmp_path) == (12, cut)
    assert ended(tmp_path) == (12, 0)
    works(tmp_path, 12)


def test_a_batch_inside_a_torn_batch_is_payload(tmp_path: Path) -> None:
    """A batch inside a torn batch is a user's value, so the torn write is not damage."""
    fill(tmp_path, 4)
    inner = raw([batch(500), batch(503)])
    outer = EncodedBatch.encode([inner, b"x" * 100], timestamp_ms=5).stamp(12, 1, 12)
    with file_of(tmp_path).open("ab") as file:
        file.write(raw([outer])[:-50] + bytes(50))
    assert ended(tmp_path) == (12, outer.size)


def test_a_lost_checkpointed_tail_takes_the_checkpoint_with_it(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    mark(tmp_path)
    file = file_of(tmp_path)
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - batch(9).size)
    found = recover(tmp_path)
    assert isinstance(found, Recovered)
    assert (found.end, found.snapshot, len(found.headers)) == (9, None, 3)
    assert found.cut_bytes == batch(9).size, "what a checkpoint vouched for is missing"
    assert not file_of(tmp_path, suffix=".ckpt").exists()


# --- what was never durable ----------------------------------------------------------------------


def unsynced(path: Path) -> tuple[Path, list[EncodedBatch]]:
    """Make two batches that were synced and four that were not; return the file and the batches."""
    batches = [batch(0, durable=0), batch(3, durable=3)]
    batches += [batch(offset, durable=6) for offset in (6, 9, 12, 15)]
    store = FileStore(str(path))
    create = CreateBlock(BLOCK, 0, "orders", "eu")
    assert not store.write([create, Append(BLOCK, batches, sync=True)])
    store.close()
    return file_of(path), batches


@pytest.mark.parametrize("inside", [0, 9, 17, 25, 33, HEADER_SIZE + 5])
@pytest.mark.parametrize("index", [2, 3, 4])
def test_a_bad_batch_that_was_never_durable_is_cut(tmp_path: Path, index: int, inside: int) -> None:
    """An invalid batch that was never durable is truncated.

    Whole batches behind it are saved in another file.
    """
    file, batches = unsynced(tmp_path)
    before = file.read_bytes()
    position = len(before) - len(raw(batches[index:]))
    damage(file, position + inside)
    tail = file.read_bytes()[position:]
    assert ended(tmp_path) == (3 * index, len(tail))
    assert file_of(tmp_path, suffix=".cut").read_bytes() == tail
    report = verify(str(tmp_path))
    assert report.is_ok
    (note,) = report.problems
    assert (note.file, note.offset) == (str(file_of(tmp_path, suffix=".cut")), 3 * index + 3)
    assert f"offsets {3 * index + 3} to 17" in note.what
    works(tmp_path, 3 * index)


@pytest.mark.parametrize("index", [0, 1])
def test_a_bad_batch_that_was_durable_is_refused(tmp_path: Path, index: int) -> None:
    """A single later batch whose header says that the bad one was durable is enough to refuse the
    log.
    """
    file, batches = unsynced(tmp_path)
    data = file.read_bytes()
    position = len(data) - len(raw(batches[index:]))
    damage(file, position + HEADER_SIZE)
    assert refused(tmp_path).details["offset"] == 3 * index
    rest = len(raw(batches[2:5]))
    damage(file, len(data) - len(raw(batches[2:])), b"x" * rest)
    assert refused(tmp_path).details["offset"] == 3 * index


def test_a_checkpoint_attests_too(tmp_path: Path) -> None:
    file, batches = unsynced(tmp_path)
    mark(tmp_path)
    for index in range(len(batches)):
        position = file.stat().st_size - len(raw(batches[index:]))
        damage(file, position + HEADER_SIZE + 1)
        before = file_of(tmp_path, suffix=".ckpt").read_bytes()
        if index < len(batches) - 1:
            file_of(tmp_path, suffix=".ckpt").unlink()
            found = verify(str(tmp_path))
            assert not found.is_ok
            assert ("cuts it off" in str(found)) == (index >= 2)
            file_of(tmp_path, suffix=".ckpt").write_bytes(before)
        assert "cuts it off" not in str(verify(str(tmp_path)))
        damage(file, position + HEADER_SIZE + 1)
    damage(file, file.stat().st_size - len(raw(batches[2:])) + 5)
    refused_or_rest = recover(tmp_path)
    assert isinstance(refused_or_rest, Recovered), "the checkpoint spares reading it"


def test_what_is_kept_is_numbered(tmp_path: Path) -> None:
    for number in ("", "2", "3"):
        file, batches = unsynced(tmp_path / number)
        shutil.copytree(tmp_path / number, tmp_path / "all", dirs_exist_ok=True)
        file = file_of(tmp_path / "all")
        damage(file, file.stat().st_size - len(raw(batches[3:])))
        assert ended(tmp_path / "all")[0] == 9
        assert file_of(tmp_path / "all", suffix=".cut" + number).exists()
    store = FileStore(str(tmp_path / "all"))
    assert not store.write([RemoveBlock(BLOCK)])
    store.close()
    assert not list((tmp_path / "all").rglob("*.cut*"))


def test_without_room_to_keep_the_tail_nothing_is_cut(tmp_path: Path) -> None:
    file, batches = unsynced(tmp_path)
    damage(file, file.stat().st_size - len(raw(batches[3:])))
    before, files = file.read_bytes(), FaultyFiles()
    store = FileStore(str(tmp_path), files=files)
    files.room = 100
    found = store.recover(BLOCK, 0, True)
    assert isinstance(found, RecoverFailed)
    assert isinstance(found.error, StoreFull)
    assert file.read_bytes() == before
    files.room = None
    assert isinstance(store.recover(BLOCK, 0, True), Recovered)
    store.close()


def test_payload_that_looks_like_a_batch_attests_nothing(tmp_path: Path) -> None:
    """The search behind an invalid batch looks for whole batches, and not inside their values."""
    inner = raw([batch(500), batch(503)])
    outer = EncodedBatch.encode([inner], timestamp_ms=5)
    batches = [batch(0), batch(3, durable=3), outer.stamp(6, 1, 3), outer.stamp(7, 1, 3)]
    store = FileStore(str(tmp_path))
    assert not store.write([CreateBlock(BLOCK, 0, "t", "p"), Append(BLOCK, batches, sync=True)])
    store.close()
    damage(file_of(tmp_path), file_of(tmp_path).stat().st_size - len(raw(batches[1:])))
    assert ended(tmp_path)[0] == 3


# --- damage -------------------------------------------------------------------------------------


def damage(path: Path, position: int, data: bytes | None = None) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        data = data or bytes(byte ^ 0x10 for byte in file.read(1))
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_damage_in_the_middle_is_refused(tmp_path: Path, index: int, is_open: bool) -> None:
    """Damage in the header or the body of any batch but the last is refused."""
    batches = fill(tmp_path, 4)
    file = file_of(tmp_path)
    begin = file.stat().st_size - sum(one.size for one in batches)
    position = begin + index * batches[0].size
    for inside in (0, 5, 17, 25, 32, 68, HEADER_SIZE, HEADER_SIZE + 30):
        damage(file, position + inside)
        error = refused(tmp_path, is_open=is_open)
        assert error.details == {"file": str(file), "position": position, "offset": 3 * index}
        damage(file, position + inside)
    assert ended(tmp_path) == (12, 0)


def test_a_lost_batch_in_the_middle_is_refused(tmp_path: Path) -> None:
    batches = fill(tmp_path, 4)
    file = file_of(tmp_path)
    data = file.read_bytes()
    begin = len(data) - sum(one.size for one in batches)
    file.write_bytes(data[:begin] + raw([batches[0], batches[2], batches[3]]))
    refused(tmp_path)
    file.write_bytes(data[:begin] + raw([batches[0], batches[0]]))
    refused(tmp_path)
    hole = bytes(batches[1].size)
    file.write_bytes(data[:begin] + raw([batches[0]]) + hole + raw(batches[2:]))
    refused(tmp_path)


def test_an_older_epoch_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    with file_of(tmp_path).open("ab") as file:
        file.write(raw([batch(6, epoch=5), batch(9, epoch=4)]))
    assert "epoch" in str(refused(tmp_path))


def test_a_batch_of_a_newer_version_is_refused_and_not_cut(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    data = bytearray(raw([batch(6)]))
    data[36] = 2
    data[24:28] = struct.pack("<I", crc32(data[28:HEADER_SIZE], crc32(data[:24])))
    with file_of(tmp_path).open("ab") as file:
        file.write(data)
    assert "newer pymq" in str(refused(tmp_path))


def test_damage_below_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """Damage below a checkpoint is refused, even in the last batch, because the checkpoint proves
    that it was valid.
    """
    batches = fill(tmp_path, 4)
    mark(tmp_path)
    file = file_of(tmp_path)
    damage(file, file.stat().st_size - batches[-1].size + 18)
    refused(tmp_path)


def test_a_sealed_block_is_never_cut(tmp_path: Path) -> None:
    fill(tmp_path / "full", 3)
    mark(tmp_path / "full", seal=True)
    for lost in (1, batch(6).size - 1, batch(6).size, batch(6).size + 1):
        path = tmp_path / f"short{lost}"
        shutil.copytree(tmp_path / "full", path)
        file = file_of(path)
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size - lost)
        refused(path, is_open=False)
    with file_of(tmp_path / "full").open("ab") as longer:
        longer.write(b"\0")
    refused(tmp_path / "full", is_open=False)


def test_a_missing_file(tmp_path: Path) -> None:
    """A checkpoint proves that the block had records; without one, an open block is empty."""
    fill(tmp_path, 3)
    mark(tmp_path)
    file_of(tmp_path).unlink()
    assert "missing" in str(refused(tmp_path))
    refused(tmp_path, is_open=False)
    file_of(tmp_path, suffix=".ckpt").unlink()
    assert ended(tmp_path) == (0, 0)


# --- file headers -------------------------------------------------------------------------------


def test_every_bit_of_the_file_header_counts(tmp_path: Path) -> None:
    batches = fill(tmp_path, 1)
    file = file_of(tmp_path)
    size = file.stat().st_size - batches[0].size
    data = file.read_bytes()
    store = FileStore(str(tmp_path))
    for bit in range(8 * size):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        found = store.recover(BLOCK, 0, True)
        assert isinstance(found, RecoverFailed), bit
        assert isinstance(found.error, CorruptBlock)
    store.close()
    assert file.read_bytes() == flipped


@pytest.mark.parametrize("content", [b"", b"a text\n", b"\0" * 4096, b"pymq-blk"])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    fill(tmp_path, 1)
    file_of(tmp_path).write_bytes(content)
    refused(tmp_path)


def test_a_misplaced_file_is_refused(tmp_path: Path) -> None:
    other = BlockId(BLOCK.topic_id, BLOCK.partition, 8)
    fill(tmp_path, 2)
    file_of(tmp_path).rename(file_of(tmp_path, other))
    store = FileStore(str(tmp_path))
    found = store.recover(other, 0, True)
    assert isinstance(found, RecoverFailed)
    assert "misplaced" in str(found.error)
    with pytest.raises(CorruptBlock, match="misplaced"):
        store.read(other, 0, 6, 100)
    store.close()


def test_the_wrong_start_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    found = recover(tmp_path, start=3)
    assert isinstance(found, RecoverFailed)
    assert isinstance(found.error, CorruptBlock)


# --- checkpoint and index are caches ------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".ckpt", ".index"])
@pytest.mark.parametrize("how", ["missing", "empty", "flipped", "foreign", "other block's"])
def test_without_a_checkpoint_or_index_all_is_read(tmp_path: Path, suffix: str, how: str) -> None:
    fill(tmp_path, 50)
    mark(tmp_path, seal=suffix == ".index")
    file = file_of(tmp_path, suffix=suffix)
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "flipped":
        damage(file, len(data) // 2)
    elif how == "foreign":
        file.write_bytes(b"a text")
    else:
        fill(tmp_path / "other", 70)
        mark(tmp_path / "other", seal=suffix == ".index")
        file.write_bytes(file_of(tmp_path / "other", suffix=suffix).read_bytes())
    is_open = suffix == ".ckpt"
    if how == "other block's":  # the foreign checkpoint claims more records than there are
        if not is_open:
            refused(tmp_path, is_open=False)
            return
        assert ended(tmp_path)[0] == 150
    else:
        assert ended(tmp_path, is_open=is_open) == (150, 0)
    store = FileStore(str(tmp_path))
    for offset in (0, 76, 149):
        assert store.read(BLOCK, offset, 150, 1) == raw([batch(offset - offset % 3)])
    assert store.find_time(BLOCK, 150, 1_100) == 100
    store.close()


def test_a_search_by_time_names_the_damage_as_a_verified_read_does(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    path = file_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"key") - 1] ^= 1
    path.write_bytes(data)
    store = FileStore(str(tmp_path))
    with pytest.raises(CorruptBlock) as read:
        store.read(BLOCK, 6, 9, 1 << 20, verify=True)
    with pytest.raises(CorruptBlock) as searched:
        store.find_time(BLOCK, 9, 1_007)
    assert searched.value.details == read.value.details
    assert (read.value.details["offset"], read.value.details["end"]) == (6, 9)
    assert store.find_time(BLOCK, 9, 1_004) == 4, "what comes before it is found"
    store.close()


def test_every_bit_of_a_checkpoint_counts(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    mark(tmp_path)
    file = file_of(tmp_path, suffix=".ckpt")
    data = file.read_bytes()
    store = FileStore(str(tmp_path))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        found = store.recover(BLOCK, 0, True)
        assert isinstance(found, Recovered)
        assert (found.end, found.snapshot, len(found.headers)) == (9, None, 3)
    file.write_bytes(data)
    found = store.recover(BLOCK, 0, True)
    assert isinstance(found, Recovered)
    assert (found.snapshot, found.headers) == (b"state", [])
    store.close()


def test_a_checkpoint_of_an_older_copy_is_dropped(tmp_path: Path) -> None:
    """The checkpoint of an older copy is dropped, and the whole file is read."""
    fill(tmp_path, 3)
    mark(tmp_path)
    file = file_of(tmp_path)
    begin = file.stat().st_size - 3 * batch(0).size
    others = [batch(0, 2, epoch=2, size=90), batch(2, 4, epoch=2, size=300)]
    file.write_bytes(file.read_bytes()[:begin] + raw(others))
    found = recover(tmp_path)
    assert isinstance(found, Recovered)
    assert (found.end, found.snapshot) == (6, None)


def test_a_checkpoint_of_a_file_of_the_same_shape_is_dropped(tmp_path: Path) -> None:
    """A checkpoint is dropped if the file has other batches at the same offsets and sizes."""
    fill(tmp_path, 3)
    mark(tmp_path)
    file = file_of(tmp_path)
    others = [batch(3 * i, epoch=2) for i in range(3)]
    file.write_bytes(file.read_bytes()[: -len(raw(others))] + raw(others))
    found = recover(tmp_path)
    assert isinstance(found, Recovered)
    assert (found.end, found.snapshot, len(found.headers)) == (9, None, 3)


def test_a_batch_out_of_place_is_not_served(tmp_path: Path) -> None:
    """Whole batches in the wrong order are not served."""
    batches = fill(tmp_path, 3)
    store = FileStore(str(tmp_path))
    assert isinstance(store.recover(BLOCK, 0, True), Recovered)
    file = file_of(tmp_path)
    swapped = raw([batches[0], batches[2], batches[1]])
    file.write_bytes(file.read_bytes()[: -len(swapped)] + swapped)
    for offset in (0, 3):
        with pytest.raises(CorruptBlock):
            store.read(BLOCK, offset, 9, 1 << 20)
    store.close()


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    left = [file_of(tmp_path, suffix=s) for s in (".block.tmp", ".ckpt.tmp", ".index.tmp")]
    for path in left:
        path.write_bytes(b"half")
    assert ended(tmp_path) == (3, 0)
    assert not any(path.exists() for path in left)


# --- the folder ---------------------------------------------------------------------------------


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"notes\.txt"):
        FileStore(str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"pymq block store\nversion 2\n", "newer"),
        (b"pymq block store\n", "newer"),
        (b"", "not that of a pymq store"),
        (b"other\nversion 1\n", "not that of a pymq store"),
    ],
)
def test_an_unknown_version_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    fill(tmp_path, 1)
    (tmp_path / "FORMAT").write_bytes(content)
    with pytest.raises(StoreError, match=message):
        FileStore(str(tmp_path))
    (tmp_path / "FORMAT").write_bytes(b"pymq block store\nversion 1\n")
    assert ended(tmp_path) == (3, 0)  # the second process could take the lock


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        FileStore(str(tmp_path / "file"))
    with pytest.raises(StoreError, match="file"):
        FileStore(str(tmp_path / "file" / "below"))
