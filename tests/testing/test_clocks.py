"""A clock that jumps, or a process that was paused, must not make other nodes count as dead.

A node that measures the silence of others must have received messages during that time.
"""

from __future__ import annotations

import pytest

from pymq.client.consumer.consumer import Consumer
from pymq.testing import Cluster

GROUP = "workers"


class Work:
    """A topic of each mode that gets a record every 50 ms, two members of a group, and the
    leaders.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.mq = cluster.client()
        for acks in ("leader", "raft"):
            self.mq.create_topic(acks, 1, 3, acks, min_in_sync=2)
        self.producer = self.mq.producer(linger_ms=0)
        self.members = [self._member() for _ in range(2)]
        self.redelivered = 0
        self.go_on(2.0)

    def _member(self) -> Consumer:
        return self.cluster.client().consumer("leader", group=GROUP)

    def go_on(self, seconds: float) -> None:
        """Let records be sent and processed for some time."""
        until = self.cluster.now + seconds
        while self.cluster.now < until:
            for topic in ("leader", "raft"):
                self.producer.send(topic, b"x")
            for member in self.members:
                for record in member.poll(timeout=0):
                    self.redelivered += record.delivery_count > 1
                    member.ack(record)
            self.cluster.run(seconds=0.05)

    def state(self) -> object:
        """The leader, the in-sync set, the epoch, and the members of the group."""
        topics = [self.mq.describe_topic(topic) for topic in ("leader", "raft")]
        parts = [part for topic in topics for part in topic.partitions]
        leads = [(part.leader, sorted(part.in_sync), part.epoch) for part in parts]
        return leads, self.mq.describe_group(GROUP).generation

    def close(self) -> None:
        """Check that all records were answered, and that none was processed twice."""
        self.producer.flush(10)
        assert self.redelivered == 0


NODES = ["zkserver-0", "broker-0", "broker-1", "broker-2"]


def the_cluster(seed: int = 3) -> Cluster:
    """A zkserver whose session at the coordinator is longer than its timeout for brokers."""
    return Cluster(brokers=3, zkservers=1, seed=seed, coordinator_session_ms=20_000)


@pytest.mark.parametrize("name", NODES)
def test_a_clock_that_jumps_makes_nobody_dead(name: str) -> None:
    """In an earlier version the active zkserver declared all brokers dead, and their blocks were
    taken over.
    """
    with the_cluster() as cluster:
        work = Work(cluster)
        before = work.state()
        for jump_s in (1.4, 2.0, 3_600.0):
            cluster.clock(name, jump_s=jump_s)
            work.go_on(1.5)
        assert work.state() == before
        work.close()


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_zkserver_that_did_not_run_listens_before_it_judges(is_cut: bool) -> None:
    """Messages to the paused zkserver may be lost.

    In either case the zkserver first receives only old messages.
    """
    with the_cluster() as cluster:
        work = Work(cluster)
        before = work.state()
        if is_cut:
            cluster.cut("zkserver-0", list(cluster.brokers))
        cluster.pause("zkserver-0")
        cluster.run(seconds=5.0)
        cluster.heal()
        cluster.resume("zkserver-0")
        work.go_on(2.0)
        assert work.state() == before
        work.close()


def test_who_is_dead_is_found_out_all_the_same() -> None:
    """Dead brokers are detected even if the clock jumps repeatedly: only the time in which the
    zkserver listens counts.
    """
    with the_cluster() as cluster:
        work = Work(cluster)
        leader = cluster.client().describe_topic("leader").partitions[0].leader
        assert leader is not None
        cluster.crash(leader, "all")
        for _ in range(8):
            cluster.clock("zkserver-0", jump_s=60.0)
            cluster.run(seconds=0.5)
        assert work.mq.describe_topic("leader").partitions[0].leader not in (None, leader)
