"""Wrong calls and faults of the machine raise a clear error each time, and lose nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.client.option_types import Fsync
from pymq.errors import (
    BufferFull,
    Closed,
    ConfigError,
    ForkedError,
    InvalidName,
    InvalidRequest,
    NotEnoughBrokers,
    PartitionExists,
    PymqError,
    RecordTooLarge,
    StoreError,
    StoreFull,
    StoreLocked,
    TopicExists,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from pymq.store.verification.verify import verify
from tests.acceptance.helpers import contents, fill, may_mount, mounted, python, remount, values

Wrong = Any  # typed as Any, because a type checker would refuse the wrong value


@pytest.fixture
def mq() -> Iterator[pymq.Client]:
    """Open a client that must still work at the end of the test."""
    with pymq.open("memory:") as found:
        found.create_topic("t", partitions=2)
        yield found
        with found.producer(linger_ms=0) as producer:
            end = found.describe_topic("t").partitions[0].end_offset
            assert producer.send("t", b"last", partition=0).result(timeout=10).offset == end


# --- arguments of send ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 5, "text", 1.5, ["x"], object()])
def test_a_value_must_be_bytes(mq: pymq.Client, value: Wrong) -> None:
    with mq.producer() as producer:
        with pytest.raises(TypeError, match="value must be bytes-like"):
            producer.send("t", value)
        with pytest.raises(TypeError, match="value must be bytes-like"):
            producer.send_many("t", [b"good", value])
    assert contents(mq, "t") == {}


@pytest.mark.parametrize("value", [bytearray(b"ab"), memoryview(b"xaxb")[1::2]])
def test_what_is_bytes_like_is_copied(mq: pymq.Client, value: Wrong) -> None:
    with mq.producer(linger_ms=1000) as producer:
        producer.send("t", value, key=value, headers=[("h", value)], partition=0)
        if isinstance(value, bytearray):
            value[:] = b"no"
    record = contents(mq, "t")["0"][0]
    assert (record.value, record.key, record.headers) == (b"ab", b"ab", (("h", b"ab"),))


@pytest.mark.parametrize("key", [5, "text", ["x"]])
def test_a_key_must_be_bytes(mq: pymq.Client, key: Wrong) -> None:
    with mq.producer() as producer:
        with pytest.raises(TypeError, match="key must be bytes-like"):
            producer.send("t", b"", key=key)
        with pytest.raises(TypeError, match="key must be bytes-like"):
            producer.send_many("t", [b"", b""], [b"good", key])
        with pytest.raises(ValueError, match=r"2 values, but 1 key$"):
            producer.send_many("t", [b"", b""], [b"good"])
    assert contents(mq, "t") == {}


@pytest.mark.parametrize(
    "headers",
    [5, "ab", {"ab": b"1"}, [("a",)], [("a", "b")], [(1, b"")], [b"ab"], [("a", None)], [None]],
)
def test_headers_must_be_pairs(mq: pymq.Client, headers: Wrong) -> None:
    with mq.producer() as producer, pytest.raises(TypeError):
        producer.send("t", b"", headers=headers)
    assert contents(mq, "t") == {}


def test_a_header_name_must_be_text() -> None:
    """A lone surrogate in a header's name cannot be encoded, so ``send`` raises."""
    with pymq.open("memory:") as mq, mq.producer() as producer:
        mq.create_topic("t")
        with pytest.raises((TypeError, ValueError)):
            producer.send("t", b"", headers=[("\ud800", b"")])


@pytest.mark.parametrize(
    ("timestamp_ms", "error"),
    [
        (-1, InvalidRequest),
        (1 << 62, InvalidRequest),
        (1.5, TypeError),
        ("now", TypeError),
        (True, TypeError),
    ],
)
def test_a_timestamp_must_be_milliseconds(
    mq: pymq.Client, timestamp_ms: Wrong, error: type[Exception]
) -> None:
    """A timestamp of another type is a TypeError; an impossible one is a ValueError with a code."""
    assert issubclass(InvalidRequest, ValueError)
    mq.alter_topic("t", timestamp_after_max_ms=None)
    with mq.producer() as producer:
        with pytest.raises(error, match="timestamp_ms must be milliseconds"):
            producer.send("t", b"", timestamp_ms=timestamp_ms)
        producer.send("t", b"last", timestamp_ms=(1 << 62) - 1)
        producer.send("t", b"first", timestamp_ms=0)


