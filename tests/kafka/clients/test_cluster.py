"""confluent-kafka against three brokers and a zkserver, each a process of its own."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

import pymq
from tests.nodes.processes import processes
from tests.simulator.processes import ProcessCluster

ck = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
TOPIC = "orders"
PARTITIONS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    with processes(tmp_path, kafka=True) as found:
        yield found


def conf(cluster: ProcessCluster, **more: Any) -> dict[str, Any]:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return {"bootstrap.servers": cluster.bootstrap, "log_level": 2, **named}


def create(cluster: ProcessCluster, topic: str = TOPIC, replicas: int = 3) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(conf(cluster))
    new = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=replicas)
    admin.create_topics([new])[topic].result(30)


def stored(cluster: ProcessCluster, topic: str = TOPIC) -> list[bytes]:
    """Return the values of all records, as pymq's own consumer reads them."""
    with pymq.open(cluster.url) as mq, mq.consumer(topic, mode="reader") as consumer:
        return [record.value for record in consumer.until_end()]


def test_the_metadata_names_brokers_leaders_and_coordinators(cluster: ProcessCluster) -> None:
    from confluent_kafka.admin import AdminClient

    create(cluster)
    admin = AdminClient(conf(cluster))
    found = admin.list_topics(timeout=20)
    addresses = {f"{each.host}:{each.port}" for each in found.brokers.values()}
    assert addresses == set(cluster.bootstrap.split(","))
    assert set(found.brokers) == {0, 1, 2}
    for partition in found.topics[TOPIC].partitions.values():
        assert sorted(partition.replicas) == [0, 1, 2]
        assert partition.leader in partition.replicas
    described = admin.describe_cluster(request_timeout=20).result(20)
    assert {node.id for node in described.nodes} == {0, 1, 2}
    with pymq.open(cluster.url) as mq:
        numbers = {each.name: each.number for each in mq.cluster().brokers}
        leaders = [each.leader for each in mq.describe_topic(TOPIC).partitions]
    by_number = [found.topics[TOPIC].partitions[n].leader for n in range(PARTITIONS)]
    assert [numbers[leader or ""] for leader in leaders] == by_number


def test_numbers_stay_when_brokers_restart(cluster: ProcessCluster) -> None:
    def numbers() -> dict[str, tuple[int, str]]:
        with pymq.open(cluster.url) as mq:
            return {each.name: (each.number, each.kafka) for each in mq.cluster().brokers}

    before = numbers()
    for name in ("broker-2", "broker-0"):
        cluster.nodes[name].kill()
    for name in ("broker-2", "broker-0"):
        cluster.nodes[name].start()
    cluster.wait_ready()
    assert numbers() == before


def test_records_are_acknowledged_and_read(cluster: ProcessCluster) -> None:
    """With each way to acknowledge."""
    create(cluster)
    errors: list[Any] = []

    def done(error: Any, message: Any) -> None:
        if error is not None:
            errors.append((error, message.value()))

    for acks in ("0", "1", "all"):
        producer = ck.Producer(conf(cluster, acks=acks, linger__ms=5))
        for number in range(1_000):
            producer.produce(TOPIC, b"%s %d" % (acks.encode(), number), on_delivery=done)
        assert producer.flush(30) == 0
    assert errors == []
    cluster.wait_for(lambda: len(stored(cluster)) == 3_000, "all records are there")
    consumer = ck.Consumer(conf(cluster, group__id="g", auto__offset__reset="earliest"))
    consumer.subscribe([TOPIC])
    found = read(consumer, 3_000)
    consumer.commit(asynchronous=False)
    consumer.close()
    assert len(set(found)) == len(found) == 3_000
    with pymq.open(cluster.url) as mq:
        assert sum(mq.describe_group("g").lag.values()) == 0


def read(consumer: Any, count: int, timeout_s: float = 60) -> list[bytes]:
    found: list[bytes] = []
    until = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < until:
        for message in consumer.consume(count - len(found), timeout=1):
            assert message.error() is None, message.error()
            found.append(message.value())
    return found


def test_topics_and_options_are_those_of_the_cluster(cluster: ProcessCluster) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        ResourceType,
    )

    create(cluster)
    admin = AdminClient(conf(cluster))
    change = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(20)
    asked = ConfigResource(ResourceType.TOPIC, TOPIC)
    assert admin.describe_configs([asked])[asked].result(20)["retention.ms"].value == "60000"
    admin.create_partitions([NewPartitions(TOPIC, PARTITIONS + 1)])[TOPIC].result(20)
    with pymq.open(cluster.url) as mq:
        described = mq.describe_topic(TOPIC)
        assert (described.config.retention_ms, len(described.partitions)) == (60_000, 4)
        assert [len(each.replicas) for each in described.partitions] == [3] * 4
        admin.delete_topics([TOPIC])[TOPIC].result(20)
        assert mq.topics() == []
    # A topic that a producer creates has the default number of replicas.
    producer = ck.Producer(conf(cluster))
    producer.produce("made", b"x")
    assert producer.flush(30) == 0
    with pymq.open(cluster.url) as mq:
        assert len(mq.describe_topic("made").partitions[0].replicas) == 3


