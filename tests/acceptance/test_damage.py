"""Damaged files are detected, reported with their place, never read as data, and affect no other
files.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

import pymq
from pymq.client.option_types import Fsync
from pymq.core.batch.header import MAGIC
from pymq.errors import CorruptBatch, CorruptBlock
from pymq.store.verification.verify import verify
from tests.acceptance.helpers import contents, values

RECORDS = [b"%03d " % number + b"x" * 400 for number in range(40)]


def make(folder: Path, *, blocks: bool) -> None:
    """Make two topics; the partition t/0 has several blocks, or a single one of many batches."""
    with pymq.open(folder) as mq:
        # In an open block only synced data can be distinguished from a torn write.
        fsync: Fsync | None = None if blocks else "always"
        mq.create_topic("t", partitions=2, block_bytes=4096 if blocks else 1 << 20, fsync=fsync)
        mq.create_topic("other")
        with mq.producer(linger_ms=0) as producer:
            for value in RECORDS:
                producer.send("t", value, partition="0", timestamp_ms=1).result()
                producer.send("t", value, partition="1").result()
                producer.send("other", value).result()


def block_files(folder: Path, topic: str, partition: str = "0") -> list[Path]:
    """Return the block files of a partition, in order."""
    report = verify(str(folder))
    mine = [b for b in report.blocks if (b.topic, b.partition) == (topic, partition)]
    return [Path(block.file) for block in mine]


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def check_others(mq: pymq.Client) -> None:
    """Check that the other partition and the other topic can be read and written."""
    assert values(mq, "other")[: len(RECORDS)] == RECORDS
    with mq.consumer("t", mode="psb", partition="1") as consumer:
        assert [record.value for record in consumer.until_end()][: len(RECORDS)] == RECORDS
    with mq.producer(linger_ms=0) as producer:
        for _ in range(10):  # enough records for more than a block
            producer.send("t", RECORDS[0], partition="1").result(timeout=10)
            producer.send("other", RECORDS[0]).result(timeout=10)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make(folder, blocks=True)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "folder")
    return tmp_path / "folder"


def test_verify_finds_any_flipped_bit(folder: Path) -> None:
    """verify() finds any flipped bit of a sealed block, with file, position and offset."""
    path = block_files(folder, "t")[1]
    clean = path.read_bytes()
    dice = random.Random(0)
    for position in (*range(200), *range(200, len(clean), 29)):
        bit = dice.randrange(8)
        flip(path, position, bit)
        report = verify(str(folder))
        assert not report.is_ok, (position, bit)
        first = next(problem for problem in report.problems if problem.file == str(path))
        assert first.position is not None
        assert first.position <= position
        assert first.offset is not None
        # All further problems belong to the index, which no longer agrees with the block.
        others = {problem.file for problem in report.problems} - {str(path)}
        assert others <= {str(path.with_suffix(".index"))}
        flip(path, position, bit)
    assert path.read_bytes() == clean
    assert verify(str(folder)).is_ok


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_is_never_read(folder: Path, seed: int) -> None:
    """A reader never gets damaged data: it gets the records before the damage, then an error with
    the place.
    """
    path = block_files(folder, "t")[1]
    size, dice = path.stat().st_size, random.Random(seed)
    for position in (*dice.sample(range(200), 25), *dice.sample(range(200, size), 50)):
        bit = dice.randrange(8)
        flip(path, position, bit)
        got: list[bytes] = []
        with pymq.open(folder) as mq:
            with mq.consumer("t", mode="psb", partition="0") as consumer:
                try:
                    got += [record.value for record in consumer.until_end()]
                except (CorruptBlock, CorruptBatch) as error:
                    problem: pymq.errors.PymqError = error
                else:
                    pytest.fail(f"bit {bit} of byte {position} was not noticed")
            assert problem.code in ("CORRUPT_BLOCK", "CORRUPT_BATCH")
            assert got == RECORDS[: len(got)]
            if isinstance(problem, CorruptBlock):
                assert problem.details["file"] == str(path)
                found = problem.details["position"]
                assert isinstance(found, int)
                assert found <= position
                assert isinstance(problem.details["offset"], int)
        flip(path, position, bit)
    with pymq.open(folder) as mq:
        assert values(mq, "t") == RECORDS


def test_damage_of_one_block_is_nobody_elses(folder: Path) -> None:
    """Damage of one block does not affect its partition's other blocks, or other partitions."""
    paths = block_files(folder, "t")
    flip(paths[1], 300, 0)
    with pymq.open(folder) as mq:
        check_others(mq)
        with mq.consumer("t", mode="psb", partition="0", offset=30) as consumer:
            assert [record.value for record in consumer.until_end()] == RECORDS[30:]
        with mq.producer() as producer:
            found = producer.send("t", b"more", partition="0").result(timeout=10)
        assert found.offset == len(RECORDS)


