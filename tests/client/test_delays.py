"""Delayed and expiring records are delivered at the right time, once, even if their leader
changes.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq import aio
from pymq.client.admin.appends import append
from pymq.client.option_types import Acks
from pymq.core.batch.header import DELAYED_COPY
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import DELAYS
from pymq.core.delay import delay_scheduler
from pymq.errors import (
    ConfigError,
    DelayLimitReached,
    InvalidRequest,
    UnknownPartition,
)
from pymq.testing import Cluster

SHORT_S = 0.25


def drain(mq: pymq.Client, count: int, group: str = "g", topic: str = "t") -> list[pymq.Record]:
    """Consume and acknowledge *count* records of a group."""
    found: list[pymq.Record] = []
    with mq.consumer(topic, group=group) as consumer:
        while len(found) < count:
            records = consumer.poll(timeout=30)
            assert records, f"only {[r.value for r in found]} came"
            found += records
            consumer.ack(records)
        consumer.commit()
    return found


def is_quiet(mq: pymq.Client, group: str = "g", topic: str = "t") -> bool:
    """Whether a group gets nothing now."""
    with mq.consumer(topic, group=group) as consumer:
        return consumer.poll(timeout=0.2) == []


def values(records: list[pymq.Record]) -> list[bytes]:
    return [record.value for record in records]


# --- delays -------------------------------------------------------------------------------------


def test_records_come_when_they_are_due(mq: pymq.Client) -> None:
    mq.create_topic("t")
    clock, came = mq.driver.monotonic, dict[bytes, float]()
    with mq.producer() as producer, mq.consumer("t", group="g") as consumer:
        start = clock()
        for name, delay in ((b"c", 0.6), (b"a", 0.2), (b"b", 0.4)):
            producer.send("t", name, delay_s=delay, key=b"k")
        due = datetime.now(UTC) + timedelta(seconds=0.8)
        producer.send("t", b"d", deliver_at=due, headers=[("mine", b"1")])
        producer.send("t", b"now").result(30)
        order = list[pymq.Record]()
        while len(order) < 5:
            for record in consumer.poll(timeout=30):
                order.append(record)
                came[record.value] = clock() - start
                consumer.ack(record)
    assert values(order) == [b"now", b"a", b"b", b"c", b"d"]
    for name, delay in ((b"a", 0.2), (b"b", 0.4), (b"c", 0.6), (b"d", 0.8)):
        # The test's clock is not the wall clock, so a small difference is possible.
        assert came[name] >= delay - 0.002
    assert [record.key for record in order] == [None, b"k", b"k", b"k", None]
    assert order[-1].headers == (("mine", b"1"), ("pymq.delayed_id", b"3"))


def test_readers_see_a_delayed_record_once_where_it_was_sent(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        sent = producer.send("t", b"later", delay_s=SHORT_S).result(30)
        producer.send("t", b"now").result(30)
    for count in (2, 0):
        with mq.consumer("t", mode="reader", offset="begin") as reader:
            seen = [(record.offset, record.value) for record in reader.until_end()]
        assert seen == [(sent.offset, b"later"), (sent.offset + 1, b"now")]
        drain(mq, count)  # From this point on the log also has a copy.


def test_each_group_gets_it_once(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send("t", b"later", delay_s=SHORT_S)
    assert values(drain(mq, 1, "g")) == [b"later"]
    assert values(drain(mq, 1, "h")) == [b"later"]
    assert is_quiet(mq, "g")
    assert is_quiet(mq, "h")
    assert mq.describe_group("g").lag == {("t", "0"): 0}


def test_a_time_that_is_over_means_now(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send("t", b"a", deliver_at=datetime(2001, 1, 1, tzinfo=UTC))
        producer.send("t", b"b", delay_s=0)
    assert sorted(values(drain(mq, 2))) == [b"a", b"b"]


def test_a_record_that_is_returned_and_buried(mq: pymq.Client) -> None:
    """A delayed record can be retried, and can become a dead letter, like any other record."""
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send("t", b"later", delay_s=SHORT_S)
    with mq.consumer("t", group="g", max_deliver=2) as consumer:
        for count in (1, 2):
            while not (records := consumer.poll(timeout=5)):
                pass
            assert [record.delivery_count for record in records] == [count]
            consumer.nack(records, error="no")
        while mq.describe_group("g").lag["t", "0"]:
            assert consumer.poll(timeout=0.05) == []
            consumer.commit()
    (letter,) = mq.dead_letters("t.dlq")
    assert letter.value == b"later"
    assert mq.redrive("t.dlq").count == 1
    assert values(drain(mq, 1)) == [b"later"]


def test_many_with_times_in_no_order(mq: pymq.Client) -> None:
    mq.create_topic("t", 2)
    with mq.producer() as producer:
        for number in range(2_000):
            delay = SHORT_S + (number * 7919 % 2_000) / 4_000
            producer.send("t", b"%d" % number, delay_s=delay)
    found = drain(mq, 2_000)
    assert sorted(int(value) for value in values(found)) == list(range(2_000))
    assert is_quiet(mq)


def test_coroutines_delay_too() -> None:
    async def main() -> list[bytes]:
        async with aio.open("memory:") as mq:
            await mq.create_topic("t")
            async with mq.producer() as producer:
                later = await producer.send("t", b"never", delay_s=60)
                producer.send("t", b"expired", expires_s=0)
                producer.send("t", b"later", delay_s=SHORT_S)
            assert await mq.cancel("t", later.partition, later.offset)
            async with mq.consumer("t", group="g") as consumer:
                return [record.value for record in await consumer.poll(timeout=30)]

    assert asyncio.run(main()) == [b"later"]


# --- expiry -------------------------------------------------------------------------------------


def test_expired_records_are_skipped_and_counted(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send("t", b"gone", expires_s=0)
        producer.send("t", b"stays", expires_s=60)
        producer.send("t", b"gone, too", delay_s=0.1, expires_s=0)
        producer.send("t", b"later", delay_s=0.2, expires_s=60)
    assert values(drain(mq, 2)) == [b"stays", b"later"]
    assert mq.describe_group("g").lag == {("t", "0"): 0}
    assert mq.metrics().value("pymq_consumer_expired_total") == 2
    with mq.consumer("t", mode="reader", offset="begin") as reader:
        assert len(list(reader.until_end())) == 4


def test_an_expired_record_counts_once_for_the_group_that_would_have_got_it() -> None:
    """The original of a delayed record does not count, nor does a record of another group's
    route.
    """
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", route="canary:key=c")
        with mq.producer() as producer:
            producer.send("t", b"gone", delay_s=0.1, expires_s=0.1).result(30)
            producer.send("t", b"the canary's", key=b"c", expires_s=0.1).result(30)
            producer.send("t", b"stays").result(30)
        cluster.run(10)  # all delays are over when the group reads the records
        assert values(drain(mq, 1)) == [b"stays"]
        assert is_quiet(mq)
        assert mq.metrics().value("pymq_consumer_expired_total") == 1
        assert is_quiet(mq, "canary")
        assert mq.metrics().value("pymq_consumer_expired_total") == 2


def test_records_that_expire_before_they_are_polled() -> None:
    """In virtual time: half of the records expire after five seconds."""
    with Cluster(brokers=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        with mq.producer() as producer:
            for number in range(10):
                producer.send("t", b"%d" % number, expires_s=None if number % 2 else 5)
        with mq.consumer("t", group="g") as consumer:
            first = consumer.poll(max_records=1, timeout=5)
            cluster.run(6)
            found = [*first]
            while records := consumer.poll(timeout=5):
                found += records
            consumer.ack(found)
            consumer.commit()
        assert values(found) == [b"0", b"1", b"3", b"5", b"7", b"9"]
        assert mq.describe_group("g").lag == {("t", "0"): 0}


def expiring(mq: pymq.Client) -> None:
    """Send ten records; the even ones expire after five seconds."""
    mq.create_topic("t")
    with mq.producer() as producer:
        for number in range(10):
            producer.send("t", b"%d" % number, expires_s=None if number % 2 else 5)


def letters_of(mq: pymq.Client) -> list[pymq.Record]:
    with mq.consumer("t.dlq", mode="reader") as reader:
        return list(reader.until_end())


@pytest.mark.parametrize("fetched_before", [True, False])
def test_expired_records_become_dead_letters_if_asked(fetched_before: bool) -> None:
    """Each expired record becomes a dead letter, although the application acknowledges whole
    batches.
    """
    with Cluster(brokers=1) as cluster:
        mq = cluster.client()
        expiring(mq)
        with mq.consumer(
            "t", group="g", prefetch=10, expired="dead_letter", max_deliver=0
        ) as consumer:
            first = consumer.poll(max_records=1, timeout=5) if fetched_before else []
            cluster.run(6)
            rest = consumer.poll_batches(timeout=5)
            consumer.ack(rest)
            consumer.ack(first)
            consumer.commit()
            assert consumer.poll(timeout=5) == []
            consumer.commit()
        found = values(first) + [value for batch in rest for value in batch.values]
        assert found == [b"0"] * fetched_before + [b"1", b"3", b"5", b"7", b"9"]
        letters = letters_of(mq)
        assert values(letters) == [b"0"] * (not fetched_before) + [b"2", b"4", b"6", b"8"]
        for letter in letters:
            headers = dict(letter.headers)
            assert headers["pymq.error"] == b"the record expired before a consumer got it"
            assert headers["pymq.offset"] == letter.value
            assert headers["pymq.delivery_count"] == b"1"
        assert mq.describe_group("g").lag == {("t", "0"): 0}
        assert mq.tally.expired == len(letters)


def test_expired_letters_that_are_sent_back_are_delivered(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        producer.send("t", b"x", expires_s=0).result(30)
    with mq.consumer("t", group="g", expired="dead_letter") as consumer:
        assert consumer.poll(timeout=SHORT_S) == []
        assert mq.redrive("t.dlq").count == 1
        assert values(consumer.poll(timeout=30)) == [b"x"]


def test_expired_records_become_dead_letters_of_a_coroutine(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        async with aio.open(tmp_path) as mq:
            await mq.create_topic("t")
            async with mq.producer() as producer:
                await producer.send("t", b"x", expires_s=0)
            async with mq.consumer("t", group="g", expired="dead_letter") as consumer:
                assert await consumer.poll(timeout=SHORT_S) == []
            async with mq.consumer("t.dlq", mode="reader") as reader:
                return values(await reader.poll(timeout=30))

    assert asyncio.run(main()) == [b"x"]


# --- cancelling ---------------------------------------------------------------------------------


def test_a_delayed_record_is_cancelled(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        dropped = producer.send("t", b"dropped", delay_s=0.5).result(30)
        kept = producer.send("t", b"kept", delay_s=0.5).result(30)
    assert mq.cancel("t", dropped.partition, dropped.offset) is True
    assert mq.cancel("t", 0, dropped.offset) is True  # a second cancellation does no harm
    assert values(drain(mq, 1)) == [b"kept"]
    assert is_quiet(mq)
    assert mq.cancel("t", kept.partition, kept.offset) is False
    assert mq.cancel("t", dropped.partition, dropped.offset) is True  # the same answer as before


def test_a_cancel_that_is_repeated_says_the_same_though_another_leads() -> None:
    """The answer is lost with the leader, and the record is due when the client asks again."""
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", 1, 3, acks="raft")
        sent = list[int]()
        with mq.producer() as producer:
            for _ in range(3):  # each note says where the next leader begins to read
                sent.append(producer.send("t", b"x", delay_s=5).result(30).offset)
                assert mq.cancel("t", "0", sent[-1]) is True
        leader = mq.describe_topic("t").partitions[0].leader
        assert leader is not None
        cluster.crash(leader)
        cluster.run(10)
        assert [mq.cancel("t", "0", offset) for offset in sent] == [True] * 3
        assert is_quiet(mq)


def test_what_cannot_be_cancelled(mq: pymq.Client) -> None:
    mq.create_topic("t")
    with mq.producer() as producer:
        now = producer.send("t", b"now").result(30)
        with pytest.raises(InvalidRequest, match="offset 0 of t/0 is not delayed"):
            mq.cancel("t", "0", now.offset)
        producer.send("t", b"later", delay_s=60).result(30)
        for offset in (now.offset, 99):
            with pytest.raises(InvalidRequest, match="is not delayed"):
                mq.cancel("t", "0", offset)
    with pytest.raises(UnknownPartition):
        mq.cancel("t", "7", 0)
    with pytest.raises(ConfigError, match="offset"):
        mq.cancel("t", "0", -1)


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ({"delay_s": -1}, "delay_s=-1"),
        ({"delay_s": 1e12}, "1000 years"),
        ({"delay_s": float("nan")}, "delay_s=nan"),
        ({"delay_s": "60"}, "delay_s='60'"),
        ({"expires_s": -0.1}, "expires_s"),
        ({"deliver_at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 # on purpose
        ({"deliver_at": "tomorrow"}, "time zone"),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC), "delay_s": 1}, "not both"),
    ],
)
def test_wrong_times(times: dict[str, Any], why: str) -> None:
    with pymq.open("memory:") as mq:
        mq.create_topic("t")
        with mq.producer() as producer, pytest.raises(ConfigError, match=why):
            producer.send("t", b"x", **times)


def test_a_compacted_topic_has_no_delays(mq: pymq.Client) -> None:
    mq.create_topic("t", cleanup_policy="compact")
    with mq.producer() as producer:
        delivery = producer.send("t", b"x", key=b"k", delay_s=1)
        with pytest.raises(InvalidRequest, match="compacted"):
            delivery.result(30)


def test_a_partition_has_so_many_delayed_records_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delay_scheduler, "PENDING_MAX", 3)
    with pymq.open("memory:") as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            sent = [producer.send("t", b"x", delay_s=60).result(30) for _ in range(3)]
            with pytest.raises(DelayLimitReached):
                producer.send("t", b"x", delay_s=60).result(30)
            producer.send("t", b"now").result(30)
            assert mq.cancel("t", "0", sent[0].offset)


@pytest.mark.parametrize("kind", [DELAYED_COPY, 0])
def test_only_leaders_write_copies(mq: pymq.Client, kind: int) -> None:
    mq.create_topic("t")
    topic = mq.questions.topic_metadata("t")
    producer = -1 if kind else DELAYS
    batch = EncodedBatch.encode(
        [b"x"], timestamp_ms=1, attributes=kind, producer_id=producer, base_sequence=0
    )
    with pytest.raises(InvalidRequest, match="only a leader"):
        append(mq.questions, topic, {"0": batch}, 5.0)


# --- leaders ------------------------------------------------------------------------------------


def test_they_outlive_a_restart(tmp_path: Path) -> None:
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t", block_bytes=4_096)
        with mq.producer() as producer:
            for number in range(300):
                producer.send("t", b"%d" % number, delay_s=0.5 + number / 1_000)
            dropped = producer.send("t", b"dropped", delay_s=1).result(30)
        assert mq.cancel("t", dropped.partition, dropped.offset)
    with pymq.open(tmp_path) as mq:
        found = values(drain(mq, 150))
    with pymq.open(tmp_path) as mq:
        found += values(drain(mq, 300 - len(found)))
        assert [int(value) for value in found] == list(range(300))
        assert is_quiet(mq)


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_a_leader_that_takes_over_delivers_each_once(acks: Acks) -> None:
    """The leader crashes while some records are delivered, some are due and others are not."""
    with Cluster(brokers=3, seed=5) as cluster:
        mq = cluster.client()
        mq.create_topic("t", 1, 3, acks)
        with mq.producer() as producer:
            for number in range(100):
                producer.send("t", b"%d" % number, delay_s=number / 10)
        found = list[bytes]()
        with mq.consumer("t", group="g") as consumer:
            while len(found) < 100:
                records = consumer.poll(timeout=30)
                assert records
                found += values(records)
                consumer.ack(records)
                consumer.commit()
                if len(found) in (20, 50, 70):
                    leader = mq.describe_topic("t").partitions[0].leader
                    assert leader is not None
                    cluster.crash(leader)
                    cluster.run(3)
                    cluster.restart(leader)
            assert consumer.poll(timeout=20) == []
        assert [int(value) for value in found] == list(range(100))
        cluster.check()


def test_a_note_leaves_out_no_record_that_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next leader reads from the offset in the note, and delivers the records that were sent
    before the note.
    """
    monkeypatch.setattr(delay_scheduler, "NOTE_OFFSETS", 1)
    with Cluster(brokers=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", 1, 3, "raft")
        with mq.producer() as producer, mq.consumer("t", group="g") as consumer:
            producer.send("t", b"soon", delay_s=0.1).result(30)
            records = consumer.poll(timeout=30)
            assert values(records) == [b"soon"]
            consumer.ack(records)
            consumer.commit()
            leader = mq.describe_topic("t").partitions[0].leader
            assert leader is not None
            cluster.run(1.9)  # the leader checks its clock once a second
            for follower in set(cluster.brokers) - {leader}:
                cluster.slow_disk(follower, 1_000)
            sent = producer.send("t", b"later", delay_s=60)
            cluster.run(0.15)
            # meanwhile the leader has written a note that no record is pending
            assert not sent.done()
            for follower in set(cluster.brokers) - {leader}:
                cluster.slow_disk(follower, 1)
            sent.result(60)
            cluster.crash(leader)
            assert values(consumer.poll(timeout=120)) == [b"later"]


def test_years_of_delay() -> None:
    """The delay is measured by the leader's clock.

    In this test the clocks of that leader and its successor are set three years ahead.
    """
    with Cluster(brokers=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", 1, 3, "raft")
        with mq.producer() as producer:
            producer.send("t", b"in 3 years", delay_s=3 * 365 * 86_400).result(30)
            producer.send("t", b"in 900 years", delay_s=900 * 365 * 86_400).result(30)
        with mq.consumer("t", group="g") as consumer:
            assert consumer.poll(timeout=60) == []
            leader = mq.describe_topic("t").partitions[0].leader
            assert leader is not None
            cluster.crash(leader)
            for name in cluster.brokers:
                cluster.clock(name, skew_s=3 * 365 * 86_400 + 60)
            records = consumer.poll(timeout=60)
            assert values(records) == [b"in 3 years"]
            consumer.ack(records)
            assert consumer.poll(timeout=60) == []


def test_retention_keeps_what_is_due_later() -> None:
    """Old blocks are removed, and their delayed records move to the end of the log."""
    with Cluster(brokers=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", block_bytes=4_096, retention_bytes=8_192)
        with mq.producer() as producer:
            later = producer.send("t", b"later", delay_s=600).result(30)
            dropped = producer.send("t", b"dropped", delay_s=600).result(30)
            for _ in range(40):
                producer.send("t", bytes(1_000)).result(30)
                cluster.run(1)
            cluster.run(30)
            start = mq.describe_topic("t").partitions[0].start_offset
            assert start > later.offset
            assert mq.cancel("t", dropped.partition, dropped.offset)
            with mq.consumer("t", group="g", auto_offset_reset="end") as consumer:
                assert consumer.poll(timeout=1) == []
                cluster.run(600)
                records = consumer.poll(timeout=60)
                assert values(records) == [b"later"]
                assert records[0].headers == (("pymq.delayed_id", b"%d" % later.offset),)
                consumer.ack(records)
                assert consumer.poll(timeout=60) == []


def test_a_note_says_where_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that takes over reads less than the whole log, and misses no record."""
    monkeypatch.setattr(delay_scheduler, "NOTE_OFFSETS", 10)
    with Cluster(brokers=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", 1, 3, "raft")
        with mq.producer() as producer:
            for number in range(30):
                producer.send("t", b"%d" % number, delay_s=None if number % 3 else 120).result(30)
                cluster.run(0.2)
        leader = mq.describe_topic("t").partitions[0].leader
        assert leader is not None
        cluster.crash(leader)
        found = values(drain(mq, 20))
        cluster.run(120)
        found += values(drain(mq, 10))
        assert sorted(map(int, found)) == list(range(30))
