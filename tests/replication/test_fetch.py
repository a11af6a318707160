"""How a leader treats followers that fetch and fall behind."""

from __future__ import annotations

from random import Random

import attrs

from pymq.core.block.replicator import Replica, ReplicationConfig
from pymq.core.message import AlterIsr, Message, ReplicaFetch
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.ready import Ready
from pymq.core.types import AckMode, BlockId
from pymq.replication.fetch import FetchReplicator
from tests.replication.harness import Cluster, FakeLog, Node

BLOCK = BlockId("topic", 0, 0)


class Host:
    """A leader's host, which only records its requests."""

    me = "A"
    incarnation = 1
    replication = ReplicationConfig(lag_max_ms=300)
    rng = Random(1)

    def __init__(self) -> None:
        self.said: list[Message] = []

    def send(self, peer: str, message: Message) -> None:
        self.said.append(message)

    def tell_controller(self, message: Message) -> None:
        self.said.append(message)

    def is_alive(self, peer: str) -> bool:
        return True


def state(*, version: int = 0) -> PartitionState:
    """Return a state in which A leads at epoch 1, alone in the in-sync set; B and C follow."""
    names = ("A", "B", "C")
    block = BlockNode(0, 0, None, 1, AckMode.LEADER, "A", names, ("A",))
    return PartitionState(
        *("t", "topic", "0", 0, AckMode.LEADER, 1, "A", TopicConfig(), (block,)), version=version
    )


def in_sync(*names: str) -> BlockNode:
    """Return the block of :func:`state` with another in-sync set."""
    return attrs.evolve(state().blocks[-1], in_sync=names)


def leader(host: Host, log: FakeLog) -> FetchReplicator:
    """Return the leader of :func:`state`."""
    fetch = FetchReplicator(Replica(BLOCK, log, host, state(), None, True), 0)
    fetch.flush(Ready(), 0)
    fetch.stable(log.stable_end, 0)
    return fetch


def test_who_is_only_wanted_cannot_fall_back() -> None:
    """If the leader waits for the answer to a request for a larger in-sync set, its deadline is not
    in the past.

    In an earlier version each tick left the deadline in the past, so the broker never slept.
    """
    host, log = Host(), FakeLog(Node("A", Cluster(("A", "B", "C"))))
    fetch = leader(host, log)
    fetch.step("B", ReplicaFetch(1, BLOCK, 0, 0, 1, 1 << 20, 500), 10)
    assert any(isinstance(m, AlterIsr) and m.in_sync == ("A", "B") for m in host.said)
    log.push(1, "x")
    fetch.appended(20)
    for now in (1_000, 2_000, 100_000):
        fetch.tick(now)
        assert fetch.deadline > now


def test_who_was_refused_does_not_hold_up_what_is_visible() -> None:
    """Another version of the partition makes the request void, and the leader repeats it later."""
    host, log = Host(), FakeLog(Node("A", Cluster(("A", "B", "C"))))
    fetch = leader(host, log)
    fetch.step("B", ReplicaFetch(1, BLOCK, 0, 0, 1, 1 << 20, 500), 10)
    log.push(1, "x")
    fetch.stable(log.stable_end, 20)
    assert fetch.high_watermark == 0  # B may be in sync by now.
    fetch.adopt(state(version=0), 30)
    assert fetch.high_watermark == 0  # This state was known before, so nothing changes.
    fetch.adopt(state(version=1), 40)
    assert fetch.high_watermark == log.stable_end
    host.said.clear()
    fetch.step("B", ReplicaFetch(2, BLOCK, log.end, 1, 1, 1 << 20, 500), 50)
    assert not any(isinstance(m, AlterIsr) for m in host.said)
    later = 50 + 5 * host.replication.retry_ms
    fetch.step("B", ReplicaFetch(3, BLOCK, log.end, 1, 1, 1 << 20, 500), later)
    assert [m.in_sync for m in host.said if isinstance(m, AlterIsr)] == [("A", "B")]
    assert [m.version for m in host.said if isinstance(m, AlterIsr)] == [1]


def asks(id: int, offset: int, incarnation: int) -> ReplicaFetch:
    """Return a fetch of a follower that has all records before *offset*, the last one of epoch
    1.
    """
    return ReplicaFetch(id, BLOCK, offset, min(offset, 1), 1, 1 << 20, 500, incarnation)


def test_a_wish_names_the_lives_that_it_goes_by() -> None:
    """A request for the in-sync set names incarnations: a restarted replica may have less
    (KIP-903).
    """
    host, log = Host(), FakeLog(Node("A", Cluster(("A", "B", "C"))))
    fetch = leader(host, log)
    # In this version the follower does not send its incarnation.
    fetch.step("C", asks(1, 0, 0), 10)
    fetch.step("B", asks(1, 0, 7), 20)
    fetch.step("B", asks(1, 0, 8), 20 + 5 * host.replication.retry_ms)
    wishes = [(m.in_sync, m.incarnations) for m in host.said if isinstance(m, AlterIsr)]
    assert wishes == [
        (("A", "C"), (1, 0)),
        (("A", "B", "C"), (1, 7, 0)),
        (("A", "B", "C"), (1, 8, 0)),
    ]


def test_what_a_follower_had_before_it_was_started_anew_counts_no_more() -> None:
    """A late fetch from before a follower's restart does not count: the follower may have lost
    those records.
    """
    host, log = Host(), FakeLog(Node("A", Cluster(("A", "B", "C"))))
    fetch = leader(host, log)
    for value in "xy":
        log.push(1, value)
    log.node.disk.batches = list(log.batches)
    fetch.adopt(attrs.evolve(state(version=1), blocks=(in_sync("A", "B", "C"),)), 10)
    fetch.stable(log.stable_end, 10)
    late = asks(5, 2, 7)
    fetch.step("C", asks(1, 2, 3), 20)
    fetch.step("B", asks(1, 1, 8), 20)
    assert (fetch.high_watermark, fetch.holders(2)) == (1, ("A", "C"))
    fetch.step("B", late, 30)
    assert (fetch.high_watermark, fetch.holders(2)) == (1, ("A", "C"))
    # The follower does not send its incarnation any more.
    fetch.step("B", attrs.evolve(late, incarnation=0), 40)
    assert (fetch.high_watermark, fetch.holders(2)) == (2, ("A", "B", "C"))


def test_a_wish_that_was_given_up_counts_until_it_cannot_be_granted() -> None:
    """KIP-497: between request and answer the leader counts all replicas that may be in sync.

    B has joined, and loses its last records in a crash before the answer comes. The leader
    withdraws the request, but the zkserver may have granted it already.
    """
    host, log = Host(), FakeLog(Node("A", Cluster(("A", "B", "C"))))
    fetch = leader(host, log)

    def write(value: str, now: int) -> None:
        log.push(1, value)
        log.node.disk.batches = list(log.batches)
        fetch.appended(now)
        fetch.stable(log.stable_end, now)

    write("x", 10)
    fetch.step("B", ReplicaFetch(1, BLOCK, 1, 1, 1, 1 << 20, 0), 20)
    fetch.step("B", ReplicaFetch(2, BLOCK, 0, 0, 1, 1 << 20, 0), 30)
    wishes = [m for m in host.said if isinstance(m, AlterIsr)]
    assert [m.in_sync for m in wishes] == [("A", "B"), ("A",)]
    write("y", 40)
    assert fetch.high_watermark == 1  # the watermark is not above the records that B has
    fetch.adopt(state(version=0), 50)  # the replica had this state already
    assert fetch.high_watermark == 1
    fetch.adopt(state(version=1), 60)
    assert fetch.high_watermark == 2
