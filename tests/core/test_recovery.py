"""What a partition knows of its producers when a start and a roll come together."""

from __future__ import annotations

import attrs
import pytest

from pymq.core.config import TopicConfig
from pymq.core.header import Header
from pymq.core.metadata import BlockNode, PartitionState
from pymq.core.partition import Partition
from pymq.core.ready import CreateBlock, Recover, Recovered
from pymq.core.record import RecordBatch
from pymq.core.types import AckMode
from pymq.replication.factory import replicator
from tests.core import test_upkeep

PRODUCER = 7
COUNT = 10  # records of the sealed block
ME = ("me",)


class Host(test_upkeep.Host):
    """A broker that does not mind what its partitions do."""

    def shares(self, partition: Partition, now: int) -> None:
        pass

    def role_changed(self, partition: Partition, now: int) -> None:
        pass


def header() -> Header:
    batch = RecordBatch.encode(
        [b"x"] * COUNT, timestamp_ms=0, producer_id=PRODUCER, producer_epoch=0, base_sequence=0
    )
    return batch.stamp(0, 1, 0).header


def states() -> tuple[PartitionState, PartitionState]:
    """Before a roll and after it; only this broker has ever had anything of the partition."""
    first = BlockNode(0, 0, None, 1, AckMode.LEADER, None, ME, ME)
    before = PartitionState(
        "t", "ef" * 16, "0", 0, AckMode.LEADER, 1, "me", TopicConfig(), (first,)
    )
    sealed = attrs.evolve(first, end=COUNT)
    second = attrs.evolve(first, number=1, start=COUNT, epoch=2)
    return before, attrs.evolve(before, epoch=2, blocks=(sealed, second))


def answer(partition: Partition, host: Host) -> None:
    """Let the store find what there is, as often as it is asked."""
    while host.out.ask:
        ask = host.out.ask.pop(0)
        assert isinstance(ask, Recover)
        if ask.block.number == 0:
            one = header()
            found = Recovered(ask.block, 0, COUNT, one.length, None, [one], 0)
        else:
            found = Recovered(ask.block, ask.start, ask.start, 0, None, [], 0)
        partition.recovered(found, 0)


@pytest.mark.parametrize("is_asked", [False, True], ids=["rolled before", "rolled meanwhile"])
def test_a_roll_before_the_store_has_answered(*, is_asked: bool) -> None:
    """It knows of its producers what stands in the block before, which only it can tell."""
    host = Host()
    before, after = states()
    partition = Partition(before if is_asked else after, host, replicator, frozenset(), 0)
    partition.adopt(after, 1, 0)
    answer(partition, host)
    log = partition.opened.log
    assert log is not None
    assert log.name.number == 1
    assert log.producers.next_sequence(PRODUCER) == COUNT
    assert [w.block.number for w in host.out.write if isinstance(w, CreateBlock)] == [1]
