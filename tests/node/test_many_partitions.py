"""What concerns very many partitions at once is done a little in each turn."""

from __future__ import annotations

from collections.abc import Callable

from pymq.core.marks import counting
from pymq.core.message import CreateTopic, Decommission, LeaderAndIsr, Message, Seal
from pymq.core.ready import Ready
from pymq.core.types import AckMode
from pymq.node.candidates import TURN_MAX
from pymq.node.notices import STATES_MAX, TOLD_MAX
from tests.node.cluster import SESSION_MS, Cluster

COUNT = 600
NAMES = tuple(str(index) for index in range(COUNT))


def large(**config: int) -> Cluster:
    """Four brokers, and a topic of which all partitions are told."""
    cluster = Cluster(brokers=4, **config)
    cluster.ask(lambda i: CreateTopic(i, "t", NAMES, 3, AckMode.LEADER, {}))
    cluster.pass_ms(2_000)
    assert all(len(b.states) == COUNT * 3 // 4 for b in cluster.brokers.values())
    for broker in cluster.brokers.values():
        broker.heard.clear()
    return cluster


def most_in_a_turn(cluster: Cluster, make: Callable[[int], Message], kind: type[Message]) -> int:
    """Ask; the most messages of that kind that left in one turn of the zkserver."""
    found = 0
    ready = cluster.active.machine.ready

    def counted(now: int) -> Ready | None:
        nonlocal found
        out = ready(now)
        found = max(found, sum(isinstance(m, kind) for _, m in out.send) if out else 0)
        return out

    cluster.active.machine.ready = counted  # type: ignore[method-assign]  # to look at each
    cluster.ask(make)
    cluster.pass_ms(2_000)
    return found


def test_a_broker_of_many_partitions_is_decommissioned_some_in_each_turn() -> None:
    """All of its blocks were sealed in one turn, and nobody else was answered meanwhile."""
    cluster = large()
    with counting() as marks:
        most = most_in_a_turn(cluster, lambda i: Decommission(i, "b1"), Seal)
    assert 0 < most <= TURN_MAX
    assert marks["candidates.more"] >= COUNT * 3 // 4 // TURN_MAX - 1
    assert not cluster.image.hosting.opened("b1")


def test_a_decommission_of_many_partitions_goes_on_with_the_next_zkserver() -> None:
    cluster = large(zks=2)
    zk = cluster.active
    zk.crash_before = zk.effects + 100
    cluster.send(lambda i: Decommission(i, "b1"))
    assert not zk.is_up
    assert 0 < len(cluster.image.hosting.opened("b1")) < COUNT * 3 // 4
    cluster.crash_zk(zk.name)
    cluster.pass_ms(40 * SESSION_MS)
    assert not cluster.image.hosting.opened("b1")
    parts = cluster.image.topics["t"].partitions.values()
    assert all(len(part.open_block.replicas) == 3 for part in parts)


def test_a_large_topic_is_told_some_partitions_in_each_turn() -> None:
    cluster = Cluster()
    with counting() as marks:
        cluster.ask(lambda i: CreateTopic(i, "t", NAMES, 3, AckMode.LEADER, {}))
    assert marks["notices.large_topic"] == COUNT // TOLD_MAX
    for broker in cluster.brokers.values():
        assert len(broker.states) == COUNT
        assert max(len(m.partitions) for m in broker.all(LeaderAndIsr)) <= STATES_MAX
