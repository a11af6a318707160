"""Requests about very many partitions are answered over several turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymq.controller.state.image import Image
from pymq.core.message import (
    Answer,
    CreateTopic,
    DeleteTopic,
    DescribeCluster,
    DescribeTopic,
    GetMetadata,
    Message,
)
from pymq.core.metadata.descriptions import ClusterDescription, TopicDescription, TopicMetadata
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import UnknownTopic
from tests.controller.cluster import Cluster

COUNT = 100
MOST = 10  # partitions a turn, in these tests
NAMES = tuple(str(index) for index in range(COUNT))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("descriptions", "lookup"):
        monkeypatch.setattr(f"pymq.controller.{module}.PARTS_MAX", MOST)


def large() -> Cluster:
    cluster = Cluster()
    cluster.ask(lambda i: CreateTopic(i, "t", NAMES, 3, AckMode.LEADER, {}))
    cluster.pass_ms(1_000)
    return cluster


def most_looks(
    cluster: Cluster, make: Callable[[int], Message], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, object]:
    """Return the largest number of partitions that the zkserver visits in one call, and its
    answer.
    """
    most = count = 0
    find, machine = Image.find, cluster.active.machine

    def counted(image: Image, name: TopicPartition) -> object:
        nonlocal count
        count += 1
        return find(image, name)

    def around(verb: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            nonlocal most, count
            count = 0
            verb(*arguments)
            most = max(most, count)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Image, "find", counted)
        for verb in ("step", "decided", "tick"):
            patch.setattr(machine, verb, around(getattr(machine, verb)))
        request = cluster.send(make)
        cluster.pass_ms(3_000)
    answer = cluster.answers[request]
    assert answer.error is None
    return most, answer.result


def test_metadata_is_of_all_partitions_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zkserver answers for some of 10,000 partitions in each turn.

    Answering for all of them in one turn took 41 ms.
    """
    most, found = most_looks(large(), lambda i: GetMetadata(i, "t"), monkeypatch)
    assert isinstance(found, TopicMetadata)
    assert [partition.partition for partition in found.partitions] == list(NAMES)
    assert {broker.name for broker in found.brokers} == {"b0", "b1", "b2"}
    assert 0 < most <= MOST


def test_a_cluster_is_described_some_partitions_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The zkserver describes some of 10,000 partitions in each turn; all in one turn took 50 ms."""
    cluster = large()
    for name in ("b0", "b1", "b2"):
        cluster.brokers[name].is_up = False
    cluster.pass_ms(3_000)
    most, found = most_looks(cluster, DescribeCluster, monkeypatch)
    assert isinstance(found, ClusterDescription)
    assert (found.topics, found.partitions) == (1, COUNT)
    assert list(found.leaderless) == [f"t/{name}" for name in NAMES]
    assert 0 < most <= MOST


def test_a_topic_is_described_some_partitions_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most, found = most_looks(large(), lambda i: DescribeTopic(i, "t"), monkeypatch)
    assert isinstance(found, TopicDescription)
    assert [partition.name for partition in found.partitions] == list(NAMES)
    assert 0 < most <= MOST


@pytest.mark.parametrize("make", [GetMetadata, DescribeTopic])
def test_of_a_topic_that_is_deleted_meanwhile_there_is_nothing_to_tell(
    make: Callable[[int, str], Message],
) -> None:
    cluster = large()
    machine = cluster.active.machine
    machine.step("client", make(71, "t"), cluster.now)
    machine.tick(cluster.now + 2_500)  # The answer is not complete yet.
    machine.step("client", DeleteTopic(72, "t"), cluster.now + 2_500)
    cluster.pass_ms(5_000)
    assert cluster.answers[72] == Answer(72, None)
    assert isinstance(cluster.answers[71].error, UnknownTopic)


def test_of_a_topic_that_is_made_again_meanwhile_the_new_one_is_told() -> None:
    cluster = large()
    machine, now = cluster.active.machine, cluster.now
    before = cluster.image.topics["t"].node.id
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymq.controller.lookup.PARTS_MAX", MOST)
        machine.step("client", GetMetadata(71, "t"), now)
        machine.step("client", DeleteTopic(72, "t"), now)
        machine.step("client", CreateTopic(73, "t", NAMES[:30], 3, AckMode.LEADER, {}), now)
        cluster.pass_ms(5_000)
    found = cluster.answers[71].result
    assert isinstance(found, TopicMetadata)
    assert found.topic_id != before
    assert [partition.partition for partition in found.partitions] == list(NAMES[:30])
