"""A topic of any size is created and deleted as a whole, by commits of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pymq.controller.state.image import SLICE_OPS
from pymq.coord.limits import REQUEST_BYTES, size
from pymq.core.message import (
    Answer,
    CreatePartition,
    CreateTopic,
    Decommission,
    DeleteTopic,
    Message,
    RetireBlocks,
    StopReplica,
    UnderWay,
)
from pymq.core.metadata.coordination import Commit, CoordRequest
from pymq.core.observe.coverage import counting
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import NotController, NotEnoughBrokers, TopicExists, UnknownTopic
from tests.controller.cluster import SESSION_MS, Cluster, Zk
from tests.controller.test_slices import Paused, check_sizes, with_sealed_blocks

COUNT = 600
NAMES = tuple(str(index) for index in range(COUNT))


def create(request: int, name: str = "large", *, exist_ok: bool = False) -> Message:
    return CreateTopic(request, name, NAMES, 3, AckMode.LEADER, {}, exist_ok)


def check_whole(cluster: Cluster, name: str = "large") -> None:
    """Check that the topic is complete, and that all of its brokers know it."""
    topic = cluster.image.topics[name]
    assert list(topic.partitions) == list(NAMES)
    assert [part.node.index for part in topic.partitions.values()] == list(range(COUNT))
    for partition, part in topic.partitions.items():
        assert len(part.open_block.replicas) == 3
        for broker in part.open_block.replicas:
            state = cluster.brokers[broker].states[TopicPartition(name, partition)]
            assert (state.topic_id, state.siblings) == (topic.node.id, COUNT)
    leads = [cluster.image.hosting.leads[broker] for broker in cluster.brokers]
    assert max(leads) - min(leads) <= 1


def check_gone(cluster: Cluster, name: str = "large") -> None:
    """Check that no part of the topic is left anywhere."""
    assert not [e.path for e in cluster.tree.entries() if f"/topics/{name}" in e.path]
    assert not cluster.image.deleted
    for broker in cluster.brokers.values():
        assert not [at for at in broker.states if at.topic == name]


def check_unseen(cluster: Cluster) -> None:
    """Check that no client and no broker sees the topic."""
    image = cluster.active.machine.image
    assert not image.topics
    assert image.hidden
    with pytest.raises(UnknownTopic):
        image.topic("large")
    hosting = image.hosting
    for broker in cluster.brokers.values():
        assert not broker.states
        assert not hosting.hosted(broker.name)


def test_a_large_topic_is_made_in_slices_and_told_when_it_is_whole() -> None:
    cluster = Cluster()
    cluster.ask(create)
    assert len(cluster.active.commits) > COUNT * 5 // SLICE_OPS
    check_sizes(cluster)
    check_whole(cluster)
    assert cluster.active.machine.journal.counts["topic_created"] == 1


def test_a_large_topic_is_deleted_in_slices() -> None:
    cluster = Cluster()
    cluster.ask(create)
    cluster.active.commits.clear()
    cluster.ask(lambda i: DeleteTopic(i, "large"))
    assert len(cluster.active.commits) > COUNT * 5 // SLICE_OPS
    check_sizes(cluster)
    check_gone(cluster)
    assert cluster.active.machine.journal.counts["topic_deleted"] == 1


def test_nobody_sees_a_topic_that_is_being_made() -> None:
    """No broker sees a topic before it is complete, not even one that registers meanwhile."""
    cluster = Cluster()
    paused = Paused(cluster)
    cluster.to_active("client", create(77))
    paused.do()
    while len(paused.waiting) and len(cluster.image.hidden["large"].partitions) < COUNT // 2:
        paused.do()
    check_unseen(cluster)
    cluster.restart("b1")
    paused.do_all()
    assert cluster.answers[77].result is True
    cluster.pass_ms(SESSION_MS)
    topic = cluster.image.topics["large"]
    assert list(topic.partitions) == list(NAMES)


def test_a_topic_that_is_being_deleted_is_gone_with_the_first_commit() -> None:
    cluster = Cluster()
    cluster.ask(create)
    paused = Paused(cluster)
    cluster.to_active("client", DeleteTopic(77, "large"))
    paused.do()
    assert paused.waiting
    assert 77 not in cluster.answers
    check_unseen(cluster)
    for broker in cluster.brokers.values():
        assert broker.all(StopReplica)
    paused.do_all()
    assert cluster.answers[77].error is None
    check_gone(cluster)


def test_a_name_is_free_once_all_is_gone() -> None:
    """A request for the name waits until the old topic is removed, and is answered once."""
    cluster = Cluster()
    cluster.ask(create)
    paused = Paused(cluster)
    cluster.to_active("client", DeleteTopic(77, "large"))
    paused.do()
    cluster.to_active("client", create(78))
    paused.do_all()
    assert cluster.answers[77].error is None
    assert cluster.answers[78].result is True
    check_whole(cluster)


def test_two_who_make_the_same_topic_at_once_get_what_they_would_one_after_the_other() -> None:
    cluster = Cluster()
    paused = Paused(cluster)
    cluster.to_active("client", create(77))
    cluster.to_active("other", create(78, exist_ok=True))
    paused.do_all()
    assert cluster.answers[77].result is True
    assert cluster.answers[78].result is False
    check_whole(cluster)


# --- crashes ------------------------------------------------------------------------------------


def crashed_at_each_commit(is_made: bool) -> Iterator[tuple[Cluster, Zk, Message]]:
    """Crash the active zkserver before each commit in turn."""
    for point in range(100):
        cluster = Cluster(zks=2)
        if is_made:
            cluster.ask(create)
        zk = cluster.active
        zk.commits.clear()

        def submit(request: CoordRequest, zk: Zk = zk, point: int = point) -> bool:
            if isinstance(request, Commit) and len(zk.commits) > point:
                zk.is_up = False
                return False
            return True

        zk.on_submit = submit
        request = DeleteTopic(77, "large") if is_made else create(77)
        cluster.to_active("client", request)
        if zk.is_up:
            assert point >= COUNT * 5 // SLICE_OPS
            return
        yield cluster, zk, request
    pytest.fail("it never ends")


def test_a_topic_is_whole_or_not_there_after_a_crash_between_any_two_slices() -> None:
    """After a crash between two slices the next zkserver carries out the client's repeated
    request.
    """
    for cluster, zk, request in crashed_at_each_commit(is_made=False):
        assert 77 not in cluster.answers
        cluster.crash_zk(zk.name)
        cluster.pass_ms(4 * SESSION_MS)
        check_gone(cluster)
        cluster.to_active("client", request)
        assert cluster.answers[77].result is True
        check_whole(cluster)


def test_a_name_may_be_asked_for_while_what_a_crash_has_left_is_removed() -> None:
    cluster, zk, request = list(zip(range(3), crashed_at_each_commit(is_made=False), strict=False))[
        2
    ][1]
    cluster.crash_zk(zk.name)
    cluster.to_active("client", request)
    cluster.pass_ms(4 * SESSION_MS)
    assert cluster.answers[77].result is True
    check_whole(cluster)


@pytest.mark.slow
def test_a_deletion_is_completed_by_the_next_zkserver() -> None:
    """Either the deletion has not begun, or the next zkserver completes it without a request."""
    outcomes = []
    for cluster, zk, _ in crashed_at_each_commit(is_made=True):
        is_begun = "large" not in cluster.image.topics
        outcomes.append(is_begun)
        cluster.crash_zk(zk.name)
        cluster.pass_ms(4 * SESSION_MS)
        if is_begun:
            check_gone(cluster)
        else:
            check_whole(cluster)
    assert outcomes == [False, *[True] * (len(outcomes) - 1)]


# --- what else may happen meanwhile -------------------------------------------------------------


def test_a_disk_that_is_replaced_while_a_topic_is_made_takes_the_topic_with_it() -> None:
    """If a disk is replaced while a topic is created, the creation fails, since the topic's
    partitions would wait for that disk.
    """
    cluster = Cluster()
    paused = Paused(cluster)
    cluster.to_active("client", create(77))
    paused.do()
    paused.do()
    cluster.restart("b1", storage="other")
    paused.do_all()
    assert isinstance(cluster.answers[77].error, NotEnoughBrokers)
    check_gone(cluster)
    cluster.to_active("client", create(78))
    paused.do_all()
    check_whole(cluster)


def test_a_broker_that_dies_while_a_topic_is_made_leads_nothing_of_it() -> None:
    cluster = Cluster(brokers=4)
    paused = Paused(cluster)
    names = tuple(str(index) for index in range(300))
    cluster.to_active("client", CreateTopic(77, "large", names, 3, AckMode.LEADER, {}))
    paused.do()
    cluster.kill("b1")
    paused.zk.on_submit = lambda request: True
    while paused.waiting:
        paused.zk.coordinator.submit(paused.waiting.pop(0))
        cluster.run()
    cluster.pass_ms(4 * SESSION_MS)
    blocks = [part.open_block for part in cluster.image.topics["large"].partitions.values()]
    assert len(blocks) == 300
    assert all(block.leader != "b1" for block in blocks)


def test_a_broker_that_is_decommissioned_while_a_topic_is_made_gets_nothing_of_it() -> None:
    cluster = Cluster(brokers=4)
    paused = Paused(cluster)
    names = tuple(str(index) for index in range(300))
    cluster.to_active("client", CreateTopic(77, "large", names, 3, AckMode.LEADER, {}))
    paused.do()
    cluster.to_active("client", Decommission(78, "b1"))
    paused.do_all()
    assert cluster.answers[77].result is True
    assert cluster.answers[78].result == 0
    cluster.pass_ms(SESSION_MS)
    paused.do_all()
    assert len(cluster.image.topics["large"].partitions) == 300
    assert cluster.image.hosting.opened("b1") == ()


def test_whoever_waits_for_a_name_is_told_that_the_zkserver_is_active_no_more() -> None:
    cluster = Cluster(zks=2)
    cluster.ask(create)
    paused = Paused(cluster)
    cluster.to_active("client", DeleteTopic(77, "large"))
    paused.do()
    cluster.to_active("client", create(78))
    with counting() as marks:
        while not marks["topics.name_is_not_free"]:
            paused.do()
    zk = paused.zk
    cluster.tree.expire(zk.coordinator.session)
    cluster.run()
    assert not zk.machine.is_active
    for request in (77, 78):
        assert isinstance(cluster.answers[request].error, NotController)


def test_a_partition_is_added_however_small_a_slice_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice may be as small as the node of the partition's topic."""
    monkeypatch.setattr("pymq.controller.state.image.SLICE_OPS", 1)
    cluster = Cluster()
    cluster.ask(lambda i: CreateTopic(i, "t", ("0",), 3, AckMode.LEADER, {}))
    cluster.ask(lambda i: CreatePartition(i, "t", "1"))
    assert list(cluster.image.topics["t"].partitions) == ["0", "1"]


