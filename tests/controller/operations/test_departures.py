"""Controlled shutdown: before a broker stops, other brokers lead its partitions where possible."""

from __future__ import annotations

import pytest

from pymq.broker.shutdown import ShutdownHandover
from pymq.client.option_types import Acks
from pymq.core.message import AlterIsr, BecomeLeader, ControlledShutdown, CreateTopic
from pymq.core.observe.coverage import counting
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import NotRegistered
from pymq.testing import Cluster as Simulated
from tests.controller.cluster import T0, Cluster


def leave(cluster: Cluster, name: str) -> int:
    """Request a departure; returns the number of leaderships that the broker still waits for."""
    broker = cluster.brokers[name]
    before = len(cluster.refusals)
    cluster.to_active(name, ControlledShutdown(1, name, broker.incarnation))
    peer, answer = cluster.refusals[before]
    assert peer == name
    if answer.error is not None:
        raise answer.error
    assert isinstance(answer.result, int)
    return answer.result


def test_a_fetch_block_is_rolled_to_another_leader() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.write(5)
    leader, (one, two) = cluster.leader(), cluster.followers()
    assert leave(cluster, leader) == 1
    block = cluster.open()
    assert (block.number, block.start) == (1, 5)
    assert block.leader in (one, two)
    # The stopping broker stays a replica, because it will be back.
    assert set(block.replicas) == {leader, one, two}
    assert set(block.in_sync) == {one, two}  # The leaders do not wait for the stopping broker.
    assert leave(cluster, leader) == 0
    assert block.leader is not None
    join = AlterIsr(*T0, 1, block.epoch, block.leader, (leader, one, two))
    cluster.to_active(block.leader, join)
    assert set(cluster.open().in_sync) == {one, two}
    cluster.restart(leader)
    cluster.to_active(block.leader, join)
    assert set(cluster.open().in_sync) == {leader, one, two}


def test_who_follows_is_not_waited_for() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.write(5)
    leader, (one, two) = cluster.leader(), cluster.followers()
    assert leave(cluster, one) == 0
    assert cluster.open().number == 0
    assert set(cluster.open().in_sync) == {leader, two}


def test_a_raft_block_elects_another_leader() -> None:
    cluster = Cluster()
    cluster.topic(AckMode.RAFT)
    leader, (one, _) = cluster.leader(), cluster.followers()
    assert leave(cluster, leader) == 1
    assert cluster.open().number == 0
    cluster.to_active(one, BecomeLeader(*T0, 0, 2, one))
    assert leave(cluster, leader) == 0


@pytest.mark.parametrize("acks", [AckMode.RAFT, AckMode.LEADER])
def test_what_nobody_could_take_is_not_waited_for(acks: AckMode) -> None:
    cluster = Cluster()
    cluster.topic(acks, 1)
    cluster.topic(acks, 3, name="u")
    name = TopicPartition("u", "0")
    leader, (one, two) = cluster.leader(name), cluster.followers(name)
    cluster.kill(one)
    cluster.kill(two)
    assert leave(cluster, leader) == 0
    assert leave(cluster, cluster.leader()) == 0 if cluster.leader() == leader else True
    assert cluster.open(name).number == 0


def test_new_blocks_are_led_by_others_meanwhile() -> None:
    cluster = Cluster()
    cluster.topic(AckMode.RAFT)
    cluster.write(5)
    leader = cluster.leader()
    assert leave(cluster, leader) == 1
    cluster.set_state(AckMode.LEADER)
    assert cluster.leader() != leader
    assert leader in cluster.open().replicas
    assert leave(cluster, leader) == 0


def test_who_is_not_known_is_told_so() -> None:
    cluster = Cluster(zks=2)
    cluster.topic()
    leader = cluster.leader()
    cluster.crash_zk("zk-0")
    with pytest.raises(NotRegistered):
        leave(cluster, leader)
    for name in cluster.brokers:
        cluster.register(name)
    assert leave(cluster, leader) == 1
    assert cluster.leader() != leader


def test_a_departure_ends_when_its_broker_has_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restart ends a departure.

    Otherwise leaders and zkserver would change the in-sync set forever.

    Seed 903973.
    """
    monkeypatch.setattr("pymq.controller.operations.departures.LOOKS_MAX", 1)
    cluster = Cluster()
    names = [TopicPartition("t", str(index)) for index in range(12)]
    partitions = tuple(name.partition for name in names)
    cluster.ask(lambda i: CreateTopic(i, "t", partitions, 3, AckMode.LEADER, {}))
    broker, machine = cluster.brokers["b0"], cluster.active.machine
    machine.step("b0", ControlledShutdown(1, "b0", broker.incarnation), cluster.now)
    for _ in range(3):
        turn(cluster)
    followed = [name for name in names if cluster.leader(name) != "b0"]
    assert not any("b0" in cluster.open(name).in_sync for name in followed)
    assert not cluster.refusals  # The zkserver still counts the partitions that this broker leads.
    broker.incarnation += 1
    machine.step("b0", broker.registration(), cluster.now)
    turn(cluster)
    assert machine.members.is_of("b0", broker.incarnation)
    for name in followed:
        block = cluster.open(name)
        assert block.leader is not None
        join = AlterIsr(*name, block.number, block.epoch, block.leader, block.replicas)
        machine.step(block.leader, join, cluster.now)
    cluster.run()
    assert all("b0" in cluster.open(name).in_sync for name in followed)


def turn(cluster: Cluster) -> None:
    """Let the zkserver do the work of this millisecond only."""
    cluster.now += 1
    zk = cluster.active
    zk.machine.tick(cluster.now)
    while cluster._turn(zk):
        pass


def test_a_departure_ends_in_time() -> None:
    departure = ShutdownHandover("b0", 3)
    assert not departure.has_begun
    departure.begin(1_000, 250)
    asked = []
    now = 1_000
    while not departure.is_over:
        assert departure.deadline >= now
        now = departure.deadline
        asked.append((now, departure.ask(now)))
    assert [at for at, _ in asked] == [1_000, 1_100, 1_200, 1_250]
    assert asked[0][1] == ControlledShutdown(1, "b0", 3)
    assert asked[-1][1] is None


# --- simulated ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acks", "how"), [("raft", "raft.take_over"), ("leader", "departures.rolled")]
)
def test_producing_goes_on_while_every_broker_is_restarted(acks: Acks, how: str) -> None:
    """Before a leader stops, other brokers lead its partitions, so clients need no timeout to
    notice.
    """
    with (
        counting() as marks,
        Simulated(brokers=3, zkservers=2, seed=5, session_ms=6_000) as cluster,
    ):
        mq = cluster.client()
        mq.create_topic("t", partitions=3, replicas=3, acks=acks)
        with mq.producer() as producer:
            for name in list(cluster.brokers):
                before = marks[how]
                began = cluster.now
                cluster.stop(name)
                assert cluster.now - began < 0.3
                assert marks[how] > before
                assert marks["departure.out_of_time"] == 0
                for partition in range(3):
                    began = cluster.now
                    producer.send("t", b"x", partition=partition).result()
                    # At most one request of the client may be unanswered.
                    assert cluster.now - began < 1.0
                cluster.restart(name)
                cluster.run(3.0)


def test_a_broker_that_nobody_answers_goes_all_the_same() -> None:
    with Simulated(brokers=3, seed=5) as cluster:
        cluster.client().create_topic("t", replicas=3, acks="leader")
        cluster.cut("broker-0")
        began = cluster.now
        cluster.stop("broker-0", within_s=1.0)
        assert 1.0 <= cluster.now - began < 1.1
        assert not cluster.host("broker-0").is_up