class Traffic:
    """An idempotent producer and a consumer of a group, each in a thread, until :meth:`end`.

    Use it in a ``with`` block, which ends the threads of a test that fails.
    """

    def __init__(self, cluster: ProcessCluster) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[Any] = []
        self.read: Counter[bytes] = Counter()
        self.errors: list[Any] = []
        self._cluster = cluster
        self._is_over = threading.Event()
        self._all_read = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._all_read.set()
        for thread in self._threads:
            thread.join()

    def wait(self, count: int) -> None:
        """Wait until so many more records are acknowledged."""
        until = len(self.acknowledged) + count
        self._cluster.wait_for(lambda: len(self.acknowledged) >= until, "records go on")

    def end(self) -> None:
        """Let the producer send its last record, and the consumer read all that it has sent."""
        self._is_over.set()
        self._threads[0].join()
        try:
            expected = set(self.acknowledged)
            self._cluster.wait_for(lambda: expected <= set(self.read), "all is read")
        finally:
            self._all_read.set()
            self._threads[1].join()

    def _produce(self) -> None:
        options = conf(
            self._cluster,
            enable__idempotence=True,
            linger__ms=2,
            error_cb=self._error,
            message__timeout__ms=120_000,
        )
        producer = ck.Producer(options)
        number = 0
        while not self._is_over.is_set():
            producer.produce(TOPIC, b"%d" % number, key=b"%d" % number, on_delivery=self._done)
            number += 1
            producer.poll(0.002)
        self._left = producer.flush(120)

    def _done(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        else:
            self.failed.append(error)

    def _error(self, error: Any) -> None:
        """Note errors beyond broken connections, which librdkafka repairs by itself."""
        if error.code() not in (ck.KafkaError._TRANSPORT, ck.KafkaError._ALL_BROKERS_DOWN):
            self.errors.append(error)

    def _consume(self) -> None:
        options = conf(
            self._cluster,
            group__id="g",
            auto__offset__reset="earliest",
            session__timeout__ms=6_000,
            error_cb=self._error,
        )
        consumer = ck.Consumer(options)
        consumer.subscribe([TOPIC])
        while not self._all_read.is_set():
            for message in consumer.consume(500, timeout=0.2):
                if message.error() is not None:
                    self.errors.append(message.error())
                else:
                    self.read[message.value()] += 1
        consumer.close()


def stop(cluster: ProcessCluster, name: str) -> None:
    cluster.nodes[name].stop()


def kill(cluster: ProcessCluster, name: str) -> None:
    cluster.nodes[name].kill()


@pytest.mark.parametrize("down", [pytest.param(stop, marks=pytest.mark.slow), kill])
def test_each_broker_restarts_and_applications_see_no_error(
    cluster: ProcessCluster, down: Callable[[ProcessCluster, str], None]
) -> None:
    """Each acknowledged record is there once, and the group has read all of them."""
    create(cluster)
    with Traffic(cluster) as traffic:
        for name in cluster.brokers:
            traffic.wait(200)
            down(cluster, name)
            traffic.wait(200)
            cluster.nodes[name].start()
            cluster.nodes[name].wait_ready()
            wait_in_sync(cluster)
        traffic.end()
    assert traffic.failed == []
    assert traffic.errors == []
    found = Counter(stored(cluster))
    assert set(found) == set(traffic.acknowledged)
    assert set(found.values()) == {1}


def wait_in_sync(cluster: ProcessCluster) -> None:
    """Wait until all replicas are in sync again, so that another broker may stop."""
    with pymq.open(cluster.url) as mq:

        def is_whole() -> bool:
            topics = [mq.describe_topic(name) for name in (TOPIC, "__consumer_offsets")]
            return all(
                len(each.in_sync) == len(each.replicas) == 3
                for topic in topics
                for each in topic.partitions
            )

        cluster.wait_for(is_whole, "all replicas are in sync")


@pytest.mark.slow
@pytest.mark.zookeeper
def test_another_zkserver_takes_over(tmp_path: Path, needs_zookeeper: None) -> None:
    """Topics are created, and records acknowledged, although the active zkserver is killed."""
    with processes(tmp_path, kafka=True, zkservers=2) as cluster:
        create(cluster)
        with Traffic(cluster) as traffic:
            traffic.wait(200)
            with pymq.open(cluster.url) as mq:
                active = mq.cluster().controller
            (name,) = (each for each in cluster.zkservers if cluster.endpoint(each) == active)
            cluster.nodes[name].kill()
            create(cluster, "later")
            traffic.wait(200)
            traffic.end()
        assert (traffic.failed, traffic.errors) == ([], [])
        assert Counter(stored(cluster)) == Counter(traffic.acknowledged)
