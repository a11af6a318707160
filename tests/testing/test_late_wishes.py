"""A leader's request for a larger in-sync set arrives after the joining replica has lost
records.
"""

from __future__ import annotations

import pytest

from pymq import Client
from pymq.client.option_types import Fsync
from pymq.core.message import AlterIsr
from pymq.testing import Cluster
from pymq.testing.simulation.process import Process

RECORDS = [b"%050d" % number for number in range(40)]


@pytest.mark.parametrize("fsync", ["os", "interval"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_who_has_lost_records_meanwhile_does_not_join(fsync: Fsync, replicas: int) -> None:
    """In an earlier version that replica was elected without acknowledged records, which were then
    lost.
    """
    with Cluster(brokers=replicas, seed=3, lag_max_ms=1_000) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=replicas, acks="leader", fsync=fsync)
        leader = leader_of(mq)
        follower, *others = (name for name in cluster.brokers if name != leader)
        wishes: list[AlterIsr] = []

        def note(process: Process, peer: str, source: str, message: object) -> None:
            assert isinstance(message, AlterIsr)
            wishes.append(message)

        cluster.brokers[leader].on_send.setdefault(AlterIsr, []).append(note)
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", RECORDS[0]).result()
            cluster.run(seconds=1)
            apart = cluster.cut(leader, [follower])
            for other in others:
                cluster.cut(leader, [other])
            for record in RECORDS[1:]:
                producer.send("t", record).result()
        cluster.run(seconds=3)
        assert in_sync(mq) == {leader}
        # The follower catches up, and the request to add it to the in-sync set is delayed in a
        # connection.
        wishes.clear()
        cluster.network.clog(leader, "zkserver-0", cluster.world.now + 1_000_000)
        cluster.heal(apart)
        cluster.run_until(lambda: bool(wishes), seconds=0.8)
        assert set(wishes[0].in_sync) == {leader, follower}
        # The follower loses its unsynced records, and has not fetched from its leader since.
        cluster.cut(leader, [follower])
        cluster.crash(follower, "none")
        cluster.restart(follower)
        cluster.run(seconds=1.2)
        assert in_sync(mq) == {leader}
        # So the follower cannot replace the leader.
        cluster.crash(leader, "all")
        cluster.run(seconds=5)
        cluster.heal()
        cluster.restart(leader)
        cluster.run(seconds=5)
        with cluster.client().consumer("t", mode="psb") as consumer:
            assert [record.value for record in consumer.until_end()] == RECORDS
        assert in_sync(mq) == {*cluster.brokers}


def leader_of(mq: Client) -> str:
    name = mq.describe_topic("t").partitions[0].leader
    assert name is not None
    return name


def in_sync(mq: Client) -> set[str]:
    """The in-sync set as the zkserver has it."""
    return set(mq.describe_topic("t").partitions[0].blocks[-1].in_sync)