def test_a_topic_that_cannot_be_made_in_full_leaves_nothing_behind() -> None:
    """If brokers die and too few are left, no part of the topic stays."""
    cluster = Cluster()
    paused = Paused(cluster)
    cluster.to_active("client", create(77))
    paused.do()
    paused.do()
    cluster.kill("b1")
    paused.zk.on_submit = lambda request: True
    while paused.waiting:
        paused.zk.coordinator.submit(paused.waiting.pop(0))
        cluster.run()
    answer = cluster.answers[77]
    assert isinstance(answer, Answer)
    assert isinstance(answer.error, NotEnoughBrokers)
    check_gone(cluster)


def test_a_topic_of_many_blocks_is_deleted_and_retention_lets_go_of_many_at_once() -> None:
    cluster = Cluster()
    cluster.ask(lambda i: CreateTopic(i, "t0", ("0",), 3, AckMode.LEADER, {}))
    with_sealed_blocks(cluster, 700)
    cluster.crash_zk("zk-0")
    cluster.start_zk("zk-9")
    cluster.pass_ms(3 * SESSION_MS)
    name = TopicPartition("t0", "0")
    part = cluster.part(name)
    leader = part.open_block.leader
    assert leader is not None
    cluster.to_active(leader, RetireBlocks(*name, part.node.epoch, 350, ""))
    assert list(cluster.part(name).blocks) == list(range(350, 701))
    assert len(cluster.brokers[leader].states[name].blocks) == 351
    cluster.ask(lambda i: DeleteTopic(i, "t0"))
    check_sizes(cluster)
    check_gone(cluster, "t0")
    assert all(size(commit) < REQUEST_BYTES for commit in cluster.active.commits)


