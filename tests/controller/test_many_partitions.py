"""Work on very many partitions is spread over turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymq.controller.operations.broker_updates import STATES_MAX, STOPS_MAX, TOLD_MAX
from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Draft, Image
from pymq.controller.state.roll_candidates import TURN_MAX
from pymq.controller.transitions import broker_restarts
from pymq.core.message import (
    ControlledShutdown,
    CreateTopic,
    Decommission,
    LeaderAndIsr,
    Message,
    OfflineReplica,
    OfflineReplicas,
    Reassign,
    Seal,
    Stopped,
    StopReplica,
)
from pymq.core.observe.coverage import counting
from pymq.core.ready import Ready
from pymq.core.types import AckMode, TopicPartition
from tests.controller.cluster import SESSION_MS, Cluster
from tests.controller.test_large_topics import COUNT, NAMES, create


def large(**config: int) -> Cluster:
    """Return four brokers, and a topic whose partitions they all know."""
    cluster = Cluster(brokers=4, **config)
    cluster.ask(lambda i: create(i, "t"))
    cluster.pass_ms(2_000)
    assert all(len(b.states) == COUNT * 3 // 4 for b in cluster.brokers.values())
    for broker in cluster.brokers.values():
        broker.heard.clear()
    return cluster


def most_in_a_turn(cluster: Cluster, act: Callable[[], object], kind: type[Message]) -> int:
    """Return the largest number of messages of a kind that leave in one turn of the zkserver after
    *act*.
    """
    found = 0
    ready = cluster.active.machine.ready

    def counted(now: int) -> Ready | None:
        nonlocal found
        out = ready(now)
        found = max(found, sum(isinstance(m, kind) for _, m in out.send) if out else 0)
        return out

    cluster.active.machine.ready = counted  # type: ignore[method-assign]  # to look at each
    act()
    cluster.pass_ms(2_000)
    return found


class Looks:
    """The largest number of partitions that the zkserver visits in one call."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self._count = 0
        find, machine = Image.find, cluster.active.machine

        def counted(image: Image, name: TopicPartition) -> object:
            self._count += 1
            return find(image, name)

        monkeypatch.setattr(Image, "find", counted)
        for verb in ("step", "decided", "tick"):
            monkeypatch.setattr(machine, verb, self._around(getattr(machine, verb)))

    def _around(self, verb: Callable[..., None]) -> Callable[..., None]:
        def around(*arguments: object) -> None:
            self._count = 0
            verb(*arguments)
            self.most = max(self.most, self._count)

        return around


LOOKS = 40  # visited partitions a turn, in these tests


@pytest.fixture
def few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit, so that a few hundred partitions are very many."""
    for module in (
        "transitions.partition_sweep",
        "operations.departures",
        "operations.broker_registry",
    ):
        monkeypatch.setattr(f"pymq.controller.{module}.LOOKS_MAX", LOOKS)
    monkeypatch.setattr("pymq.controller.state.roll_candidates.TURN_MAX", TURN_MAX // 4)


@pytest.mark.usefixtures("few_looks")
def test_a_broker_that_comes_back_unchanged_is_looked_at_some_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Raft blocks of an unchanged broker are checked over several turns."""
    cluster = Cluster(brokers=4)
    cluster.ask(lambda i: CreateTopic(i, "t", NAMES, 3, AckMode.RAFT, {}))
    cluster.pass_ms(2_000)
    looks = Looks(cluster, monkeypatch)
    with counting() as marks:
        cluster.restart("b1")
    assert marks["commits.rests"] >= COUNT * 3 // 4 // LOOKS
    assert cluster.image.brokers["b1"].incarnation == 2
    assert "b1" in cluster.active.machine.members
    assert looks.most <= 4 * LOOKS


@pytest.mark.usefixtures("few_looks")
def test_others_are_answered_while_very_many_partitions_are_looked_at() -> None:
    cluster = large()
    machine = cluster.active.machine
    machine.step("b1", cluster.brokers["b1"].registration(), cluster.now)
    cluster.brokers["b1"].incarnation = 2
    machine.step("b1", cluster.brokers["b1"].registration(), cluster.now)
    machine.step("client", CreateTopic(77, "u", ("0",), 3, AckMode.LEADER, {}), cluster.now)
    cluster.run()
    assert cluster.answers[77].error is None
    assert cluster.image.brokers["b1"].incarnation == 2


