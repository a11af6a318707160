"""The memory that idle partitions take."""

from __future__ import annotations

import pytest

from pymq.client.option_types import Acks
from pymq.core.block.log_writer import IDLE_MS
from pymq.testing import Cluster
from pymq.testing.simulation.probe import partitions


def kept(cluster: Cluster) -> list[bool]:
    """Whether each replica has its newest batch in memory."""
    found = []
    for host in cluster.brokers.values():
        assert host.broker is not None
        for partition in partitions(host.broker):
            log = partition.opened.log
            if partition.name.topic == "t" and log is not None:
                found.append(log.recent(log.end - 1, 1) is not None)
    return found


@pytest.mark.parametrize("acks", ["leader", "raft"])
def test_an_idle_partition_keeps_nothing_for_its_followers(acks: Acks) -> None:
    """In an earlier version, each partition that ever had replicas and records kept megabytes in
    memory.
    """
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks=acks)
        with mq.producer() as producer:
            for _ in range(3):
                producer.send("t", b"x").result()
                cluster.run(seconds=1)
                assert kept(cluster) == [True] * 3
                cluster.run(seconds=0.6 * IDLE_MS / 1_000)
                assert kept(cluster) == [True] * 3
        cluster.run(seconds=2 * IDLE_MS / 1_000)
        assert kept(cluster) == [False] * 3
        with mq.producer() as producer:
            producer.send("t", b"x").result()
        assert any(kept(cluster))
        with mq.consumer("t", mode="psb") as consumer:
            assert len(list(consumer.until_end())) == 4
