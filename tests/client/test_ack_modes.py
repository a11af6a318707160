"""What an acknowledgement guarantees in each ack mode: the table in docs/guarantees.md.

Three replicas in the simulator. The client sends a record while all replicas work; then a fault
hits the replicas that have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pymq
from pymq.client.option_types import Acks
from pymq.errors import DeliveryTimeout
from pymq.testing import Cluster

BROKERS = ("broker-0", "broker-1", "broker-2")
Make = Callable[..., "World"]


class World:
    """A topic whose first record is synced on all replicas."""

    def __init__(self, acks: Acks, seed: int = 5, **config: Any) -> None:
        self.cluster = Cluster(brokers=3, seed=seed).start()
        self.mq = self.cluster.client()
        self.mq.create_topic("t", replicas=3, acks=acks, **config)
        self.producer = self.mq.producer(delivery_timeout_s=3)
        self.send(b"first")
        self.cluster.run(seconds=3)

    @property
    def leader(self) -> str:
        found = self.mq.describe_topic("t").partitions[0].leader
        assert found is not None
        return found

    @property
    def others(self) -> set[str]:
        return set(BROKERS) - {self.leader}

    def send(self, value: bytes) -> int:
        return self.producer.send("t", value).result().offset

    def values(self) -> list[bytes]:
        with self.mq.consumer("t", mode="psb") as consumer:
            return [record.value for record in consumer.until_end()]


@pytest.fixture
def world() -> Iterator[Make]:
    """Make worlds; the simulator's checks hold in each of them, for every ack mode."""
    made: list[World] = []

    def make(acks: Acks, seed: int = 5, **config: Any) -> World:
        made.append(World(acks, seed, **config))
        return made[-1]

    yield make
    for each in made:
        each.cluster.check()


@pytest.mark.parametrize(("acks", "kept"), [("raft", True), ("leader", False), ("none", False)])
def test_the_leader_is_lost_before_others_have_it(world: Make, acks: Acks, kept: bool) -> None:
    """The leader is cut off, acknowledges the record or not, and dies; another replica leads."""
    here = world(acks)
    first, others = here.leader, here.others
    here.cluster.cut({first}, others)
    here.send(b"second")
    here.cluster.crash(first)
    here.cluster.heal()
    here.cluster.run(seconds=5)
    assert here.leader in others
    here.cluster.restart(first)
    here.cluster.run(seconds=5)
    assert here.values() == ([b"first", b"second"] if kept else [b"first"])


@pytest.mark.parametrize(
    ("acks", "fsync", "kept"),
    [
        ("raft", None, True),
        ("leader", "always", True),
        ("leader", "interval", False),
        ("leader", "os", False),
    ],
)
def test_all_lose_power_after_an_answer(
    world: Make, acks: Acks, fsync: str | None, kept: bool
) -> None:
    """All replicas lose power at once and keep only synced data; then all replicas restart."""
    here = world(acks, fsync=fsync)
    here.send(b"second")
    for broker in BROKERS:
        here.cluster.crash(broker, "none")
    for broker in BROKERS:
        here.cluster.restart(broker)
    here.cluster.run(seconds=5)
    assert here.values() == ([b"first", b"second"] if kept else [b"first"])


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_all_lose_power_and_the_leader_is_late(world: Make, acks: Acks) -> None:
    """All records were synced; the followers restart first, and one of them leads."""
    here = world(acks, fsync="always")
    first, others = here.leader, here.others
    with here.mq.producer(acks="raft") as producer:
        producer.send("t", b"second").result()
        for broker in BROKERS:
            here.cluster.crash(broker, "none")
        for broker in sorted(others):
            here.cluster.restart(broker)
        here.cluster.run(seconds=5)
        here.cluster.restart(first)
        here.cluster.run(seconds=5)
        assert here.values() == [b"first", b"second"]


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_the_leader_is_killed_and_starts_again(world: Make, acks: Acks) -> None:
    """After kill -9 written records survive, synced or not."""
    here = world(acks)
    here.send(b"second")
    leader = here.leader
    here.cluster.crash(leader, "all")
    here.cluster.restart(leader)
    here.cluster.run(seconds=5)
    assert here.values() == [b"first", b"second"]


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_a_minority_loses_its_disks(world: Make, acks: Acks) -> None:
    """A record that all in-sync replicas have survives the loss of any one of them."""
    here = world(acks)
    here.send(b"second")
    here.cluster.run(seconds=1)
    leader = here.leader
    here.cluster.wipe(leader)
    here.cluster.restart(leader)
    here.cluster.run(seconds=10)
    assert here.values() == [b"first", b"second"]