@pytest.mark.parametrize("partition", ["x", 2, -1, 1.5, b"0", ["0"], "0 "])
def test_a_partition_must_be_there(mq: pymq.Client, partition: Wrong) -> None:
    with mq.producer() as producer:
        with pytest.raises(UnknownPartition, match="it has 0, 1") as caught:
            producer.send("t", b"", partition=partition)
        assert caught.value.code == "UNKNOWN_PARTITION"
        with pytest.raises(UnknownPartition):
            producer.send_many("t", [b""], partition=partition)
        with pytest.raises(UnknownPartition):
            mq.consumer("t", mode="psb", partition=partition)
        with pytest.raises(UnknownPartition):
            mq.set_partition_state("t", partition, acks="leader")
    assert contents(mq, "t") == {}


@pytest.mark.parametrize("topic", ["nope", "", "a/b", "\0", "x" * 300])
def test_a_topic_must_be_there(mq: pymq.Client, topic: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: mq.producer().send(topic, b""),
        lambda: mq.producer().send_many(topic, [b""]),
        lambda: mq.producer().next_sequence(topic, 0),
        lambda: mq.consumer(topic),
        lambda: mq.consumer(topic, mode="psb"),
        lambda: mq.delete_topic(topic),
        lambda: mq.describe_topic(topic),
        lambda: mq.alter_topic(topic, retention_ms=1),
        lambda: mq.set_partition_state(topic, "0", acks="leader"),
        lambda: mq.create_partition(topic, "x"),
        lambda: mq.reset_group("g", topic),
        lambda: mq.reassign(topic, "0", ["broker-0"]),
    ]
    for call in calls:
        with pytest.raises(UnknownTopic, match="create_topic") as caught:
            call()
        assert caught.value.code == "UNKNOWN_TOPIC"


@pytest.mark.parametrize("topic", [None, 5, b"t", ("t",)])
def test_a_topic_must_be_text(mq: pymq.Client, topic: Wrong) -> None:
    calls: list[Callable[[], object]] = [
        lambda: mq.create_topic(topic),
        lambda: mq.producer().send(topic, b""),
        lambda: mq.consumer(topic),
        lambda: mq.delete_topic(topic),
        lambda: mq.describe_topic(topic),
        lambda: mq.alter_topic(topic, retention_ms=1),
        lambda: mq.set_partition_state(topic, "0", acks="leader"),
        lambda: mq.create_partition(topic, "x"),
    ]
    for call in calls:
        with pytest.raises(InvalidName) as caught:
            call()
        assert caught.value.code == "INVALID_NAME"


# --- topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a" * 250, "ü", "a\0b", "a\n", " a", "a b"])
def test_bad_names(mq: pymq.Client, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: mq.create_topic(name),
        lambda: mq.create_topic("u", partitions=["fine", name]),
        lambda: mq.create_partition("t", name),
        lambda: mq.consumer("t", group=name),
        lambda: mq.producer(producer_id=name),
    ]
    for call in calls:
        with pytest.raises(InvalidName, match=r"must be 1 to 249 of A-Z a-z 0-9") as caught:
            call()
        assert caught.value.code == "INVALID_NAME"
        assert isinstance(caught.value, ValueError)
    assert mq.topics() == ["t"]


def test_names_of_our_own(mq: pymq.Client) -> None:
    """Topic names that pymq itself uses are refused, since such a topic would be invisible."""
    for name in ("__consumer_offsets", "__mine"):
        with pytest.raises(InvalidName, match="pymq's own"):
            mq.create_topic(name)


def test_odd_names(mq: pymq.Client) -> None:
    """Every name that the rule allows works."""
    for name in ("...", "-", "_", "0", "a" * 249, "A.b_c-9"):
        mq.create_topic(name, partitions=[name])
        with mq.producer(producer_id=name) as producer:
            assert producer.send(name, b"", partition=name).result().partition == name
        # By default dead letters go to a topic with the suffix ".dlq", for which the longest names
        # have no space.
        with mq.consumer(name, group=name, dead_letter="dead") as consumer:
            assert len(consumer.poll()) == 1
    assert len(mq.topics()) == 7


@pytest.mark.parametrize("partitions", [0, -1, 10**12, "x", 1.5, None, True, [], ["a", "a"], [1]])
def test_bad_partitions(mq: pymq.Client, partitions: Wrong) -> None:
    with pytest.raises((ConfigError, InvalidRequest, InvalidName)) as caught:
        mq.create_topic("u", partitions=partitions)
    assert isinstance(caught.value, ValueError)
    assert mq.topics() == ["t"]


