"""Readers of a cluster (PSB): blocks on different brokers, dead leaders, lost fetches."""

from __future__ import annotations

import pytest

import pymq
from pymq.client.option_types import Acks
from pymq.errors import OffsetOutOfRange, RequestTimeout
from pymq.testing import Cluster
from pymq.testing.simulation.network import LinkFaults
from pymq.testing.simulation.world import WALL_MS


def put(mq: pymq.Client, *numbers: int, partition: int = 0, time_ms: int | None = None) -> None:
    with mq.producer(linger_ms=1) as producer:
        for number in numbers:
            producer.send("t", b"%d" % number, partition=partition, timestamp_ms=time_ms)


def values(records: list[pymq.Record]) -> list[int]:
    return [int(record.value) for record in records]


def poll(consumer: pymq.Consumer, count: int) -> list[int]:
    found: list[int] = []
    for _ in range(100):
        found += values(consumer.poll(timeout=1.0))
        if len(found) >= count:
            break
    return found


def leader(mq: pymq.Client) -> str:
    found = mq.describe_topic("t").partitions[0].leader
    assert found is not None
    return found


def scattered(cluster: Cluster, acks: Acks = "raft") -> pymq.Client:
    """Return a client after writing forty records in four blocks of ten.

    None of these blocks is on the broker of the last block.
    """
    mq = cluster.client()
    mq.create_topic("t", replicas=1, acks=acks)
    places = [["broker-0"], ["broker-1", "broker-2"], ["broker-2"], ["broker-3"]]
    for block, brokers in enumerate(places):
        mq.reassign("t", 0, brokers)
        put(mq, *range(10 * block, 10 * block + 10), time_ms=WALL_MS + 1000 * block)
        cluster.run(seconds=0.5)
    return mq


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_blocks_lie_on_other_brokers(acks: Acks) -> None:
    with Cluster(brokers=4, seed=1) as cluster:
        mq = scattered(cluster, acks)
        before = cluster.now
        with mq.consumer("t", mode="psb", partition=0) as consumer:
            records = list(consumer.until_end())
            assert values(records) == list(range(40))
            offsets = [record.offset for record in records]
            assert offsets == sorted(set(offsets))
            assert consumer.lag() == {"0": 0}
        assert cluster.now - before < 1.0


def test_bounds_come_from_the_leader() -> None:
    """Bounds come from the leader, since the holder of an old block may not know the log end."""
    with Cluster(brokers=4, seed=2) as cluster:
        mq = scattered(cluster)
        with mq.consumer("t", mode="psb", partition=0) as consumer:
            start, end = consumer.begin_offsets()["0"], consumer.end_offsets()["0"]
            assert start == 0
            assert end >= 40
            assert consumer._reader is not None
            cursor = consumer._reader.cursors["0"]
            while not consumer.poll(5, timeout=1.0):
                pass
            assert (cursor.log_start, cursor.end) == (start, end)


def test_a_holder_of_an_old_block_dies() -> None:
    """The reader fetches from the other holder."""
    for victim in ("broker-1", "broker-2"):
        with Cluster(brokers=4, seed=3) as cluster:
            mq = scattered(cluster)
            mq.reassign("t", 0, ["broker-3"])
            with mq.consumer("t", mode="psb", partition=0, offset=10) as consumer:
                cluster.crash(victim)
                assert poll(consumer, 10)[:10] == list(range(10, 20))


def test_the_only_holder_of_a_block_is_away_for_a_while() -> None:
    """The reader skips no record: it waits, and its status gives the reason."""
    with Cluster(brokers=4, seed=4) as cluster:
        mq = scattered(cluster)
        cluster.crash("broker-0")
        with mq.consumer("t", mode="psb", partition=0) as consumer:
            assert consumer.poll(timeout=3.0) == []
            idle = consumer.status().idle
            assert idle is not None
            assert "broker-0" in idle
            with pytest.raises(RequestTimeout, match="broker-0"):
                list(consumer.until_end())
            cluster.restart("broker-0")
            assert values(list(consumer.until_end())) == list(range(40))


def test_times_are_found_in_blocks_on_other_brokers() -> None:
    with Cluster(brokers=4, seed=5) as cluster:
        mq = scattered(cluster)
        with mq.consumer("t", mode="psb", partition=0) as consumer:
            list(consumer.until_end())
            for block in (2, 0, 1, 3):
                consumer.seek_to_time("0", WALL_MS + 1000 * block)
                found = consumer.poll(1, timeout=5.0)
                assert values(found) == [10 * block]
                # The leader's own batch at the beginning of a block contains no record.
                assert consumer.offset_at("0", WALL_MS + 1000 * block) == found[0].offset
            cluster.crash("broker-0")
            with pytest.raises(RequestTimeout, match="broker-0"):
                consumer.seek_to_time("0", WALL_MS)


