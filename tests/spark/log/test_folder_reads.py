"""Tasks that read block files: all that a consumer reads, while blocks roll and go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

import pymq
from pymq.core.batch.record import EncodedBatch
from pymq.errors import CorruptBatch, CorruptBlock, OffsetOutOfRange
from pymq.spark import backfill, columns
from pymq.spark.log.block_files import OPENED_MAX, verified
from pymq.spark.log.folder_log import FolderLog
from pymq.spark.options import source_options
from pymq.spark.planning import Range
from pymq.spark.read.source import ARROW_BYTES, TableReader
from pymq.spark.read.tasks import ReadTask
from tests.client.helpers import wait_until

Row = tuple[Any, ...]


def table(folder: Path, **options: str) -> TableReader:
    """Return a reader of topic ``t``, with all columns."""
    found = {"path": str(folder), "subscribe": "t", "includeheaders": "true"} | options
    return TableReader(
        source_options(found, is_stream=False), columns.schema(has_headers=True), slots=2
    )


def read(reader: TableReader, *tasks: Any) -> list[Row]:
    """Return the rows of some tasks, or of all."""
    return [row for task in tasks or reader.partitions() for row in batches(reader, task)]


def batches(reader: TableReader, task: Any) -> Iterator[Row]:
    for batch in reader.read(task):
        batch.validate(full=True)
        columns_ = batch.set_column(5, "timestamp", batch["timestamp"].cast("int64"))
        yield from (tuple(row.values()) for row in columns_.to_pylist())


def consumed(mq: pymq.Client) -> list[Row]:
    """Return what a consumer reads, as rows."""
    with mq.consumer("t", mode="psb") as consumer:
        found = [
            (
                *(record.key, record.value, record.topic, record.partition, record.offset),
                record.timestamp_ms * 1000,
                [{"key": name, "value": item} for name, item in record.headers] or None,
            )
            for record in consumer.until_end()
        ]
    return sorted(found, key=place)


def place(row: Row) -> tuple[str, int]:
    return row[3], row[4]


def numbered(mq: pymq.Client, blocks: int, **config: Any) -> None:
    """Create topic ``t`` with *blocks* blocks of 10 records, and an open one without any."""
    mq.create_topic("t", acks="leader", **config)
    with mq.producer() as producer:
        for number in range(blocks):
            rows = [b"%d" % row for row in range(10 * number, 10 * number + 10)]
            producer.send_many("t", rows).result()
            roll(mq)


def roll(mq: pymq.Client) -> None:
    """Seal the open block: another ack mode opens another block."""
    known = mq.describe_topic("t").partitions[0]
    acks = pymq.AckMode.LEADER if known.acks is pymq.AckMode.RAFT else pymq.AckMode.RAFT
    mq.set_partition_state("t", "0", acks=acks)
    wait_until(lambda: len(mq.describe_topic("t").partitions[0].blocks) > len(known.blocks))


def values(rows: list[Row]) -> list[int]:
    return [int(row[1]) for row in rows]


def block_file(folder: Path, number: int) -> Path:
    return sorted(folder.rglob("*.block"))[number]


# --- the same rows as a consumer's --------------------------------------------------------------

PLANS: list[dict[str, str]] = [
    {},
    {"maxtasks": "3"},
    {"minpartitions": "5"},
    {"maxrecordsperpartition": "7"},
    {"splitpartitions": "false"},
    {"fetchmaxbytes": "1024"},
]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_table_has_the_rows_that_a_consumer_reads(tmp_path: Path, compression: Any) -> None:
    """Keys, nulls, tombstones, headers and times of all kinds, in many blocks."""
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t", partitions=2, block_bytes=4096)
        with mq.producer(compression=compression, batch_bytes=700) as producer:
            for number in range(600):
                more: dict[str, Any] = {}
                if number % 3:
                    more["key"] = b"k%d" % (number % 50)
                if number % 7 == 0:
                    more["headers"] = [("a", b"1"), ("b", b"")][: number % 3]
                if number // 100 % 2:
                    more["timestamp_ms"] = 1_700_000_000_000 - 86_400_000 * (number % 5)
                value = b"" if number % 11 == 0 else b"%d" % number * (1 + number // 200 * number)
                producer.send("t", value, partition=number % 2, **more)
        expected = consumed(mq)
        assert len(expected) == 600
        assert len(mq.describe_topic("t").partitions[0].blocks) > 5
        for options in PLANS:
            assert sorted(read(table(tmp_path, **options)), key=place) == expected, options
        log = FolderLog(str(tmp_path))
        for start, end in ((0, 300), (1, 299), (100, 101), (37, 211)):
            wanted = Range("t", "0", start, end)
            blocks = {("t", "0"): log.blocks("t", ["0"])["0"]}
            tasks = backfill.divide(backfill.stretches([wanted], blocks), 6, 2)
            reader = table(tmp_path)
            found = [row for task in tasks for row in read(reader, ReadTask(tuple(task)))]
            assert found == [r for r in expected if r[3] == "0" and start <= r[4] < end]


def test_a_table_of_a_compacted_topic_has_gaps(tmp_path: Path) -> None:
    """Records that compaction has removed are in no row, however the topic is divided."""
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t", acks="leader", cleanup_policy="compact")
        with mq.producer() as producer:
            for block in range(4):
                for number in range(30):
                    producer.send("t", b"%d" % block, key=b"%d" % (number % (block + 5)))
                producer.send("t", b"", key=b"gone-%d" % block)
                producer.flush()
                roll(mq)
        wait_until(lambda: len(consumed(mq)) == len({row[0] for row in consumed(mq)}), 60)
        expected = consumed(mq)
        assert expected[-1][4] - expected[0][4] > 2 * len(expected)
        for options in PLANS:
            assert read(table(tmp_path, **options)) == expected, options
        # Offsets between two records begin and end nothing.
        end = mq.questions.bounds("t", "0")[1]
        for start in range(0, end, 9):
            found = read(table(tmp_path), ReadTask((Range("t", "0", start, end - 3),)))
            assert found == [row for row in expected if start <= row[4] < end - 3]


def test_a_long_partition_is_read_by_several_tasks_in_order(tmp_path: Path) -> None:
    """A table's tasks begin at borders of blocks; a stream's keep a partition together."""
    count = 2_200_000
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t", block_bytes=128 << 10)
        with mq.producer() as producer:
            for _ in range(0, count, 100_000):
                producer.send_many("t", [b"x"] * 100_000)
    reader = table(tmp_path)
    tasks: list[Any] = list(reader.partitions())
    parts = [part for task in tasks for part in task.ranges]
    assert len(tasks) == 3
    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == count
    edges = {span.start for span in FolderLog(str(tmp_path)).blocks("t", ["0"])["0"]}
    assert any(part.start in edges for part in parts[1:])
    offsets = [b["offset"] for task in tasks for b in reader.read(task)]
    assert [int(each[0].as_py()) for each in offsets] == sorted(each[0].as_py() for each in offsets)
    assert sum(len(each) for each in offsets) == count
    assert len(table(tmp_path, splitpartitions="false").partitions()) == 1
    assert len(table(tmp_path, minpartitions="1").partitions()) == 1
    assert len(table(tmp_path, maxtasks="7").partitions()) == 7


def test_an_arrow_batch_is_small_however_much_the_topic_is_compressed(tmp_path: Path) -> None:
    """Spark's JVM gets batches of a few MiB, also if a batch shrinks to a hundredth on the disk."""
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t")
        with mq.producer(compression="zstd") as producer:
            producer.send_many("t", [bytes(10_000)] * 5_000)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.block")) < 1 << 20
    reader = table(tmp_path)
    sizes = [batch.nbytes for task in reader.partitions() for batch in reader.read(task)]
    assert sum(sizes) > 50_000_000
    assert max(sizes) < 3 * ARROW_BYTES