@pytest.mark.usefixtures("few_looks")
def test_a_broker_of_many_partitions_stops_some_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The zkserver finds and rolls the partitions that a broker leads over several turns."""
    cluster = large()
    looks = Looks(cluster, monkeypatch)
    names = [TopicPartition("t", name) for name in NAMES]
    assert sum(cluster.leader(name) == "b1" for name in names) >= COUNT // 5

    def stop() -> None:
        cluster.to_active("b1", ControlledShutdown(1, "b1", 1))

    assert 0 < most_in_a_turn(cluster, stop, Seal) <= TURN_MAX // 4
    assert not any(cluster.leader(name) == "b1" for name in names)
    assert looks.most <= 8 * LOOKS


@pytest.mark.usefixtures("few_looks")
def test_replicas_on_a_failed_disk_leave_the_in_sync_sets_some_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replicas on a failed disk leave the in-sync sets in several slices.

    Each set is visited once.
    """
    cluster = large()
    names = cluster.image.hosting.opened("b1")
    topic = cluster.image.topics["t"].node.id
    offline, machine, counts = broker_restarts.offline, cluster.active.machine, [0]

    def counted(draft: Draft, members: BrokerLiveness, name: TopicPartition) -> bool:
        counts[-1] += 1
        return offline(draft, members, name)

    def around(verb: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            counts.append(0)
            verb(*arguments)

        return call

    monkeypatch.setattr(broker_restarts, "offline", counted)
    monkeypatch.setattr("pymq.controller.state.image.SLICE_OPS", LOOKS)
    for verb in ("step", "decided", "tick"):
        monkeypatch.setattr(machine, verb, around(getattr(machine, verb)))
    failed = tuple(OfflineReplica(*name, topic, False, "it is full") for name in names)
    cluster.to_active("b1", OfflineReplicas("b1", 1, 1, failed))
    cluster.pass_ms(2_000)
    assert max(counts) <= LOOKS
    assert sum(counts) == len(names)
    assert not any("b1" in cluster.open(name).in_sync for name in names)


def test_a_broker_of_many_partitions_is_decommissioned_some_in_each_turn() -> None:
    """A broker's blocks are sealed over several turns, so that other requests are answered
    meanwhile.
    """
    cluster = large()
    with counting() as marks:
        most = most_in_a_turn(cluster, lambda: cluster.ask(lambda i: Decommission(i, "b1")), Seal)
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
        cluster.ask(lambda i: create(i, "t"))
    assert marks["notices.large_topic"] == COUNT // TOLD_MAX
    for broker in cluster.brokers.values():
        assert len(broker.states) == COUNT
        assert max(len(m.partitions) for m in broker.all(LeaderAndIsr)) <= STATES_MAX


def emptied() -> Cluster:
    """Return a broker that was dead until other brokers had copied all of its blocks, and still has
    the files.
    """
    cluster = large()
    cluster.kill("b1")
    cluster.pass_ms(40 * SESSION_MS)
    assert len(cluster.image.hosting.leaving("b1")) == COUNT * 3 // 4
    return cluster


def test_a_broker_that_comes_back_is_told_of_few_removals_at_a_time() -> None:
    """A broker that comes back is told to remove a few partitions at a time."""
    cluster = emptied()
    with counting() as marks:
        most = most_in_a_turn(cluster, lambda: cluster.restart("b1"), StopReplica)
    assert 0 < most <= STOPS_MAX
    assert marks["notices.many_removals"]
    assert not cluster.image.hosting.leaving("b1")
    assert not cluster.brokers["b1"].states
    assert len(cluster.brokers["b1"].all(StopReplica)) == COUNT * 3 // 4


def test_removals_that_a_broker_does_not_confirm_let_others_pass() -> None:
    cluster = emptied()
    stuck = frozenset(cluster.image.hosting.leaving("b1")[:STOPS_MAX])

    def is_stuck(source: str, peer: str, m: Message) -> bool:
        return isinstance(m, StopReplica) and TopicPartition(m.topic, m.partition) in stuck

    cluster.dropped = is_stuck
    cluster.restart("b1")
    cluster.pass_ms(5_000)
    assert frozenset(cluster.image.hosting.leaving("b1")) == stuck
    cluster.dropped = lambda source, peer, m: False
    cluster.pass_ms(10_000)
    assert not cluster.image.hosting.leaving("b1")


def test_a_broker_that_removes_slowly_is_not_told_again() -> None:
    """A broker that removes slowly gets no second request, which would only add work."""
    cluster = emptied()
    waiting: list[Message] = []

    def is_late(source: str, peer: str, m: Message) -> bool:
        if isinstance(m, Stopped):
            waiting.append(m)
        return isinstance(m, Stopped)

    cluster.dropped = is_late
    broker = cluster.restart("b1")
    for _ in range(COUNT // 20):
        for m in waiting[:20]:
            cluster.to_active("b1", m)
        del waiting[:20]
        cluster.pass_ms(400)
    assert not cluster.image.hosting.leaving("b1")
    assert len(broker.all(StopReplica)) == COUNT * 3 // 4


def test_a_partition_that_is_given_back_before_its_removal_was_told_is_not_removed() -> None:
    cluster = emptied()
    cluster.dropped = lambda source, peer, m: isinstance(m, StopReplica)
    broker = cluster.restart("b1")
    name = cluster.image.hosting.leaving("b1")[-1]  # one of the waiting partitions
    replicas = ["b1", *cluster.part(name).open_block.replicas[:2]]
    cluster.ask(lambda i: Reassign(i, *name, tuple(replicas)))
    assert "b1" in cluster.part(name).open_block.replicas
    broker.heard.clear()
    cluster.dropped = lambda source, peer, m: False
    cluster.pass_ms(20_000)
    assert not cluster.image.hosting.leaving("b1")
    assert name.partition not in {m.partition for m in broker.all(StopReplica)}
    assert name in broker.states