def test_a_reader_gets_past_damage_by_seeking(folder: Path) -> None:
    """A reader continues behind the damage by a seek."""
    flip(block_files(folder, "t")[1], 300, 0)
    with pymq.open(folder) as mq, mq.consumer("t", mode="psb", partition="0") as consumer:
        with pytest.raises((CorruptBlock, CorruptBatch)):
            list(consumer.until_end())
        consumer.seek("0", 30)
        assert [record.value for record in consumer.until_end()] == RECORDS[30:]


def test_a_seek_forgets_the_problems_of_the_place_before(folder: Path) -> None:
    """After a seek the consumer does not raise errors of prefetched records that were not
    delivered.
    """
    flip(block_files(folder, "t")[1], 300, 0)
    with pymq.open(folder) as mq, mq.consumer("t", mode="psb", partition="0") as consumer:
        consumer.poll(1)
        consumer.seek("0", 30)
        assert [record.value for record in consumer.until_end()] == RECORDS[30:]


@pytest.mark.parametrize("is_clean", [False, True])
def test_damage_of_the_open_block_is_nobody_elses(tmp_path: Path, is_clean: bool) -> None:
    """If the open block is damaged, reads and writes of its partition raise; other partitions work.

    After a clean close the block is not read when the folder is opened, so writes work.
    """
    make(tmp_path, blocks=False)
    path = block_files(tmp_path, "t")[0]
    data = path.read_bytes()
    flip(path, data.index(MAGIC, len(data) // 2) + 8, 3)
    if not is_clean:
        path.with_suffix(".ckpt").unlink()
    with pymq.open(tmp_path) as mq:
        check_others(mq)
        with mq.producer(linger_ms=0) as producer:
            delivery = producer.send("t", b"more", partition="0")
            if is_clean:
                assert delivery.result(timeout=10).offset == len(RECORDS)
            else:
                with pytest.raises(CorruptBlock, match=path.name) as caught:
                    delivery.result(timeout=10)
                assert caught.value.details["file"] == str(path)
        with (
            mq.consumer("t", mode="psb", partition="0") as consumer,
            pytest.raises(CorruptBlock, match=path.name),
        ):
            list(consumer.until_end())
        assert len(mq.describe_topic("t").partitions) == 2
    shutil.rmtree(path.parent)  # a user may delete the folder by mistake
    with pymq.open(tmp_path) as mq:
        check_others(mq)


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_torn_tail_is_cut(tmp_path: Path, is_clean: bool) -> None:
    """If the file ends anywhere in the last batch, the block ends before that batch, and continues
    there.
    """
    made = tmp_path / "made"
    with pymq.open(made) as mq:
        mq.create_topic("t")
        with mq.producer(linger_ms=0, compression="lz4") as producer:
            for value in (b"first", b"second", b"third"):
                before = sum(path.stat().st_size for path in made.glob("blocks/*/0/*.block"))
                producer.send("t", value).result()
        if not is_clean:
            # as a killed process leaves the folder
            made = shutil.copytree(made, tmp_path / "killed")
    size = next(made.glob("blocks/*/0/*.block")).stat().st_size
    assert before < size
    for cut in range(before, size):
        folder = tmp_path / str(cut)
        shutil.copytree(made, folder)
        path = next(folder.glob("blocks/*/0/*.block"))
        os.truncate(path, cut)
        with pymq.open(folder) as mq:
            assert values(mq, "t") == [b"first", b"second"]
            with mq.producer(linger_ms=0) as producer:
                assert producer.send("t", b"new").result().offset == 2
        with pymq.open(folder) as mq:
            assert values(mq, "t") == [b"first", b"second", b"new"]
        assert verify(str(folder)).is_ok
        shutil.rmtree(folder)


@pytest.mark.parametrize("suffixes", [["index"], ["ckpt"], ["index", "ckpt"]])
def test_missing_indexes_and_checkpoints_are_made_again(folder: Path, suffixes: list[str]) -> None:
    """Missing or damaged indexes and checkpoints are rebuilt, since they only save time."""
    paths = [path for suffix in suffixes for path in folder.rglob(f"*.{suffix}")]
    assert paths
    for path in paths[::2]:
        path.unlink()
    for path in paths[1::2]:
        path.write_bytes(path.read_bytes()[:-1])
    with pymq.open(folder) as mq:
        assert values(mq, "t") == RECORDS
        with mq.consumer("t", mode="psb", partition="0") as consumer:
            consumer.seek_to_time("0", 1)
            assert consumer.position("0") == 0
        check_others(mq)
    with pymq.open(folder) as mq:
        assert len(contents(mq, "t")) == 2


def test_a_lost_block_file_is_reported(folder: Path) -> None:
    """A reader of a missing sealed block gets an error, and the blocks after it can be read."""
    path = block_files(folder, "t")[1]
    path.unlink()
    assert str(path) in str(verify(str(folder)))
    with pymq.open(folder) as mq:
        with (
            mq.consumer("t", mode="psb", partition="0") as consumer,
            pytest.raises(pymq.errors.StoreError, match=path.name),
        ):
            list(consumer.until_end())
        check_others(mq)


def test_lost_metadata_is_reported(folder: Path) -> None:
    """If there are blocks without metadata, the folder does not count as empty."""
    for path in folder.glob("metadata.db*"):
        path.unlink()
    with pytest.raises(pymq.errors.CorruptMetadata, match=r"metadata\.db"):
        pymq.open(folder)


@pytest.mark.parametrize("damage", ["text", "zeros", "cut"])
def test_damaged_metadata_is_reported(folder: Path, damage: str) -> None:
    """Damaged metadata raise an error that names the file, and are not changed."""
    path = folder / "metadata.db"
    if damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.write_bytes(b"hello " * 3_000 if damage == "text" else bytes(20_000))
    before = path.read_bytes()
    with pytest.raises(pymq.errors.StoreError, match=r"metadata\.db") as caught:
        pymq.open(folder)
    assert caught.value.code in ("CORRUPT_METADATA", "STORE_ERROR")
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", ["psb", "ptp"])
def test_a_consumer_is_told_where_the_damage_lies(tmp_path: Path, mode: str) -> None:
    """A consumer gets the records before the damage, and after a seek those behind it."""
    folder = tmp_path / "q"
    make(folder, blocks=True)
    (first, *_) = block_files(folder, "t")
    data = first.read_bytes()
    second_last = data.rindex(MAGIC, 0, data.rindex(MAGIC))
    flip(first, second_last + 150, 3)
    with pymq.open(folder) as mq:
        reader = mode == "psb"
        opened = mq.consumer("t", mode="psb") if reader else mq.consumer("t", group="g")
        with opened as consumer:
            seen: list[tuple[int, bytes]] = []
            met: list[CorruptBlock] = []
            while len(seen) < len(RECORDS) - 1:
                try:
                    found = consumer.poll(timeout=10)
                except CorruptBlock as error:
                    met.append(error)
                    consumer.skip(error)
                    continue
                assert found, "nothing comes any more"
                if not reader:
                    consumer.ack(found)
                seen += [(r.offset, r.value) for r in found if r.partition == "0"]
            (told,) = (error.details for error in met)
            assert (told["file"], told["position"]) == (str(first), second_last)
            lost = told["offset"]
            assert told["end"] == int(str(lost)) + 1
            assert sorted(seen) == [(at, v) for at, v in enumerate(RECORDS) if at != lost]
            before = [offset for offset, _ in seen]
            assert before == sorted(before)
