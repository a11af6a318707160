"""Reading a range of a simulated cluster: complete and in order while nodes die."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

import pymq
from pymq.errors import OffsetOutOfRange, StoreError, UnknownTopic
from pymq.spark.log.cluster_log import ClusterLog
from pymq.spark.log.folder_log import FolderLog
from pymq.spark.options import source_options
from pymq.spark.planning import Range
from pymq.spark.read.source import StreamReader, TableReader, _batches
from pymq.testing import Cluster


@pytest.mark.parametrize("seed", range(4))
def test_a_range_is_read_while_leaders_die(seed: int) -> None:
    """The reader prefetches the next part from a broker that may lead no more."""
    rng = random.Random(seed)
    values = [b"%04d" % number for number in range(400)]
    with Cluster(brokers=4, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=1, replicas=3, acks="raft")
        with mq.producer() as producer:
            for at in range(0, len(values), 10):
                producer.send_many("t", values[at : at + 10]).result()
        start, end = rng.randrange(30), len(values) - rng.randrange(30)
        leader = mq.describe_topic("t").partitions[0].leader
        assert leader is not None
        found: list[bytes] = []
        dies_at = rng.randrange(5) * 40
        for batch in ClusterLog(mq, 60.0).read(Range("t", "0", start, end), 500):
            if leader and len(found) >= dies_at:
                cluster.crash(leader, disk="none", at_boundary=rng.randrange(20))
                leader = None
            first = max(0, start - batch.base_offset)
            found += batch.values[first : end - batch.base_offset]
        assert found == values[start:end]


@pytest.mark.parametrize("fails", [True, False])
def test_a_task_that_retention_overtakes_in_a_cluster_reads_what_is_left(*, fails: bool) -> None:
    """The task reads the records that are still there, and skips only the removed ones."""
    found = {"url": "zmq+tcp://nowhere:1", "subscribe": "t", "failondataloss": str(fails).lower()}
    options = source_options(found, is_stream=True)
    with Cluster(brokers=3, seed=0) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft", block_bytes=4096, retention_bytes=8192)
        with mq.producer() as producer:
            for number in range(30):
                producer.send("t", b"%0900d" % number).result()
        cluster.run(seconds=12)
        (start, end) = mq.questions.bounds("t", "0")
        assert 0 < start < end
        task = Range("t", "0", 0, end, mq.questions.topic_metadata("t").topic_id)
        batches = _batches(options, ClusterLog(mq, 30.0), task)
        if fails:
            with pytest.raises(OffsetOutOfRange, match=f"begins at offset {start}.*DataLoss"):
                list(batches)
        else:
            offsets = [offset for batch in batches for offset in batch.offsets]
            with mq.consumer("t", mode="psb") as reader:
                assert offsets == [record.offset for record in reader.until_end()]


def test_a_folder_of_several_brokers_is_not_read_from_its_files(tmp_path: Path) -> None:
    """A folder of several brokers is refused: one broker's files may hold uncommitted records."""
    with pymq.open(tmp_path, brokers=2) as mq:
        mq.create_topic("t", replicas=2)
    with pytest.raises(StoreError, match="holds several brokers"):
        FolderLog(str(tmp_path)).topics()


@pytest.mark.parametrize("value", [b"abc", b"abc\0", b"\0", b"", bytes(5000)])
def test_an_open_block_is_read_to_its_last_batch(tmp_path: Path, value: bytes) -> None:
    """A batch that ends in zeros does not count as torn."""
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            for number in range(1, 4):
                producer.send("t", value).result()
                log = FolderLog(str(tmp_path))
                assert log.bounds("t", ["0"]) == {"0": (0, number)}
                batches = log.read(Range("t", "0", 0, number), 1 << 20)
                assert [bytes(each) for batch in batches for each in batch.values] == [
                    value
                ] * number


def test_explicit_times_do_not_hide_records_of_an_open_folder(tmp_path: Path) -> None:
    """The column of regular times ends in zeros; nevertheless all 500 acknowledged records are
    read.
    """
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t", 4)
        with mq.producer() as producer:
            for number in range(500):
                at = 1_700_000_000_000 + number * 1000
                producer.send("t", b"v", partition=number % 4, timestamp_ms=at)
            producer.flush()
        found = FolderLog(str(tmp_path)).bounds("t", ["0", "1", "2", "3"])
        assert found == dict.fromkeys(["0", "1", "2", "3"], (0, 125))


