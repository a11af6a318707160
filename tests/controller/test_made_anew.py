"""Late reports about a deleted topic do not affect a new topic of its name.

A broken connection may deliver its messages late. The new topic's blocks have the same numbers and
epochs as those of the old topic.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymq.core.message import (
    AlterIsr,
    BecomeLeader,
    BlockSizes,
    CreateTopic,
    DeleteTopic,
    Progress,
    RetireBlocks,
    RollWanted,
    Seal,
    Sealed,
)
from pymq.core.types import AckMode
from tests.controller.cluster import T0, Cluster


def topic_id(cluster: Cluster) -> str:
    return cluster.image.topic("t").node.id


def asked_to_seal(cluster: Cluster, end: int) -> tuple[str, Sealed]:
    """Request the seal of a block that ends at *end*; returns the leader and its answer."""
    cluster.write(end)
    leader = cluster.leader()
    broker = cluster.brokers[leader]
    broker.seals = False
    cluster.to_active(leader, RollWanted(*T0, 0, 1, "size"))
    (answer,) = broker.sealed(broker.last(Seal))
    assert isinstance(answer, Sealed)
    return leader, answer


@pytest.mark.parametrize("is_asked", [True, False])
def test_where_the_old_block_ends_is_not_where_the_new_one_does(is_asked: bool) -> None:
    cluster = Cluster()
    cluster.topic(AckMode.RAFT)
    source, late = asked_to_seal(cluster, 70)
    cluster.ask(lambda i: DeleteTopic(i, "t"))
    cluster.topic(AckMode.RAFT)
    if is_asked:
        leader, answer = asked_to_seal(cluster, 3)
        assert (answer.block, answer.epoch) == (late.block, late.epoch)
    cluster.to_active(source, late)
    assert (cluster.open().number, cluster.open().end) == (0, None)
    assert cluster.active.machine.rolls == is_asked
    if is_asked:
        cluster.to_active(leader, answer)
        assert (cluster.part().blocks[0].end, cluster.open().number) == (3, 1)


def test_it_may_be_made_anew_while_the_end_waits_to_be_committed() -> None:
    """The topic may be recreated before the block's end is committed: urgent commits take turns
    with others.
    """
    cluster = Cluster(brokers=5)
    cluster.topic(AckMode.RAFT)
    source, end = asked_to_seal(cluster, 70)
    others = [b for b in cluster.brokers.values() if b.name not in cluster.open().replicas]
    machine, before = cluster.active.machine, topic_id(cluster)
    for broker in others:
        broker.incarnation += 1
        machine.step(broker.name, broker.registration(), cluster.now)
    machine.step(source, end, cluster.now)
    machine.step("app", DeleteTopic(901, "t"), cluster.now)
    machine.step("app", CreateTopic(902, "t", ("0",), 3, AckMode.RAFT, {}), cluster.now)
    cluster.run()
    assert topic_id(cluster) != before
    assert (cluster.open().number, cluster.open().start) == (0, 0)


Report = AlterIsr | BecomeLeader | Progress | RetireBlocks | BlockSizes


def join(cluster: Cluster, about: str) -> Report:
    leader, (one, _) = cluster.leader(), cluster.followers()
    return AlterIsr(*T0, 0, 1, leader, (leader, one), topic_id=about)


def elect(cluster: Cluster, about: str) -> Report:
    return BecomeLeader(*T0, 0, 5, cluster.followers()[0], about)


def complete(cluster: Cluster, about: str) -> Report:
    (missing,) = set(cluster.brokers) - set(cluster.part().blocks[0].in_sync)
    return Progress(missing, ((*T0, 0, 70),), 1, (about,))


def retire(cluster: Cluster, about: str) -> Report:
    return RetireBlocks(*T0, cluster.part().node.epoch, 1, about)


def resize(cluster: Cluster, about: str) -> Report:
    return BlockSizes(*T0, ((0, 9),), about)


@pytest.mark.parametrize("report", [join, elect, complete, retire, resize])
def test_a_report_on_the_old_topic_changes_nothing(
    report: Callable[[Cluster, str], Report],
) -> None:
    cluster = Cluster()
    acks = AckMode.LEADER if report is join else AckMode.RAFT
    cluster.topic(acks)
    before = topic_id(cluster)
    cluster.ask(lambda i: DeleteTopic(i, "t"))
    cluster.topic(acks)
    if report in (complete, retire, resize):  # these reports concern a sealed block
        cluster.write(3)
        leader = cluster.leader()
        cluster.brokers[leader].holders[T0] = (leader, cluster.followers()[0])
        cluster.to_active(leader, RollWanted(*T0, 0, 1, "size"))
    known = cluster.part()
    for about in (before, topic_id(cluster)):
        assert cluster.part() == known
        found = report(cluster, about)
        cluster.to_active(getattr(found, "broker", "b0"), found)
    assert cluster.part() != known
