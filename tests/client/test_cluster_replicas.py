"""Records are read from the best replica: without a leader, near the reader, or far from
the end.
"""

from __future__ import annotations

from collections import Counter

import pytest

import pymq
from pymq.core.message import Fetch, Message
from pymq.errors import OffsetOutOfRange, RequestTimeout
from pymq.testing import Cluster
from pymq.testing.simulation import probe


def put(mq: pymq.Client, *numbers: int, size: int = 0) -> None:
    with mq.producer(linger_ms=1) as producer:
        values = [b"%d" % number + b" " * size for number in numbers]
        producer.send_many("t", values, partition=0).result()


def values(records: list[pymq.Record]) -> list[int]:
    return [int(record.value) for record in records]


def poll(consumer: pymq.Consumer, count: int, tries: int = 30) -> list[int]:
    found: list[int] = []
    for _ in range(tries):
        found += values(consumer.poll(timeout=1.0))
        if len(found) >= count:
            break
    return found


def roll(mq: pymq.Client) -> None:
    mq.set_partition_state("t", "0", "leader")
    mq.set_partition_state("t", "0", "raft")


def place(mq: pymq.Client) -> tuple[str, list[str]]:
    """Return the leader, and the other replicas of the open block."""
    found = mq.describe_topic("t").partitions[0]
    assert found.leader is not None
    return found.leader, [name for name in found.replicas if name != found.leader]


class Asked:
    """Counts the fetches that clients send, by broker."""

    def __init__(self, cluster: Cluster) -> None:
        self.of: Counter[str] = Counter()
        for name in cluster.brokers:
            broker = cluster.host(name).broker  # type: ignore[attr-defined] # a BrokerHost
            self._count(name, broker)

    def _count(self, name: str, broker: object) -> None:
        step = broker.step  # type: ignore[attr-defined] # a Broker

        def counted(source: str, message: Message, now: int) -> None:
            if isinstance(message, Fetch) and message.topic == "t" and message.max_bytes:
                self.of[name] += 1
            step(source, message, now)

        broker.step = counted  # type: ignore[attr-defined] # of this one alone


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_what_is_committed_is_read_without_a_leader(acks: str) -> None:
    """If the leader and the majority are dead, the last replica serves the committed records."""
    with Cluster(brokers=3, seed=5) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, *range(10))
        roll(mq)
        if acks == "leader":
            mq.set_partition_state("t", "0", "leader")
        put(mq, *range(10, 20))
        cluster.run(seconds=2)
        leader, others = place(mq)
        # The leader's in-sync set lacks one of the two failing replicas, so no other replica may
        # take over.
        for name in (leader, others[0]):
            cluster.crash(name)
        cluster.run(seconds=0.2)
        with mq.consumer("t", mode="psb", offset=0) as consumer:
            assert poll(consumer, 20) == list(range(20))
        if acks == "raft":
            with mq.consumer("t", mode="psb", partition=0, offset=15) as consumer:
                assert poll(consumer, 5)[-1] == 19


def test_ends_and_times_are_told_without_a_leader_but_no_iteration_ends_by_them() -> None:
    with Cluster(brokers=3, seed=6) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, *range(10))
        cluster.run(seconds=1)
        with mq.consumer("t", mode="psb", offset=0) as consumer:
            end = consumer.end_offsets()["0"]
            assert len(poll(consumer, 10)) == 10
            leader, others = place(mq)
            cluster.crash(leader)
            cluster.crash(others[0])
            cluster.run(seconds=5)
            before = cluster.now
            assert consumer.end_offsets() == {"0": end}
            assert cluster.now - before < 10
            assert consumer.lag() == {"0": 0}
            consumer.seek_to_time("0", 0)
            assert poll(consumer, 10) == list(range(10))
            with pytest.raises(RequestTimeout):
                list(consumer.until_end())


def test_a_group_goes_on_while_a_leader_is_missing() -> None:
    with Cluster(brokers=5, seed=8) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=1, acks="raft")
        with mq.consumer("t", group="g") as consumer:
            offsets = mq.describe_topic("__consumer_offsets").partitions[0].replicas
            spare = [name for name in cluster.brokers if name not in offsets]
            mq.reassign("t", "0", [spare[0], spare[1], offsets[0]])
            put(mq, *range(10))
            assert len(poll(consumer, 10)) == 10
            consumer.commit()
            put(mq, *range(10, 20))
            cluster.run(seconds=1)
            for name in spare[:2]:
                cluster.crash(name)
            assert poll(consumer, 10) == list(range(10, 20))
            consumer.commit()


def test_a_position_that_a_follower_has_not_reached_is_no_error() -> None:
    """A fetch beyond a follower's end is no error, since only the leader knows the log end."""
    with Cluster(brokers=3, seed=9) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, *range(10))
        leader, (behind, other) = place(mq)
        cut = cluster.cut([behind], [leader, other])
        put(mq, *range(10, 20))
        with mq.consumer("t", mode="psb", partition=0, offset=0) as consumer:
            assert poll(consumer, 20) == list(range(20))
            cluster.crash(leader)
            cluster.crash(other)
            refused: list[OffsetOutOfRange] = []
            try:
                assert consumer.poll(timeout=5.0) == []
            except OffsetOutOfRange as error:
                refused.append(error)
            assert not refused
            cluster.heal(cut)
            cluster.restart(leader)
            cluster.restart(other)
            cluster.run(seconds=5)
            put(mq, 20)
            assert poll(consumer, 1) == [20]