@pytest.mark.parametrize("replicas", [0, -1, "x", 1.5, None, True])
def test_bad_replicas(mq: pymq.Client, replicas: Wrong) -> None:
    with pytest.raises(ConfigError, match="replicas=") as caught:
        mq.create_topic("u", replicas=replicas)
    assert caught.value.code == "CONFIG_ERROR"
    if replicas is not None:
        with pytest.raises(ConfigError, match="replicas="):
            mq.set_partition_state("t", 0, acks="leader", replicas=replicas)


def test_too_many_replicas(mq: pymq.Client) -> None:
    with pytest.raises(NotEnoughBrokers) as caught:
        mq.create_topic("u", replicas=2)
    assert caught.value.code == "NOT_ENOUGH_BROKERS"
    with pytest.raises(NotEnoughBrokers):
        mq.set_partition_state("t", 0, acks="raft", replicas=3)
    with pytest.raises(NotEnoughBrokers):
        mq.reassign("t", 0, ["broker-9"])
    with pytest.raises(InvalidRequest, match="at least one"):
        mq.reassign("t", 0, [])
    with pytest.raises(InvalidRequest, match="twice"):
        mq.reassign("t", 0, ["broker-0", "broker-0"])
    with pytest.raises(InvalidName):
        mq.reassign("t", 0, [["broker-0"]])  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(InvalidRequest, match="broker-9"):
        mq.decommission("broker-9")
    with pytest.raises(InvalidRequest):
        mq.recommission("broker-9")
    with pytest.raises(NotEnoughBrokers):
        mq.decommission("broker-0")
    assert mq.topics() == ["t"]
    assert mq.describe_topic("t").partitions[0].acks is pymq.AckMode.LEADER


@pytest.mark.parametrize("acks", ["sync", 5, -3, None, 1.0, True, b"leader", [], ""])
def test_bad_ack_modes(mq: pymq.Client, acks: Wrong) -> None:
    with pytest.raises(ConfigError, match="is no ack mode; use 'raft'") as caught:
        mq.create_topic("u", acks=acks)
    assert caught.value.code == "CONFIG_ERROR"
    with pytest.raises(ConfigError, match="is no ack mode"):
        mq.set_partition_state("t", 0, acks=acks)
    if acks is not None:
        with pytest.raises(ConfigError, match="is no ack mode"):
            mq.producer(acks=acks)


@pytest.mark.parametrize(
    "config",
    [
        {"block_bytes": 1},
        {"block_bytes": "5000"},
        {"block_bytes": 5e6},
        {"block_ms": 0},
        {"retention_ms": -1},
        {"retention_bytes": True},
        {"max_record_bytes": 0},
        {"max_record_bytes": (32 << 20) + 1},
        {"min_in_sync": 0},
        {"cleanup_policy": None},
        {"cleanup_policy": "compress"},
        {"fsync": "never"},
        {"fsync": ["always"]},
        {"unclean_election": 1},
        {"fsync_interval_ms": 0},
    ],
    ids=str,
)
def test_bad_config(mq: pymq.Client, config: Wrong) -> None:
    name = next(iter(config))
    for call in (mq.create_topic, mq.alter_topic):
        with pytest.raises(ConfigError, match=name) as caught:
            call("u" if call == mq.create_topic else "t", **config)
        assert isinstance(caught.value, ValueError)
        assert caught.value.code == "CONFIG_ERROR"
    assert mq.topics() == ["t"]
    assert mq.describe_topic("t").config == pymq.TopicConfig()


def test_misspelt_options(mq: pymq.Client) -> None:
    misspelt: Any = {"groop": "g"}  # typed as Any, because a type checker would find the wrong name
    with pytest.raises(ConfigError, match="did you mean 'retention_bytes'"):
        mq.create_topic("u", retention_byte=5)  # type: ignore[call-arg] # on purpose
    with pytest.raises(ConfigError, match="did you mean 'linger_ms'"):
        mq.producer(linger=5)  # type: ignore[arg-type] # on purpose
    with pytest.raises(ConfigError, match="did you mean 'group'"):
        mq.consumer("t", **misspelt)
    with pytest.raises(ConfigError, match="known are block_bytes"):
        mq.alter_topic("t", zzz=1)  # type: ignore[call-arg] # on purpose