@pytest.mark.parametrize(("acks", "goes_on"), [("raft", False), ("leader", True), ("none", True)])
def test_one_of_three_is_left(world: Make, acks: Acks, goes_on: bool) -> None:
    """A leader that needs a majority does not acknowledge without one."""
    here = world(acks)
    for broker in here.others:
        here.cluster.crash(broker)
    here.cluster.run(seconds=15)
    if goes_on:
        here.send(b"second")
    else:
        with pytest.raises(DeliveryTimeout):
            here.send(b"second")


@pytest.mark.parametrize("seed", range(8))
def test_a_producer_may_wait_for_all_in_sync(world: Make, seed: int) -> None:
    """On a partition of mode ``leader`` this is Kafka's ``acks=all``: the leader may be lost
    immediately afterwards.
    """
    here = world("leader", seed=seed, fsync="always")
    with here.mq.producer(acks="raft") as producer:
        producer.send("t", b"second").result()
        first, others = here.leader, here.others
        here.cluster.crash(first)
        here.cluster.run(seconds=5)
        assert here.leader in others
        assert here.values() == [b"first", b"second"]


def test_min_in_sync_counts_for_those_who_wait_for_all(world: Make) -> None:
    """If too few replicas are in sync, only requests that wait for all in-sync replicas are
    refused.
    """
    here = world("leader", min_in_sync=2)
    for broker in here.others:
        here.cluster.crash(broker)
    here.cluster.run(seconds=15)
    with here.mq.producer(acks="raft", delivery_timeout_s=3) as producer:
        assert isinstance(producer.send("t", b"second").exception(), DeliveryTimeout)
        assert here.values() == [b"first"]
    here.send(b"third")
    assert here.values() == [b"first", b"third"]


def test_min_in_sync_counts_for_what_was_sent_while_there_were_enough(world: Make) -> None:
    """Absent replicas leave the in-sync set, but that does not acknowledge records that these
    replicas lack.
    """
    here = world("leader", min_in_sync=2)
    others = sorted(here.others)
    for broker in others:
        here.cluster.crash(broker)
    with here.mq.producer(acks="raft", delivery_timeout_s=60) as producer:
        sent = producer.send("t", b"second")
        here.cluster.run(seconds=30)
        assert here.mq.describe_topic("t").partitions[0].in_sync == (here.leader,)
        assert not sent.done()
        here.cluster.restart(others[0])
        assert sent.result().offset == 1
    assert here.values() == [b"first", b"second"]


def test_who_waits_for_less_gets_less(world: Make) -> None:
    """On a partition of mode ``raft`` the producer may request an acknowledgement from the leader
    alone.

    The record is lost with that replica.
    """
    here = world("raft")
    first, others = here.leader, here.others
    with here.mq.producer(acks="leader") as producer:
        for broker in others:
            here.cluster.crash(broker)
        producer.send("t", b"second").result()
        here.cluster.crash(first)
        for broker in sorted(others):
            here.cluster.restart(broker)
        here.cluster.run(seconds=5)
        here.cluster.restart(first)
        here.cluster.run(seconds=5)
        assert here.values() == [b"first"]


def test_what_is_not_answered_has_no_offset() -> None:
    """A delivery of acks="none" has no offset, and does not report failures."""
    with pymq.open("memory:") as mq:
        mq.create_topic("t", acks="none")
        with mq.producer() as producer:
            assert producer.send("t", b"x").result().offset == -1