def test_a_reader_with_a_rack_reads_from_the_replica_there() -> None:
    with Cluster(brokers=3, seed=10) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, 0)
        leader, others = place(mq)
        racks = {b.name: b.rack for b in mq.cluster().brokers}
        with mq.consumer("t", mode="psb", offset=0, rack=racks[others[0]]) as consumer:
            assert poll(consumer, 1) == [0]
            cluster.run(seconds=1)
            asked = Asked(cluster)
            for number in range(1, 20):
                put(mq, number)
                assert poll(consumer, 1) == [number]
            assert asked.of[others[0]] > asked.of[leader] + asked.of[others[1]]


def test_a_reader_without_a_rack_reads_the_end_from_the_leader_alone() -> None:
    with Cluster(brokers=3, seed=11) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, 0)
        leader, _ = place(mq)
        with mq.consumer("t", mode="psb", offset=0) as consumer:
            assert poll(consumer, 1) == [0]
            asked = Asked(cluster)
            for number in range(1, 20):
                put(mq, number)
                assert poll(consumer, 1) == [number]
            assert set(asked.of) == {leader}
            assert asked.of[leader] <= 21


def test_old_records_are_read_from_all_replicas() -> None:
    """Readers far from the end use all replicas; at the end they use the leader again."""
    with Cluster(brokers=3, seed=12) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        for first in range(0, 300, 50):
            put(mq, *range(first, first + 50), size=50_000)
        leader, others = place(mq)
        asked = Asked(cluster)
        for _ in range(6):
            with mq.consumer("t", mode="psb", offset=0) as consumer:
                assert poll(consumer, 300) == list(range(300))
        assert all(asked.of[name] > 5 for name in (leader, *others))
        assert asked.of[leader] < sum(asked.of.values()) / 2


def test_a_silent_follower_costs_a_reader_one_wait() -> None:
    """A reader far behind the end uses the same replica each time, as long as the replica
    answers.
    """
    with Cluster(brokers=3, seed=12) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        for first in range(0, 300, 50):
            put(mq, *range(first, first + 50), size=50_000)
        _, others = place(mq)
        cluster.cut(mq.name, others[0])
        took = []
        for _ in range(6):
            before = mq.driver.monotonic()
            with mq.consumer("t", mode="psb", offset=0) as consumer:
                assert poll(consumer, 300) == list(range(300))
            took.append(mq.driver.monotonic() - before)
        # The reader abandons each fetch after 0.5 s, and needs some 15 fetches.
        assert max(took) < 2


def test_a_reader_goes_to_another_replica_when_one_fails() -> None:
    """If the leader's disk cannot be read, the reader fetches from another replica."""
    with Cluster(brokers=3, seed=13) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, *range(10))
        leader, _ = place(mq)
        cluster.fail_disk(leader, "read", times=1000)
        with mq.consumer("t", mode="psb", offset=0) as consumer:
            assert poll(consumer, 10) == list(range(10))


def test_a_follower_shows_what_is_committed_only() -> None:
    """A follower does not serve records that its leader could not commit."""
    with Cluster(brokers=3, seed=14) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, *range(10))
        cluster.run(seconds=1)
        leader, (ahead, other) = place(mq)
        cluster.cut([other], [leader, ahead])
        # The follower receives from the leader, but cannot send to it.
        cluster.cut([ahead], [leader], one_way=True)
        with mq.producer(delivery_timeout_s=1) as producer:
            sent = [producer.send("t", b"%d" % number) for number in range(10, 15)]
            cluster.run(seconds=0.05)
            assert not any(delivery.done() for delivery in sent)
            cluster.crash(leader)
            with mq.consumer("t", mode="psb", offset=0) as consumer:
                assert poll(consumer, 11, tries=5) == list(range(10))
            for delivery in sent:
                assert delivery.exception() is not None


def test_the_last_replica_is_read_though_it_led_before() -> None:
    """The last replica serves reads, although it no longer leads, and the zkserver still names it
    as the leader.
    """
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        put(mq, 1, 2, 3)
        for name in place(mq)[1]:
            cluster.crash(name)
        cluster.run(seconds=2)  # the cut-off leader has no majority, and stops leading
        with cluster.client().consumer("t", mode="psb", offset="begin") as reader:
            assert poll(reader, 3) == [1, 2, 3]


def test_a_new_leader_knows_the_end_once_it_knows_what_was_acknowledged() -> None:
    """A new leader has all acknowledged records; the first entry of its own term commits these."""
    early = 0
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        for number in range(3):
            put(mq, number)
            for name in cluster.brokers:
                cluster.crash(name, "all")  # After this crash no high watermark is saved.
            for name in cluster.brokers:
                cluster.restart(name)
            for _ in range(3_000):
                cluster.run(seconds=0.001)
                for host in cluster.brokers.values():
                    for part in probe.partitions(host.broker) if host.broker is not None else ():
                        if part.leads and part.name.topic == "t":
                            early += not part.opened.offsets.knows_end
                            is_told = part.opened.offsets.high_watermark > number
                            assert is_told or not part.opened.offsets.knows_end
    assert early, "there was a time in which a new leader did not know it"
