"""Priorities: of the available records, a group gets those with the highest priority first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import pymq
from pymq import aio
from pymq.errors import ConfigError
from pymq.testing import Cluster

WAIT_S = 30.0


def send(mq: pymq.Client, levels: list[int], topic: str = "t", linger_ms: int = 5) -> None:
    """Send a record for each priority; the record's value contains the priority and a number.

    Without a linger each record is written before the next one is sent.
    """
    with mq.producer(linger_ms=linger_ms) as producer:
        for number, level in enumerate(levels):
            sent = producer.send(topic, b"%d %d" % (level, number), priority=level)
            if not linger_ms:
                sent.result(WAIT_S)


def drain(mq: pymq.Client, count: int, group: str = "g", topic: str = "t") -> list[tuple[int, int]]:
    """Consume and acknowledge *count* records, one at a time; returns priorities and numbers."""
    found: list[pymq.Record] = []
    with mq.consumer(topic, group=group, prefetch=1) as consumer:
        while len(found) < count:
            records = consumer.poll(1, WAIT_S)
            assert records, f"only {[r.value for r in found]} came"
            consumer.ack(records)
            found += records
        consumer.commit()
    return numbered(found)


def numbered(records: list[pymq.Record]) -> list[tuple[int, int]]:
    pairs = [record.value.split() for record in records]
    return [(int(level), int(number)) for level, number in pairs]


def ranked(levels: list[int]) -> list[tuple[int, int]]:
    """The records in the order in which a group gets them."""
    return sorted(
        ((level, n) for n, level in enumerate(levels)), key=lambda pair: (-pair[0], pair[1])
    )


@pytest.mark.parametrize("linger_ms", [0, 50])
def test_urgent_records_come_first(mq: pymq.Client, linger_ms: int) -> None:
    mq.create_topic("t")
    levels = [0, 5, 9, 5, 0, 1, 9, 0]
    send(mq, levels, linger_ms=linger_ms)
    assert drain(mq, len(levels)) == ranked(levels)


def test_many_records_at_random(mq: pymq.Client) -> None:
    mq.create_topic("t")
    dice = Random(1)
    levels = [dice.choice([0, 0, 0, 0, 3, 7]) for _ in range(500)]
    for start in range(0, 500, 50):
        with mq.producer() as producer:
            for number in range(start, start + 50):
                producer.send("t", b"%d %d" % (levels[number], number), priority=levels[number])
    assert drain(mq, 500) == ranked(levels)


def test_an_urgent_record_overtakes_a_backlog(mq: pymq.Client) -> None:
    mq.create_topic("t")
    send(mq, [0] * 300)
    with mq.consumer("t", group="g", prefetch=1) as consumer, mq.producer(linger_ms=0) as producer:
        for number in range(20):
            producer.send("t", b"9 %d" % number, priority=9).result(WAIT_S)
            (record,) = consumer.poll(1, WAIT_S)
            if record.value != b"9 %d" % number:  # this record was leased before
                consumer.ack(record)
                (record,) = consumer.poll(1, WAIT_S)
            assert record.value == b"9 %d" % number
            consumer.ack(record)


def test_over_several_partitions(mq: pymq.Client) -> None:
    mq.create_topic("t", 4)
    levels = [0, 2, 4, 0, 9, 4, 2, 0] * 10
    with mq.producer(linger_ms=0) as producer:
        for number, level in enumerate(levels):
            producer.send("t", b"%d %d" % (level, number), priority=level, partition=number % 4)
    found = drain(mq, len(levels))
    assert [level for level, _ in found] == sorted(levels, reverse=True)
    assert sorted(number for _, number in found) == list(range(80))


def test_readers_and_headers(mq: pymq.Client) -> None:
    """Readers get records in the order of the log; the priority is a header."""
    mq.create_topic("t")
    send(mq, [0, 9, 1], linger_ms=0)
    with mq.consumer("t", mode="reader") as reader:
        records = list(reader.until_end())
    assert sorted(numbered(records)) == [(0, 0), (1, 2), (9, 1)]
    found = {record.value: record.headers for record in records}
    assert found[b"9 1"] == (("pymq.priority", b"9"),)
    assert found[b"0 0"] == ()


def test_records_of_a_named_producer_stay_in_order(mq: pymq.Client) -> None:
    """Records of a named producer stay in order, because the producer relies on it after a
    crash.
    """
    mq.create_topic("t")
    with mq.producer(producer_id="named", linger_ms=50) as producer:
        sent = [
            producer.send("t", b"%d %d" % (level, n), priority=level)
            for n, level in enumerate([0, 9, 0, 5, 5])
        ]
        assert [each.result(WAIT_S).offset for each in sent] == [0, 1, 2, 3, 4]
    assert drain(mq, 5) == [(9, 1), (5, 3), (5, 4), (0, 0), (0, 2)]


def test_offsets_and_deliveries_belong_to_their_records(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer(linger_ms=50) as producer:
        sent = [producer.send("t", b"%d" % n, priority=n % 3, key=b"k%d" % n) for n in range(30)]
        offsets = [each.result(WAIT_S).offset for each in sent]
    assert sorted(offsets) == list(range(30))
    with mq.consumer("t", mode="reader") as reader:
        found = {record.offset: record for record in reader.until_end()}
    for number, offset in enumerate(offsets):
        assert (found[offset].value, found[offset].key) == (b"%d" % number, b"k%d" % number)


def test_a_returned_record_keeps_its_priority(mq: pymq.Client) -> None:
    mq.create_topic("t")
    send(mq, [0, 9, 5, 0], linger_ms=0)
    with mq.consumer("t", group="g", prefetch=1) as consumer:
        (first,) = consumer.poll(1, WAIT_S)
        consumer.nack(first)
        assert numbered([first]) == [(9, 1)]
    assert drain(mq, 4) == [(9, 1), (5, 2), (0, 0), (0, 3)]


def test_delayed_records_keep_their_priority() -> None:
    levels = [0, 5, 9, 0, 9]
    with Cluster(brokers=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        with mq.producer() as producer:
            for number, level in enumerate(levels):
                producer.send("t", b"%d %d" % (level, number), priority=level, delay_s=1)
        cluster.run(3)
        assert drain(mq, 5) == ranked(levels)


def test_redriven_letters_keep_their_priority(mq: pymq.Client) -> None:
    mq.create_topic("t")
    send(mq, [7])
    with mq.consumer("t", group="g", max_deliver=1, dead_letter="t.dlq") as consumer:
        consumer.reject(consumer.poll(1, WAIT_S), "no")
    send(mq, [0, 0])
    assert mq.redrive("t.dlq").count == 1
    assert drain(mq, 3)[0] == (7, 0)


@pytest.mark.parametrize("priority", [-1, 10, 1.0, True, "5", None])
def test_wrong_priorities_are_refused(mq: pymq.Client, priority: object) -> None:
    mq.create_topic("t")
    with mq.producer() as producer, pytest.raises(ConfigError, match="priority="):
        producer.send("t", b"v", priority=priority)  # type: ignore[arg-type] # an invalid one


def test_asyncio_and_typed_topics(tmp_path: Path) -> None:
    async def run() -> None:
        async with await aio.open(tmp_path) as mq:
            await mq.create_topic("t")
            async with mq.producer() as producer:
                for number, level in enumerate([0, 3, 9]):
                    await producer.send("t", b"%d %d" % (level, number), priority=level)

    asyncio.run(run())
    with pymq.open(tmp_path) as mq:
        assert drain(mq, 3) == [(9, 2), (3, 1), (0, 0)]
        mq.create_topic("typed")
        texts = mq.topic("typed", str)
        texts.send("later")
        texts.send("urgent", priority=5)
        texts.flush()
        with texts.consumer(group="g", prefetch=1) as consumer:
            assert [consumer.poll(1, WAIT_S)[0].value for _ in range(2)] == ["urgent", "later"]


def test_priorities_after_a_restart(tmp_path: Path) -> None:
    """The log contains the priorities, with a checkpoint and without."""
    levels = [0, 3, 0, 9, 1]
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t")
        send(mq, levels, linger_ms=0)
    with pymq.open(tmp_path) as mq:
        assert drain(mq, 3) == ranked(levels)[:3]
    with pymq.open(tmp_path) as mq:
        assert drain(mq, 2) == ranked(levels)[3:]


# --- three brokers ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dies", ["leader", "coordinator"])
def test_priorities_survive_a_crash(seed: int, dies: str) -> None:
    """A new leader learns the priorities from its log, a new coordinator from the members."""
    with Cluster(brokers=3, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", 1, 3, acks="raft")
        dice = Random(seed)
        levels = [dice.choice([0, 0, 2, 8]) for _ in range(60)]
        send(mq, levels, linger_ms=0)
        order = ranked(levels)
        found = list[tuple[int, int]]()
        with mq.consumer("t", group="g", prefetch=1) as consumer:
            for number in range(60):
                if number == 20:
                    topic = "t" if dies == "leader" else "__consumer_offsets"
                    leader = mq.describe_topic(topic).partitions[0].leader
                    assert leader is not None
                    cluster.crash(leader)
                    cluster.run(10)
                    cluster.restart(leader)
                records = consumer.poll(1, 60)
                assert records
                consumer.ack(records)
                consumer.commit(timeout=10)
                found += numbered(records)
        assert sorted(set(found)) == sorted(order)
        once = list(dict.fromkeys(found))
        assert once == order


def test_an_idle_member_gets_urgent_records_of_other_partitions() -> None:
    """While one member works, the other one gets urgent records, also from a partition of the
    first.
    """
    with Cluster(brokers=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", 2)
        first = mq.consumer("t", group="g", prefetch=1)
        second = mq.consumer("t", group="g", prefetch=1)
        assert first.poll(timeout=1) == second.poll(timeout=1) == []
        with mq.producer(linger_ms=0) as producer:
            for number in range(10):
                for partition in ("0", "1"):
                    producer.send("t", b"0 %d" % number, partition=partition).result(WAIT_S)
            held = first.poll(1, 10)
            for partition in ("0", "1"):
                producer.send("t", b"9 0", partition=partition, priority=9).result(WAIT_S)
        cluster.run(1)
        urgent = 0
        for _ in range(3):  # at most one record per consumer was leased before
            records = second.poll(1, 10)
            urgent += records[0].value == b"9 0"
            second.ack(records)
        assert urgent == 2
        first.ack(held)
        first.close()
        second.close()


def test_without_producer_ids_too() -> None:
    with pymq.open("memory:") as mq:
        mq.create_topic("t", acks="none")
        send(mq, [0, 4, 9])
        assert drain(mq, 3) == ranked([0, 4, 9])
