"""Several brokers in one process, as :func:`pymq.open` makes them."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

import pymq
from pymq.errors import ConfigError, CorruptMetadata, StoreLocked
from pymq.nodes.embedded import broker_folders


def put(mq: pymq.Client, count: int = 100) -> None:
    mq.create_topic("orders", replicas=3, acks="raft", exist_ok=True)
    with mq.producer() as producer:
        producer.send_many("orders", [b"%d" % number for number in range(count)])


def got(mq: pymq.Client) -> list[int]:
    with mq.consumer("orders", mode="psb", offset="begin") as reader:
        return [int(record.value) for record in reader.until_end()]


def test_a_folder_of_three(tmp_path: Path) -> None:
    """A folder made with three brokers has three again when it is reopened without ``brokers=``."""
    with pymq.open(tmp_path, brokers=3) as mq:
        put(mq)
        (partition,) = mq.describe_topic("orders").partitions
        assert len(partition.replicas) == len(partition.in_sync) == 3
        assert got(mq) == list(range(100))
    assert [Path(path).name for path in broker_folders(os.fspath(tmp_path))] == [
        "broker-0",
        "broker-1",
        "broker-2",
    ]
    with pymq.open(tmp_path) as mq:
        assert [broker.name for broker in mq.cluster().brokers] == [
            "broker-0",
            "broker-1",
            "broker-2",
        ]
        put(mq)
        assert got(mq) == [*range(100), *range(100)]
        with pytest.raises(StoreLocked):
            pymq.open(tmp_path)


def test_groups(tmp_path: Path) -> None:
    """Acknowledgements of a group are kept with three brokers, too."""
    with pymq.open(tmp_path, brokers=3) as mq:
        put(mq)
        with mq.consumer("orders", group="billing") as consumer:
            records = consumer.poll(max_records=60, timeout=10)  # at most this number of records
            consumer.ack(records)
            consumer.commit()
            done = [int(record.value) for record in records]
        assert done
    with pymq.open(tmp_path) as mq, mq.consumer("orders", group="billing") as consumer:
        left = [int(record.value) for record in consumer.until_end()]
    assert done + left == list(range(100))


def test_a_disk_is_lost(tmp_path: Path) -> None:
    """Two of three brokers have all acknowledged records.

    The third, with an empty disk, gets copies.
    """
    with pymq.open(tmp_path, brokers=3) as mq:
        put(mq)
        leader = mq.describe_topic("orders").partitions[0].leader
    assert leader is not None
    shutil.rmtree(tmp_path / leader)
    with pymq.open(tmp_path) as mq:
        assert len(mq.cluster().brokers) == 3
        assert got(mq) == list(range(100))
        put(mq)
        assert mq.describe_topic("orders").partitions[0].leader != leader


def test_more_brokers(tmp_path: Path) -> None:
    """Reopening may add brokers, but not remove any."""
    with pymq.open(tmp_path, brokers=3) as mq:
        put(mq)
    with pymq.open(tmp_path, brokers=5) as mq:
        mq.create_topic("wide", replicas=5, acks="raft")
        with mq.producer() as producer:
            producer.send("wide", b"").result(timeout=30)
        assert got(mq) == list(range(100))
    with pytest.raises(ConfigError, match="holds 5 brokers"):
        pymq.open(tmp_path, brokers=3)


def test_one_and_several_are_not_mixed(tmp_path: Path) -> None:
    """A folder that began with one broker keeps one, and another number raises."""
    with pymq.open(tmp_path) as mq:
        mq.create_topic("orders")
    assert broker_folders(os.fspath(tmp_path)) == []
    with pytest.raises(ConfigError, match="holds one broker"):
        pymq.open(tmp_path, brokers=2)
    with pymq.open(tmp_path, brokers=1) as mq:
        assert mq.topics() == ["orders"]


def test_metadata_that_is_missing(tmp_path: Path) -> None:
    """Blocks are useless without their metadata; opening raises and creates no new metadata."""
    with pymq.open(tmp_path, brokers=3) as mq:
        put(mq)
    for file in tmp_path.glob("metadata.db*"):
        file.unlink()
    with pytest.raises(CorruptMetadata, match="is missing"):
        pymq.open(tmp_path)


def test_what_else_lies_there_is_no_broker(tmp_path: Path) -> None:
    """A file with a large number in its name does not count as a broker's folder."""
    with pymq.open(tmp_path, brokers=3) as mq:
        put(mq)
    (tmp_path / f"broker-{10**12}").mkdir()
    assert len(broker_folders(os.fspath(tmp_path))) == 3
    with pymq.open(tmp_path) as mq:
        assert got(mq) == list(range(100))


@pytest.mark.parametrize("brokers", [0, -1, 101, True, "3", 1.0])
def test_what_is_no_number(tmp_path: Path, brokers: int) -> None:
    """An invalid number of brokers is refused before any file is made."""
    with pytest.raises(ConfigError, match="no number from 1 to 100"):
        pymq.open(tmp_path / "new", brokers=brokers)
    assert not (tmp_path / "new").exists()


def test_brokers_elsewhere_are_not_ours_to_number() -> None:
    """``brokers=`` is refused with the URL of a cluster."""
    with pytest.raises(ConfigError, match="not in this process"):
        pymq.open("zmq+tcp://127.0.0.1:1", brokers=3)


def test_metrics_are_sums() -> None:
    """Each name has one value for each set of labels, as Prometheus requires."""
    with pymq.open("memory:", brokers=3) as mq:
        put(mq)
        metrics = mq.metrics()
        assert metrics.value("pymq_hosted_partitions") == 3
        assert metrics.value("pymq_led_partitions") == 1
        assert metrics.value("pymq_messages_in_total", topic="orders") == 100
        assert metrics.value("pymq_write_seconds") >= 3
        names = [line.rpartition(" ")[0] for line in str(metrics).splitlines()]
        series = [name for name in names if not name.startswith("#")]
        assert len(series) == len(set(series))


def test_async() -> None:
    """``pymq.aio.open`` takes the same argument."""

    async def main() -> int:
        async with pymq.aio.open("memory:", brokers=3) as mq:
            return len((await mq.cluster()).brokers)

    assert asyncio.run(main()) == 3
