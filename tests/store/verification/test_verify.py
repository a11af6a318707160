"""verify() finds each flipped bit, misplaced and missing files, and wrong indexes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import EncodedBatch
from pymq.core.ready import Append, Checkpoint, Compact, CreateBlock, SealBlock
from pymq.core.types import BlockId
from pymq.errors import CorruptBatch, CorruptBlock, StoreError
from pymq.store.block.block_file import Window
from pymq.store.file.file_store import FileStore
from pymq.store.verification.verify import verify
from pymq.store.verification.verify_block import resync
from tests.store.helpers import BLOCK, batch, file_of, fill, raw

NEXT = BlockId(BLOCK.topic_id, BLOCK.partition, BLOCK.number + 1)


def make(path: Path) -> list[EncodedBatch]:
    """Make a sealed block with index and checkpoint, and an open one behind it."""
    batches = [batch(3 * i) for i in range(6)]
    store = FileStore(str(path))
    assert not store.write(
        [
            CreateBlock(BLOCK, 0, "orders", "eu"),
            Append(BLOCK, batches[:3], True),
            Checkpoint(BLOCK, b"state"),
            Append(BLOCK, batches[3:], True),
            SealBlock(BLOCK),
            CreateBlock(NEXT, 18, "orders", "eu"),
            Append(NEXT, [batch(18)], True),
        ]
    )
    store.close()
    return batches


def files(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_good_store(tmp_path: Path) -> None:
    batches = make(tmp_path)
    before = files(tmp_path)
    report = verify(str(tmp_path))
    assert report.is_ok
    assert report.is_locked
    assert not report.problems
    assert (len(report.blocks), report.batches, report.records) == (2, 7, 21)
    assert report.bytes == len(raw(batches)) + batch(18).size
    first = report.blocks[0]
    assert (first.block, first.topic, first.partition) == (BLOCK, "orders", "eu")
    assert (first.start, first.end, first.is_ok) == (0, 18, True)
    assert "ok" in str(report)
    after = files(tmp_path)
    assert {p: d for p, d in before.items() if "LOCK" not in p} == {
        p: d for p, d in after.items() if "LOCK" not in p
    }


def test_every_flipped_bit_of_a_sealed_block_is_seen(tmp_path: Path) -> None:
    """verify() finds each flipped bit; a reader gets an error or the true data."""
    make(tmp_path)
    file = file_of(tmp_path)
    data = file.read_bytes()
    truth = raw([batch(3 * i) for i in range(6)])
    dice = random.Random(1)
    store = FileStore(str(tmp_path / "other"))
    store.close()
    for byte in range(len(data)):
        flipped = bytearray(data)
        flipped[byte] ^= 1 << dice.randrange(8)
        file.write_bytes(flipped)
        report = verify(str(tmp_path))
        assert not report.is_ok, f"a flipped bit of byte {byte} is not seen"
        assert str(file) in str(report)
        assert not report.blocks[0].is_ok
        store = FileStore(str(tmp_path))
        found = b""
        try:
            while len(found) < len(truth):
                offset = 3 * sum(1 for _ in split(found))
                for one in split(store.read(BLOCK, offset, 18, 300)):
                    found += raw([one.verify()])
        except (CorruptBlock, CorruptBatch):
            pass
        assert truth.startswith(found)
        store.close()


@pytest.mark.slow
def test_every_single_bit_of_a_small_block_is_seen(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    store = FileStore(str(tmp_path))
    store.recover(BLOCK, 0, True)
    store.write([SealBlock(BLOCK)])
    store.close()
    file = file_of(tmp_path)
    data = file.read_bytes()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        assert not verify(str(tmp_path)).is_ok, bit


@pytest.mark.parametrize("suffix", [".ckpt", ".index"])
def test_every_flipped_bit_of_an_index_is_seen(tmp_path: Path, suffix: str) -> None:
    make(tmp_path)
    file = file_of(tmp_path, suffix=suffix)
    data = file.read_bytes()
    for byte in range(len(data)):
        flipped = bytearray(data)
        flipped[byte] ^= 1 << byte % 8
        file.write_bytes(flipped)
        report = verify(str(tmp_path))
        assert not report.is_ok
        assert str(file) in str(report)
        assert report.records == 21


def test_one_bad_body_does_not_hide_the_rest(tmp_path: Path) -> None:
    batches = make(tmp_path)
    file = file_of(tmp_path)
    data = bytearray(file.read_bytes())
    begin = len(data) - len(raw(batches))
    second, fifth = (begin + len(raw(batches[:n])) for n in (1, 4))
    data[second + 100] ^= 1
    data[fifth + 3] ^= 1
    file.write_bytes(data)
    report = verify(str(tmp_path))
    assert (report.batches, report.records) == (5, 15)
    found = [(problem.position, problem.offset) for problem in report.problems[:2]]
    assert found == [(second, 3), (fifth, 12)]


def test_a_cut_block(tmp_path: Path) -> None:
    make(tmp_path)
    file = file_of(tmp_path)
    file.write_bytes(file.read_bytes()[: -batch(15).size])
    report = verify(str(tmp_path))
    assert not report.is_ok
    assert "shorter" in str(report)


def test_a_torn_tail_of_an_open_block(tmp_path: Path) -> None:
    make(tmp_path)
    with file_of(tmp_path, NEXT).open("ab") as file:
        file.write(raw([batch(21)])[:-1])
    report = verify(str(tmp_path))
    (problem,) = report.problems
    assert "torn" in problem.what
    assert "opening the store cuts it off" in problem.advice
    store = FileStore(str(tmp_path))
    store.recover(NEXT, 18, True)
    store.close()
    assert verify(str(tmp_path)).is_ok


def test_misplaced_missing_and_foreign_files(tmp_path: Path) -> None:
    make(tmp_path / "store")
    for case, what, is_ok in (
        ("misplaced", "misplaced", False),
        ("swapped", "begins at", False),
        ("missing", "missing", False),
        ("gap", "11 blocks are missing before it", True),
        ("foreign", "no file of the store", True),
        ("left", "left by a crash", True),
    ):
        path = tmp_path / case
        shutil.copytree(tmp_path / "store", path)
        file, later = file_of(path), file_of(path, NEXT)
        if case == "misplaced":
            file.rename(later)
        elif case == "swapped":
            with file_of(path, NEXT).open("wb") as opened:
                fill(tmp_path / "apart", 2, block=NEXT, start=24)
                opened.write(file_of(tmp_path / "apart", NEXT).read_bytes())
        elif case == "missing":
            file.unlink()
        elif case == "gap":
            far = BlockId(BLOCK.topic_id, BLOCK.partition, 20)
            fill(tmp_path / "far", 1, block=far, start=90)
            shutil.copy(file_of(tmp_path / "far", far), file_of(path, far))
        elif case == "foreign":
            (file.parent / "notes.txt").write_text("")
            (path / "blocks" / "x").write_text("")
        else:
            (file.parent / "00000007.ckpt.tmp").write_text("")
        report = verify(str(path))
        assert what in str(report), case
        assert report.is_ok == is_ok, case


def test_an_index_that_lies(tmp_path: Path) -> None:
    """verify() finds an index that is valid in itself, but belongs to a file with other batches."""
    make(tmp_path / "a")
    fill(tmp_path / "b", 6)
    store = FileStore(str(tmp_path / "b"))
    store.recover(BLOCK, 0, True)
    store.write([Append(BLOCK, [batch(18, size=40_000), batch(21)], True), SealBlock(BLOCK)])
    store.close()
    longer = file_of(tmp_path / "b").stat().st_size
    shutil.copy(file_of(tmp_path / "b", suffix=".index"), file_of(tmp_path / "a", suffix=".index"))
    with file_of(tmp_path / "a").open("ab") as file:
        file.write(raw([batch(18, 6, size=20_000)]))
        file.truncate(longer + 100_000)
    assert not verify(str(tmp_path / "a")).is_ok


def test_compressed_batches_are_looked_into(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    store.write([CreateBlock(BLOCK, 0, "t", "p")])
    for codec in (1, 2):
        one = EncodedBatch.encode([b"x" * 1_000] * 5, timestamp_ms=1, codec=codec)
        assert not store.write([Append(BLOCK, [one.stamp(5 * codec - 5, 1, 0)], True)])
    store.close()
    assert verify(str(tmp_path)).records == 10


def test_a_compacted_store_is_good(tmp_path: Path) -> None:
    make(tmp_path)
    store = FileStore(str(tmp_path))
    assert store.compact(Compact("orders", "eu", (BLOCK,), 0)).error is None
    store.close()
    report = verify(str(tmp_path))
    assert report.is_ok
    assert report.records < 18


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="FORMAT"):
        verify(str(tmp_path))
    with pytest.raises(StoreError, match="cannot open"):
        verify(str(tmp_path / "nowhere"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", [0, 1, 100, 101])
def test_a_search_ends_where_a_file_was_made_shorter_meanwhile(left: int) -> None:
    """The search stops at the length that verify() has read, even if the file was truncated
    meanwhile.
    """
    window = Window(lambda size, position: bytes(left)[position : position + size], 1_000)
    assert resync(window, 0) == 1_000