# --- what takes long ----------------------------------------------------------------------------


class Words:
    """The answers to a client that repeats its request."""

    def __init__(self, cluster: Cluster) -> None:
        self.heard: list[Message] = []
        self._cluster = cluster
        cluster.dropped = self._note

    def _note(self, source: str, peer: str, message: Message) -> bool:
        if peer == "client":
            self.heard.append(message)
        return False

    def ask(self, message: Message) -> list[Message]:
        self.heard.clear()
        self._cluster.to_active("client", message)
        return self.heard[:]


def test_who_asks_again_for_what_takes_many_commits_hears_that_it_is_under_way() -> None:
    """A repeated request is answered "under way", so that clients do not give up after ten
    seconds.
    """
    cluster = Cluster()
    paused, words = Paused(cluster), Words(cluster)
    assert words.ask(create(1)) == []
    assert words.ask(create(1)) == []  # No commit was done yet.
    paused.do()
    assert words.ask(create(1)) == [UnderWay(1)]
    assert words.ask(create(2, "other")) == []
    words.heard.clear()
    paused.do_all()
    assert [type(m) for m in words.heard] == [Answer, Answer]
    (answer,) = words.ask(create(1))  # The request is finished.
    assert isinstance(answer, Answer)
    assert isinstance(answer.error, TopicExists)


def test_who_waits_for_a_name_that_is_being_removed_hears_that_it_is_under_way() -> None:
    cluster = Cluster()
    cluster.ask(create)
    paused, words = Paused(cluster), Words(cluster)
    words.ask(DeleteTopic(7, "large"))
    paused.do()
    words.ask(create(8))
    for _ in range(5):
        paused.do()  # The brokers have also confirmed that they have no part of the topic.
    assert words.ask(create(8)) == [UnderWay(8)]
    paused.do_all()
    check_whole(cluster)
    assert cluster.answers[8].error is None
