"""The next zkserver carries out an accepted request once, without another request."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from pymq.core.message import (
    AlterTopic,
    CreateTopic,
    Decommission,
    Message,
    Reassign,
    Recommission,
    RecoverPartition,
    RollWanted,
    SetPartitionState,
)
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import ConfigError, NotEnoughBrokers
from tests.controller.cluster import SESSION_MS, T0, Cluster, crashes

MODES = (AckMode.UNSET, AckMode.RAFT, AckMode.LEADER, AckMode.NONE)
Start = Callable[[Cluster], Callable[[int], Message]]


def crash_everywhere(
    start: Start, is_promised: Callable[[Cluster], bool], check: Callable[[Cluster, bool], None]
) -> None:
    """Crash the active zkserver before each of its effects; *check* gets the expected state.

    If the zkserver dies, the tree has the old state or the new one; once the answer has been sent,
    the new one.
    """
    outcomes: set[bool] = set()
    for cluster, _, _ in crashes(start):
        if cluster.zks["zk-0"].is_up:
            check(cluster, True)
            break
        is_done = is_promised(cluster)
        outcomes.add(is_done)
        cluster.crash_zk("zk-0")
        cluster.pass_ms(4 * SESSION_MS)
        check(cluster, is_done)
        assert cluster.part().node.wanted is None
        before = cluster.part()
        cluster.pass_ms(40_000)  # Nothing is done a second time.
        assert (cluster.part().node, cluster.part().blocks) == (before.node, before.blocks)
    assert outcomes == {False, True}


def noted(cluster: Cluster) -> bool:
    part = cluster.part()
    return part.node.wanted is not None or part.open_block.number > 0


@pytest.mark.parametrize(("before", "after"), list(permutations(MODES, 2)))
def test_ack_modes(before: AckMode, after: AckMode) -> None:
    """Every ordered pair of modes."""
    is_rolled = AckMode.RAFT in (before, after) and before is not AckMode.UNSET

    def start(cluster: Cluster) -> Callable[[int], Message]:
        cluster.topic(before, partitions=1)
        if before is not AckMode.UNSET:
            cluster.write(5)
        return lambda i: SetPartitionState(i, *T0, after)

    def check(cluster: Cluster, is_done: bool) -> None:
        part = cluster.part()
        assert part.node.acks is part.open_block.acks is (after if is_done else before)
        ends = [(block.start, block.end) for block in part.blocks.values()]
        assert ends == ([(0, 5), (5, None)] if is_done and is_rolled else [(0, None)])
        assert len(part.open_block.replicas) == (0 if part.node.acks is AckMode.UNSET else 3)

    if after is AckMode.UNSET:
        cluster = Cluster()
        make = start(cluster)
        with pytest.raises(ConfigError):
            cluster.ask(make)
        return
    crash_everywhere(start, noted if is_rolled else lambda c: c.part().node.acks is after, check)


@pytest.mark.parametrize("acks", [AckMode.RAFT, AckMode.LEADER])
def test_a_reassignment(acks: AckMode) -> None:
    def start(cluster: Cluster) -> Callable[[int], Message]:
        cluster.topic(acks, 2)
        cluster.write(5)
        others = tuple(b for b in cluster.brokers if b not in cluster.open().replicas)
        cluster.wanted = others
        return lambda i: Reassign(i, *T0, others)

    def check(cluster: Cluster, is_done: bool) -> None:
        part = cluster.part()
        assert (set(part.open_block.replicas) == set(cluster.wanted)) == is_done
        assert list(part.blocks) == ([0, 1] if is_done else [0])

    crash_everywhere(start, noted, check)


@pytest.mark.parametrize("count", [1, 4])
def test_another_number_of_replicas(count: int) -> None:
    def start(cluster: Cluster) -> Callable[[int], Message]:
        cluster.topic(AckMode.LEADER, 2)
        cluster.write(5)
        return lambda i: SetPartitionState(i, *T0, AckMode.LEADER, count)

    def check(cluster: Cluster, is_done: bool) -> None:
        part = cluster.part()
        assert len(part.open_block.replicas) == part.node.replicas == (count if is_done else 2)
        assert list(part.blocks) == ([0, 1] if is_done else [0])

    crash_everywhere(start, noted, check)


def test_a_decommission() -> None:
    """The broker loses all of its partitions, whichever zkserver continues the decommission."""
    names = [TopicPartition("t", str(index)) for index in range(6)]

    def start(cluster: Cluster) -> Callable[[int], Message]:
        cluster.topic(AckMode.LEADER, 2, partitions=6)
        for name in names:
            cluster.write(5, name=name)
        return lambda i: Decommission(i, "b1")

    def check(cluster: Cluster, is_done: bool) -> None:
        image = cluster.image
        assert image.brokers["b1"].is_draining is is_done
        for name in names:
            part = image.partition(*name)
            was_there = "b1" in part.blocks[0].replicas
            assert list(part.blocks) == ([0, 1] if is_done and was_there else [0])
            assert "b1" not in part.open_block.replicas or not is_done
            assert len(part.open_block.replicas) == 2

    crash_everywhere(start, lambda c: c.image.brokers["b1"].is_draining, check)


def test_a_decommission_is_taken_back() -> None:
    cluster = Cluster()
    cluster.topic(AckMode.LEADER, 2)
    (other,) = set(cluster.brokers) - set(cluster.open().replicas)
    gone = cluster.followers()[0]
    cluster.ask(lambda i: Decommission(i, gone))
    assert set(cluster.open().replicas) == {cluster.leader(), other}
    with pytest.raises(NotEnoughBrokers):
        cluster.set_state(AckMode.LEADER, 3)
    assert cluster.ask(lambda i: Recommission(i, gone)) is True
    assert cluster.ask(lambda i: Recommission(i, gone)) is False
    assert cluster.set_state(AckMode.LEADER, 3) is True
    assert set(cluster.open().replicas) == set(cluster.brokers)


def test_what_a_decommission_left_short_is_made_up_for_when_it_is_taken_back() -> None:
    cluster = Cluster(replace_ms=2_000)
    cluster.topic(AckMode.LEADER, 2)
    leader, (one,) = cluster.leader(), cluster.followers()
    (other,) = set(cluster.brokers) - {leader, one}
    cluster.ask(lambda i: Decommission(i, other))
    cluster.kill(one)
    cluster.pass_ms(5_000)
    cluster.to_active(leader, RollWanted(*T0, 0, 1, "size"))
    assert cluster.open().replicas == (leader,)
    cluster.ask(lambda i: Recommission(i, other))
    assert set(cluster.open().replicas) == {leader, other}


def test_a_dead_broker_is_replaced_by_the_next_zkserver_too() -> None:
    cluster = Cluster(zks=2, replace_ms=3_000)
    cluster.topic(AckMode.RAFT, 2)
    cluster.write(5)
    cluster.topic(AckMode.LEADER, 2, name="u")
    name = TopicPartition("u", "0")
    gone = cluster.followers(name)[0]
    cluster.kill(gone)
    cluster.crash_zk("zk-0")
    cluster.pass_ms(3_000 + 4 * SESSION_MS)
    assert gone not in cluster.open(name).replicas
    assert len(cluster.open(name).replicas) == 2


def test_a_recovery_that_was_not_carried_out_is_asked_for_again() -> None:
    """An unclean recovery is not stored in the tree, so the client repeats it and learns which
    records were lost.
    """
    point = 0
    while True:
        point += 1
        cluster = Cluster(brokers=1, zks=2)
        cluster.topic(AckMode.LEADER, 1)
        cluster.write(5)
        cluster.restart("b0", "another disk")
        zk = cluster.zks["zk-0"]
        zk.crash_before = zk.effects + point
        request = cluster.send(lambda i: RecoverPartition(i, *T0))
        if zk.is_up:
            assert cluster.answers[request].result == cluster.part().node.losses[0]
            break
        cluster.crash_zk("zk-0")
        cluster.pass_ms(4 * SESSION_MS)
        cluster.ask(lambda i: RecoverPartition(i, *T0))
        part = cluster.part()
        assert (len(part.node.losses), part.open_block.leader) == (1, "b0")
    assert point >= 2


def test_the_later_word_holds() -> None:
    """A new request replaces the request that an earlier zkserver had accepted."""
    cluster = Cluster(zks=2)
    cluster.topic(AckMode.LEADER)
    cluster.write(5)
    for broker in cluster.brokers.values():
        broker.seals = False
    cluster.send(lambda i: SetPartitionState(i, *T0, AckMode.RAFT))
    assert cluster.part().node.wanted is not None
    cluster.crash_zk("zk-0")
    assert cluster.set_state(AckMode.LEADER) is False
    assert cluster.part().node.wanted is None
    for broker in cluster.brokers.values():
        broker.seals = True
    cluster.pass_ms(10_000)
    assert cluster.part().node.acks is AckMode.LEADER


def test_nothing_is_rolled_onto_fewer_brokers_because_the_zkserver_is_new() -> None:
    cluster = Cluster(zks=2)
    cluster.topic(AckMode.LEADER)
    cluster.write(5)
    leader, followers = cluster.leader(), cluster.followers()
    cluster.brokers[leader].seals = False
    cluster.send(lambda i: SetPartitionState(i, *T0, AckMode.RAFT))
    cluster.crash_zk("zk-0")
    cluster.brokers[leader].seals = True
    cluster.register(leader)
    assert cluster.open().number == 0
    for name in followers:
        cluster.register(name)
    assert cluster.open().number == 1
    assert len(cluster.open().replicas) == 3


# --- size, age, and brokers that are added ------------------------------------------------------


@pytest.mark.parametrize("reason", ["size", "age"])
def test_size_and_age(reason: str) -> None:
    cluster = Cluster(zks=2)
    cluster.topic(AckMode.RAFT)
    cluster.write(5)
    leader = cluster.leader()
    zk = cluster.zks["zk-0"]
    zk.crash_before = zk.effects + 2
    cluster.to_active(leader, RollWanted(*T0, 0, 1, reason))
    assert not zk.is_up
    cluster.crash_zk("zk-0")
    cluster.pass_ms(4 * SESSION_MS)
    assert [(b.start, b.end) for b in cluster.part().blocks.values()] == [(0, 5), (5, None)]


def test_new_blocks_use_a_broker_that_was_added() -> None:
    cluster = Cluster(brokers=2)
    cluster.topic(AckMode.LEADER, 2, partitions=6)
    cluster.ask(lambda i: CreateTopic(i, "single", ("0", "1", "2", "3"), 1, AckMode.RAFT, {}))
    names = [TopicPartition("t", str(index)) for index in range(6)]
    names += [TopicPartition("single", str(index)) for index in range(4)]
    for name in names:
        cluster.write(5, name=name)
    cluster.start_broker("b2")
    for _ in range(3):
        for name in names:
            block = cluster.open(name)
            assert block.leader is not None
            cluster.write(block.start + 5, name=name)
            wanted = RollWanted(*name, block.number, block.epoch, "size")
            cluster.to_active(block.leader, wanted)
    image = cluster.image
    loads = [image.hosting.opened_count(broker) for broker in cluster.brokers]
    assert max(loads) - min(loads) <= 1
    assert all(len(image.partition(*name).open_block.replicas) == 2 for name in names[:6])
    moved = sum("b2" in image.partition(*name).open_block.replicas for name in names)
    settled = [image.partition(*name).open_block.replicas for name in names]
    for name in names:  # once the load is even, no partition moves any more
        block = cluster.open(name)
        assert block.leader is not None
        cluster.write(block.start + 5, name=name)
        cluster.to_active(block.leader, RollWanted(*name, block.number, block.epoch, "size"))
    assert [cluster.open(name).replicas for name in names] == settled
    assert moved == loads[2] > 3


def test_options_do_not_disturb_what_is_wanted() -> None:
    cluster = Cluster()
    cluster.topic(AckMode.LEADER)
    cluster.write(5)
    cluster.brokers[cluster.leader()].seals = False
    request = cluster.send(lambda i: SetPartitionState(i, *T0, AckMode.RAFT))
    cluster.ask(lambda i: AlterTopic(i, "t", {"retention_ms": 5}))
    cluster.brokers[cluster.leader()].seals = True
    cluster.pass_ms(2_000)
    assert cluster.answers[request].result is True
    assert cluster.part().node.acks is AckMode.RAFT
