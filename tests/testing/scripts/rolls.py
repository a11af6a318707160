"""Every way in which one block ends and the next begins."""

from __future__ import annotations

from tests.testing.scripts.desk import Desk, scenario


@scenario()
def roll_by_size(desk: Desk) -> None:
    """A Raft block is sealed while batches are in flight."""
    desk.topic(block_bytes=4096)
    for _ in range(4):
        desk.send(4, size=600)
    desk.settle()
    desk.send(3, size=600)


@scenario(may_lose=True)
def roll_by_size_with_fetch(desk: Desk) -> None:
    """Blocks are rolled by size in a mode in which followers fetch."""
    desk.topic(block_bytes=4096, acks="leader")
    for _ in range(4):
        desk.send(4, size=600)
    desk.settle()
    desk.send(3, size=600)


@scenario(brokers=1)
def roll_with_one_replica(desk: Desk) -> None:
    """The roll needs no answer of another replica."""
    desk.topic(replicas=1, block_bytes=4096)
    for _ in range(4):
        desk.send(4, size=600)
    desk.settle()


@scenario()
def roll_by_age(desk: Desk) -> None:
    """A block is rolled when it is a second old."""
    desk.topic(block_ms=1000)
    desk.send(2)
    desk.cluster.run(1.1)
    desk.send(2)


def _change(before: str, after: str) -> None:
    """Register the script for one of the ordered pairs of ack modes."""

    def change(desk: Desk) -> None:
        desk.topic(acks=before, fsync="always")
        if before != "unset":
            desk.send(2)
            desk.settle()
            desk.send(2)
        desk.insist(desk.mq.set_partition_state, "t", "0", after, 3)
        if after != "unset":
            desk.send(2)

    change.__name__ = f"{before}_to_{after}"
    scenario(may_lose=not {before, after}.isdisjoint({"leader", "none"}))(change)


MODES = ("unset", "raft", "leader", "none")
for _before in MODES:
    for _after in MODES[1:]:
        if _before != _after:
            _change(_before, _after)


@scenario()
def sealed_by_a_second_change(desk: Desk) -> None:
    """Two changes of mode follow each other at once."""
    desk.topic()
    desk.send(2)
    desk.insist(desk.mq.set_partition_state, "t", "0", "leader")
    desk.insist(desk.mq.set_partition_state, "t", "0", "raft")
    desk.send(2)


@scenario(brokers=4)
def reassign(desk: Desk) -> None:
    """A partition is moved to other brokers while records are in flight."""
    desk.topic()
    desk.send(2)
    desk.settle()
    desk.send(2)
    leader = desk.leader()
    spare = ({*desk.cluster.brokers} - {leader, *desk.followers()}).pop()
    desk.insist(desk.mq.reassign, "t", "0", [spare, *desk.followers()[:2]])
    desk.send(2)


@scenario(brokers=4)
def decommission(desk: Desk) -> None:
    """A broker gives up all its open blocks."""
    desk.topic(partitions=2)
    desk.send(2, partition="0")
    desk.send(2, partition="1")
    desk.settle()
    desk.insist(desk.mq.decommission, desk.leader())
    desk.send(1, partition="0")
    desk.send(1, partition="1")


@scenario(brokers=4, session_ms=600, heartbeat_ms=100)
def a_dead_broker_is_replaced(desk: Desk) -> None:
    """A broker without data of the partition replaces a dead one, which comes back later."""
    desk.topic()
    desk.send(2)
    desk.settle()
    dead = desk.followers()[0]
    desk.cluster.crash(dead)
    desk.cluster.run(1.0)
    rest = [name for name in desk.cluster.brokers if name != dead]
    desk.insist(desk.mq.reassign, "t", "0", rest)
    desk.send(2)
    desk.settle()
    desk.cluster.restart(dead)
    desk.cluster.run(0.5)


@scenario(brokers=4, session_ms=600, heartbeat_ms=100)
def a_broker_is_added(desk: Desk) -> None:
    """The broker was down from the beginning; new blocks use it."""
    desk.cluster.crash("broker-3")
    desk.cluster.run(1.0)
    desk.topic(block_bytes=4096)
    desk.send(2, size=600)
    desk.settle()
    desk.cluster.restart("broker-3")
    desk.cluster.run(0.3)
    desk.insist(desk.mq.reassign, "t", "0", ["broker-3", *desk.followers()])
    desk.send(4, size=600)


@scenario()
def more_replicas(desk: Desk) -> None:
    """The number of replicas rises from one to three."""
    desk.topic(replicas=1)
    desk.send(2)
    desk.settle()
    desk.insist(desk.mq.set_partition_state, "t", "0", "raft", 3)
    desk.send(2)
