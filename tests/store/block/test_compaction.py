"""Key compaction compared with a dict, and its effects on files, readers and checkpoints."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import EncodedBatch, Record
from pymq.core.ready import (
    Append,
    Checkpoint,
    Compact,
    CreateBlock,
    Recovered,
    RemoveBlock,
    SealBlock,
    Truncate,
    Write,
    WriteFailed,
)
from pymq.core.types import BlockId
from pymq.errors import CorruptBlock, InvalidRequest
from pymq.store.base import BlockStore
from pymq.store.file.cleaned import Cleaned
from pymq.store.file.file_store import FileStore
from pymq.store.memory import MemoryStore
from pymq.store.verification.verify import verify
from tests.store.helpers import FaultyFiles, file_of

BLOCKS = tuple(BlockId("ef" * 16, 0, number) for number in range(3))
GONE = ("pymq.tombstone", b"")


def random_blocks(dice: random.Random) -> list[list[EncodedBatch]]:
    """Return three blocks of batches with few keys, some tombstones, some control batches."""
    blocks: list[list[EncodedBatch]] = [[], [], []]
    offset = 0
    for batches in blocks:
        for _ in range(dice.randint(1, 15)):
            count = dice.randint(1, 6)
            epoch = offset // 40
            if dice.random() < 0.1:
                made = EncodedBatch.control(b"control", timestamp_ms=offset)
            else:
                made = EncodedBatch.encode(
                    [
                        b"value %d" % (offset + i) + bytes(dice.choice([0, 0, 0, 20_000]))
                        for i in range(count)
                    ],
                    keys=[dice.choice([None, b"", b"a", b"b", b"c" * 300]) for _ in range(count)],
                    headers=[(GONE,) if dice.random() < 0.2 else () for _ in range(count)],
                    timestamps=[offset + i for i in range(count)],
                    timestamp_ms=offset,
                    codec=dice.choice([0, 0, 1, 2]),
                )
            batches.append(made.stamp(offset, epoch, 0))
            offset = batches[-1].end_offset
    return blocks


def expected(blocks: list[list[EncodedBatch]], tombstones_before_ms: int) -> list[Record]:
    """Return the retained records, computed with a dict."""
    every = [
        (record, batch) for batches in blocks for batch in batches for record in batch.records()
    ]
    last = {record.key: record.offset for record, batch in every if not batch.header.is_control}
    return [
        record
        for record, batch in every
        if batch.header.is_control
        or (
            (record.key is None or last[record.key] == record.offset)
            and not (GONE in record.headers and record.timestamp_ms < tombstones_before_ms)
        )
    ]


def write(store: BlockStore, blocks: list[list[EncodedBatch]]) -> None:
    for block, batches in zip(BLOCKS, blocks, strict=True):
        start = batches[0].base_offset
        writes: list[Write] = [CreateBlock(block, start, "t", "p"), Append(block, batches, True)]
        assert not store.write([*writes, SealBlock(block)])


def records(store: BlockStore, blocks: list[list[EncodedBatch]]) -> list[Record]:
    found = []
    for block, batches in zip(BLOCKS, blocks, strict=True):
        offset, end = batches[0].base_offset, batches[-1].end_offset
        while offset < end:
            for batch in split(store.read(block, offset, end, 500)):
                found += batch.verify().records()
                offset = batch.end_offset
        assert offset == end
    return found


@pytest.mark.parametrize("seed", range(60))
def test_what_stays_is_what_a_dict_says(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    blocks = random_blocks(dice)
    before = dice.choice([0, 20, 1_000])
    job = Compact("t", "p", BLOCKS, before)
    stores: list[BlockStore] = [FileStore(str(tmp_path)), MemoryStore()]
    sizes = []
    every = [batch for batches in blocks for batch in batches]
    control = {offset for batch in every if batch.header.is_control for offset in batch.offsets}
    for store in stores:
        write(store, blocks)
        done = store.compact(job)
        assert done.error is None
        sizes.append(done.sizes)
        assert records(store, blocks) == expected(blocks, before)
        assert store.compact(job).sizes == done.sizes, "a second time there is nothing to do"
        for time in range(0, 120, 7):
            for block, batches in zip(BLOCKS, blocks, strict=True):
                end = batches[-1].end_offset
                found = store.find_time(block, end, time)
                own = [
                    r.offset
                    for r in expected(blocks, before)
                    if batches[0].base_offset <= r.offset < end
                    and r.timestamp_ms >= time
                    # control batches are not records: they have the time of the leader's clock
                    and r.offset not in control
                ]
                assert found == (own[0] if own else None)
        store.close()
    assert sizes[0] == sizes[1], "the twins must agree"
    assert verify(str(tmp_path)).is_ok


def test_batches_without_records_are_merged(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    rows = [EncodedBatch.encode([b"v"] * 10, keys=[b"k"] * 10, timestamp_ms=1) for _ in range(100)]
    batches = [row.stamp(10 * i, i // 50, 0) for i, row in enumerate(rows)]
    block = BLOCKS[0]
    assert not store.write([CreateBlock(block, 0, "t", "p"), Append(block, batches, True)])
    assert not store.write([SealBlock(block)])
    done = store.compact(Compact("t", "p", (block,), 0))
    assert done.error is None
    left = list(split(store.read(block, 0, 1_000, 1 << 20)))
    assert [(b.base_offset, b.header.span, len(b), b.header.leader_epoch) for b in left] == [
        (0, 500, 0, 0),
        (500, 490, 0, 1),
        (990, 10, 1, 1),
    ]
    assert done.sizes == ((block, sum(one.size for one in left)),)
    for offset in (0, 499, 500, 700):
        (found, *_) = split(store.read(block, offset, 1_000, 1))
        assert found.base_offset <= offset < found.end_offset
    store.close()


def test_the_checkpoint_survives(tmp_path: Path) -> None:
    blocks = random_blocks(random.Random(3))
    store = FileStore(str(tmp_path))
    write(store, blocks)
    assert not store.write([Checkpoint(BLOCKS[1], b"state")])
    assert store.compact(Compact("t", "p", BLOCKS, 0)).error is None
    found = store.recover(BLOCKS[1], blocks[1][0].base_offset, False)
    assert isinstance(found, Recovered)
    assert (found.snapshot, found.headers) == (b"state", [])
    assert found.end == blocks[1][-1].end_offset
    store.close()


def test_damage_is_not_laundered(tmp_path: Path) -> None:
    """Compaction never gives a bad batch a good CRC."""
    blocks = random_blocks(random.Random(4))
    store = FileStore(str(tmp_path))
    write(store, blocks)
    file = file_of(tmp_path, BLOCKS[1])
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    before = [file_of(tmp_path, block).read_bytes() for block in BLOCKS]
    done = store.compact(Compact("t", "p", BLOCKS, 0))
    assert isinstance(done.error, CorruptBlock)
    assert [file_of(tmp_path, block).read_bytes() for block in BLOCKS] == before
    assert not list(tmp_path.rglob("*.tmp"))
    store.close()


@pytest.mark.parametrize("operation", ["pwritev", "sync", "sync_dir", "rename", "create"])
@pytest.mark.parametrize("seed", [1, 3, 7])
def test_a_disk_that_fails_meanwhile(tmp_path: Path, operation: str, seed: int) -> None:
    """After a disk failure each block is in its old or its new form, and reads return the right
    records.
    """
    blocks = random_blocks(random.Random(seed))
    before = [record for batches in blocks for batch in batches for record in batch.records()]
    after = expected(blocks, 0)
    for count in range(8):
        files = FaultyFiles()
        store = FileStore(str(tmp_path / str(count)), files=files)
        write(store, blocks)
        records(store, blocks)  # reading opens the files, and the store remembers their positions
        files.faults[operation] = [0] * count + [errno.EIO] + [0] * 99
        store.compact(Compact("t", "p", BLOCKS, 0))
        files.faults.clear()
        for block, batches in zip(BLOCKS, blocks, strict=True):
            for batch in reversed(batches):  # backwards, so that each batch needs a new search
                (one, *_) = split(store.read(block, batch.base_offset, batches[-1].end_offset, 1))
                assert one.verify().base_offset <= batch.base_offset < one.end_offset
        found = records(store, blocks)
        assert {r.offset for r in after} <= {r.offset for r in found}
        assert all(record in before for record in found)
        store.close()
        store = FileStore(str(tmp_path / str(count)))
        for block, batches in zip(BLOCKS, blocks, strict=True):
            answer = store.recover(block, batches[0].base_offset, False)
            assert isinstance(answer, Recovered)
        assert records(store, blocks) == found
        store.close()


def test_readers_see_either_version(tmp_path: Path) -> None:
    """Readers, appends and a removal run during a compaction, and see one of the two versions."""
    blocks = random_blocks(random.Random(5))
    store = FileStore(str(tmp_path), handles_max=3)
    write(store, blocks)
    wanted = expected(blocks, 0)
    every = [r for batches in blocks for batch in batches for r in batch.records()]
    thread = threading.Thread(target=store.compact, args=(Compact("t", "p", BLOCKS, 0),))
    found = records(store, blocks)
    thread.start()
    while thread.is_alive():
        found = records(store, blocks)
        assert {r.offset for r in wanted} <= {r.offset for r in found}
        assert all(record in every for record in found)
    thread.join()
    assert records(store, blocks) == wanted
    store.close()


class Meddling(FaultyFiles):
    """Files that run a function while the compacted file is synced."""

    meddle: Callable[[], None] | None = None

    def sync(self, handle: int) -> None:
        if self.meddle:
            meddle, self.meddle = self.meddle, None
            meddle()
        super().sync(handle)


def test_a_block_removed_meanwhile(tmp_path: Path) -> None:
    """A block that is removed during its compaction stays removed."""
    files = Meddling()
    store = FileStore(str(tmp_path), files=files)
    write(store, random_blocks(random.Random(5)))
    files.meddle = lambda: no_failure(store.write([RemoveBlock(BLOCKS[0])]))
    done = store.compact(Compact("t", "p", BLOCKS, 0))
    assert isinstance(done.error, InvalidRequest)
    assert store.blocks() == [BLOCKS[1], BLOCKS[2]]
    assert not list(tmp_path.rglob("00000000*"))
    store.close()


def test_a_block_cut_meanwhile(tmp_path: Path) -> None:
    """A tail that is truncated during a compaction does not come back."""
    files = Meddling()
    store = FileStore(str(tmp_path), files=files)
    blocks = random_blocks(random.Random(5))
    write(store, blocks)
    end = blocks[0][-1].base_offset
    files.meddle = lambda: no_failure(store.write([Truncate(BLOCKS[0], end)]))
    assert isinstance(store.compact(Compact("t", "p", BLOCKS, 0)).error, InvalidRequest)
    found = store.recover(BLOCKS[0], 0, False)
    assert isinstance(found, Recovered)
    assert found.end == end
    store.close()


def no_failure(failed: list[WriteFailed]) -> None:
    assert not failed


class CountingFiles(FaultyFiles):
    """Files that count the bytes read."""

    read = 0

    def pread(self, handle: int, size: int, position: int) -> bytes:
        data = super().pread(handle, size, position)
        self.read += len(data)
        return data


def test_a_growing_table_is_read_a_few_times_and_not_with_each_block(tmp_path: Path) -> None:
    """In a table that grows, compaction does not read and write all blocks again for each sealed
    block, nor after a restart.
    """
    files, memory, total = CountingFiles(), MemoryStore(), 0
    # blocks of each compaction, and how many of them were known to be clean
    done: list[tuple[int, int]] = []
    for number in range(40):
        store = FileStore(str(tmp_path), files=files)
        for one in (store, memory):
            block = BLOCKS[0]._replace(number=number)
            keys = [b"same", *(b"%d" % (10 * number + i) for i in range(9))]
            made = EncodedBatch.encode([bytes(1_000)] * 10, keys=keys, timestamp_ms=1)
            batches = [made.stamp(10 * number, 1, 0)]
            create = CreateBlock(block, 10 * number, "t", "p")
            assert not one.write([create, Append(block, batches, True), SealBlock(block)])
        total += made.size
        blocks = tuple(block._replace(number=each) for each in range(number + 1))
        job = Compact("t", "p", blocks, 0, 0.5)
        found = store.compact(job)
        assert found.error is None
        assert memory.compact(job).sizes == found.sizes
        if found.sizes:
            done.append((number + 1, len(found.sizes)))
        store.close()
    assert [blocks for blocks, _ in done] == [1, 2, 4, 8, 16, 31]
    assert all(blocks == told for blocks, told in done)
    # indexes and heads are included; without the limit it is 50 times the total
    assert files.read < 15 * total
    assert [path.name for path in tmp_path.rglob("*.clean")] == ["00000030.clean"]
    assert verify(str(tmp_path)).is_ok


def test_a_damaged_note_of_what_is_clean_costs_a_compaction(tmp_path: Path) -> None:
    """A damaged note costs one compaction, and ``pymq verify`` finds each flipped bit of it."""
    store = FileStore(str(tmp_path))
    write(store, random_blocks(random.Random(1)))
    job = Compact("t", "p", BLOCKS, 0, 0.5)
    sizes = store.compact(job).sizes
    assert sizes
    assert not store.compact(job).sizes
    store.close()
    file = file_of(tmp_path, BLOCKS[-1], ".clean")
    whole = file.read_bytes()
    for bit in range(0, 8 * len(whole), 7):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        assert [problem.file for problem in verify(str(tmp_path)).problems] == [str(file)]
    store = FileStore(str(tmp_path))
    for bad in (whole[:-1], Cleaned(BLOCKS[1], 1 << 20).to_bytes()):
        file.write_bytes(bad)
        assert store.compact(job).sizes == sizes
        assert file.read_bytes() == whole
    assert not store.write([RemoveBlock(block) for block in BLOCKS])
    assert not list(tmp_path.rglob("*.clean"))
    assert not any((tmp_path / "blocks").iterdir())
    store.close()
