"""A simulated cluster with the real client, in which each fault has the effect that its description
gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import pymq
from pymq.errors import ConfigError, DeliveryTimeout, StoreError
from pymq.testing import Cluster, Faults, NotReached


@contextmanager
def raft(seed: int) -> Iterator[tuple[Cluster, pymq.Client]]:
    """A broker, a client, and a topic ``t`` in which records are confirmed only when they are
    synced.
    """
    with Cluster(brokers=1, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", acks="raft")
        yield cluster, mq


def put(mq: pymq.Client, *values: bytes, topic: str = "t") -> list[int]:
    with mq.producer() as producer:
        return [m.offset for m in producer.send_many(topic, list(values)).result()]


def read(mq: pymq.Client, topic: str = "t") -> list[bytes]:
    with mq.consumer(topic, mode="psb") as consumer:
        return [record.value for record in consumer.until_end()]


def test_the_real_client_runs_in_virtual_time() -> None:
    """Produce, read and consume in a group: hours of virtual time take no real time."""
    with raft(1) as (cluster, mq):
        assert put(mq, b"a", b"b") == [0, 1]
        assert read(mq) == [b"a", b"b"]
        with mq.consumer("t", group="g") as consumer:
            for record in consumer.until_end():
                consumer.ack(record)
            consumer.commit()
            assert consumer.committed() == {"0": 2}
        before = cluster.now
        cluster.run(seconds=3600)
        assert cluster.now == before + 3600
        assert put(mq, b"c") == [2]


def test_a_timeout_is_virtual() -> None:
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        with mq.consumer("t", mode="psb") as consumer:
            before = cluster.now
            assert consumer.poll(timeout=50.0) == []
            assert cluster.now == pytest.approx(before + 50.0)


@pytest.mark.parametrize("disk", ["random", "none", "all"])
def test_what_was_synced_survives_a_crash(disk: str) -> None:
    with raft(2) as (cluster, mq):
        put(mq, b"a", b"b")
        cluster.crash("broker-0", disk)
        assert not cluster.host("broker-0").is_up
        cluster.restart("broker-0")
        assert read(mq) == [b"a", b"b"]


def test_what_was_not_synced_may_be_lost() -> None:
    """An acknowledgement of mode leader only means that the leader has written the record."""
    lost = []
    for disk in ("none", "all"):
        with Cluster(brokers=1, seed=2) as cluster:
            mq = cluster.client()
            mq.create_topic("t", acks="leader", fsync="os")
            put(mq, b"a")
            put(mq, b"b")
            cluster.crash("broker-0", disk)
            cluster.restart("broker-0")
            lost.append(len(read(mq)))
    assert lost == [1, 2]  # The first write creates the file, and file creation is synced.


def test_a_crash_at_every_boundary_of_a_write() -> None:
    """The power fails before the write, between write and sync, or before the answer: answered
    records survive.
    """
    for boundary in range(12):
        with Cluster(brokers=1, seed=3, restart_ms=100) as cluster:
            mq = cluster.client()
            mq.create_topic("t", acks="raft")
            put(mq, b"a")
            cluster.crash("broker-0", at_boundary=boundary)
            assert put(mq, b"b") == [1]
            cluster.run_until(lambda: cluster.host("broker-0").incarnation == 2)
            cluster.run(seconds=1)
            assert read(mq) == [b"a", b"b"]


def test_a_wiped_disk_is_empty_and_has_another_name() -> None:
    with raft(4) as (cluster, mq):
        put(mq, b"a")
        name = cluster.brokers["broker-0"].storage_id
        cluster.wipe("broker-0")
        cluster.restart("broker-0")
        assert cluster.brokers["broker-0"].storage_id != name
        assert cluster.brokers["broker-0"].store is not None
        assert cluster.brokers["broker-0"].store.blocks() == []


def test_what_is_cut_gets_nothing() -> None:
    with raft(5) as (cluster, mq):
        put(mq, b"a")
        cluster.cut("broker-0", "client-0")
        producer = mq.producer()
        delivery = producer.send("t", b"b")
        with pytest.raises(DeliveryTimeout):
            delivery.result(timeout=5.0)
        cluster.heal()
        assert delivery.result(timeout=30.0).offset == 1
        producer.close()


def test_one_way_is_one_way() -> None:
    """The record arrives, but its answer does not; nevertheless the record is written once."""
    with raft(5) as (cluster, mq):
        put(mq, b"a")
        cut = cluster.cut("broker-0", "client-0", one_way=True)
        producer = mq.producer()
        delivery = producer.send("t", b"b")
        with pytest.raises(DeliveryTimeout):
            delivery.result(timeout=15.0)
        cluster.heal(cut)
        assert delivery.result(timeout=30.0).offset == 1
        producer.close()
        assert read(mq) == [b"a", b"b"]


def test_a_paused_broker_answers_later() -> None:
    with raft(6) as (cluster, mq):
        put(mq, b"a")
        cluster.pause("broker-0")
        producer = mq.producer()
        delivery = producer.send("t", b"b")
        with pytest.raises(DeliveryTimeout):
            delivery.result(timeout=0.5)
        cluster.resume("broker-0")
        assert delivery.result(timeout=5.0).offset == 1
        producer.close()


def test_a_full_disk_refuses_and_recovers() -> None:
    with raft(7) as (cluster, mq):
        put(mq, b"a")
        cluster.fill_disk("broker-0")
        with mq.producer() as producer:
            error = producer.send("t", b"b").exception()
            assert isinstance(error, StoreError)
        cluster.free_disk("broker-0")
        assert put(mq, b"c") == [1]
        assert read(mq) == [b"a", b"c"]


def test_a_failed_sync_stops_the_replica() -> None:
    """The replica serves nothing any more; after a restart the acknowledged records are there."""
    with raft(8) as (cluster, mq):
        put(mq, b"a")
        cluster.fail_disk("broker-0", "sync")
        with mq.producer() as producer:
            assert isinstance(producer.send("t", b"b").exception(), StoreError)
        cluster.crash("broker-0", "none")
        cluster.restart("broker-0")
        assert read(mq) == [b"a"]


def test_a_failed_sync_of_one_partition_unsettles_no_other() -> None:
    """In an earlier version all partitions that the broker led got another leader, as after a
    restart.
    """
    count = 12
    with Cluster(brokers=3, seed=5) as cluster:
        mq = cluster.client()
        mq.create_topic("many", partitions=count, replicas=3, acks="raft")
        with mq.producer(delivery_timeout_s=60.0) as producer:
            for index in range(count):
                producer.send("many", b"a", partition=index).result()
            cluster.run(seconds=2)
            before = [part.leader for part in mq.describe_topic("many").partitions]
            broken = before[0]
            assert broken is not None
            cluster.fail_disk(broken, "sync")
            producer.send("many", b"b", partition=0).exception()
            cluster.run(seconds=5)
        after = [part.leader for part in mq.describe_topic("many").partitions]
        assert before.count(broken) > 2
        assert after[0] != broken
        assert after[1:] == before[1:]


def test_a_zkserver_may_come_back() -> None:
    """The zkserver waits for the previous session to expire, then continues from the tree."""
    with raft(9) as (cluster, mq):
        cluster.crash("zkserver-0")
        cluster.run(seconds=0.5)
        cluster.restart("zkserver-0")
        cluster.run(seconds=3)
        cluster.restart("broker-0")
        cluster.run(seconds=3)
        assert mq.topics() == ["t"]
        assert mq.cluster().controller_epoch == 2


def test_an_expired_session_is_taken_up_again() -> None:
    with raft(10) as (cluster, mq):
        cluster.expire_session("zkserver-0")
        cluster.run(seconds=3)
        assert mq.cluster().controller_epoch == 2


def test_names_that_are_not_there_are_told() -> None:
    with Cluster(brokers=1, seed=11) as cluster:
        with pytest.raises(ConfigError, match="broker-0"):
            cluster.crash("broker-1")
        with pytest.raises(ConfigError):
            cluster.cut("broker-0", "nobody")
        with pytest.raises(NotReached):
            cluster.run_until(lambda: False, seconds=1)
    with pytest.raises(ConfigError, match="heartbeat_ms"):
        Cluster(brokers=1, heartbeat=5)


def test_a_callback_cannot_wait() -> None:
    """A callback that waited would never end, because the loop does not run during a callback."""
    with Cluster(brokers=1, seed=12) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        problems: list[BaseException] = []

        def callback(delivery: object) -> None:
            try:
                mq.topics()
            except RuntimeError as error:
                problems.append(error)

        with mq.producer() as producer:
            producer.send("t", b"a").add_done_callback(callback)
        assert len(problems) == 1


def test_faults_come_by_themselves_until_calm() -> None:
    """Acknowledged records are there under any faults, and the same seed gives the same run."""
    digests = []
    for _ in range(2):
        with Cluster(brokers=1, seed=13, faults=Faults(("boundary", "slow_disk"))) as cluster:
            mq = cluster.client()
            mq.create_topic("t", acks="raft")
            acked = []
            for number in range(30):
                cluster.run(seconds=1)
                acked += put(mq, b"%d" % number)
            assert cluster.brokers["broker-0"].incarnation > 1
            cluster.calm()
            cluster.run(seconds=2)
            assert len(read(mq)) == 30
            assert acked == list(range(30))
            digests.append(cluster.digest)
    assert digests[0] == digests[1]
    with pytest.raises(ConfigError, match="fire"):
        Cluster(brokers=1, faults=Faults(("fire",)))
    with pytest.raises(ConfigError, match="swarm"):
        Cluster(brokers=1, faults="everything")


def test_what_happened_can_be_read() -> None:
    with Cluster(brokers=1, seed=14) as cluster:
        cluster.client().create_topic("t")
        assert any("client-0 > zkserver-0  CreateTopic(id=1, name=t" in x for x in cluster.trace)


def test_everybody_hears_of_a_death() -> None:
    """All listeners are notified of a death, even if one of them unregisters at that moment, as a
    session does.
    """
    with Cluster(brokers=1, seed=4) as cluster:
        died: list[str] = []
        cluster.host("zkserver-0").on_death.append(lambda process: died.append(process.name))
        cluster.crash("zkserver-0")
        assert died == ["zkserver-0"]


def test_a_topic_that_is_made_again_begins_anew() -> None:
    """Acknowledgements in an earlier topic of the same name do not count for the new topic."""
    with Cluster(brokers=1, seed=4) as cluster:
        mq = cluster.client()
        for _ in range(2):
            mq.create_topic("t", acks="raft")
            with mq.producer(linger_ms=0) as producer:
                assert [producer.send("t", b"x").result().offset for _ in range(3)] == [0, 1, 2]
            mq.delete_topic("t")
