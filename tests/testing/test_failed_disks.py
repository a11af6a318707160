"""A broker with a failed disk hands over: other brokers serve, and its replica is replaced."""

from __future__ import annotations

from random import Random

import pytest

import pymq
from pymq.client.client import Client
from pymq.client.option_types import Acks
from pymq.client.producer.delivery import Delivery
from pymq.core.metadata.descriptions import PartitionDescription
from pymq.testing import Cluster

RECORDS = 20
LIMITS: dict[Acks, float] = {
    "raft": 1.0,
    "leader": 3.0,
    "none": 3.0,
}  # seconds until the disk can be written again
MODES = sorted(LIMITS)


def described(mq: Client) -> PartitionDescription:
    (partition,) = mq.describe_topic("t").partitions
    return partition


def led(cluster: Cluster, acks: Acks) -> tuple[Client, str]:
    """Create a topic with records; returns a client, and the broker that leads."""
    mq = cluster.client()
    mq.create_topic("t", partitions=1, replicas=3, acks=acks, fsync="always")
    with mq.producer(linger_ms=1) as producer:
        for number in range(RECORDS):
            producer.send("t", b"%d" % number).result()
    leader = described(mq).leader
    assert leader is not None
    return mq, leader


@pytest.mark.parametrize("what", ["sync", "write"])
@pytest.mark.parametrize("acks", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_a_write_that_fails_is_a_leader_that_hands_over(acks: Acks, what: str, seed: int) -> None:
    """The leader hands over, the broker is not restarted, and no send fails or is written twice."""
    with Cluster(brokers=3, zkservers=1, seed=seed) as cluster:
        mq, leader = led(cluster, acks)
        with mq.producer(linger_ms=1, acks="leader" if acks == "none" else acks) as producer:
            cluster.fail_disk(leader, what)
            for number in range(RECORDS, 2 * RECORDS):
                began = cluster.now
                assert producer.send("t", b"%d" % number).exception() is None
                assert cluster.now - began < LIMITS[acks]
        reader = mq.consumer("t", mode="psb", offset="begin")
        got = [int(record.value) for record in reader.until_end()]
        assert got == list(range(2 * RECORDS))
        if what == "sync":
            assert described(mq).leader != leader


@pytest.mark.parametrize("acks", MODES)
def test_a_failed_replica_is_shown_and_leaves_the_in_sync_set(acks: Acks) -> None:
    with Cluster(brokers=3, zkservers=1, seed=1) as cluster:
        mq, leader = led(cluster, acks)
        found = described(mq)
        assert (found.offline, found.under_replicated) == ((), False)
        follower = next(broker for broker in found.replicas if broker != leader)
        with mq.producer(linger_ms=1) as producer:
            cluster.fail_disk(follower, "sync")
            producer.send("t", b"").result()
            cluster.run(seconds=1)
            found = described(mq)
            assert found.leader == leader
            assert follower not in found.in_sync
            assert (found.offline, found.under_replicated) == ((follower,), True)
            producer.send("t", b"").result()
        cluster.crash(follower, "none")
        cluster.restart(follower)
        cluster.run(seconds=40)
        found = described(mq)
        assert set(found.in_sync) == set(cluster.brokers)
        assert (found.offline, found.under_replicated) == ((), False)


@pytest.mark.parametrize("acks", MODES)
@pytest.mark.parametrize("is_leader", [True, False])
def test_a_failed_replica_is_replaced(acks: Acks, *, is_leader: bool) -> None:
    """A broker without a replica gets the new replica, not the broker whose disk failed."""
    with Cluster(brokers=4, zkservers=1, seed=2, replace_ms=5_000) as cluster:
        mq, leader = led(cluster, acks)
        failed = next(b for b in described(mq).replicas if (b == leader) is is_leader)
        with mq.producer(linger_ms=1) as producer:
            cluster.fail_disk(failed, "sync")
            producer.send("t", b"").result()
            cluster.run(seconds=8)
            found = described(mq)
            assert failed not in found.replicas
            assert len(found.in_sync) == 3
            assert (found.offline, found.under_replicated) == ((), False)
            cluster.run(seconds=60)
            assert described(mq).replicas == found.replicas
            producer.send("t", b"").result()


@pytest.mark.parametrize("acks", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_a_full_disk_refuses_nothing_for_good(acks: Acks, seed: int) -> None:
    with Cluster(brokers=3, zkservers=1, seed=seed) as cluster:
        mq, leader = led(cluster, acks)
        with mq.producer(linger_ms=1, acks="leader" if acks == "none" else acks) as producer:
            cluster.fill_disk(leader)
            sent: list[Delivery] = []
            for number in range(RECORDS, 2 * RECORDS):
                sent.append(producer.send("t", b"%d" % number))
                cluster.run(seconds=0.1)
            cluster.run(seconds=5)
            assert [delivery.exception() for delivery in sent] == [None] * RECORDS
            cluster.free_disk(leader)
        cluster.run(seconds=60)
        got = [int(r.value) for r in mq.consumer("t", mode="psb", offset="begin").until_end()]
        assert got == list(range(2 * RECORDS))
        assert set(described(mq).in_sync) == set(cluster.brokers)


@pytest.mark.parametrize("acks", ["raft", "leader"])
@pytest.mark.parametrize("what", ["sync", "write"])
@pytest.mark.parametrize("times", [1, 100])
def test_readers_and_groups_do_not_see_it(acks: Acks, what: str, times: int) -> None:
    """One block fails, or all blocks of the broker, including those of the groups' offsets."""
    with Cluster(brokers=3, zkservers=1, seed=3) as cluster:
        mq, leader = led(cluster, acks)
        reader = cluster.client().consumer("t", mode="psb", offset="begin")
        member = cluster.client().consumer("t", group="g")
        assert len(reader.poll(timeout=5)) == RECORDS
        before: list[pymq.Record] = []
        while len(before) < RECORDS:
            before += member.poll(timeout=5)
        member.ack(before)
        member.commit()
        cluster.fail_disk(leader, what, times)
        seen, done = [], []
        with mq.producer(linger_ms=1) as producer:
            for number in range(RECORDS):
                producer.send("t", b"%d" % number).result()
                seen += reader.poll(timeout=5)
                done += (records := member.poll(timeout=5))
                member.ack(records)
                member.commit()
        assert len(seen) == len(done) == RECORDS


@pytest.mark.parametrize("acks", MODES)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_readers_are_served_by_another_when_a_disk_cannot_read(
    acks: Acks, *, is_sealed: bool
) -> None:
    """The open block gets another leader; for a sealed block any holder can serve the reader."""
    with Cluster(brokers=3, zkservers=1, seed=5) as cluster:
        mq, leader = led(cluster, acks)
        if is_sealed:
            mq.reassign("t", "0", replicas=described(mq).replicas)
            cluster.run(seconds=2)
            leader = described(mq).leader or ""
        reader = mq.consumer("t", mode="psb", offset="begin")
        cluster.fail_disk(leader, "read", 3)
        began = cluster.now
        assert len(list(reader.until_end())) == RECORDS
        assert cluster.now - began < LIMITS[acks]


@pytest.mark.parametrize("acks", MODES)
def test_damage_found_at_a_start_is_copied_from_others(acks: Acks) -> None:
    """The replica is offline until a roll; then its block is sealed and repaired."""
    with Cluster(brokers=3, zkservers=1, seed=4, check=False, replace_ms=5_000) as cluster:
        mq, leader = led(cluster, acks)
        cluster.crash(leader, "all")
        disk = cluster._broker(leader).disk
        path = next(p for p in disk.paths() if p.endswith(".block") and "consumer" not in p)
        cluster.flip(leader, Random(1), path)
        cluster.restart(leader)
        with mq.producer(linger_ms=1) as producer:
            began = cluster.now
            producer.send("t", b"").result()
            assert cluster.now - began < LIMITS[acks]
            cluster.run(seconds=60)
            producer.send("t", b"").result()
        found = described(mq)
        assert set(found.in_sync) == set(cluster.brokers)
        assert all(set(block.in_sync) == set(cluster.brokers) for block in found.blocks)


def test_one_replica_alone_says_what_is_wrong() -> None:
    """No other replica can serve, and waiting does not help."""
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=1, fsync="always")
        with mq.producer(linger_ms=1) as producer:
            producer.send("t", b"").result()
            cluster.fail_disk("broker-0", "sync")
            began = cluster.now
            errors = [producer.send("t", b"").exception() for _ in range(3)]
            assert [type(error).__name__ for error in errors] == ["StoreError"] * 3
            assert cluster.now - began < 1
        assert described(mq).offline == ("broker-0",)