@pytest.mark.parametrize(
    "config",
    [
        {"linger_ms": -1},
        {"linger_ms": 1.5},
        {"batch_bytes": 0},
        {"buffer_bytes": 0},
        {"compression": "gzip"},
        {"compression": 5},
        {"acks": "unset"},
        {"delivery_timeout_s": 0},
        {"delivery_timeout_s": None},
        {"delivery_timeout_s": float("nan")},
        {"max_in_flight": 0},
        {"max_in_flight": 6},
        {"idempotent": False, "producer_id": "me"},
    ],
    ids=str,
)
def test_bad_producer_config(mq: pymq.Client, config: Wrong) -> None:
    with pytest.raises(ConfigError, match="|".join(config)) as caught:
        mq.producer(**config)
    assert caught.value.code == "CONFIG_ERROR"


def test_what_is_there_already(mq: pymq.Client) -> None:
    with pytest.raises(TopicExists) as caught:
        mq.create_topic("t")
    assert caught.value.code == "TOPIC_EXISTS"
    mq.create_topic("t", partitions=9, exist_ok=True)
    assert len(mq.describe_topic("t").partitions) == 2
    with pytest.raises(PartitionExists):
        mq.create_partition("t", "1")
    with pytest.raises(UnknownGroup):
        mq.describe_group("nope")


# --- sizes ----------------------------------------------------------------------------------------


def test_oversize_records(mq: pymq.Client) -> None:
    """Key, value and headers count together; a record of exactly the limit is allowed."""
    mq.create_topic("small", max_record_bytes=100)
    with mq.producer(linger_ms=1000) as producer:
        for more in (
            {"value": bytes(101)},
            {"value": bytes(50), "key": bytes(51)},
            {"value": bytes(50), "headers": [("12345", bytes(46))]},
        ):
            with pytest.raises(RecordTooLarge, match="max_record_bytes=100") as caught:
                producer.send("small", **more)
            assert caught.value.code == "RECORD_TOO_LARGE"
            assert isinstance(caught.value, ValueError)
        with pytest.raises(RecordTooLarge):
            producer.send_many("small", [b"", bytes(101)])
        with pytest.raises(RecordTooLarge):
            producer.send_many("small", [b"", bytes(100)], [None, b"1"])
        assert contents(mq, "small") == {}
        producer.send("small", bytes(50), key=bytes(25), headers=[("12345", bytes(20))])
        producer.send_many("small", [bytes(100)] * 3)
    assert len(contents(mq, "small")["0"]) == 4


def test_the_largest_records(tmp_path: Path) -> None:
    """Records of 32 MiB, alone and several together, compressed or not, are sent and read."""
    largest = 32 << 20
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t", max_record_bytes=largest)
        big = os.urandom(1 << 20) * 32
        for compression in (None, "lz4"):
            with mq.producer(compression=compression) as producer:
                producer.send("t", big)
                producer.send("t", b"between")
                producer.send("t", big[:-10], key=b"0123456789")
                with pytest.raises(RecordTooLarge):
                    producer.send("t", bytes(largest + 1))
        with mq.consumer("t", group="g") as consumer:
            sizes = []
            for record in consumer.until_end():
                assert big.startswith(record.value) or record.value == b"between"
                sizes.append(len(record.value))
                consumer.ack(record)
        assert sizes == [largest, 7, largest - 10] * 2


def test_huge_headers(mq: pymq.Client) -> None:
    """Each record with huge headers is allowed; together such records fill several batches."""
    with mq.producer(linger_ms=1000) as producer:
        for number in range(40):
            producer.send("t", b"", headers=[("h", bytes(1_000_000))], key=b"%d" % number)
    found = contents(mq, "t")
    assert sum(map(len, found.values())) == 40
    assert all(len(r.headers[0][1]) == 1_000_000 for part in found.values() for r in part)


def test_many_headers(mq: pymq.Client) -> None:
    headers = [(f"h{number}", b"") for number in range(10_000)] + [("", b""), ("", b"")]
    with mq.producer() as producer:
        producer.send("t", b"", headers=headers, partition=0)
    assert contents(mq, "t")["0"][0].headers == tuple(headers)


def test_zero_length_everything(mq: pymq.Client) -> None:
    """An empty key is a key, an empty value is a value, and no records are no records."""
    with mq.producer(linger_ms=0) as producer:
        producer.send("t", b"", key=b"", headers=[("", b"")], timestamp_ms=0, partition=0)
        producer.send("t", b"", headers=[], partition=0)
        assert producer.send_many("t", []).result() == []
        assert producer.send_many("t", [], []).done()
        assert len(producer.send_many("t", [b"", b""], [b"", None], partition=0).result()) == 2
        producer.flush()
    first, *others = contents(mq, "t")["0"]
    assert (first.key, first.value, first.headers, first.timestamp_ms) == (
        b"",
        b"",
        (("", b""),),
        0,
    )
    assert [record.key for record in others] == [None, b"", None]
    with mq.producer() as producer:
        pass


