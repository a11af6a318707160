"""Work on many partitions or blocks is done in slices, so the size of a commit does not depend on
their number.
"""

from __future__ import annotations

import attrs
import pytest

from pymq.controller.state.image import SLICE_OPS, Draft
from pymq.coord import paths
from pymq.coord.limits import REQUEST_BYTES, size
from pymq.coord.memory import MemoryCoordinator
from pymq.core.message import AlterIsr, BrokerHeartbeat, CreateTopic
from pymq.core.metadata.coordination import Commit, Committed, CoordRequest, Put
from pymq.core.metadata.nodes import ReplicaNode
from pymq.core.observe.coverage import counting
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import NotRegistered
from tests.controller.cluster import SESSION_MS, Broker, Cluster, Zk

PAGE = 100  # partitions created at a time


def hosting(partitions: int, acks: AckMode = AckMode.LEADER, zks: int = 1) -> Cluster:
    """Return a cluster of three brokers that all host a given number of partitions.

    A commit may have 1 MiB.
    """
    cluster = Cluster(zks=zks)
    cluster.tree.request_bytes = REQUEST_BYTES
    for start in range(0, partitions, PAGE):
        names = tuple(str(index) for index in range(start, min(start + PAGE, partitions)))
        make = CreateTopic(1_000 + start, f"t{start}", names, 3, acks, {})
        cluster.to_active("client", make)
    for broker in cluster.brokers.values():
        assert len(broker.states) == partitions
    for zk in cluster.zks.values():
        zk.commits.clear()
    return cluster


def check_sizes(cluster: Cluster) -> None:
    for zk in cluster.zks.values():
        for commit in zk.commits:
            assert len(commit.ops) <= SLICE_OPS + 10
            assert size(commit) <= REQUEST_BYTES // 2


def check_restarted(cluster: Cluster, broker: Broker) -> None:
    """Check that no node relies on data that a broker may have lost, and that the broker
    knows it.
    """
    image = cluster.image
    assert image.brokers[broker.name].incarnation == broker.incarnation
    assert broker.name in cluster.active.machine.members
    for name in image.hosting.hosted(broker.name):
        if name.topic == "between":
            continue  # the partition was created while the broker registered
        block = image.partition(*name).open_block
        # The partition that the broker led was rolled, and the broker has lost no record of the
        # next block.
        assert broker.name not in block.in_sync or (block.number, block.start) == (1, 0)
        assert block.leader is not None
        assert broker.states[name].version == image.topics[name.topic].state(name.partition).version
        assert broker.states[name].blocks[-1].in_sync == block.in_sync


def with_sealed_blocks(cluster: Cluster, count: int) -> None:
    """Give partition t0/0 a number of sealed blocks, complete on all of its replicas."""
    name = TopicPartition("t0", "0")
    image, coordinator = cluster.image, MemoryCoordinator(cluster.tree)
    for number in range(count):
        draft = Draft(image)
        part = image.partition(*name)
        block, node = part.open_block, part.node
        sealed = attrs.evolve(block, end=block.start + 5, leader=None)
        fresh = attrs.evolve(block, number=node.next_block, start=block.start + 5)
        draft.put(paths.block(*name, block.number), sealed)
        draft.create(paths.block(*name, fresh.number), fresh)
        for broker in block.replicas:
            replica = ReplicaNode(broker, fresh.start, fresh.start, True)
            draft.create(paths.replica(*name, fresh.number, broker), replica)
        changed = attrs.evolve(node, next_block=node.next_block + 1, version=node.version + 1)
        draft.put(paths.partition(*name), changed)
        coordinator.submit(Commit(number, tuple(draft.ops)))
        (event,) = coordinator.poll()
        assert isinstance(event, Committed)
        draft.adopt(event.versions)
    coordinator.close()


def rebuild(partitions: int, blocks: int, zks: int = 1) -> Cluster:
    """Return a cluster as :func:`hosting` does, with sealed blocks, under a new zkserver."""
    cluster = hosting(partitions, zks=zks)
    with_sealed_blocks(cluster, blocks)
    cluster.crash_zk("zk-0")
    cluster.start_zk("zk-9")
    cluster.pass_ms(3 * SESSION_MS)
    return cluster


