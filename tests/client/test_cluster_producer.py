"""Producers of a cluster: leaders die, brokers restart and messages are lost, but no record is
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

import pymq
from pymq.client.option_types import Acks
from pymq.hash.partitioner import key_partition
from pymq.testing import Cluster
from pymq.testing.simulation.network import LinkFaults


def leader(mq: pymq.Client, topic: str = "t") -> str:
    found = mq.describe_topic(topic).partitions[0].leader
    assert found is not None
    return found


def read(mq: pymq.Client, topic: str = "t") -> list[bytes]:
    """Return everything in partition 0, in order."""
    with mq.consumer(topic, mode="psb", partition=0) as consumer:
        return [record.value for record in consumer.until_end()]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def send_all(
    cluster: Cluster, mq: pymq.Client, count: int, at: Mapping[int, Callable[[], object]]
) -> list[int]:
    """Send numbers in steps and run a function in between; returns their offsets."""
    with mq.producer(linger_ms=2) as producer:
        sent = []
        for number in range(count):
            if number in at:
                at[number]()
            sent.append(producer.send("t", b"%d" % number))
            if number % 3 == 0:
                cluster.run(seconds=0.002)
        return [delivery.result(timeout=60).offset for delivery in sent]


@pytest.mark.parametrize("acks", ["raft", "leader"])
@pytest.mark.parametrize("seed", range(4))
def test_a_leader_dies(acks: Acks, seed: int) -> None:
    """Another replica takes over the leadership: every record is written once, in order."""
    with Cluster(brokers=3, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks=acks)

        def crash() -> None:
            # A record that only the leader has acknowledged is lost with that leader.
            cluster.run(seconds=0.05)
            cluster.crash(leader(mq))

        offsets = send_all(cluster, mq, 60, {30: crash})
        assert offsets == sorted(set(offsets))
        assert read(mq) == numbers(60)


def test_the_gap_is_below_a_second() -> None:
    gaps = []
    for seed in range(10):
        with Cluster(brokers=3, seed=100 + seed, check=False) as cluster:
            mq = cluster.client()
            mq.create_topic("t", replicas=3, acks="raft")
            with mq.producer() as producer:
                producer.send("t", b"a").result()
                cluster.crash(leader(mq))
                since = cluster.now
                producer.send("t", b"b").result(timeout=30)
                gaps.append(cluster.now - since)
    assert max(gaps) < 1.0


def test_a_leader_dies_with_unanswered_batches() -> None:
    """The next leader gets the batches in their order and writes each once, whether it was answered
    before or not.
    """
    for boundary in range(0, 30, 5):
        with Cluster(brokers=3, seed=boundary) as cluster:
            mq = cluster.client()
            mq.create_topic("t", replicas=3, acks="raft")
            with mq.producer(linger_ms=0, batch_bytes=1) as producer:
                producer.send("t", b"0").result()
                cluster.crash(leader(mq), at_boundary=boundary)
                sent = [producer.send("t", b"%d" % i) for i in range(1, 12)]
                offsets = [delivery.result(timeout=30).offset for delivery in sent]
            assert offsets == sorted(set(offsets))
            assert read(mq) == numbers(12)


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_all_brokers_are_restarted_one_by_one(acks: Acks) -> None:
    with Cluster(brokers=3, zkservers=2, seed=5) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks=acks)

        def restart(name: str) -> Callable[[], None]:
            def do() -> None:
                cluster.stop(name)
                cluster.run(seconds=0.3)
                cluster.restart(name)
                cluster.run(seconds=1.0)

            return do

        at = {20 * (i + 1): restart(f"broker-{i}") for i in range(3)}
        offsets = send_all(cluster, mq, 80, at)
        assert offsets == sorted(set(offsets))
        assert read(mq) == numbers(80)


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_messages_get_lost(seed: int, idempotent: bool) -> None:
    """With idempotence every record is written once and in order.

    Without it every record is written at least once.
    """
    with Cluster(brokers=3, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        for broker in cluster.brokers:
            for link in (("client-0", broker), (broker, "client-0")):
                cluster.network.link(*link).faults = LinkFaults(loss=0.1, duplicate=0.05)
        with mq.producer(linger_ms=0, batch_bytes=1, idempotent=idempotent) as producer:
            sent = [producer.send("t", value) for value in numbers(60)]
            for delivery in sent:
                delivery.result(timeout=110)
        cluster.network.calm()
        found = read(mq)
        if idempotent:
            assert found == numbers(60)
        else:
            assert set(found) == set(numbers(60))


def test_a_leader_is_cut_off() -> None:
    """The old leader does not know that it was replaced.

    The producer sees both leaders and chooses the right one.
    """
    with Cluster(brokers=3, seed=11) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"0").result()
            old = leader(mq)
            others = [name for name in cluster.brokers if name != old]
            cluster.cut(old, [*others, *cluster.zkservers])
            sent = [producer.send("t", b"%d" % i) for i in range(1, 20)]
            for delivery in sent:
                delivery.result(timeout=30)
            cluster.heal()
            cluster.run(seconds=1)
            producer.send("t", b"20").result(timeout=30)
        assert read(mq) == numbers(21)


STATES = [("raft", "leader"), ("leader", "raft"), ("leader", "none"), ("none", "raft")]


@pytest.mark.parametrize(("before", "after"), STATES)
@pytest.mark.parametrize("is_leader", [True, False])
def test_the_state_changes_under_load_and_a_broker_dies(
    before: Acks, after: Acks, is_leader: bool
) -> None:
    with Cluster(brokers=3, seed=21) as cluster:
        mq, admin = cluster.client(), cluster.client()
        mq.create_topic("t", replicas=3, acks=before)
        victims: list[str] = []

        def change() -> None:
            leads = leader(admin)
            victims.append(leads if is_leader else next(n for n in cluster.brokers if n != leads))
            cluster.run(seconds=0.1)
            cluster.crash(victims[0], "all", at_boundary=4)
            admin.set_partition_state("t", 0, acks=after)
            cluster.run(seconds=0.1)

        offsets = send_all(cluster, mq, 50, {25: change})
        # Records that only the leader has acknowledged become visible when all in-sync replicas
        # have them.
        cluster.restart(victims[0])
        cluster.run(seconds=3)
        found = read(mq)
        assert found == sorted(set(found), key=int)
        if "none" not in (before, after):
            assert offsets == sorted(set(offsets))
            assert found == numbers(50)
        assert mq.describe_topic("t").partitions[0].acks is pymq.AckMode.of(after)


def test_nobody_leads_for_a_while() -> None:
    """Records wait for a leader.

    If one is elected in time, they are written, otherwise they fail.
    """
    with Cluster(brokers=3, seed=31) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.producer() as producer, mq.producer(delivery_timeout_s=3) as hasty:
            producer.send("t", b"0").result()
            hasty.send("t", b"1").result()
            for name in cluster.brokers:
                cluster.crash(name)
            patient, lost = producer.send("t", b"2"), hasty.send("t", b"x")
            assert isinstance(lost.exception(timeout=10), pymq.errors.DeliveryTimeout)
            for name in cluster.brokers:
                cluster.restart(name)
            assert patient.result(timeout=30).offset >= 2
            hasty.send("t", b"3").result(timeout=30)
        assert [value for value in read(mq) if value != b"x"] == numbers(4)


def test_a_named_producer_goes_on_after_a_fail_over() -> None:
    with Cluster(brokers=3, seed=41) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.producer(producer_id="me") as producer:
            producer.send_many("t", numbers(10)).result()
        cluster.crash(leader(mq))
        with mq.producer(producer_id="me") as producer:
            assert producer.next_sequence("t", 0) == 10
            producer.send_many("t", numbers(20)[10:]).result()
        assert read(mq) == numbers(20)


def test_partitions_that_others_add_are_sent_to() -> None:
    """The new partitions also get records without a key, and keys are hashed over all
    partitions.
    """
    with Cluster(brokers=3, seed=1) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", partitions=2, replicas=1)
        with mq.producer(linger_ms=0) as producer:

            def places(seconds: float, key: bytes | None = None) -> list[str]:
                """Return the partitions of records that are sent one after the other."""
                found = []
                for _ in range(int(seconds * 10)):
                    keys = None if key is None else [key]
                    found += producer.send_many("t", [b"x"], keys).result()
                    cluster.run(seconds=0.1)
                return [record.partition for record in found]

            moved = next(
                b"%d" % number
                for number in range(99)
                if key_partition(b"%d" % number, 2) == 0 and key_partition(b"%d" % number, 3) == 2
            )
            assert set(places(1.0, moved)) == {"0"}
            other.create_partition("t", "new")
            assert "new" not in places(1.0)
            assert "new" in places(32.0)
            assert set(places(1.0)) == {"0", "1", "new"}
            assert producer.send("t", b"x", key=moved).result().partition == "new"
            assert set(places(0.5, moved)) == {"new"}
            # The client knows at once the partition that it has created.
            mq.create_partition("t", "newer")
            assert set(places(1.0)) == {"0", "1", "new", "newer"}


def test_a_partition_without_an_ack_mode_is_not_chosen() -> None:
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", acks="unset")
        mq.set_partition_state("t", "0", acks="leader")
        with mq.producer(linger_ms=0) as producer:

            def places() -> set[str]:
                sent = [producer.send_many("t", [b"x"]) for _ in range(4)]
                cluster.run(seconds=0.5)
                return {record.partition for each in sent for record in each.result()}

            assert places() == {"0"}
            mq.create_partition("t", "new")
            assert mq.describe_topic("t").partitions[1].acks is pymq.AckMode.UNSET
            assert places() == {"0"}
            mq.set_partition_state("t", "new", acks="leader")
            cluster.run(seconds=31)
            assert places() == {"0"}  # Only the first of these sends requests the metadata.
            assert places() == {"0", "new"}


@pytest.mark.parametrize("seed", range(3))
def test_a_producer_that_waits_for_no_answer_follows_the_leader(seed: int) -> None:
    """A producer with acks="none" finds the new leader soon, instead of losing half a minute of
    records.
    """
    with Cluster(brokers=3, seed=70 + seed) as cluster:
        mq, other = cluster.client(), cluster.client()
        mq.create_topic("t", acks="leader")
        before = leader(mq)
        (after, _) = sorted({*cluster.brokers} - {before})
        with mq.producer(acks="none", linger_ms=1) as producer:
            for number in range(300):
                producer.send("t", b"%d" % number)
                cluster.run(seconds=0.01)
                if number == 100:
                    other.reassign("t", 0, [after])
        assert leader(other) == after
        found = read(other)
        assert found[:100] == numbers(100)
        lost = [number for number in range(300) if b"%d" % number not in found]
        assert len(lost) <= 10, lost