# --- use after close ------------------------------------------------------------------------------


def test_use_after_close() -> None:
    """Every method raises Closed; closing again is allowed."""
    mq = pymq.open("memory:")
    mq.create_topic("t")
    producer = mq.producer()
    delivery = producer.send("t", b"kept")
    producer.close()
    producer.close()
    assert delivery.result().offset == 0
    for call in (
        lambda: producer.send("t", b""),
        lambda: producer.send("other", b""),
        lambda: producer.send("t", b"", partition=0, headers=[("h", b"")]),
        lambda: producer.send_many("t", [b""]),
        lambda: producer.send_many("other", [b""]),
    ):
        with pytest.raises(Closed, match="producer was closed") as caught:
            call()
        assert caught.value.code == "CLOSED"
    for consumer in (mq.consumer("t", group="g"), mq.consumer("t", mode="psb")):
        records = consumer.poll()
        consumer.close()
        consumer.close()
        with pytest.raises(Closed, match="consumer was closed"):
            consumer.poll()
        assert list(consumer) == []
        if consumer.group:
            with pytest.raises(Closed):
                consumer.ack(records)
    late, reader = mq.producer(linger_ms=60_000), mq.consumer("t", mode="psb")
    lingering = late.send("t", b"lingering")
    mq.close()
    mq.close()
    assert mq.closed
    assert lingering.result().offset == 1, "closing the client flushes its producers"
    for use in (
        mq.topics,
        mq.producer,
        mq.groups,
        mq.cluster,
        lambda: mq.consumer("t"),
        lambda: mq.create_topic("u"),
        lambda: late.send("t", b""),
        reader.poll,
    ):
        with pytest.raises(Closed):
            use()
    late.close()
    reader.close()


# --- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "http://host", "zmq+nope://host", "a\0b"])
def test_bad_urls(url: str) -> None:
    with pytest.raises((ConfigError, StoreError)) as caught:
        pymq.open(url)
    assert caught.value.code in ("CONFIG_ERROR", "STORE_ERROR")


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("hello")
    for wrong in (path, path / "below"):
        with pytest.raises(StoreError, match=path.name) as caught:
            pymq.open(wrong)
        assert caught.value.code == "STORE_ERROR"
    assert path.read_text() == "hello"


def test_a_folder_that_cannot_be_made() -> None:
    with pytest.raises(StoreError, match="/proc"):
        pymq.open("/proc/pymq/here")


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    """pymq refuses a folder of another program, and puts nothing into it."""
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match=r"letter\.txt.*empty or a new folder"):
        pymq.open(tmp_path)
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_a_folder_of_another_version(tmp_path: Path) -> None:
    pymq.open(tmp_path).close()
    marker = tmp_path / "FORMAT"
    marker.write_bytes(marker.read_bytes().replace(b"version 1", b"version 2"))
    with pytest.raises(StoreError, match="version 2") as caught:
        pymq.open(tmp_path)
    assert "knows version 1" in str(caught.value)
    marker.write_bytes(marker.read_bytes().replace(b"version 2", b"version 1"))
    pymq.open(tmp_path).close()


def test_foreign_files_among_the_blocks(tmp_path: Path) -> None:
    """pymq ignores foreign files among the blocks."""
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send("t", b"1")
    partition = next(tmp_path.glob("blocks/*/0"))
    strangers = [
        tmp_path / "notes.txt",
        tmp_path / "blocks" / "x",
        partition.parent / "y",
        partition / "00000007.block.bak",
        partition / "zzz.block",
        partition / ".DS_Store",
    ]
    for path in strangers:
        path.write_text("stranger")
    with pymq.open(tmp_path) as mq:
        with mq.producer() as producer:
            producer.send("t", b"2")
        assert values(mq, "t") == [b"1", b"2"]
    assert [path.read_text() for path in strangers] == ["stranger"] * len(strangers)
    report = verify(str(tmp_path))
    assert report.is_ok
    assert {problem.file for problem in report.problems} >= set(map(str, strangers[1:]))


OPEN = """
import sys, pymq
try:
    pymq.open(sys.argv[1])
except pymq.errors.StoreLocked as error:
    print(error.code, error.details["pid"], error)
"""


def test_a_second_process(tmp_path: Path) -> None:
    """A second process learns which process has the folder; the first one does not notice."""
    with pymq.open(tmp_path) as mq:
        said = python(OPEN, tmp_path).stdout
        assert said.startswith(f"STORE_LOCKED {os.getpid()} ")
        assert str(tmp_path) in said
        mq.create_topic("t")
    assert python(OPEN, tmp_path).stdout == ""


