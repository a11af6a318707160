"""Acknowledged records and commits survive a power cut; the disks are simulated."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

import pymq
from pymq.coord.memory import MemoryCoordinator, MemoryTree
from pymq.nodes.embedded import EmbeddedNode, assemble
from pymq.store.file.file_store import FileStore
from pymq.testing import Cluster
from pymq.testing.simulation.disk import SimDisk
from tests.client.helpers import polled, produce, values


class Machine:
    """A queue with a broker on each disk; a power cut loses all that was not synced."""

    def __init__(self, seed: int, brokers: int = 1) -> None:
        self.dice = random.Random(seed)
        self.disks, self.tree = [SimDisk() for _ in range(brokers)], MemoryTree()
        self.lives = 0
        self.mq = self.open()

    def open(self) -> pymq.Client:
        self.lives += 1
        parts = [
            EmbeddedNode(FileStore("/data", files=disk), str(number), self.lives)
            for number, disk in enumerate(self.disks)
        ]
        with ExitStack() as stack:
            for part in parts:
                stack.callback(part.store.close)
            return assemble(parts, MemoryCoordinator(self.tree), stack)

    def cut(self) -> None:
        """Cut the power now, and start again."""
        with self.mq.driver:
            images = [disk.fork() for disk in self.disks]
        self.mq.close()  # the old disks are no longer used
        self.disks = images
        for disk in images:
            disk.crash(self.dice)
        self.mq = self.open()


@pytest.mark.parametrize("seed", range(4))
def test_what_three_brokers_have_answered_survives_a_power_cut(seed: int) -> None:
    """Each acknowledged record is on the disks of two brokers out of three, so it survives a loss
    of all unsynced data.
    """
    machine = Machine(seed, brokers=3)
    machine.mq.create_topic("t", replicas=3, acks="raft")
    sent, known = 0, 0
    for _ in range(2):
        producer = machine.mq.producer(linger_ms=0)
        batches = [
            producer.send_many("t", [b"%d" % n for n in range(sent + at, sent + at + 5)])
            for at in range(0, 50, 5)
        ]
        sent += 50
        batches[machine.dice.randrange(10)].result()
        answered = max(
            (found.offset for batch in batches if batch.done() for found in batch.result()),
            default=-1,
        )
        machine.cut()
        with machine.mq.consumer("t", mode="psb", offset=0) as reader:
            records = list(reader.until_end())
        assert not records or records[-1].offset >= answered
        found = [int(record.value) for record in records]
        assert found == sorted(set(found)), "each once, and in the order in which they were sent"
        assert len(found) > known
        known = len(found)
    machine.mq.close()


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_a_commit_survives_a_power_cut(seed: int, in_background: bool) -> None:
    """A commit covers all acknowledgements that were sent before it, and survives a power cut."""
    machine = Machine(seed)
    machine.mq.create_topic("t", fsync="always")
    produce(machine.mq, "t", range(10))
    consumer = machine.mq.consumer("t", group="g")
    for done in (3, 7):
        consumer.ack(polled(consumer, done if done == 3 else 4))
        if in_background:
            consumer._settle_soon()
        consumer.commit()
        machine.cut()
        assert machine.mq.describe_group("g").committed == {("t", "0"): done}
        consumer = machine.mq.consumer("t", group="g")
    assert values(polled(consumer, 3)) == [7, 8, 9]
    machine.mq.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_group_that_was_reset_is_so_after_a_power_cut(seed: int) -> None:
    machine = Machine(seed)
    machine.mq.create_topic("t", fsync="always")
    produce(machine.mq, "t", range(10))
    machine.mq.reset_group("g", "t", 6)
    machine.cut()
    with machine.mq.consumer("t", group="g") as consumer:
        assert values(polled(consumer, 4)) == [6, 7, 8, 9]
    machine.mq.close()


@pytest.mark.parametrize("boundary", range(4, 24))
def test_what_is_known_of_producers_outlives_the_blocks_that_it_came_from(boundary: int) -> None:
    """The producer table survives a crash that removes a new block, and the retention of the
    previous block.
    """
    with Cluster(brokers=1, seed=0, restart_ms=50) as cluster:
        mq = cluster.client()
        mq.create_topic("t", acks="raft", block_bytes=4096, retention_ms=2_000)
        with mq.producer(producer_id="p", linger_ms=0) as producer:
            cluster.crash("broker-0", "none", at_boundary=boundary)
            producer.send_many("t", [bytes(900)] * 8).result()
            cluster.run(7.0)
            cluster.crash("broker-0", "none")
            cluster.run(1.0)
            assert len(mq.describe_topic("t").partitions[0].blocks) == 1
            assert producer.next_sequence("t", 0) == 8
            assert producer.send("t", b"x").result().offset == 8
