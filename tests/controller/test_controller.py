"""A single zkserver: topics, ack modes and messages to brokers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from pymq.controller.operations.broker_updates import STATES_MAX
from pymq.controller.state.image import SLICE_OPS, Image
from pymq.core.message import (
    AlterTopic,
    CreatePartition,
    CreateTopic,
    DescribeCluster,
    GetMetadata,
    LeaderAndIsr,
    ListTopics,
    Message,
    Seal,
    SetPartitionState,
)
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import ConfigError, NotEnoughBrokers, UnknownTopic
from tests.controller.cluster import T0, Cluster

MODES = list(AckMode)


def test_a_topic_is_one_commit_and_everybody_concerned_is_told() -> None:
    cluster = Cluster()
    before = len(cluster.active.commits)
    cluster.topic(replicas=2, partitions=6)
    assert len(cluster.active.commits) == before + 1
    image = cluster.image
    for name, partition in image.topics["t"].partitions.items():
        block = partition.open_block
        assert len(set(block.replicas)) == 2
        assert block.leader == block.replicas[0]
        assert block.in_sync == block.replicas
        assert block.storages == tuple(f"disk-{broker}" for broker in block.replicas)
        for broker in block.replicas:
            told = cluster.brokers[broker].states[T0._replace(partition=name)]
            assert told == image.topics["t"].state(name)
    assert all(len(image.hosting.opened(broker)) == 4 for broker in cluster.brokers)


def test_too_few_brokers_change_nothing() -> None:
    cluster = Cluster(brokers=2)
    before = cluster.tree.entries()
    with pytest.raises(NotEnoughBrokers):
        cluster.topic(replicas=3)
    assert cluster.tree.entries() == before


@pytest.mark.parametrize(("before", "after"), list(product(MODES, MODES)))
def test_every_transition(before: AckMode, after: AckMode) -> None:
    """After each change of the ack mode offsets continue, the open block is sealed at its end, and
    the epoch rises.
    """
    cluster = Cluster()
    cluster.topic(before)
    old = cluster.part()
    if before is not AckMode.UNSET:
        cluster.write(7)
    if after is AckMode.UNSET and before is not AckMode.UNSET:
        with pytest.raises(ConfigError):
            cluster.set_state(after)
        assert cluster.part() == old or cluster.part().node == old.node
        return
    assert cluster.set_state(after) is (before is not after)
    new = cluster.part()
    assert new.node.acks is new.open_block.acks is after
    assert new.node.version == old.node.version + (before is not after)
    if before is after:
        assert new.node == old.node
    elif before is AckMode.UNSET:
        assert list(new.blocks) == [0]
        assert len(new.open_block.replicas) == 3
        assert new.node.epoch == 1
    elif AckMode.RAFT in (before, after):
        sealed = new.blocks[0]
        assert (sealed.start, sealed.end, sealed.acks) == (0, 7, before)
        assert sealed.in_sync == sealed.replicas
        assert (new.open_block.start, new.open_block.number) == (7, 1)
        assert new.open_block.leader == old.open_block.leader
        assert set(new.open_block.replicas) == set(old.open_block.replicas)
        assert new.node.epoch == new.open_block.epoch == old.node.epoch + 1
    else:
        assert list(new.blocks) == [0]
        assert new.node.epoch == old.node.epoch
    for broker in new.open_block.replicas:
        assert cluster.brokers[broker].states[T0].acks is after
    assert cluster.set_state(after) is False


def test_an_empty_block_is_not_kept() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.set_state(AckMode.RAFT)
    assert list(cluster.part().blocks) == [1]
    assert cluster.open().start == 0
    cluster.write(5)
    cluster.set_state(AckMode.LEADER)
    assert [(b.start, b.end) for b in cluster.part().blocks.values()] == [(0, 5), (5, None)]


def test_more_replicas_and_fewer() -> None:
    cluster = Cluster(brokers=4)
    cluster.topic(replicas=2)
    first = cluster.open().replicas
    cluster.write(5)
    assert cluster.set_state(AckMode.LEADER, 4) is True
    assert set(first) < set(cluster.open().replicas)
    leader = cluster.leader()
    cluster.write(9)
    assert cluster.set_state(AckMode.LEADER, 1) is True
    assert cluster.open().replicas == (leader,)
    with pytest.raises(NotEnoughBrokers):
        cluster.set_state(AckMode.LEADER, 5)


def test_what_is_wanted_while_a_roll_is_under_way_comes_after_it() -> None:
    cluster = Cluster()
    cluster.topic()
    cluster.write(5)
    leader = cluster.brokers[cluster.leader()]
    leader.seals = False
    first = cluster.send(set_raft)
    second = cluster.send(set_leader)
    assert not cluster.answers.keys() & {first, second}
    leader.seals = True
    cluster.pass_ms(1_000)
    assert cluster.answers[first].result is True
    assert cluster.answers[second].result is True
    acks = [block.acks for block in cluster.part().blocks.values()]
    # the roll removed the empty Raft block in between
    assert acks == [AckMode.LEADER, AckMode.LEADER]
    assert cluster.part().node.epoch == 3


def set_raft(request: int) -> Message:
    return SetPartitionState(request, *T0, AckMode.RAFT)


def set_leader(request: int) -> Message:
    return SetPartitionState(request, *T0, AckMode.LEADER)


def test_versions_rise_with_every_change() -> None:
    cluster = Cluster()
    cluster.topic()
    state = cluster.image.topics["t"].state("0")
    cluster.ask(lambda i: AlterTopic(i, "t", {"retention_ms": 5}))
    altered = cluster.image.topics["t"].state("0")
    assert altered.version == state.version + 1
    cluster.ask(lambda i: CreatePartition(i, "t", "more"))
    assert cluster.image.topics["t"].state("0").version == altered.version + 1
    assert cluster.brokers[cluster.leader()].states[T0].siblings == 2


def test_the_leader_is_asked_until_it_seals() -> None:
    cluster = Cluster()
    cluster.topic(AckMode.RAFT)
    leader = cluster.brokers[cluster.leader()]
    leader.seals = False
    request = cluster.send(set_leader)
    cluster.pass_ms(10_000)
    assert 4 <= len(leader.all(Seal)) <= 8  # the pauses between the requests grow
    # in a Raft block any replica may lead
    assert all(broker.all(Seal) for broker in cluster.brokers.values())
    assert request not in cluster.answers
    leader.seals = True
    cluster.pass_ms(5_000)
    assert cluster.answers[request].result is True


def test_metadata_names_live_leaders_only() -> None:
    cluster = Cluster()
    cluster.topic(replicas=1, partitions=3)
    cluster.kill("b1")
    found = cluster.ask(lambda i: GetMetadata(i, "t"))
    assert isinstance(found, TopicMetadata)
    assert sorted(p.leader or "" for p in found.partitions) == ["", "b0", "b2"]
    with pytest.raises(UnknownTopic):
        cluster.ask(lambda i: GetMetadata(i, "x"))
    shown = cluster.ask(DescribeCluster)
    assert [(b.name, b.alive, b.leads) for b in shown.brokers] == [
        ("b0", True, 1),
        ("b1", False, 1),
        ("b2", True, 1),
    ]
    assert cluster.ask(ListTopics) == ("t",)


def test_ten_thousand_partitions_are_bounded_commits_and_bounded_messages() -> None:
    cluster = Cluster(brokers=1)
    names = tuple(str(index) for index in range(10_000))
    cluster.ask(lambda i: CreateTopic(i, "t", names, 1, AckMode.LEADER, {}))
    cluster.pass_ms(10_000)  # In each turn the zkserver sends messages to some of the brokers.
    commits = [c for c in cluster.active.commits if len(c.ops) > 10]
    assert all(len(c.ops) <= SLICE_OPS + 10 for c in commits)
    told = [len(m.partitions) for m in cluster.brokers["b0"].all(LeaderAndIsr)]
    assert (told[0], sum(told)) == (0, 10_000)
    assert max(told) == STATES_MAX
    assert cluster.active.machine.deadline > cluster.now


def test_ten_thousand_idle_partitions_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a minute of heartbeats, retries and searches for missing replicas the zkserver visits no
    idle partition.
    """
    cluster = Cluster()
    names = tuple(str(index) for index in range(10_000))
    cluster.ask(lambda i: CreateTopic(i, "t", names, 3, AckMode.RAFT, {}))
    cluster.pass_ms(2_000)
    looked: list[object] = []
    for method in ("partition", "find"):
        look = getattr(Image, method)

        def counted(image: Image, *name: object, look: Any = look) -> Any:
            looked.append(name)
            return look(image, *name)

        monkeypatch.setattr(Image, method, counted)
    cluster.pass_ms(60_000)
    assert not looked
    assert cluster.active.machine.image.find(TopicPartition("t", "7")) is not None
    assert len(looked) == 1