# --- while it is read ---------------------------------------------------------------------------


def test_blocks_roll_while_a_task_reads(tmp_path: Path) -> None:
    with pymq.open(tmp_path) as mq:
        numbered(mq, 2)
        with mq.producer() as producer:
            producer.send_many("t", [b"%d" % row for row in range(20, 30)]).result()
        reader = table(tmp_path)
        log = FolderLog(str(tmp_path))
        found = []
        for batch in log.read(Range("t", "0", 0, 30), 1024):
            found += batch.values
            roll(mq)  # Also the block that was open when the read began.
            with mq.producer() as producer:
                producer.send("t", b"later").result()
        assert [int(value) for value in found] == list(range(30))
        assert len(read(reader)) > 30


@pytest.mark.parametrize("fails", [True, False])
def test_retention_removes_blocks_while_a_task_reads(tmp_path: Path, *, fails: bool) -> None:
    """A task reads the blocks whose files it has opened; only those after them can be lost."""
    blocks = OPENED_MAX + 4
    with pymq.open(tmp_path) as mq:
        numbered(mq, blocks)
        reader = table(tmp_path, failondataloss=str(fails).lower(), fetchmaxbytes="1024")
        (task,) = reader.partitions()
        log = FolderLog(str(tmp_path))
        reading = log.read(Range("t", "0", 0, 10 * blocks), 1024)
        assert len(next(reading)) == 10
        mq.alter_topic("t", retention_bytes=0)
        wait_until(lambda: mq.questions.bounds("t", "0")[0] == 10 * blocks)
        wait_until(lambda: not list(tmp_path.rglob("*.block")))
        for number in range(1, OPENED_MAX):
            assert int(next(reading).values[0]) == 10 * number
        with pytest.raises(OffsetOutOfRange, match=f"begins at offset {10 * blocks}"):
            next(reading)
        if fails:  # A task that had not begun has lost everything.
            with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
                read(reader, task)
        else:
            assert read(reader, task) == []


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_batch_is_named_with_its_file_and_offset(tmp_path: Path, number: int) -> None:
    with pymq.open(tmp_path) as mq:
        numbered(mq, 3)
    path = block_file(tmp_path, number)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"%d" % (10 * number + 5))] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBlock, match="CRC of the batch") as raised:
        read(table(tmp_path))
    assert raised.value.details["file"] == str(path)
    assert raised.value.details["offset"] == 10 * number


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=40), st.data())
def test_each_flipped_bit_of_a_batch_is_found(values: list[bytes], data: st.DataObject) -> None:
    """The checksum is zlib's, whichever library computes it."""
    batch = EncodedBatch.encode(values, timestamp_ms=1).stamp(7, 1, 0)
    assert verified(batch) is batch
    body = bytearray(batch.body)
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptBatch, match="batch at offset 7"):
        verified(EncodedBatch(batch.head, body, batch.header))


@pytest.mark.parametrize("left", [0, 1, 50])
def test_a_block_that_was_cut_short_is_named(tmp_path: Path, left: int) -> None:
    """A sealed block without its end is damage, not the end of the data."""
    with pymq.open(tmp_path) as mq:
        numbered(mq, 3)
    path = block_file(tmp_path, 1)
    os.truncate(path, path.stat().st_size - 1 if left == 1 else left)
    with pytest.raises(CorruptBlock) as raised:
        read(table(tmp_path))
    assert raised.value.details["file"] == str(path)