# --- a broker that starts anew ------------------------------------------------------------------


def test_a_broker_that_hosts_very_many_partitions_is_registered_again() -> None:
    """The registration of a broker with 2,000 partitions is split, because ZooKeeper would refuse a
    commit of 1.2 MiB.
    """
    cluster = hosting(2_000)
    broker = cluster.restart("b1")
    assert len(cluster.active.commits) >= 8
    check_sizes(cluster)
    check_restarted(cluster, broker)


def test_a_broker_with_a_new_disk_is_registered_whatever_it_held() -> None:
    """A broker with a new disk is registered in slices, even if one ends within a partition."""
    cluster = rebuild(20, 600)
    broker = cluster.restart("b1", storage="other")
    check_sizes(cluster)
    part = cluster.part(TopicPartition("t0", "0"))
    sealed = [block for block in part.blocks.values() if block.end is not None]
    assert len(sealed) == 600
    for block in sealed:
        assert "b1" not in block.in_sync
        assert block.storages[block.replicas.index("b1")] == "other"
        assert not part.replicas[block.number, "b1"].in_sync
    assert cluster.image.brokers["b1"].storage_id == broker.storage


def test_a_broker_that_is_dead_leaves_all_in_sync_sets() -> None:
    cluster = hosting(2_000)
    cluster.kill("b1")
    check_sizes(cluster)
    for topic in cluster.image.topics.values():
        for part in topic.partitions.values():
            if part.open_block.leader != "b1":
                assert "b1" not in part.open_block.in_sync


def test_a_failed_attempt_to_let_the_dead_go_is_made_again() -> None:
    """Removing a dead broker from the in-sync sets is retried, because leaders of idle partitions
    do not report it.
    """
    cluster = hosting(100, zks=1)
    cluster.tree.request_bytes = 1  # With this limit no change is possible.
    cluster.kill("b1")
    cluster.tree.request_bytes = REQUEST_BYTES
    cluster.pass_ms(31_000)
    blocks = [part.open_block for part in cluster.image.topics["t0"].partitions.values()]
    assert all("b1" not in block.in_sync for block in blocks if block.leader != "b1")


# --- between two slices -------------------------------------------------------------------------


def crash_after(cluster: Cluster, commits: int) -> Zk:
    """Crash the active zkserver when it submits more than *commits* further commits."""
    zk = cluster.active
    seen = len(zk.commits)

    def submit(request: CoordRequest) -> bool:
        if isinstance(request, Commit) and len(zk.commits) > seen + commits:
            zk.is_up = False
            return False
        return True

    zk.on_submit = submit
    return zk


@pytest.mark.slow
def test_a_zkserver_that_dies_between_two_slices_is_followed_by_one_that_goes_on() -> None:
    """After a crash between any two slices the next zkserver does the rest, and then registers the
    broker.
    """
    for commits in range(100):
        cluster = hosting(800, zks=2)
        zk = crash_after(cluster, commits)
        before = cluster.brokers["b1"].incarnation
        broker = cluster.restart("b1")
        if cluster.image.brokers["b1"].incarnation != before:
            assert commits > 3
            return
        cluster.crash_zk(zk.name)
        cluster.pass_ms(4 * SESSION_MS)
        cluster.register("b1")
        check_sizes(cluster)
        check_restarted(cluster, broker)
    pytest.fail("it never ends")