@pytest.mark.parametrize("acks", ["raft", "leader"])
@pytest.mark.parametrize("seed", range(3))
def test_a_leader_dies_while_it_is_read(seed: int, acks: Acks) -> None:
    with Cluster(brokers=3, seed=seed) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks=acks)
        with mq.consumer("t", mode="psb", partition=0) as consumer:
            put(other, *range(20))
            found = poll(consumer, 20)
            cluster.crash(leader(mq))
            put(other, *range(20, 40))
            since = cluster.now
            found += poll(consumer, 20)
            assert cluster.now - since < 2.5
            assert found == list(range(40))


def test_a_reader_waits_for_the_end_of_an_election() -> None:
    """If a fetch waits at a dying leader, it ends, and the reader gets the records of the next
    leader.
    """
    with Cluster(brokers=3, seed=7) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, 1)
        with mq.consumer("t", mode="psb") as consumer:
            assert poll(consumer, 1) == [1]
            for name in cluster.brokers:
                cluster.crash(name)
            assert consumer.poll(timeout=5.0) == []
            idle = consumer.status().idle
            assert idle is not None
            assert "unknown" in idle or "did not answer" in idle
            for name in cluster.brokers:
                cluster.restart(name)
            put(other, 2)
            assert poll(consumer, 1) == [2]


@pytest.mark.parametrize("seed", range(3))
def test_fetches_and_answers_get_lost(seed: int) -> None:
    with Cluster(brokers=3, seed=seed) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        for broker in cluster.brokers:
            for link in (("client-0", broker), (broker, "client-0")):
                cluster.network.link(*link).faults = LinkFaults(
                    loss=0.1, duplicate=0.1, reorder=0.1, tail=0.05
                )
        with mq.consumer("t", mode="psb") as consumer:
            found: dict[str, list[int]] = {"0": [], "1": []}
            for start in range(0, 50, 10):
                put(other, *range(start, start + 10), partition=0)
                put(other, *range(start, start + 10), partition=1)
                for record in consumer.poll(7, timeout=0.5):
                    found[record.partition].append(int(record.value))
            for record in consumer.until_end():
                found[record.partition].append(int(record.value))
        assert found == {"0": list(range(50)), "1": list(range(50))}


def test_a_broker_that_leads_no_more_says_no_end() -> None:
    """A reader that is cut off together with an old leader neither skips nor repeats a record."""
    with Cluster(brokers=3, seed=9) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(other, *range(10))
        with mq.consumer("t", mode="psb", partition=0) as consumer:
            found = poll(consumer, 10)
            old = leader(mq)
            rest = [name for name in cluster.brokers if name != old]
            cut = cluster.cut([old, "client-0"], [*rest, *cluster.zkservers, "client-1"])
            put(other, *range(10, 20))
            found += values(consumer.poll(timeout=2.0))
            cluster.heal(cut)
            found += poll(consumer, 20 - len(found))
            assert found == list(range(20))


def test_retention_is_told_and_nothing_else() -> None:
    with Cluster(brokers=3, seed=10) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft", block_bytes=4096, retention_bytes=8192)
        for start in range(0, 400, 20):
            with mq.producer() as producer:
                for number in range(start, start + 20):
                    producer.send("t", b"%d" % number + b" " * 100)
            cluster.run(seconds=0.2)
        cluster.run(seconds=12)
        begin = mq.questions.bounds("t", "0")[0]
        assert begin > 0
        with mq.consumer("t", mode="psb", partition=0, offset=0) as consumer:
            with pytest.raises(OffsetOutOfRange):
                poll(consumer, 1)
            consumer.seek("0", "begin")
            assert consumer.poll(1, timeout=5.0)[0].offset >= begin


def test_no_offset_is_taken_for_one_that_is_there() -> None:
    with Cluster(brokers=3, seed=11) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, *range(5))
        reader = mq.consumer("t", mode="psb", partition=0, offset=1000)
        with reader, pytest.raises(OffsetOutOfRange):
            reader.poll(timeout=5.0)


def test_a_reader_does_not_get_behind_the_end_of_a_sealed_block() -> None:
    """Brokers that missed a roll elect a leader, whose no-op is behind the seal."""
    with Cluster(brokers=4, seed=5, heartbeat_ms=100, session_ms=3000) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, 0, 1, 2)
        (old,) = mq.describe_topic("t").partitions
        rest = [name for name in cluster.brokers if name != leader(mq)]
        with mq.consumer("t", mode="psb") as reader, mq.producer(linger_ms=0) as producer:
            assert poll(reader, 3) == [0, 1, 2]
            cut = cluster.cut("zkserver-0", rest)
            assert mq.reassign("t", "0", sorted(rest, key=old.replicas.__contains__))
            cluster.run(1.0)  # the brokers elect a leader in the sealed block
            deliveries = [producer.send("t", b"%d" % number) for number in (3, 4)]
            assert poll(reader, 0) == []
            cluster.heal(cut)
            assert [delivery.result().offset for delivery in deliveries] == [4, 5]
            assert poll(reader, 2) == [3, 4]