def test_twice_in_one_process(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder")
    with pymq.open(tmp_path / "folder") as mq:
        for path in (tmp_path / "folder", link):
            with pytest.raises(StoreLocked) as caught:
                pymq.open(path)
            assert caught.value.details["pid"] == str(os.getpid())
        mq.create_topic("t")
    with pymq.open(link) as mq:
        assert mq.topics() == ["t"]


# --- disks ----------------------------------------------------------------------------------------

needs_mount = pytest.mark.skipif(not may_mount(), reason="needs the right to mount a disk")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", megabytes=4) as path:
        yield path


@needs_mount
def test_a_read_only_folder(disk: Path) -> None:
    with pymq.open(disk / "here") as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send("t", b"1")
    remount(disk, "ro")
    for path in (disk / "here", disk / "new"):
        with pytest.raises(StoreError, match="permission to write") as caught:
            pymq.open(path)
        assert caught.value.code == "STORE_ERROR"
        assert isinstance(caught.value, OSError)
    assert verify(str(disk / "here")).is_ok, "what can be read can be verified"
    remount(disk, "rw")
    with pymq.open(disk / "here") as mq:
        assert values(mq, "t") == [b"1"]


@needs_mount
@pytest.mark.parametrize("fsync", ["always", "interval", "os"])
def test_a_full_disk(disk: Path, fsync: Fsync) -> None:
    """With a full disk sending raises and reading works.

    With some free space sending works again.
    """
    kept = []
    with pymq.open(disk / "here") as mq:
        mq.create_topic("t", fsync=fsync, block_bytes=100_000)
        with mq.producer(linger_ms=0) as producer:
            for number in range(10):
                kept.append(b"%d" % number)
                producer.send("t", kept[-1]).result()
            reader = mq.consumer("t", mode="psb")
            filler = fill(disk)
            failed = 0
            for number in range(50):
                value = b"%d " % number + bytes(1_000)
                delivery = producer.send("t", value)
                error = delivery.exception(timeout=10)
                if error is None:
                    kept.append(value)
                    continue
                failed += 1
                assert isinstance(error, StoreFull)
                assert error.code == "STORE_FULL"
                assert "free some space" in str(error)
                assert ".block" in str(error)
            assert failed > 40
            assert [record.value for record in reader.until_end()] == kept
            filler.unlink()
            for number in range(300):
                kept.append(b"after %d" % number + bytes(1_000))
                producer.send("t", kept[-1]).result(timeout=10)
            assert values(mq, "t") == kept
    with pymq.open(disk / "here") as mq:
        assert values(mq, "t") == kept
    assert verify(str(disk / "here")).is_ok


@needs_mount
def test_topics_on_a_full_disk(disk: Path) -> None:
    """With a full disk a topic is created completely or not at all.

    Existing records can be read.
    """
    with pymq.open(disk / "here") as mq:
        mq.create_topic("t")
        filler = fill(disk)
        made = ["t"]

        def make() -> None:
            for number in range(200):
                mq.create_topic(f"t{number}", partitions=10)
                made.append(f"t{number}")

        with pytest.raises(StoreFull) as caught:
            make()
        assert caught.value.code == "STORE_FULL"
        assert sorted(mq.topics()) == sorted(made)
        with pytest.raises(StoreFull):
            mq.create_topic("x", partitions=99)
        filler.unlink()
        mq.create_topic("later")
        with mq.producer() as producer:
            producer.send("later", b"1").result(timeout=10)
    with pymq.open(disk / "here") as mq:
        assert sorted(mq.topics()) == sorted([*made, "later"])
        assert values(mq, "later") == [b"1"]
    assert verify(str(disk / "here")).is_ok


@needs_mount
def test_consuming_begins_on_a_full_disk(disk: Path) -> None:
    """A reader writes nothing to the disk, nor does a known group."""
    with pymq.open(disk / "here") as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send_many("t", [b"%d" % number for number in range(10)])
        with mq.consumer("t", group="known") as consumer:
            assert len(list(consumer.until_end())) == 10
        filler = fill(disk)

        def subscribe() -> None:
            for number in range(1000):
                mq.consumer("t", group=f"g{number}").close()

        with pytest.raises(StoreFull):
            subscribe()
        assert values(mq, "t") == [b"%d" % number for number in range(10)]
        with mq.consumer("t", group="known") as consumer:
            assert len(list(consumer.until_end())) == 10
        filler.unlink()
        with mq.consumer("t", group="new") as consumer:
            assert len(list(consumer.until_end())) == 10


@needs_mount
def test_commits_on_a_full_disk(disk: Path) -> None:
    """If a commit fails, its records are delivered again.

    Later the group continues.
    """
    size = 4_000
    with pymq.open(disk / "here") as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send_many("t", [b"%d" % number for number in range(size)])
        with mq.consumer("t", group="g") as consumer:
            filler = fill(disk)
            seen = []
            for record in consumer.until_end():
                seen.append(record.offset)
                consumer.ack(record)
                if record.offset % 10 == 0:
                    try:
                        consumer.commit(timeout=0.2)
                    except (StoreFull, pymq.errors.RequestTimeout):
                        break
            filler.unlink()
            for record in consumer.until_end():
                seen.append(record.offset)
                consumer.ack(record)
            consumer.commit(timeout=10)
            assert sorted(set(seen)) == list(range(size))
    with pymq.open(disk / "here") as mq, mq.consumer("t", group="g") as consumer:
        assert list(consumer.until_end()) == []


@needs_mount
def test_unanswered_records_on_a_full_disk(disk: Path) -> None:
    """Records may be lost while the disk is full; afterwards the producer works again."""
    with pymq.open(disk / "here") as mq:
        mq.create_topic("t", acks="none")
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"before").result()
            filler = fill(disk)
            producer.send("t", bytes(20_000)).result()
            filler.unlink()
            producer.send("t", b"after").result()
        assert values(mq, "t") == [b"before", b"after"]


