"""Leaders die, are replaced, and hand over leadership."""

from __future__ import annotations

from pymq.testing.simulation import probe
from tests.testing.scripts.desk import PATIENCE_S, Desk, scenario


@scenario(session_ms=600, heartbeat_ms=100)
def the_raft_leader_dies(desk: Desk) -> None:
    """The two other replicas elect one of them (MIT 6.824, 2A ReElection; Raft 5.2)."""
    desk.topic()
    desk.send(3)
    desk.settle()
    leader = desk.leader()
    desk.cluster.crash(leader)
    desk.send(3)
    desk.settle()
    desk.cluster.restart(leader)
    desk.send()


@scenario(session_ms=600, heartbeat_ms=100)
def uncommitted_records_are_overwritten(desk: Desk) -> None:
    """A cut-off leader appends records that are never committed, and steps down (Raft, figure
    7).
    """
    desk.topic()
    desk.send(2)
    desk.settle()
    leader, others = desk.leader(), desk.followers()
    cut = desk.cluster.cut(leader, others)
    desk.send(2, size=100)
    desk.cluster.run(2.0)
    desk.cluster.heal(cut)
    desk.settle()
    desk.send()


@scenario()
def leadership_is_handed_over(desk: Desk) -> None:
    """Raft thesis, 3.10 (etcd: LeaderTransferToUpToDateNode)."""
    desk.topic()
    desk.send(2)
    desk.settle()
    leader, others = desk.leader(), desk.followers()
    host = desk.cluster.brokers[leader]
    if host.broker is not None and host.loop is not None:
        for partition in probe.partitions(host.broker):
            replicator = partition.opened.replicator
            if partition.name == ("t", "0") and replicator is not None:
                replicator.transfer(others[0], host.clock())
        host.loop.touch(leader)
        host.wake()
    desk.send(2)
    desk.settle()
    desk.cluster.run(0.2)
    desk.send(1)


@scenario(may_lose=True, session_ms=600, heartbeat_ms=100)
def the_fetch_leader_dies(desk: Desk) -> None:
    """The controller appoints another replica of the in-sync set (KIP-101)."""
    desk.topic(acks="leader", min_in_sync=2)
    desk.send(3)
    desk.settle()
    leader = desk.leader()
    desk.cluster.crash(leader)
    desk.send(3)
    desk.settle()
    desk.cluster.restart(leader)
    desk.send()


@scenario(may_lose=True, session_ms=600, heartbeat_ms=100)
def a_follower_truncates(desk: Desk) -> None:
    """A fetch leader writes records that no follower fetches, and comes back as a follower
    (KIP-101, 279).
    """
    desk.topic(acks="leader")
    desk.send(2)
    desk.settle()
    desk.cluster.run(0.2)
    leader, others = desk.leader(), desk.followers()
    cut = desk.cluster.cut(leader, others)
    desk.send(2)
    desk.settle()
    desk.cluster.crash(leader, "all")
    desk.cluster.heal(cut)
    desk.cluster.run(1.5)
    desk.send(3, size=100)
    desk.cluster.restart(leader)
    desk.settle()
    desk.cluster.run(0.5)


@scenario(zkservers=2)
def the_controller_dies(desk: Desk) -> None:
    """The other zkserver takes over, while a producer continues to send."""
    desk.topic()
    desk.send(2)
    active = _active(desk)
    desk.cluster.crash(active)
    desk.send(2)
    desk.insist(desk.mq.create_partition, "t", "more")
    desk.send(1, partition="more")
    desk.cluster.restart(active)


@scenario(zkservers=2)
def the_controller_dies_amid_a_roll(desk: Desk) -> None:
    """The zkserver that takes over finishes the roll (KAFKA-6082 shows the alternative)."""
    desk.topic(block_bytes=4096)
    desk.send(4, size=900)
    desk.settle()
    desk.send(4, size=900)
    desk.cluster.run(0.001)
    active = _active(desk)
    desk.cluster.crash(active)
    desk.send(4, size=900)
    desk.settle()
    desk.cluster.run(2.5)
    desk.cluster.restart(active)


@scenario(zkservers=2)
def the_session_of_the_controller_expires(desk: Desk) -> None:
    """The controller learns that it was replaced, and stands by (ZooKeeper's session expiry)."""
    desk.topic()
    desk.send(1)
    desk.cluster.expire_session(_active(desk))
    desk.insist(desk.mq.create_topic, "u", replicas=3, acks="raft", exist_ok=True)
    desk.send(1, "u")


def _active(desk: Desk) -> str:
    found = ["zkserver-0"]

    def look() -> bool:
        for name, host in desk.cluster.zkservers.items():
            if host.controller is not None and host.controller.is_active:
                found.append(name)
        return len(found) > 1

    desk.cluster.run_until(look, PATIENCE_S)
    return found[-1]
