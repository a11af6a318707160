"""The final check of a cluster accepts a sound cluster, and finds the problems of unsound ones."""

from __future__ import annotations

from random import Random

import pytest

from pymq.testing import Cluster, NotReached, Violation
from tests.simulator.whole import check_whole


def filled(cluster: Cluster) -> None:
    mq = cluster.client()
    mq.create_topic("t", replicas=3, acks="raft", block_bytes=4096)
    with mq.producer(linger_ms=0) as producer:
        for _ in range(8):
            producer.send("t", bytes(900)).result()
    cluster.run(1.0)


def test_a_sound_cluster_is_whole_after_any_faults() -> None:
    with Cluster(seed=1) as cluster:
        filled(cluster)
        cluster.crash("broker-1", "none")
        cluster.cut("broker-2")
        cluster.pause("broker-0")
        cluster.run(3.0)
        check_whole(cluster)


def test_a_flipped_bit_is_found_though_nobody_reads_it() -> None:
    with Cluster(seed=1) as cluster:
        filled(cluster)
        (sealed, *_) = [p for p in cluster.brokers["broker-2"].disk.paths() if p.endswith(".block")]
        cluster.brokers["broker-2"].disk.flip(Random(1), sealed)
        with pytest.raises(Violation, match=r"disks-are-sound: broker-2"):
            check_whole(cluster)


def test_a_replica_that_does_not_come_along_is_found() -> None:
    with Cluster(seed=1) as cluster:
        filled(cluster)
        follower = next(
            name
            for name in cluster.brokers
            if name != cluster.client().describe_topic("t").partitions[0].leader
        )
        # the follower is deaf, but its pings arrive
        cluster.network.join(follower, lambda peer, source, message: None)
        with pytest.raises(NotReached):
            check_whole(cluster, seconds=5.0)
