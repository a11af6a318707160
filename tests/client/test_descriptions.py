"""Descriptions of blocks, groups and leases, for operators."""

from __future__ import annotations

import time

import pytest

import pymq
from pymq.errors import ConfigError, UnknownGroup, UnknownPartition


def put(mq: pymq.Client, count: int, start: int = 0) -> None:
    with mq.producer() as producer:
        producer.send_many("t", [b"%d" % n for n in range(start, start + count)]).wait()


def test_what_became_of_records(mq: pymq.Client) -> None:
    """Each state of a record has its offsets: acknowledged, leased, returned and never
    delivered.
    """
    mq.create_topic("t")
    put(mq, 10)
    with mq.consumer("t", group="g", ack_wait_s=60) as consumer:
        records = consumer.poll(8, timeout=20)
        assert len(records) == 8
        consumer.ack([records[0], *records[3:5]])
        consumer.nack(records[6:7], delay=40)
        consumer.commit()
        before = time.time() * 1000
        found = mq.describe_leases("g", "t", 0)
        member = found.leases[0].member
        assert (found.committed, found.delivered, found.known_end) == (1, 8, 10)
        assert [
            (x.start_offset, x.end_offset, x.state, x.delivery_count) for x in found.leases
        ] == [
            (1, 3, "leased", 1),
            (3, 5, "acked", 1),
            (5, 6, "leased", 1),
            (6, 7, "available", 1),
            (7, 8, "leased", 1),
        ]
        leased, acked, _, given_back, _ = found.leases
        assert (given_back.member, acked.member, acked.until_ms) == (None, None, None)
        # The lease's end is on the wall clock, and not before the request.
        assert leased.until_ms is not None
        assert given_back.until_ms is not None
        assert given_back.until_ms < leased.until_ms <= before + 120_000
        assert given_back.until_ms > before
        assert mq.describe_group("g").members == (member,)
        # The description can begin at an offset, and has a limit.
        (only,) = mq.describe_leases("g", "t", "0", 5, 1).leases
        assert (only.start_offset, only.end_offset) == (5, 6)


def test_what_a_group_has_not_begun(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=2)
    put(mq, 1)
    with pytest.raises(UnknownGroup):
        mq.describe_leases("g", "t", "0")
    mq.reset_group("g", "t", {"1": 0})
    assert mq.describe_group("g").committed == {("t", "1"): 0}
    found = mq.describe_leases("g", "t", "0")
    assert (found.committed, found.delivered, found.leases) == (0, 0, ())
    with pytest.raises(UnknownPartition):
        mq.describe_leases("g", "t", "7")
    with pytest.raises(ConfigError):
        mq.describe_leases("g", "t", "0", offset=-1)
    with pytest.raises(ConfigError):
        mq.describe_leases("g", "t", "0", limit=1_001)


def test_the_consumers_of_a_group(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=2)
    put(mq, 4)
    with mq.consumer("t", group="g", ack_wait_s=7, max_deliver=3, assignor="range") as consumer:
        taken = consumer.poll(4, timeout=20)
        found = mq.describe_group("g")
        (member,) = found.consumers
        assert (member.name,) == found.members
        assert member.client == consumer.name
        assert (member.topic, member.partitions) == ("t", ("0", "1"))
        assert (member.assignor, member.ack_wait_s, member.max_deliver) == ("range", 7.0, 3)
        assert 0 <= member.silent_s < 60
        assert sum(found.in_flight.values()) == len(taken)
        assert sum(found.delivered.values()) == len(taken)
        consumer.nack(taken, delay=50)
        consumer.commit()
        assert sum(mq.describe_group("g").waiting.values()) == len(taken)


def test_a_group_begins_anew_where_it_is_told(mq: pymq.Client) -> None:
    mq.create_topic("t", partitions=["a", "b"])
    with mq.producer() as producer:
        for name in ("a", "b"):
            for n in range(10):
                producer.send("t", b"x", partition=name, timestamp_ms=1_000 + n)
    mq.reset_group("g", "t", {"a": 4, "b": "end"})
    assert mq.describe_group("g").committed == {("t", "a"): 4, ("t", "b"): 10}
    mq.reset_group("g", "t", {"b": 99})
    assert mq.describe_group("g").committed == {("t", "a"): 4, ("t", "b"): 10}
    at = mq.offsets_at("t", 1_007)
    assert at == {"a": 7, "b": 7}
    mq.reset_group("g", "t", at)
    assert mq.describe_group("g").committed == {("t", "a"): 7, ("t", "b"): 7}
    assert mq.offsets_at("t", 5_000) == {"a": 10, "b": 10}
    with pytest.raises(UnknownPartition):
        mq.reset_group("g", "t", {"c": 0})
    with pytest.raises(ConfigError):
        mq.reset_group("g", "t", {"a": "somewhere"})


def test_blocks_tell_who_holds_them(mq: pymq.Client) -> None:
    began = time.time() * 1000 - 60_000
    mq.create_topic("t", block_bytes=4096)
    for start in range(0, 300, 100):
        put(mq, 100, start)
    with mq.producer() as producer:
        producer.send_many("t", [bytes(1000)] * 10).wait()
        producer.send("t", b"after").result(20)
    while len(mq.describe_topic("t").partitions[0].blocks) < 2:
        put(mq, 1)  # this starts the roll
    sealed, *_, last = mq.describe_topic("t").partitions[0].blocks
    assert (sealed.number, sealed.end_offset is None, sealed.in_sync) == (0, False, ("broker-0",))
    assert sealed.max_timestamp_ms > began
    assert last.number > 0
    assert (last.end_offset, last.max_timestamp_ms, last.in_sync) == (None, -1, ("broker-0",))
    assert began < sealed.opened_ms <= last.opened_ms
    assert not sealed.is_unclean
