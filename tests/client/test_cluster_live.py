"""A producer and two readers run while everything about the partition changes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

import pymq
from pymq.client.option_types import Acks
from pymq.testing import Cluster

WINDOW = 30  # records in flight at most
PAUSE_US = 20_000  # how often the application tries to send more records, in virtual time
# Each of the six ordered pairs of modes once, from any start.
TOUR: tuple[Acks, ...] = ("raft", "leader", "none", "raft", "none", "leader")
SEEDS = range(2)


class Live:
    """A producer that always has records in flight, and two readers."""

    def __init__(self, cluster: Cluster, mq: pymq.Client, acks: Acks | None) -> None:
        self.cluster = cluster
        self.sent = 0
        self.is_over = False
        self.answers: dict[int, pymq.RecordMetadata] = {}
        self.read: list[pymq.Record] = []
        self.consumed: list[int] = []
        self.unsure: set[int] = set()  # records that were consumed and may be delivered again
        self.producer = mq.producer(acks, linger_ms=0, batch_bytes=300)
        self.reader = mq.consumer("t", mode="psb")
        self.consumer = mq.consumer("t", group="g")
        self.tick()

    def tick(self, *_: object) -> None:
        """Send until the window is full, also while an administrator waits."""
        if self.is_over:
            return
        for _more in range(WINDOW - (self.sent - len(self.answers))):
            number, self.sent = self.sent, self.sent + 1
            delivery = self.producer.send("t", b"%d" % number)
            delivery.add_done_callback(partial(self.answered, number))
        self.cluster.world.after(PAUSE_US, self.tick)

    def answered(self, number: int, done: pymq.Delivery) -> None:
        self.answers[number] = done.result()

    def go_on(self, records: int = 100) -> None:
        """Send a number of records, and read all records."""
        goal = self.sent + records
        self.cluster.run_until(lambda: self.sent >= goal, seconds=30)
        self.read += self.reader.poll(1 << 20, timeout=0.05)
        self.consume(self.consumer.poll(1 << 20, timeout=0.05))

    def consume(self, records: list[pymq.Record]) -> None:
        """Acknowledge records, and count them as done if the commit succeeds."""
        self.consumer.ack(records)
        numbers = [int(record.value) for record in records]
        self.consumed += numbers
        try:
            self.consumer.commit()
        except pymq.errors.FencedMember:
            # The coordinator was replaced, and the new one has no leases.
            self.unsure.update(numbers)

    def stop(self) -> None:
        """Stop sending, and read everything."""
        self.is_over = True
        self.producer.flush(timeout=60)
        self.read += self.reader.until_end()
        while self.reader.end_offsets() != self.consumer.committed():
            self.consume(self.consumer.poll(1 << 20, timeout=0.05))

    def check(self) -> None:
        """Check that no record is doubled or out of order, and that each acknowledged record is at
        its offset.

        A record sent with ``acks="none"`` may be lost on its way to a former leader.
        """
        assert sorted(self.answers) == list(range(self.sent))
        told = {number: found.offset for number, found in self.answers.items() if found.offset >= 0}
        numbers = [int(record.value) for record in self.read]
        assert numbers == sorted(set(numbers))
        assert told.items() <= {int(record.value): record.offset for record in self.read}.items()
        assert list(dict.fromkeys(self.consumed)) == numbers
        again = [number for number, times in Counter(self.consumed).items() if times > 1]
        assert self.unsure.issuperset(again)
        if self.producer._config.acks is not None:
            assert len(told) == self.sent


@pytest.mark.parametrize("first", ["raft", "leader", "none"])
@pytest.mark.parametrize("acks", [pytest.param("leader", marks=pytest.mark.slow), None])
@pytest.mark.parametrize("seed", SEEDS)
def test_everything_changes_under_a_live_producer(
    seed: int, acks: Acks | None, first: Acks
) -> None:
    """Under load: all changes of the ack mode, a reassignment, the loss of a zkserver, a
    decommission.
    """
    with Cluster(brokers=4, zkservers=2, seed=seed) as cluster:
        mq, admin = cluster.client(), cluster.client()
        admin.create_topic("t", acks="unset")
        with mq.producer() as early, pytest.raises(pymq.errors.PartitionUnset):
            early.send("t", b"")
        assert admin.set_partition_state("t", 0, acks=first, replicas=3)
        live = Live(cluster, mq, acks)
        live.go_on()
        begin = TOUR.index(first)
        for step in range(1, len(TOUR) + 1):
            mode = TOUR[(begin + step) % len(TOUR)]
            if step == 3:
                cluster.crash(_active(cluster))  # just before the request
            assert admin.set_partition_state("t", 0, acks=mode)
            live.go_on()
            partition = admin.describe_topic("t").partitions[0]
            assert partition.acks is pymq.AckMode.of(mode)
            if step == 2:
                assert admin.reassign("t", 0, replicas=_others(cluster, partition.replicas))
                live.go_on()
            if step == 4:
                assert partition.leader is not None
                admin.decommission(partition.leader)
                live.go_on()
        with pytest.raises(pymq.errors.PymqError):
            admin.set_partition_state("t", 0, acks="unset")
        live.go_on()
        live.stop()
        live.check()
        assert live.sent > 800
        blocks = admin.describe_topic("t").partitions[0].blocks
        assert [b.start_offset for b in blocks[1:]] == [b.end_offset for b in blocks[:-1]]


def _others(cluster: Cluster, replicas: tuple[str, ...]) -> list[str]:
    """Return the same number of brokers, one of which is new."""
    new = next(name for name in cluster.brokers if name not in replicas)
    return [new, *replicas[1:]]


def _active(cluster: Cluster) -> str:
    found = cluster.client().cluster().controller
    assert found is not None
    return found
