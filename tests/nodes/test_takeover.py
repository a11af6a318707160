"""zkservers run as processes on a real ZooKeeper: one of them dies and another takes over, or all
are stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pymq
from pymq.client.option_types import Acks
from tests.nodes.processes import ROOT
from tests.simulator.processes import NodeProcess, ProcessCluster

pytestmark = pytest.mark.zookeeper
WAIT_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path, needs_zookeeper: None) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path, ROOT / "examples", brokers=2) as found:
        yield found


def active(cluster: ProcessCluster, mq: pymq.Client) -> NodeProcess:
    """Return the active zkserver, by the port in its name."""
    endpoints = cluster.url.removeprefix("zmq+tcp://").split(",")
    index = endpoints.index(mq.cluster().controller.removeprefix("tcp://"))
    return cluster.nodes[cluster.zkservers[index]]


def leader(mq: pymq.Client, topic: str) -> str:
    found = mq.describe_topic(topic).partitions[0].leader
    assert found is not None
    return found


@pytest.mark.slow
def test_the_active_zkserver_is_killed_in_the_middle_of_a_roll(cluster: ProcessCluster) -> None:
    """The other zkserver completes the roll of a killed one, and the client gets the result."""
    with pymq.open(cluster.url) as mq, mq.producer() as producer:
        for life in range(2):
            topic = f"t{life}"
            mq.create_topic(topic, replicas=1)
            producer.send(topic, b"before").result(WAIT_S)
            before = leader(mq, topic)
            (after,) = [name for name in cluster.brokers if name != before]
            # While this broker is paused, the block cannot be sealed.
            cluster.nodes[before].pause()
            asked = threading.Thread(target=mq.reassign, args=(topic, 0, [after]))
            asked.start()
            victim = active(cluster, mq)
            victim.kill()
            cluster.nodes[before].resume()
            asked.join(WAIT_S)
            assert not asked.is_alive()
            assert leader(mq, topic) == after
            assert active(cluster, mq) is not victim
            producer.send(topic, b"after").result(WAIT_S)
            with mq.consumer(topic, mode="psb") as consumer:
                assert [one.value for one in consumer.until_end()] == [b"before", b"after"]
            victim.start()
            victim.wait_ready()


def test_records_go_on_without_zkservers_and_without_zookeeper(cluster: ProcessCluster) -> None:
    """Existing partitions work without zkservers: records are sent, delivered, acknowledged and
    committed.
    """
    with (
        pymq.open(cluster.url) as mq,
        mq.producer(linger_ms=0) as producer,
        pymq.open(cluster.url) as other,
    ):
        kinds: tuple[tuple[str, Acks], ...] = (("safe", "raft"), ("quick", "leader"))
        for topic, acks in kinds:
            mq.create_topic(topic, replicas=2, acks=acks)
            producer.send(topic, b"0").result(WAIT_S)
        with (
            other.consumer("safe", group="g") as member,
            other.consumer("quick", mode="psb") as reader,
        ):
            member.ack(member.poll(1, timeout=WAIT_S))
            assert [one.value for one in reader.poll(1, timeout=WAIT_S)] == [b"0"]
            member.commit()

            def go_on(number: bytes) -> None:
                """Send to both topics and consume from both, for longer than any session lasts."""
                for topic in ("safe", "quick"):
                    producer.send(topic, number).result(WAIT_S)
                found = member.poll(1, timeout=WAIT_S)
                assert [one.value for one in found] == [number]
                member.ack(found)
                member.commit(timeout=WAIT_S)
                assert [one.value for one in reader.poll(1, timeout=WAIT_S)] == [number]
                assert list(member.until_end()) == []

            assert cluster.zookeeper is not None
            for server in cluster.zookeeper.servers:
                server.kill()
            until, number = time.monotonic() + 4.0, 0
            while time.monotonic() < until:
                number += 1
                go_on(b"%d" % number)
            for name in cluster.zkservers:
                cluster.nodes[name].kill()
            until = time.monotonic() + 4.0
            while time.monotonic() < until:
                number += 1
                go_on(b"%d" % number)
            assert number > 2
        cluster.calm()
        mq.create_topic("later")
        assert "later" in mq.topics()
