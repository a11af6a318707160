"""A partition's producer table survives changes of blocks, replicas, leaders and disks.

The test's producer sends each raw batch twice: a block that knows too few batches would write the
batch again, and a block with outdated entries would refuse it.
"""

from __future__ import annotations

import pytest

from pymq.client.client import Client
from pymq.client.option_types import Acks
from pymq.core import message as msg
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Message
from pymq.core.types import AckMode
from pymq.errors import OutOfOrderSequence
from pymq.testing import Cluster

OLD = ["broker-0", "broker-1", "broker-2"]
NEW = ["broker-3", "broker-4", "broker-5"]
SILENT, BUSY = 1, 2  # producers: the first stops early, the second goes on

MODES = pytest.mark.parametrize("acks", ["leader", "raft"])


class Sender:
    """Some producers, and the offset of each of their batches of one record."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        self._wall_ms = mq._wall_ms()  # a repeated batch has the same time
        self._offsets: dict[int, list[int]] = {}
        self._last = -1  # the offset that the last answer contained

    def send(self, producer: int) -> None:
        """Send the next batch of a producer, which must count as new."""
        offsets = self._offsets.setdefault(producer, [])
        answer = self._ask(producer, len(offsets))
        assert answer.error is None, answer.error
        assert answer.base_offset > self._last
        self._last = answer.base_offset
        offsets.append(answer.base_offset)

    def check(self, *producers: int) -> None:
        """Check that the producers' last batches are recognised, and that a batch after a gap is
        refused.
        """
        for producer in producers:
            offsets = self._offsets[producer]
            again = self._ask(producer, len(offsets) - 1)
            assert again.error is None, again.error
            assert (again.base_offset, again.duplicate) == (offsets[-1], True)
            gap = self._ask(producer, len(offsets) + 1)
            assert isinstance(gap.error, OutOfOrderSequence)
            assert gap.error.details["expected"] == len(offsets)

    def _ask(self, producer: int, sequence: int) -> msg.Produced:
        batch = EncodedBatch.encode(
            [b"%d" % sequence],
            timestamp_ms=self._wall_ms,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
        )

        def make(request: int) -> Message:
            return msg.Produce(request, "t", "0", AckMode.RAFT, batch)

        try:
            answer = self._mq.questions.ask_leader("t", "0", make)
        except OutOfOrderSequence as error:
            return msg.Produced(0, error=error)
        assert isinstance(answer, msg.Produced)
        return answer


def begin(cluster: Cluster, acks: Acks) -> tuple[Client, Sender]:
    """A topic on the old brokers, to which both producers have written."""
    mq = cluster.client()
    mq.create_topic("t", partitions=1, replicas=3, acks=acks)
    mq.reassign("t", 0, OLD)
    sender = Sender(mq)
    for producer in (SILENT, BUSY, BUSY, BUSY):
        sender.send(producer)
    return mq, sender


def blocks(mq: Client) -> int:
    """The number of blocks."""
    return len(mq.describe_topic("t").partitions[0].blocks)


def leader(mq: Client) -> str:
    """The leader of the partition."""
    name = mq.describe_topic("t").partitions[0].leader
    assert name is not None
    return name


@MODES
def test_replicas_that_are_all_new_know_them(acks: Acks) -> None:
    """At first none of the new replicas has any of the earlier blocks."""
    with Cluster(brokers=6, seed=1) as cluster:
        mq, sender = begin(cluster, acks)
        for moved in (NEW, OLD, NEW):
            before = blocks(mq)
            mq.reassign("t", 0, moved)
            assert blocks(mq) > before
            sender.check(SILENT, BUSY)
            sender.send(BUSY)
            sender.check(SILENT, BUSY)


@MODES
def test_blocks_without_records_forget_nobody(acks: Acks) -> None:
    """An empty block is removed at its end, and passes its producer table on to the next one."""
    with Cluster(brokers=6, seed=2) as cluster:
        mq, sender = begin(cluster, acks)
        for moved in (NEW, OLD, NEW, OLD):
            mq.reassign("t", 0, moved)
        sender.check(SILENT, BUSY)
        sender.send(SILENT)


@MODES
def test_a_take_over_right_after_a_roll_knows_them(acks: Acks) -> None:
    """The next leader has no records of the earlier blocks, and perhaps few of the present
    block.
    """
    with Cluster(brokers=6, seed=3, session_ms=1_000) as cluster:
        mq, sender = begin(cluster, acks)
        mq.reassign("t", 0, NEW)
        first = leader(mq)
        cluster.crash(first, "none")
        cluster.run(seconds=4)
        assert leader(mq) != first
        sender.check(SILENT, BUSY)
        sender.send(BUSY)
        second = leader(mq)
        cluster.restart(first)
        cluster.run(seconds=4)
        cluster.crash(second, "none")
        cluster.run(seconds=4)
        assert leader(mq) != second
        sender.check(SILENT, BUSY)


@MODES
def test_holders_of_the_block_before_may_be_gone_for_good(acks: Acks) -> None:
    """The brokers that sealed the block lose their disks just after the roll."""
    with Cluster(brokers=6, seed=4, session_ms=1_000) as cluster:
        mq, sender = begin(cluster, acks)
        mq.reassign("t", 0, NEW)
        sender.send(BUSY)
        for name in OLD:
            cluster.wipe(name)
        cluster.run(seconds=3)
        sender.check(SILENT, BUSY)
        mq.set_partition_state("t", "0", "raft" if acks == "leader" else "leader")
        sender.check(SILENT, BUSY)


@MODES
def test_wiped_replicas_learn_them_again(acks: Acks) -> None:
    """One replica after the other gets an empty disk and learns the producers again.

    The last replicas learn the table only from other new replicas.
    """
    with Cluster(brokers=3, seed=5, session_ms=1_000) as cluster:
        _, sender = begin(cluster, acks)
        for name in OLD:
            cluster.wipe(name)
            cluster.run(seconds=2)
            cluster.restart(name)
            cluster.run(seconds=6)
            sender.check(SILENT, BUSY)
            sender.send(BUSY)
        sender.check(SILENT, BUSY)


@MODES
@pytest.mark.parametrize("disk", ["none", "random", "all"])
def test_a_power_cut_after_a_roll_takes_none_of_them(acks: Acks, disk: str) -> None:
    """All replicas may lose the unsynced records of the new block at the same time."""
    with Cluster(brokers=6, seed=6, session_ms=1_000) as cluster:
        mq, sender = begin(cluster, acks)
        cluster.run(seconds=2)
        mq.reassign("t", 0, NEW)
        for name in cluster.brokers:
            cluster.crash(name, disk)
        for name in cluster.brokers:
            cluster.restart(name)
        cluster.run(seconds=6)
        sender.check(SILENT, BUSY)
        sender.send(BUSY)


@MODES
def test_they_outlive_the_blocks_that_they_wrote_to(acks: Acks) -> None:
    """Retention removes the earlier blocks, and new replicas can learn the table only from each
    other.
    """
    with Cluster(brokers=6, seed=7) as cluster:
        mq, sender = begin(cluster, acks)
        mq.reassign("t", 0, NEW)
        sender.check(SILENT, BUSY)
        mq.alter_topic("t", retention_bytes=0)
        cluster.run(seconds=30)
        assert blocks(mq) == 1
        mq.alter_topic("t", retention_bytes=None)
        mq.reassign("t", 0, OLD)
        sender.check(SILENT, BUSY)