CHANGE = """
import sys, pymq
mq = pymq.open(sys.argv[1])
mq.create_topic("t")
handle = open(sys.argv[2], "wb", buffering=0)
try:
    while True:
        handle.write(bytes(4096))
except OSError:
    handle.close()
try:
    mq.set_partition_state("t", "0", acks="raft")
except pymq.errors.PymqError as error:
    print(error.code)
import os
os.unlink(sys.argv[2])
print(mq.producer().send("t", b"1").result(timeout=10).offset)
mq.close()
"""


@needs_mount
def test_changing_the_mode_on_a_full_disk(disk: Path) -> None:
    """With a full disk a change of the mode either fails or succeeds, but does not hang."""
    try:
        done = python(CHANGE, disk / "here", disk / "filler", timeout=5)
    except subprocess.TimeoutExpired:
        pytest.fail("it hangs")
    assert done.stdout.endswith("0\n"), done


@needs_mount
def test_opening_on_a_full_disk(disk: Path) -> None:
    filler = fill(disk)
    with pytest.raises(StoreFull):
        pymq.open(disk / "here")
    filler.unlink()
    with pymq.open(disk / "here") as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            producer.send("t", b"1").result()
        filler = fill(disk)
    filler.unlink()
    with pymq.open(disk / "here") as mq:
        assert values(mq, "t") == [b"1"]


# --- processes ------------------------------------------------------------------------------------

FORK = """
import os, sys, pymq
from pymq.errors import ForkedError
mq = pymq.open(sys.argv[1])
mq.create_topic("t")
producer = mq.producer(linger_ms=60_000)
producer.send("t", b"before").result()
producer.send("t", b"lingering")
consumer = mq.consumer("t", mode="psb")
group = mq.consumer("t", group="g")
mq.create_topic("u")
producer.send_many("u", [b"1", b"2", b"3"]).wait()
shown = mq.consumer("u", mode="psb")
next(iter(shown))
sys.stdout.flush()
if not (child := os.fork()):
    for use in (
        mq.topics,
        lambda: mq.create_topic("child"),
        mq.producer,
        producer.flush,
        lambda: producer.send("t", b"child").result(timeout=5),
        lambda: producer.send_many("t", [b"child"]).result(timeout=5),
        lambda: group.poll(timeout=5),
        lambda: list(consumer.until_end()),
        lambda: shown.poll(timeout=5),
        lambda: shown.poll_batches(timeout=5),
        lambda: next(iter(shown)),
    ):
        try:
            use()
            print("no error", use)
        except ForkedError as error:
            assert error.code == "FORKED"
    for handle in (producer, consumer, group, shown, mq):
        try:
            handle.close()
        except ForkedError:
            pass
    sys.stdout.flush()
    {leave}
_, status = os.waitpid(child, 0)
print(status)
producer.send("t", b"after")
producer.flush()
mq.create_topic("later")
print([record.value for record in consumer.until_end()])
print([record.value for record in shown.poll()])
mq.close()
with pymq.open(sys.argv[1]) as mq:
    print(mq.topics())
"""


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child(tmp_path: Path, leave: str) -> None:
    """A forked child gets ForkedError from every handle, does no harm, and can exit."""
    code = f"import signal; signal.alarm(8)\n{FORK.replace('{leave}', leave)}"
    done = python(code, tmp_path, timeout=20)
    assert done.stdout.splitlines() == [
        "0",
        "[b'before', b'lingering', b'after']",
        "[b'2', b'3']",
        "['later', 't', 'u']",
    ], done
    assert verify(str(tmp_path)).is_ok


