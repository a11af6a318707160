"""Sending, in each ack mode."""

from __future__ import annotations

from tests.testing.scripts.desk import Desk, scenario


@scenario(brokers=1)
def one_replica_raft(desk: Desk) -> None:
    """Send five records, and wait for each."""
    desk.topic(replicas=1)
    for _ in range(5):
        desk.send()
        desk.settle()


@scenario(brokers=1)
def one_replica_leader(desk: Desk) -> None:
    """One replica with ack mode leader: the leader alone answers, after a sync."""
    desk.topic(replicas=1, acks="leader", fsync="always")
    for _ in range(5):
        desk.send()
        desk.settle()


@scenario(brokers=1, may_lose=True)
def one_replica_none(desk: Desk) -> None:
    """With ack mode none there are no answers."""
    desk.topic(replicas=1, acks="none")
    for _ in range(5):
        desk.send()
        desk.settle()


@scenario()
def three_replicas_raft(desk: Desk) -> None:
    """Raft, section 5.3: a majority has the record before it is answered."""
    desk.topic()
    for _ in range(4):
        desk.send(2)
        desk.settle()


@scenario(may_lose=True)
def three_replicas_leader(desk: Desk) -> None:
    """Followers fetch; the leader answers before they have the record."""
    desk.topic(acks="leader", fsync="always")
    for _ in range(4):
        desk.send(2)
        desk.settle()


@scenario(may_lose=True)
def three_replicas_none(desk: Desk) -> None:
    """Followers fetch, and there are no answers."""
    desk.topic(acks="none")
    for _ in range(4):
        desk.send(2)
        desk.settle()
        desk.cluster.run(0.1)


@scenario(holes=True)
def pipelined_batches(desk: Desk) -> None:
    """An idempotent producer with five batches in flight (KIP-98, KAFKA-5494)."""
    desk.topic()
    desk.producer(linger_ms=0, batch_bytes=200, max_in_flight=5)
    for _ in range(3):
        desk.send(8, size=90)
        desk.cluster.run(0.001)


@scenario()
def a_named_producer_comes_back(desk: Desk) -> None:
    """A second producer of the same name fences the first, and continues where it stopped (KIP-98,
    360).
    """
    desk.topic()
    desk.producer(producer_id="p", linger_ms=0)
    desk.send(3)
    desk.settle()
    desk.producer(producer_id="p", linger_ms=0)
    desk.send(3)


@scenario(brokers=1)
def an_orderly_restart(desk: Desk) -> None:
    """A broker is shut down and started while a producer sends."""
    desk.topic(replicas=1)
    desk.send(3)
    desk.settle()
    desk.cluster.stop("broker-0")
    desk.cluster.restart("broker-0")
    desk.send(2)
