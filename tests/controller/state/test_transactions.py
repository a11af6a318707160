"""The order of the zkserver's commits if the coordinator backend is slow and many requests wait."""

from __future__ import annotations

from collections import deque

from pymq.core.message import (
    Answer,
    ControlledShutdown,
    CreateTopic,
    DeleteTopic,
    GetMetadata,
    LeaderAndIsr,
    ListTopics,
    Message,
    Progress,
    RollWanted,
    Seal,
    Sealed,
    SetPartitionState,
)
from pymq.core.metadata.coordination import Check, Commit, CoordRequest
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.observe.coverage import counting
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import StoreFull, UnknownTopic
from tests.controller.cluster import T0, Cluster


class Held:
    """The commits of the active zkserver; the test completes each of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.zk = cluster.active
        self.waiting: deque[Commit] = deque()
        self.zk.on_submit = self._submit

    def _submit(self, request: CoordRequest) -> bool:
        if isinstance(request, Commit):
            self.waiting.append(request)
            return False
        return True

    def do(self) -> list[str]:
        """Complete the pending commit; returns its changes."""
        commit = self.waiting.popleft()
        self.zk.coordinator.submit(commit)
        self.cluster.run()
        return [op.path for op in commit.ops if not isinstance(op, Check)]

    def do_all(self) -> list[str]:
        """Complete all commits in turn; returns the first change of each."""
        done = []
        while self.waiting:
            done.append(self.do()[0])
        return done


def create(request: int, name: str) -> Message:
    return CreateTopic(request, name, ("0",), 1, AckMode.LEADER, {})


# --- who goes first -----------------------------------------------------------------------------


def test_what_partitions_wait_for_takes_turns_with_what_administrators_want() -> None:
    """Registrations of restarted brokers do not wait behind creations and deletions of topics (13 s
    in an earlier version).

    Simulated: ``administrators-before-leaders``.
    """
    cluster = Cluster()
    held = Held(cluster)
    for number, name in enumerate("abcd"):
        cluster.to_active("client", create(1001 + number, name))
    with counting() as marks:
        cluster.restart("b1")
        cluster.restart("b2")
        done = held.do_all()
    assert marks["commits.overtaken"]
    assert done == [
        "/pymq/topics/a",
        "/pymq/brokers/b1",
        "/pymq/topics/b",
        "/pymq/brokers/b2",
        "/pymq/topics/c",
        "/pymq/topics/d",
    ]


def test_who_leads_is_told_before_what_administrators_want_is_done() -> None:
    """Reports of leaders are committed before requests of administrators, unless they concern a
    topic that is about to be created.
    """
    cluster = Cluster()
    cluster.topic()
    held = Held(cluster)
    for number, name in enumerate("abc"):
        cluster.to_active("client", create(1001 + number, name))
    cluster.to_active("client", GetMetadata(2001, "t"))
    cluster.to_active("client", GetMetadata(2002, "c"))
    held.do()
    assert isinstance(cluster.answers[2001].result, TopicMetadata)
    assert 2002 not in cluster.answers
    held.do_all()
    assert isinstance(cluster.answers[2002].result, TopicMetadata)


def test_who_asks_for_something_keeps_nothing_out_of_a_commit() -> None:
    """Requests that can share a commit do so, whatever came between them, and are answered after
    it.
    """
    cluster = Cluster()
    cluster.topic(partitions=3, replicas=2)
    held = Held(cluster)
    cluster.to_active("client", create(1001, "a"))
    for partition in "012":
        change = SetPartitionState(1002 + int(partition), "t", partition, AckMode.NONE, 2)
        cluster.to_active("client", change)
        cluster.to_active("client", ListTopics(2001 + int(partition)))
        cluster.to_active("client", GetMetadata(3001 + int(partition), "t"))
    held.do()
    assert 2001 not in cluster.answers
    assert len([path for path in held.do() if path.endswith("/Block_0")]) == 3
    assert not held.waiting
    for request in (2001, 2002, 2003):
        assert cluster.answers[request].error is None
    for request in (3001, 3002, 3003):
        assert isinstance(cluster.answers[request].result, TopicMetadata)


def test_what_brokers_tell_of_many_partitions_shares_commits() -> None:
    """Reports about many partitions share commits.

    In an earlier version 10,000 rolled partitions needed 20,000 commits.
    """
    count = 40
    cluster = Cluster()
    cluster.topic(partitions=count)
    names = [TopicPartition("t", str(index)) for index in range(count)]
    for name in names:
        leader = cluster.leader(name)
        cluster.write(5, name=name)
        cluster.brokers[leader].holders[name] = (leader,)
        cluster.to_active(leader, RollWanted(*name, 0, 1, "size"))
    held = Held(cluster)
    cluster.to_active("client", create(1001, "a"))
    for name in names:
        for broker in cluster.followers(name):
            whole = Progress(broker, ((*name, 0, 5),), 1)
            cluster.to_active(broker, whole)
            # The broker repeats the request each second until the zkserver answers.
            cluster.to_active(broker, whole)
    assert len(held.do_all()) == 3
    assert all(len(cluster.part(name).blocks[0].in_sync) == 3 for name in names)


def test_who_waits_for_his_turn_keeps_it() -> None:
    """A waiting request keeps its place among those of its partition; others may overtake it."""
    cluster = Cluster()
    cluster.topic(partitions=3, acks=AckMode.NONE)
    held = Held(cluster)
    cluster.to_active("client", create(1001, "a"))
    for request, partition, acks in ((1, "0", 1), (2, "0", 0), (3, "1", 1), (4, "0", 1)):
        cluster.to_active("client", SetPartitionState(request, "t", partition, AckMode(acks), 3))
    held.do()
    with_others = held.do()
    assert [path for path in with_others if path.endswith("Block_0")] == [
        "/pymq/topics/t/partitions/0/Block_0",
        "/pymq/topics/t/partitions/1/Block_0",
    ]
    held.do_all()
    assert cluster.part(T0).node.acks is AckMode.LEADER
    assert [cluster.answers[request].error for request in (1, 2, 3, 4)] == [None] * 4


# --- what is asked again ------------------------------------------------------------------------


def test_a_request_that_waits_is_carried_out_once_however_often_it_is_sent() -> None:
    """Clients repeat a request twice a second.

    Repeated requests add no work to a slow coordinator.
    """
    cluster = Cluster()
    held = Held(cluster)
    with counting() as marks:
        for _ in range(4):
            cluster.to_active("client", create(1001, "a"))
            cluster.to_active("client", DeleteTopic(1002, "a"))
    assert marks["controller.asked_again"] == 6
    # The topic is created and deleted, and then the rest of its nodes is removed.
    assert len(held.do_all()) == 3
    assert cluster.answers[1001].error is cluster.answers[1002].error is None
    assert "a" not in cluster.image.topics
    # The zkserver does not remember a finished request.
    cluster.to_active("client", DeleteTopic(1002, "a"))
    assert isinstance(cluster.answers[1002].error, UnknownTopic)


def test_the_same_number_of_another_client_is_another_request() -> None:
    cluster = Cluster()
    held = Held(cluster)
    cluster.to_active("one", create(1001, "a"))
    cluster.to_active("two", create(1001, "b"))
    held.do_all()
    assert {"a", "b"} <= set(cluster.image.topics)


def test_a_broker_that_registers_again_and_again_is_told_once_what_it_hosts() -> None:
    cluster = Cluster()
    cluster.topic()
    held = Held(cluster)
    broker = cluster.restart("b1")
    with counting() as marks:
        for _ in range(3):
            cluster.register("b1")
    assert marks["registry.asked_again"] == 3
    held.do_all()
    assert len([m for m in broker.all(LeaderAndIsr) if m.full]) == 1
    assert cluster.image.brokers["b1"].incarnation == 2


def test_what_a_zkserver_had_no_more_right_to_commit_may_be_asked_again() -> None:
    """If the zkserver lost its session before it could commit a request, the same request counts as
    new once the zkserver is active again.
    """
    cluster = Cluster()
    held = Held(cluster)
    cluster.restart("b1")
    cluster.to_active("b2", ControlledShutdown(1, "b2", 1))
    held.zk.on_submit = lambda request: True
    cluster.tree.expire(held.zk.coordinator.session)
    cluster.run()
    cluster.pass_ms(10_000)
    cluster.register("b1")
    assert cluster.image.brokers["b1"].incarnation == 2
    before = len(cluster.refusals)
    cluster.to_active("b2", ControlledShutdown(2, "b2", 1))
    assert cluster.refusals[before:] == [("b2", Answer(2, 0))]


def test_a_broker_that_leaves_is_answered_what_it_has_asked_last() -> None:
    """A stopping broker sends its request ten times a second, and the zkserver answers the latest
    one.
    """
    cluster = Cluster()
    held = Held(cluster)
    cluster.to_active("client", create(1001, "a"))
    before = len(cluster.refusals)
    for request in range(1, 6):
        cluster.to_active("b1", ControlledShutdown(request, "b1", 1))
    held.do_all()
    assert [answer.id for peer, answer in cluster.refusals[before:] if peer == "b1"] == [5]


# --- what is told to have failed -----------------------------------------------------------------


def refused() -> tuple[Cluster, Held, int]:
    """A change of the ack mode that the leader refuses; the refusal is not in the tree yet."""
    cluster = Cluster(brokers=4, zks=2)
    cluster.topic()
    leader = cluster.brokers[cluster.leader()]
    leader.seals = False
    request = cluster.send(lambda i: SetPartitionState(i, *T0, AckMode.RAFT))
    seal = leader.last(Seal)
    held = Held(cluster)
    cluster.restart(next(b for b in cluster.brokers if b not in cluster.open().replicas))
    cluster.to_active("client", SetPartitionState(2001, *T0, AckMode.RAFT))
    full = Sealed(*T0, 0, seal.epoch, leader.name, error=StoreFull("full"))
    cluster.to_active(leader.name, full)
    leader.seals = True
    return cluster, held, request


def test_what_was_told_to_have_failed_is_not_done_by_the_next_zkserver() -> None:
    """The client gets an error only after the intention has been removed from the tree."""
    cluster, held, request = refused()
    while request not in cluster.answers:
        assert cluster.part().node.wanted is not None
        held.do()
    assert isinstance(cluster.answers[request].error, StoreFull)
    assert cluster.part().node.wanted is None
    cluster.crash_zk("zk-0")
    cluster.pass_ms(10_000)
    assert cluster.part().node.acks is AckMode.LEADER


def test_what_somebody_else_wants_is_not_taken_out_with_what_has_failed() -> None:
    """A request that was answered with success stays in effect if another request has failed."""
    cluster, held, request = refused()
    held.do_all()
    cluster.pass_ms(1_000)
    held.do_all()
    assert isinstance(cluster.answers[request].error, StoreFull)
    assert cluster.answers[2001].result is True
    assert cluster.part().node.acks is AckMode.RAFT
    assert cluster.part().node.wanted is None
