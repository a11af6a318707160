"""Maintenance of old blocks, of damaged blocks, and of whole topics."""

from __future__ import annotations

from pymq.errors import TopicExists, UnknownTopic
from tests.testing.scripts.desk import Desk, scenario


@scenario()
def retention_by_bytes(desk: Desk) -> None:
    """Blocks beyond the limit are removed."""
    desk.topic(block_bytes=4096, retention_bytes=4096)
    desk.send(16, size=900)
    desk.settle()
    desk.cluster.run(5.5)
    desk.send()


@scenario(brokers=1)
def retention_by_age(desk: Desk) -> None:
    """Blocks are removed if their newest record is older than two seconds."""
    desk.topic(replicas=1, block_bytes=4096, retention_ms=2000)
    desk.send(8, size=900)
    desk.settle()
    desk.cluster.run(6.0)
    desk.send()


@scenario(brokers=1)
def compaction(desk: Desk) -> None:
    """Compaction rewrites sealed blocks without the records that later ones replace."""
    desk.topic(replicas=1, block_bytes=4096, cleanup_policy="compact")
    desk.send(12, size=900, keys=3)
    desk.settle()
    desk.cluster.run(1.0)
    desk.send(4, size=900, keys=3)
    desk.settle()
    desk.cluster.run(1.0)


@scenario()
def compaction_with_replicas(desk: Desk) -> None:
    """Each replica compacts its own copy."""
    desk.topic(block_bytes=4096, cleanup_policy="compact")
    desk.send(12, size=900, keys=3)
    desk.settle()
    desk.cluster.run(1.0)


@scenario(brokers=2, offsets_replicas=2)
def the_offsets_topic_is_compacted(desk: Desk) -> None:
    """The offsets of groups survive the compaction of their topic."""
    desk.topic(replicas=1)
    desk.send(2)
    desk.settle()
    desk.work()
    desk.insist(desk.mq.set_partition_state, "__consumer_offsets", "0", "raft")
    desk.insist(desk.mq.set_partition_state, "__consumer_offsets", "0", "leader")
    desk.send(2)
    desk.settle()
    desk.work()
    desk.cluster.run(0.5)


@scenario()
def delete_and_make_again(desk: Desk) -> None:
    """A topic is deleted, and another one of the same name is created."""
    desk.topic("old")
    desk.topic()
    desk.send(2, "old")
    desk.send(1)
    desk.settle()
    desk.forgotten.add("old")
    try:
        desk.insist(desk.mq.delete_topic, "old")
    except UnknownTopic:
        pass  # The request was carried out, and the answer was lost.
    try:
        desk.topic("old", replicas=1)
    except TopicExists:
        pass
    desk.cluster.run(0.5)


@scenario()
def alter(desk: Desk) -> None:
    """Blocks are smaller from now on."""
    desk.topic()
    desk.send(4, size=900)
    desk.settle()
    desk.insist(desk.mq.alter_topic, "t", block_bytes=4096, retention_bytes=1 << 20)
    desk.send(4, size=900)
    desk.settle()


@scenario()
def add_a_partition(desk: Desk) -> None:
    """A partition is added while the other one is in use."""
    desk.topic()
    desk.send(2)
    desk.insist(desk.mq.create_partition, "t", "more")
    desk.send(2, partition="more")


@scenario(session_ms=600, heartbeat_ms=100)
def a_wiped_replica_is_made_again(desk: Desk) -> None:
    """The wiped replica never votes under its old identity; its blocks are rolled and repaired."""
    desk.topic(block_bytes=4096)
    desk.send(6, size=900)
    desk.settle()
    wiped = desk.followers()[0]
    desk.cluster.wipe(wiped)
    desk.cluster.run(0.2)
    desk.cluster.restart(wiped)
    desk.cluster.run(2.0)
    desk.send(2, size=900)


@scenario(session_ms=600, heartbeat_ms=100)
def a_sealed_block_is_repaired(desk: Desk) -> None:
    """A replica that was down when a block was sealed gets the records that it lacks."""
    desk.topic(block_bytes=4096)
    desk.send(2, size=900)
    desk.settle()
    away = desk.followers()[0]
    desk.cluster.crash(away)
    desk.send(6, size=900)
    desk.settle()
    desk.cluster.restart(away)
    desk.cluster.run(2.0)
