"""A partition during its recovery, while rolls and other events happen."""

from __future__ import annotations

import attrs
import pytest

from pymq.core.batch.header import Header
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import ProducerTable
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.partition.partition import Partition
from pymq.core.ready import CreateBlock, Recover, Recovered, RecoverFailed
from pymq.core.types import AckMode
from pymq.errors import CorruptBlock, StoreError
from pymq.replication.factory import replicator
from tests.core.partition import test_maintenance

PRODUCER = 7
COUNT = 10  # records of the sealed block
ME = ("me",)


class Host(test_maintenance.Host):
    """A broker that ignores its partitions' reports."""

    def shares(self, partition: Partition, now: int) -> None:
        pass

    def role_changed(self, partition: Partition, now: int) -> None:
        pass


def header() -> Header:
    batch = EncodedBatch.encode(
        [b"x"] * COUNT, timestamp_ms=0, producer_id=PRODUCER, producer_epoch=0, base_sequence=0
    )
    return batch.stamp(0, 1, 0).header


def states() -> tuple[PartitionState, PartitionState]:
    """Return the states before and after a roll; this broker has the only copies."""
    first = BlockNode(0, 0, None, 1, AckMode.LEADER, None, ME, ME)
    before = PartitionState(
        "t", "ef" * 16, "0", 0, AckMode.LEADER, 1, "me", TopicConfig(), (first,)
    )
    sealed = attrs.evolve(first, end=COUNT)
    second = attrs.evolve(first, number=1, start=COUNT, epoch=2)
    return before, attrs.evolve(before, epoch=2, blocks=(sealed, second))


def answer(partition: Partition, host: Host) -> None:
    """Let the store answer all pending recoveries."""
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
    """If a roll happens before recovery has ended, the next block waits for the previous one, which
    alone contains the producers.
    """
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


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_is_found_of_a_block_that_is_gone(*, is_damaged: bool) -> None:
    """If a block is removed while it is recovered, the result does not affect the open block.

    Simulated: seed 13434 of --profile all --seconds 4.
    """
    host = Host()
    _, state = states()
    partition = Partition(state, host, replicator, frozenset({0}), 0)
    sealed, opened = host.out.ask
    assert isinstance(sealed, Recover)
    assert isinstance(opened, Recover)
    assert (sealed.block.number, opened.block.number) == (0, 1)
    second = attrs.evolve(state.blocks[1], past=ProducerTable().snapshot())
    partition.adopt(attrs.evolve(state, blocks=(second,)), 1, 0)
    if is_damaged:
        partition.recover_failed(RecoverFailed(sealed.block, CorruptBlock("bad")), 0)
    else:
        partition.recovered(Recovered(sealed.block, 0, 3, 100, None, [], 0), 0)
    assert partition.opened.replicator is None
    partition.recovered(Recovered(opened.block, COUNT, COUNT, 0, None, [], 0), 0)
    assert partition.problem is None
    log = partition.opened.log
    assert log is not None
    assert (log.is_recovering, log.end) == (False, COUNT)


def test_a_roll_while_the_blocks_before_are_read() -> None:
    """A roll during recovery keeps the log's end, which the store reports only once."""
    host = Host()
    _, before = states()
    partition = Partition(before, host, replicator, frozenset(), 0)
    ask = host.out.ask.pop()
    assert isinstance(ask, Recover)
    found = Recovered(ask.block, COUNT, COUNT + 1, 100, None, [], 0)
    partition.recovered(found, 0)
    earlier = host.out.ask.pop()
    assert isinstance(earlier, Recover)
    assert (ask.block.number, earlier.block.number) == (1, 0)
    sealed = attrs.evolve(before.blocks[1], end=COUNT + 1)
    third = attrs.evolve(sealed, number=2, start=COUNT + 1, end=None, epoch=3)
    third = attrs.evolve(third, past=ProducerTable().snapshot())
    blocks = (before.blocks[0], sealed, third)
    partition.adopt(attrs.evolve(before, epoch=3, blocks=blocks), 1, 0)
    partition.recovered(Recovered(earlier.block, 0, COUNT, 100, None, [header()], 0), 0)
    asked = [ask for ask in host.out.ask if isinstance(ask, Recover)]
    assert [ask.block.number for ask in asked] == [1]
    partition.recovered(found, 0)
    partition.flush(host.out, 0)
    partition.advance(0)
    assert partition.blocks.has(sealed)


def test_what_was_durable_is_gone_when_the_log_is_read_again() -> None:
    """Missing durable bytes count as damage, although the file looks like one after a torn write.

    Simulated: seed 13060 of --profile all --seconds 4.
    """
    host = Host()
    before, _ = states()
    partition = Partition(before, host, replicator, frozenset(), 0)
    answer(partition, host)
    log = partition.opened.log
    assert log is not None
    assert log.end == COUNT
    log.recover()
    partition.recovered(Recovered(log.name, 0, 0, 0, None, [], header().length), 0)
    assert isinstance(partition.problem, CorruptBlock)
    assert "durable up to 10" in str(partition.problem)


@pytest.mark.parametrize(
    ("saved", "why"), [(None, "saved vote is missing"), (b"from 2099", "cannot be read")]
)
def test_records_without_votes_are_not_believed(saved: bytes | None, why: str) -> None:
    """A replica that has lost its votes fails alone and with an error (thesis 3.8).

    In an earlier version the block was neither hosted nor given up, and a vote of another version
    stopped the whole broker.
    """
    host = Host()
    before, _ = states()
    names = ("me", "b", "c")
    block = attrs.evolve(before.blocks[0], acks=AckMode.RAFT, replicas=names, in_sync=names)
    state = attrs.evolve(before, acks=AckMode.RAFT, blocks=(block,))
    partition = Partition(state, host, replicator, frozenset({0}), 0)
    (ask,) = host.out.ask
    assert isinstance(ask, Recover)
    one = header()
    partition.recovered(Recovered(ask.block, 0, COUNT, one.length, None, [one], 0, saved), 0)
    assert isinstance(partition.problem, StoreError)
    assert why in str(partition.problem)
    assert partition.opened.replicator is None
    assert not host.out.write