class Paused:
    """Commits of the active zkserver that wait for the test."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.zk = cluster.active
        self.waiting: list[CoordRequest] = []
        self.zk.on_submit = self._submit

    def _submit(self, request: CoordRequest) -> bool:
        self.waiting.append(request)
        return False

    def do(self) -> None:
        self.zk.coordinator.submit(self.waiting.pop(0))
        self.cluster.run()

    def do_all(self) -> None:
        while self.waiting:
            self.do()


def test_others_are_served_between_two_slices() -> None:
    cluster = hosting(1_500)
    paused = Paused(cluster)
    cluster.restart("b1")
    cluster.to_active("client", CreateTopic(77, "between", ("0",), 1, AckMode.LEADER, {}))
    for _ in range(3):
        paused.do()
    assert cluster.answers[77].error is None
    assert paused.waiting
    paused.do_all()
    check_restarted(cluster, cluster.brokers["b1"])


def test_what_a_broker_was_before_is_heard_no_more_once_a_slice_is_done() -> None:
    """A late message of the old incarnation does not add the broker to an in-sync set."""
    cluster = hosting(1_500)
    before = cluster.brokers["b1"].incarnation
    paused = Paused(cluster)
    cluster.restart("b1")
    paused.do()
    assert paused.waiting
    name, part = next(
        (TopicPartition(topic, partition), part)
        for topic, image in cluster.image.topics.items()
        for partition, part in image.partitions.items()
        if "b1" not in part.open_block.in_sync and part.open_block.leader not in (None, "b1")
    )
    block, leader = part.open_block, part.open_block.leader
    assert leader is not None
    in_sync = tuple(block.replicas)
    incarnations = tuple(before if b == "b1" else 0 for b in in_sync)
    wish = AlterIsr(*name, 0, block.epoch, leader, in_sync, incarnations=incarnations)
    cluster.to_active(leader, wish)
    machine = cluster.active.machine
    machine.step("b1", BrokerHeartbeat("b1", before), cluster.now)
    cluster.run()
    assert isinstance(cluster.refusals[-1][1].error, NotRegistered)
    paused.do_all()
    check_restarted(cluster, cluster.brokers["b1"])


def test_slices_of_a_life_that_is_over_are_not_applied() -> None:
    """Slices of an earlier incarnation are dropped when the broker restarts meanwhile."""
    cluster = hosting(1_500)
    paused = Paused(cluster)
    cluster.restart("b1")
    paused.do()
    with counting() as marks:
        broker = cluster.restart("b1")
        paused.do_all()
    assert marks["registry.superseded"]
    check_restarted(cluster, broker)
    assert cluster.image.brokers["b1"].incarnation == broker.incarnation
    count = len(cluster.active.commits)
    cluster.pass_ms(2 * SESSION_MS)
    assert len(cluster.active.commits) == count


def test_what_changed_after_its_slice_is_looked_at_again() -> None:
    """If the broker gets a partition after its slice, on its old disk, the partition is visited
    again.
    """
    cluster = hosting(1_500)
    paused = Paused(cluster)
    cluster.restart("b1", storage="other")
    paused.do()
    cluster.to_active("client", CreateTopic(77, "between", ("0",), 3, AckMode.LEADER, {}))
    paused.do_all()
    assert cluster.image.brokers["b1"].storage_id == "other"
    block = cluster.open(TopicPartition("between", "0"))
    assert "b1" not in block.in_sync or block.storages[block.replicas.index("b1")] == "other"


# --- where the coordinator takes less -----------------------------------------------------------


def test_slices_fit_a_coordinator_that_takes_less() -> None:
    """The zkserver adopts the limit that the coordinator reports, and logs it once."""
    cluster = hosting(500)
    cluster.tree.request_bytes = 100_000
    broker = cluster.restart("b1")
    check_restarted(cluster, broker)
    journal = cluster.active.machine.journal
    assert journal.counts["change_refused"] == 1
    cluster.restart("b2")
    assert journal.counts["change_refused"] == 1


def test_a_broker_whose_registration_is_refused_is_told_why() -> None:
    cluster = hosting(10)
    cluster.tree.request_bytes = 1
    cluster.restart("b1")
    name, answer = cluster.refusals[-1]
    assert name == "b1"
    assert answer.error is not None
    assert "are taken at a time" in answer.error.message


def test_a_slice_that_loses_a_race_is_planned_again() -> None:
    """After a lost race the zkserver plans the same slice again, and not the next."""
    cluster = hosting(1_500)
    paused = Paused(cluster)
    broker = cluster.restart("b1")
    paused.do()
    (commit,) = paused.waiting
    assert isinstance(commit, Commit)
    put = next(op for op in commit.ops if isinstance(op, Put) and "/partitions/" in op.path)
    coordinator = MemoryCoordinator(cluster.tree)
    coordinator.submit(Commit(1, (put,)))
    assert isinstance(coordinator.poll()[0], Committed)
    coordinator.close()
    paused.do_all()
    assert cluster.active.machine._commits.lost == 1
    check_restarted(cluster, broker)
