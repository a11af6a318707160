"""Which partitions get another leader, computed from the image alone."""

from __future__ import annotations

import random

from pymq.controller.state.image import Image
from pymq.controller.transitions.leader_leveling import plan
from pymq.coord import paths
from pymq.core.metadata.nodes import BlockNode, BrokerNode, PartitionNode, TopicNode
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode, TopicPartition

BROKERS = ("a", "b", "c", "d")


def image_of(
    parts: list[tuple[str, str]], acks: AckMode = AckMode.LEADER, out: str = "", topic: str = "t"
) -> Image:
    """Return an image with partitions given as (leader, replicas); *out* is in no in-sync set."""
    image = Image()
    for name in BROKERS:
        image.set(paths.broker(name), BrokerNode(name), 0)
    image.set(paths.topic(topic), TopicNode(topic, "id", 1, acks, 2, TopicConfig()), 0)
    for index, (leader, replicas) in enumerate(parts):
        name = str(index)
        image.set(paths.partition(topic, name), PartitionNode(name, index, acks, 2, 1, 1), 0)
        in_sync = tuple(broker for broker in replicas if broker not in out)
        block = BlockNode(0, 0, None, 1, acks, leader, tuple(replicas), in_sync)
        image.set(paths.block(topic, name, 0), block, 0)
    return image


def anybody(broker: str, name: TopicPartition) -> bool:
    """Report all disks as sound."""
    return True


def test_what_is_even_stays() -> None:
    assert plan(image_of([("a", "ab"), ("b", "ab"), ("a", "ab")]), "ab", anybody) == []


def test_who_leads_much_hands_over_to_who_leads_little() -> None:
    found = plan(image_of([("a", "ab")] * 6), "ab", anybody)
    assert [(shift.source, shift.target) for shift in found] == [("a", "b")] * 3
    assert len({shift.name for shift in found}) == 3


def test_leaders_are_passed_on_where_replicas_do_not_meet() -> None:
    """The first and the last broker share no partition, so leaders move along a chain."""
    parts = [("a", "ab")] * 3 + [("b", "bc")] * 2 + [("c", "cd")]
    found = plan(image_of(parts), "abcd", anybody)
    leads = {"a": 3, "b": 2, "c": 1, "d": 0}
    for shift in found:
        leads[shift.source] -= 1
        leads[shift.target] += 1
    assert sorted(leads.values()) == [1, 1, 2, 2]


def test_only_who_is_in_sync_and_well_is_chosen() -> None:
    parts = [("a", "abc")] * 6
    assert {shift.target for shift in plan(image_of(parts, out="b"), "abc", anybody)} == {"c"}
    # In a Raft block the leader decides; but a broker with a failed disk does not even get the
    # request.
    raft = image_of(parts, AckMode.RAFT)
    found = plan(raft, "abc", lambda broker, name: broker != "c")
    assert {shift.target for shift in found} == {"b"}


def test_where_replicas_are_anywhere_it_gets_even() -> None:
    dice = random.Random(1)
    for _ in range(50):
        parts: list[tuple[str, str]] = []
        for _ in range(dice.randrange(1, 40)):
            replicas = "".join(dice.sample(BROKERS, 4))
            parts.append((dice.choice(replicas), replicas))
        image = image_of(parts)
        leads = {broker: image.hosting.leads[broker] for broker in BROKERS}
        for shift in plan(image, BROKERS, anybody):
            leads[shift.source] -= 1
            leads[shift.target] += 1
        assert max(leads.values()) - min(leads.values()) <= 1
