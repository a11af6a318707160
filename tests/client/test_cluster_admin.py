"""Administration of a cluster: a request succeeds although a zkserver or a leader dies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import pymq
from pymq.core.message import Answer, CreateTopic
from pymq.errors import PartitionExists, RequestTimeout, TopicExists, UnknownTopic
from pymq.testing import Cluster
from pymq.testing.simulation.network import LinkFaults


def active(cluster: Cluster) -> str:
    for name, host in cluster.zkservers.items():
        if host.controller is not None and host.controller.is_active:
            return name
    raise AssertionError("no zkserver is active")


@pytest.mark.parametrize("seed", range(4))
def test_the_zkserver_dies_between_requests(seed: int) -> None:
    with Cluster(brokers=3, zkservers=3, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("a", partitions=2, replicas=2)
        cluster.crash(active(cluster))
        mq.create_topic("b", partitions=2, replicas=2)
        assert mq.topics() == ["a", "b"]
        cluster.crash(active(cluster))
        assert len(mq.cluster().brokers) == 3
        assert mq.set_partition_state("a", 0, acks="raft")
        assert mq.describe_topic("a").partitions[0].acks is pymq.AckMode.RAFT


@pytest.mark.parametrize("boundary", range(1, 8, 2))
def test_the_zkserver_dies_in_the_middle_of_a_request(boundary: int) -> None:
    """The client cannot know whether its first try was carried out, but its caller sees one
    success.
    """
    with Cluster(brokers=3, zkservers=2, seed=boundary) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3)
        steps: list[Callable[[], object]] = [
            lambda: mq.create_topic("a", partitions=["x", "y"], replicas=2, retention_ms=10**9),
            lambda: mq.create_partition("t", "new"),
            lambda: mq.alter_topic("t", retention_bytes=10**9),
            lambda: mq.set_partition_state("t", 0, acks="raft"),
            lambda: mq.reassign("t", 0, ["broker-0", "broker-1"]),
            lambda: mq.delete_topic("a"),
        ]
        for step in steps:
            name = active(cluster)
            cluster.crash(name, at_boundary=boundary)
            step()
            cluster.run(seconds=2)
            if not cluster.host(name).is_up:
                cluster.restart(name)
            cluster.run(seconds=4)
        assert mq.topics() == ["t"]
        found = mq.describe_topic("t")
        assert [p.name for p in found.partitions] == ["0", "new"]
        assert set(found.partitions[0].replicas) == {"broker-0", "broker-1"}
        assert found.partitions[0].acks is pymq.AckMode.RAFT
        assert found.config.retention_bytes == 10**9


def test_an_answer_is_lost() -> None:
    """If the client's own earlier try had an effect, the repetition is no error. If another client
    did the same, the request is an error.
    """
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        answers = cluster.network.link("zkserver-0", "client-0")

        def lose_one() -> None:
            answers.faults = LinkFaults(loss=1.0)
            cluster.world.after(300_000, lambda a, b: cluster.network.calm())

        lose_one()
        mq.create_topic("t", partitions=2)
        lose_one()
        mq.create_partition("t", "2")
        with pytest.raises(TopicExists):
            mq.create_topic("t", partitions=2)
        lose_one()
        # another definition of the topic, so this client has not created it
        with pytest.raises(TopicExists):
            mq.create_topic("t", partitions=4)
        with pytest.raises(PartitionExists):
            mq.create_partition("t", "2")
        lose_one()
        mq.delete_topic("t")
        with pytest.raises(UnknownTopic):
            mq.delete_topic("t")


def test_the_first_zkserver_asked_is_a_standby() -> None:
    """The standby names the active zkserver; the client does not treat its error as success."""
    with Cluster(brokers=1, zkservers=3, seed=2) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        cluster.run(seconds=0.5)
        standby = next(name for name in cluster.zkservers if name != active(cluster))
        mq._router.controllers.active = standby
        with pytest.raises(TopicExists):
            mq.create_topic("t")
        assert mq._router.controllers.active == active(cluster)


def test_no_zkserver_is_there() -> None:
    """The call raises in time, and the error names the zkservers."""
    with Cluster(brokers=1, zkservers=2, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        for name in cluster.zkservers:
            cluster.crash(name)
        before = cluster.now
        with pytest.raises(RequestTimeout, match="zkserver-0, zkserver-1"):
            mq.topics()
        assert cluster.now - before < 12
        cluster.restart("zkserver-1")
        cluster.run(seconds=3)
        assert mq.topics() == ["t"]


def test_what_a_leader_is_asked_waits_for_the_next_one() -> None:
    with Cluster(brokers=3, seed=4) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=4, replicas=3, acks="raft")
        with mq.producer() as producer:
            for partition in range(4):
                producer.send_many("t", [b"x"] * 5, partition=partition).result()
        names = [str(i) for i in range(4)]
        before = mq.questions.all_bounds("t", names)
        assert {end - start for start, end in before.values()} >= {5}
        cluster.crash("broker-0")
        since = cluster.now
        after = mq.questions.all_bounds("t", names)
        assert all(after[name][1] >= before[name][1] for name in names)
        assert cluster.now - since < 3
        assert len(mq.describe_topic("t").partitions) == 4


def test_nobody_leads() -> None:
    """The call raises in time, and the error names the partition; describing still works."""
    with Cluster(brokers=3, seed=5) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        for name in cluster.brokers:
            cluster.crash(name)
        before = cluster.now
        with pytest.raises(RequestTimeout, match=r"t/0|broker-"):
            mq.questions.bounds("t", "0")
        assert cluster.now - before < 16
        assert mq.describe_topic("t").partitions[0].name == "0"


def test_groups_are_told_of_during_a_fail_over() -> None:
    with Cluster(brokers=3, seed=6) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.producer() as producer:
            producer.send_many("t", [b"x"] * 5).result()
        with mq.consumer("t", group="g") as consumer:
            consumer.ack(list(consumer.until_end()))
            consumer.commit()
        leader = mq.describe_topic("__consumer_offsets").partitions[0].leader
        assert leader is not None
        cluster.crash(leader)
        assert mq.groups() == ["g"]
        assert mq.describe_group("g").lag == {("t", "0"): 0}
        mq.reset_group("g", "t", "begin")
        assert mq.describe_group("g").committed == {("t", "0"): 0}


def test_a_call_is_answered_once() -> None:
    """If several tries are answered, the first answer counts."""
    with Cluster(brokers=1, seed=7) as cluster:
        mq = cluster.client()
        cluster.network.link("client-0", "zkserver-0").faults = LinkFaults(duplicate=1.0)
        mq.create_topic("t")
        router = mq._router
        with mq.driver as loop:
            make = partial(CreateTopic, name="u", partitions=("0",), replicas=1, config={})
            call = router.call(partial(make, acks=pymq.AckMode.LEADER), loop.clock(), 1000)
            loop.touch(mq.name)
        assert mq.driver.wait(call, 1)
        assert call.error is None
        with mq.driver as loop:
            router.step("zkserver-0", Answer(1), loop.clock())
        assert mq.topics() == ["t", "u"]
