"""Processes are killed at any moment; everything that was confirmed to them survives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.errors import UnknownGroup
from pymq.nodes.embedded import broker_folders
from pymq.store.verification.verify import verify
from tests.acceptance.children import PARTITIONS, payload
from tests.acceptance.helpers import Nursery, contents
from tests.seeds import seeds

LIVES = 10  # processes that are killed in each folder


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as found:
        yield found


def check_intact(folder: Path) -> None:
    report = verify(str(folder))
    assert report.is_ok, report


def produce_and_die(
    nursery: Nursery, folder: Path, seed: int, program: str, **config: Any
) -> pymq.TopicDescription:
    """Run many lives of a named producer; after each, its topic holds exactly the right records."""
    dice = random.Random(seed)
    with pymq.open(folder) as mq:
        mq.create_topic("t", partitions=PARTITIONS, fsync="always", **config)
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(LIVES):
        for word, *numbers in nursery.life(program, folder, dice, 40):
            if word == "ack":
                partition, offset, number = map(int, numbers)
                assert offset == number, "the producer went on where it stood"
                assert offset >= ends[partition], "an offset was given twice"
                ends[partition] = offset + 1
        with pymq.open(folder) as mq:
            found = contents(mq, "t")
            for partition, end in ends.items():
                records = found.get(str(partition), [])
                assert len(records) >= end, "what was acknowledged is missing"
                assert [record.value for record in records] == [
                    payload(partition, number) for number in range(len(records))
                ]
                ends[partition] = len(records)
        check_intact(folder)
    with pymq.open(folder) as mq:
        return mq.describe_topic("t")


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_produce(tmp_path: Path, nursery: Nursery, seed: int) -> None:
    """No acknowledged record is missing or duplicated, and offsets are dense."""
    produce_and_die(nursery, tmp_path, seed, "produce")


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_produce_to_three_brokers(tmp_path: Path, nursery: Nursery, seed: int) -> None:
    """If a process with three brokers is killed, no record is lost or written twice.

    New leaders take offsets.
    """
    dice = random.Random(seed)
    with pymq.open(tmp_path, brokers=3) as mq:
        mq.create_topic("t", partitions=PARTITIONS, replicas=3, acks="raft")
    told = dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(3):
        for word, *numbers in nursery.life("produce", tmp_path, dice, 40):
            if word == "ack":
                partition, _, number = map(int, numbers)
                assert number >= told[partition], "a record was sent twice"
                told[partition] = number + 1
        found: dict[str, list[bytes]] = {}
        with pymq.open(tmp_path) as mq, mq.consumer("t", mode="psb", offset="begin") as reader:
            for record in reader.until_end():
                found.setdefault(record.partition, []).append(record.value)
        for partition, count in told.items():
            values = found.get(str(partition), [])
            assert len(values) >= count, "what was acknowledged is missing"
            assert values == [payload(partition, number) for number in range(len(values))]
            told[partition] = len(values)
        for folder in broker_folders(str(tmp_path)):
            check_intact(Path(folder))


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_roll(tmp_path: Path, nursery: Nursery, seed: int) -> None:
    """If a producer is killed while blocks are rolled after every few records, no record is lost or
    written twice.
    """
    topic = produce_and_die(nursery, tmp_path, seed, "produce", block_bytes=4096)
    assert max(len(partition.blocks) for partition in topic.partitions) > 3


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_change_mode(tmp_path: Path, nursery: Nursery, seed: int) -> None:
    """If a producer is killed while the ack mode changes, no record is lost or written twice."""
    topic = produce_and_die(nursery, tmp_path, seed, "change")
    assert max(len(partition.blocks) for partition in topic.partitions) > 3


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_create_and_delete_topics(tmp_path: Path, nursery: Nursery, seed: int) -> None:
    """After a kill each topic exists or not, in accordance with the answers, and all topics
    work.
    """
    dice = random.Random(seed)
    there: dict[str, bool | None] = {}  # None: the topic may or may not exist
    with_record = set()
    for _ in range(LIVES):
        for word, *names in nursery.life("create", tmp_path, dice, 30):
            if word in ("making", "deleting"):
                there[names[0]] = None
            elif word in ("made", "deleted"):
                there[names[0]] = word == "made"
            elif word == "ack":
                with_record.add(names[0])
        with pymq.open(tmp_path) as mq:
            found = set(mq.topics())
            assert {name for name, is_there in there.items() if is_there} <= found
            assert found <= {name for name, is_there in there.items() if is_there is not False}
            there = dict.fromkeys(found, True)
            with mq.producer(linger_ms=0) as producer:
                for name in found:
                    records = [r for part in contents(mq, name).values() for r in part]
                    assert {record.value for record in records} <= {name.encode(), b"later"}
                    assert (name in with_record) <= (len(records) > 0)
                    assert len(mq.describe_topic(name).partitions) >= 1
                for name in sorted(found)[:3]:
                    producer.send(name, b"later").result(timeout=10)
        check_intact(tmp_path)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_commit(tmp_path: Path, nursery: Nursery, seed: int) -> None:
    """A group's offset is never ahead of its acknowledgements, nor behind its commits."""
    dice = random.Random(seed)
    size = 1_500
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t", fsync="always")
        with mq.producer() as producer:
            producer.send_many("t", [b"%d" % number for number in range(size)])
    acked, committed = set(), set()
    for _ in range(LIVES):
        for word, *rest in nursery.life("consume", tmp_path, dice, 120):
            if word == "got":
                assert rest[1] == rest[2]
            elif word == "acking":
                acked.add(int(rest[1]))
            elif word == "committed":
                committed.add(int(rest[1]))
        with pymq.open(tmp_path) as mq:
            try:
                offset = mq.describe_group("g").committed.get(("t", "0"), 0)
            except UnknownGroup:
                offset = 0
            assert set(range(offset)) <= acked
            # Committed records are not delivered again; all others are. Each check is a delivery,
            # which counts permanently.
            with mq.consumer("t", group="g", max_deliver=0) as consumer:
                again = {record.offset for record in consumer.until_end()}
            assert not again & committed
            assert again | acked == set(range(size))
        check_intact(tmp_path)