def _sent(mq: pymq.Client, *values: bytes) -> str:
    """Create topic ``t`` with these records, after deleting an earlier one; returns its id."""
    if "t" in mq.topics():
        mq.delete_topic("t")
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send_many("t", list(values)).result()
    return mq.questions.topic_metadata("t").topic_id


@pytest.mark.parametrize("fails", [True, False])
def test_a_task_does_not_read_another_topic_of_the_name(tmp_path: Path, *, fails: bool) -> None:
    """A task does not read the new topic's first records in place of the planned ones."""
    found = {"path": str(tmp_path), "subscribe": "t", "failondataloss": str(fails).lower()}
    reader = TableReader(
        source_options(found, is_stream=False), StructType().add("value", "binary")
    )
    with pymq.open(tmp_path) as mq:
        _sent(mq, b"old", b"old", b"old")
        (task,) = reader.partitions()
        assert sum(batch.num_rows for batch in reader.read(task)) == 3
        _sent(mq, *[b"new"] * 5)
        if fails:
            with pytest.raises(OffsetOutOfRange, match="created again"):
                list(reader.read(task))
        else:
            assert list(reader.read(task)) == []
        (task,) = reader.partitions()
        assert sum(batch.num_rows for batch in reader.read(task)) == 5


def test_a_batch_of_a_topic_that_was_deleted_does_not_keep_a_query_from_going_on(
    tmp_path: Path,
) -> None:
    """A batch of a deleted topic, planned before or after a crash, does not stop the query."""
    found = {"path": str(tmp_path), "subscribe": "t", "failondataloss": "false"}
    reader = StreamReader(
        source_options(found, is_stream=True), StructType().add("value", "binary")
    )
    with pymq.open(tmp_path) as mq:
        _sent(mq, b"old")
        start = reader.initialOffset()
        _sent(mq, b"new", b"new")
        end = reader.latestOffset(start)
        assert len(reader.partitions(start, end)) == 1
        _sent(mq, b"newer")
        assert reader.partitions(start, end) == []
        (task,) = reader.partitions(end, reader.latestOffset(end))
        assert sum(batch.num_rows for batch in reader.read(task)) == 1


def test_a_query_that_is_to_end_does_not_run_after_what_comes_meanwhile(tmp_path: Path) -> None:
    """A query with ``Trigger.AvailableNow`` ends, even if a producer keeps sending."""
    found = {"path": str(tmp_path), "subscribe": "t", "startingoffsets": "earliest"}
    reader = StreamReader(
        source_options(found, is_stream=True), StructType().add("value", "binary")
    )
    with pymq.open(tmp_path) as mq, mq.producer() as producer:
        _sent(mq, b"1", b"2", b"3")
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        producer.send("t", b"4").result()
        first = reader.latestOffset(start, ReadMaxRows(2))
        assert first["t"] == {"0": 2}
        last = reader.latestOffset(first, ReadMaxRows(2))
        assert last["t"] == {"0": 3}
        assert reader.latestOffset(last, ReadMaxRows(2)) == last
        # the end, from which Spark computes the query's lag
        assert reader.reportLatestOffset()["t"] == {"0": 4}


def test_a_cluster_is_asked_about_the_topic_that_is_meant() -> None:
    with Cluster(brokers=3, seed=0) as cluster:
        mq = cluster.client()
        old = _sent(mq, b"old", b"old", b"old")
        log = ClusterLog(cluster.client(), 30.0)
        assert log.bounds("t", ["0"], old) == {"0": (0, 3)}
        new = _sent(mq, *[b"new"] * 5)
        for ask in (
            lambda: log.bounds("t", ["0"], old),
            lambda: log.at_time("t", ["0"], 0, old),
            lambda: list(log.read(Range("t", "0", 0, 3, old), 500)),
        ):
            before = cluster.now
            with pytest.raises(UnknownTopic, match="created again"):
                ask()
            assert cluster.now - before < 2
        assert log.bounds("t", ["0"], new) == {"0": (0, 5)}
        assert sum(len(batch) for batch in log.read(Range("t", "0", 0, 5, new), 500)) == 5
