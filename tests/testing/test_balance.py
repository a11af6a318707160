"""Leadership becomes evenly distributed again, one partition at a time, and no send fails."""

from __future__ import annotations

import pytest

from pymq.client.client import Client
from pymq.client.option_types import Acks
from pymq.testing import Cluster
from tests.simulator.whole import check_whole

EVERY_MS = 5_000


def leads(mq: Client) -> list[int]:
    """How many partitions each living broker leads."""
    return [broker.leads for broker in mq.cluster().brokers if broker.alive]


def is_even(mq: Client) -> bool:
    """Whether the numbers of leaders of all brokers are within one of the ideal."""
    found = leads(mq)
    return max(found) - min(found) <= 1


def storm(cluster: Cluster) -> None:
    """Each broker but the first one is restarted, so that the first one leads the most."""
    for name in list(cluster.brokers)[1:]:
        cluster.crash(name)
        cluster.run(4)
        cluster.restart(name)
        cluster.run(3)


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_leaders_are_even_again_after_a_storm_and_no_send_fails(acks: Acks) -> None:
    with Cluster(brokers=3, seed=4, leader_balance_ms=EVERY_MS) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=12, replicas=3, acks=acks)
        storm(cluster)
        assert not is_even(mq)
        sent = 0
        slowest = 0.0
        with mq.producer(linger_ms=0, delivery_timeout_s=5.0) as producer:
            while not is_even(mq):
                began = cluster.now
                for partition in range(12):
                    producer.send("t", b"%d" % sent, partition=partition).result()
                    sent += 1
                slowest = max(slowest, cluster.now - began)
                assert cluster.now < 200
                cluster.run(0.1)
        before = leads(mq)
        cluster.run(30)
        assert leads(mq) == before
        with mq.consumer("t", mode="psb", offset="begin") as consumer:
            assert sorted(int(r.value) for r in consumer.until_end()) == list(range(sent))
        check_whole(cluster)


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_an_administrator_has_it_done_at_once(acks: Acks) -> None:
    with Cluster(brokers=3, seed=5, leader_balance_ms=0) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=9, replicas=3, acks=acks)
        storm(cluster)
        cluster.run(60)
        assert not is_even(mq)
        count = mq.balance()
        assert count > 0
        cluster.run_until(lambda: is_even(mq), seconds=count * 2)
        assert mq.balance() == 0
        assert is_even(mq)


def test_nothing_is_moved_while_a_broker_is_missing() -> None:
    with Cluster(brokers=4, seed=6, leader_balance_ms=EVERY_MS) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=12, replicas=3, acks="raft")
        cluster.run(20)
        cluster.crash("broker-3")
        # other brokers lead the dead broker's partitions, and its replicas were replaced
        cluster.run(14)
        before = [part.leader for part in mq.describe_topic("t").partitions]
        cluster.run(60)
        assert [part.leader for part in mq.describe_topic("t").partitions] == before
        cluster.restart("broker-3")
        cluster.run(EVERY_MS / 1000 - 1)  # the broker has to be alive for a while first
        assert [part.leader for part in mq.describe_topic("t").partitions] == before


def test_who_is_not_in_sync_is_given_nothing_to_lead() -> None:
    """The brokers are alive, but cannot reach each other, so there is no replica to hand over
    to.
    """
    with Cluster(brokers=3, seed=7, leader_balance_ms=15_000, lag_max_ms=500) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=6, replicas=3, acks="leader")
        storm(cluster)
        most = max(mq.cluster().brokers, key=lambda broker: broker.leads).name
        cut = cluster.cut(most, [name for name in cluster.brokers if name != most])
        with mq.producer(linger_ms=0) as producer:
            for partition in range(6):
                producer.send("t", b"x", partition=partition).result()
        cluster.run(3)
        found = mq.describe_topic("t").partitions
        alone = {part.name: part.epoch for part in found if part.in_sync == (most,)}
        assert len(alone) >= 4
        cluster.run(60)
        after = {part.name: part.epoch for part in mq.describe_topic("t").partitions}
        assert {name: after[name] for name in alone} == alone
        cluster.heal(cut)
        cluster.run(60)
        assert is_even(mq)