FORGETFUL = """
import sys, pymq
mq = pymq.open(sys.argv[1])
mq.create_topic("t")
producer = mq.producer(linger_ms=60_000)
for number in range(1_000):
    producer.send("t", b"%d" % number)
producer.send_many("t", [b"1000", b"1001"])
"""


def test_exit_without_close(tmp_path: Path) -> None:
    """Lingering records are written when the interpreter exits."""
    done = python(FORGETFUL, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with pymq.open(tmp_path) as mq:
        assert values(mq, "t") == [b"%d" % number for number in range(1_002)]


def test_exit_with_an_exception(tmp_path: Path) -> None:
    """Lingering records are also written when the interpreter exits because of an error."""
    done = python(FORGETFUL + "\nraise SystemError('oops')", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "SystemError: oops"
    with pymq.open(tmp_path) as mq:
        assert len(values(mq, "t")) == 1_002


INTERRUPT = """
import random, signal, sys, pymq
mq = pymq.open(sys.argv[1])
mq.create_topic("t", fsync="always")
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
dice, acked = random.Random(1), 0
producer = mq.producer(linger_ms=0)
for life in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-4, 2e-3))
        try:
            while True:
                producer.send("t", b"").result()
                acked += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    except pymq.errors.PymqError:
        break  # It says that it was interrupted at a bad moment.
try:
    mq.close()
except pymq.errors.PymqError:
    pass
with pymq.open(sys.argv[1]) as mq:
    end = mq.describe_topic("t").partitions[0].end_offset
    print(acked <= end)
"""


def test_control_c(tmp_path: Path) -> None:
    """After Ctrl-C at any moment the client continues or raises, and can always be closed."""
    done = python(INTERRUPT, tmp_path)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


# --- callbacks ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_in_a_callback(mq: pymq.Client) -> None:
    """An exception in a callback does not affect the loop or the other callbacks."""
    called: list[pymq.Delivery] = []
    with mq.producer(linger_ms=1) as producer:
        for _ in range(3):
            delivery = producer.send("t", b"", partition=1)
            delivery.add_done_callback(lambda _: 1 // 0)
            delivery.add_done_callback(called.append)
            assert delivery.result(timeout=5)
        # the callback is added after the delivery is done
        delivery.add_done_callback(called.append)
        producer.flush(timeout=5)
    assert len(called) == 4


def test_a_callback_may_send(mq: pymq.Client) -> None:
    """A callback may send without waiting: flush also waits for its records."""
    left = threading.Semaphore(50)
    done = threading.Event()
    with mq.producer(batch_bytes=300, linger_ms=1) as producer:

        def again(delivery: pymq.Delivery) -> None:
            assert delivery.done()
            if left.acquire(blocking=False):
                producer.send("t", bytes(200), partition=1).add_done_callback(again)
            else:
                done.set()

        for _ in range(3):
            producer.send("t", bytes(200), partition=1).add_done_callback(again)
        assert done.wait(10)
    assert len(contents(mq, "t")["1"]) == 53


# --- errors ---------------------------------------------------------------------------------------


def test_codes_are_stable() -> None:
    """Codes of errors never change, since programs match them."""
    codes = {error.code for error in (BufferFull, Closed, ForkedError, StoreLocked, StoreFull)}
    assert codes == {"BUFFER_FULL", "CLOSED", "FORKED", "STORE_LOCKED", "STORE_FULL"}
    found = [getattr(pymq.errors, name) for name in pymq.errors.__all__]
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, PymqError)]
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_an_unused_import_is_cheap() -> None:
    """``import pymq`` does not load zmq, asyncio or pyarrow.

    An embedded queue does not need these packages.
    """
    code = "import pymq, sys; pymq.open('memory:').close(); print(*sys.modules)"
    loaded = set(python(code).stdout.split())
    assert "pymq.nodes.embedded" in loaded
    assert not loaded & {"zmq", "asyncio", "pyarrow", "kazoo", "rich", "sqlite3", "numpy"}
    assert shutil.which(sys.executable)
