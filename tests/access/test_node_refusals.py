"""Brokers obey only the configured zkservers, and a broker may only report about itself."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from pymq.access.node_refusals import NOTED_MS, Refusals
from pymq.core.message import (
    AlterIsr,
    Answer,
    BecomeLeader,
    BlockSizes,
    BrokerHeartbeat,
    ControlledShutdown,
    DescribePartitions,
    DescribeTopic,
    LeaderAndIsrAnswer,
    Message,
    OfflineReplica,
    OfflineReplicas,
    PartitionReport,
    PartitionReports,
    Produced,
    Progress,
    RegisterBroker,
    RetireBlocks,
    RollWanted,
    Seal,
    Sealed,
    Stopped,
)
from pymq.core.metadata.descriptions import TopicDescription
from pymq.core.metadata.nodes import BlockNode, PartitionState, TopicNode, decode_node, encode_node
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.observe.events import EventLog
from pymq.core.types import AckMode
from pymq.errors import (
    ClusterAuthorizationFailed,
    CorruptMetadata,
    InvalidName,
    InvalidRequest,
    NotController,
)
from tests.broker.test_broker import PRODUCE, Bench, state, stop, tell
from tests.controller.cluster import SESSION_MS, T0, Cluster

# --- orders to a broker -------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["b1", "b0", "client-1", ""])
def test_a_broker_follows_orders_of_its_zkservers_only(source: str) -> None:
    """A broker obeys its own zkservers only: another key could delete every block."""
    bench = Bench()
    bench.step("zk", tell(1, state("b0")))
    bench.step("p", PRODUCE)
    bench.sent.clear()
    bench.step(source, stop(1 << 61, epoch=1 << 61))
    bench.step(source, Seal(1 << 61, "t", "0", 0, 1 << 60))
    bench.step(source, DescribePartitions(5, (("t", "0"),)))
    assert not bench.sent
    bench.step(source, tell(1 << 61, state("b0", topic="u"), controller_epoch=1 << 61))
    ((to, answer),) = bench.sent
    assert to == source
    assert isinstance(answer, LeaderAndIsrAnswer)
    assert isinstance(answer.error, ClusterAuthorizationFailed)
    assert [error.code for *_, error in answer.errors if error] == ["CLUSTER_AUTHORIZATION_FAILED"]
    # the broker still accepts this request
    bench.step("zk", tell(2, state("b0", epoch=2, version=2)))
    assert bench.last(LeaderAndIsrAnswer).errors == (("t", "0", None),)
    bench.step("p", attrs.evolve(PRODUCE, id=2))
    assert bench.last(Produced).error is None


def test_a_broker_is_not_turned_to_a_zkserver_that_it_was_not_given() -> None:
    bench = Bench()
    bench.sent.clear()
    for source, active in [("b1", "zk-2"), ("zk", "b1")]:
        elsewhere = NotController("not me", controller=active, endpoint=None)
        bench.step(source, Answer(0, error=elsewhere))
        bench.tick(10)
        assert not bench.sent_to(active, RegisterBroker)


@pytest.mark.parametrize("topic_id", ["../../outside", "", "/etc", "a" * 65, "a.b", "a/b", "a\0"])
def test_a_topic_id_that_could_be_a_path_is_refused(topic_id: str) -> None:
    """A topic id that could be a path is refused, so a broker writes only in its folder."""
    bench = Bench()
    bench.step("zk", tell(1, state("b0", topic_id=topic_id)))
    ((*_, error),) = bench.last(LeaderAndIsrAnswer).errors
    assert isinstance(error, InvalidRequest)
    assert not bench.store.blocks()


def test_a_name_that_could_be_a_path_is_refused() -> None:
    for topic, partition in [("../t", "0"), ("t", "../0")]:
        block = BlockNode(0, 0, None, 1, AckMode.LEADER, "b0", ("b0",), ("b0",))
        found = PartitionState(
            topic, "id", partition, 0, AckMode.LEADER, 1, "b0", TopicConfig(), (block,)
        )
        bench = Bench()
        bench.step("zk", tell(1, found))
        ((*_, error),) = bench.last(LeaderAndIsrAnswer).errors
        assert isinstance(error, InvalidName)


def test_a_topic_id_of_the_tree_that_could_be_a_path_is_damage() -> None:
    node = TopicNode("t", "../../outside", 1, AckMode.LEADER, 1, TopicConfig())
    with pytest.raises(CorruptMetadata, match="not the id of a topic"):
        decode_node(TopicNode, encode_node(node))


# --- reports to a zkserver ----------------------------------------------------------------------


REPORTS: dict[str, Callable[[Cluster], Message]] = {
    "shutdown": lambda c: ControlledShutdown(7, c.leader(), c.brokers[c.leader()].incarnation),
    "register": lambda c: RegisterBroker(7, c.leader(), "tcp://thief", None, 1, "stolen", 1 << 61),
    "isr": lambda c: AlterIsr(*T0, 0, c.part().node.epoch, c.leader(), (c.leader(),)),
    "sealed": lambda c: Sealed(*T0, 0, c.part().node.epoch + 1, c.leader(), 9),
    "stopped": lambda c: Stopped(1, c.leader()),
    "offline": lambda c: OfflineReplicas(
        c.leader(),
        c.brokers[c.leader()].incarnation,
        1 << 61,
        (OfflineReplica(*T0, "", False, "no"),),
    ),
}


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_about_another_broker_changes_nothing(kind: str) -> None:
    """A broker's report about another broker changes nothing: it could move partitions that others
    lead.
    """
    cluster = Cluster()
    cluster.topic()
    before, brokers = cluster.part(), dict(cluster.image.brokers)
    report, thief = REPORTS[kind](cluster), cluster.followers()[0]
    cluster.to_active(thief, report)
    cluster.pass_ms(SESSION_MS // 2)
    assert cluster.part() == before
    assert cluster.image.brokers == brokers
    if isinstance(report, (RegisterBroker, ControlledShutdown)):
        told = [answer for name, answer in cluster.refusals if name == thief]
        assert isinstance(told[-1].error, ClusterAuthorizationFailed)


def test_an_election_is_reported_by_who_won_it() -> None:
    cluster = Cluster()
    cluster.topic(AckMode.RAFT)
    before = cluster.part()
    winner, thief = cluster.followers()
    report = BecomeLeader(*T0, 0, before.node.epoch + 1, winner)
    cluster.to_active(thief, report)
    assert cluster.part() == before
    cluster.to_active(winner, report)
    assert cluster.leader() == winner


@pytest.mark.parametrize("make", [
    lambda: RollWanted(*T0, 0, 1, "size"),
    lambda: RetireBlocks(*T0, 1, 1),
    lambda: BlockSizes(*T0, ((0, 9),)),
    lambda: Progress("b3", ((*T0, 0, 9),), 1),
])  # fmt: skip
def test_only_a_host_reports_about_a_partition(make: Callable[[], Message]) -> None:
    cluster = Cluster(brokers=4)
    cluster.topic()
    (stranger,) = set(cluster.brokers) - set(cluster.part().hosts)
    before = cluster.part()
    report = make()
    if isinstance(report, Progress):
        report = attrs.evolve(report, broker=cluster.leader())
    cluster.to_active(stranger, report)
    assert cluster.part() == before


def test_nobody_keeps_a_dead_broker_alive_or_reports_for_it() -> None:
    cluster = Cluster()
    cluster.topic()
    dead, thief = cluster.leader(), cluster.followers()[0]
    incarnation = cluster.brokers[dead].incarnation
    cluster.kill(dead)
    for _ in range(8):
        cluster.pass_ms(SESSION_MS // 4)
        cluster.to_active(thief, BrokerHeartbeat(dead, incarnation))
    assert dead not in cluster.active.machine.members


def test_a_description_takes_from_each_leader_what_it_was_asked_for() -> None:
    cluster = Cluster()
    cluster.topic(partitions=6)
    machine = cluster.active.machine
    lie = PartitionReport("t", "0", 0, 1 << 40, 1 << 40, 0)
    thief = cluster.followers()[0]
    seen: list[int] = []

    def interfere(source: str, peer: str, message: Message) -> bool:
        if isinstance(message, DescribePartitions) and message.id not in seen:
            seen.append(message.id)
            machine.step(thief, PartitionReports(message.id, (lie,)), cluster.now)
        return False

    cluster.dropped = interfere
    request = cluster.send(lambda i: DescribeTopic(i, "t"))
    cluster.pass_ms(3_000)
    found = cluster.answers[request].result
    assert seen
    assert isinstance(found, TopicDescription)
    assert found.partitions[0].end_offset != 1 << 40


# --- what other nodes report about a node -----------------------------------------------------


def test_a_refusal_is_an_event_once_a_minute_a_node() -> None:
    journal = EventLog()
    refusals = Refusals(journal)
    for now in range(0, NOTED_MS, 100):
        refusals.refuse("b0", "b1", stop(1), now)
    assert journal.counts["node_refused"] == 1
    refusals.refuse("b0", "b1", stop(1), NOTED_MS)
    refusals.refuse("b0", "b2", stop(1), NOTED_MS)
    assert journal.counts["node_refused"] == 3
