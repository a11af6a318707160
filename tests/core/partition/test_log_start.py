"""The start of the log inside a block, and where leader epochs end."""

from __future__ import annotations

import attrs
import pytest

from pymq.core.message import BEGIN, EpochFound, Fetch, Fetched, FindEpoch, RetireBlocks
from pymq.core.metadata.nodes import PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.errors import NotLeader, OffsetOutOfRange
from tests.core.partition.bench import Bench, batch, rolled, state

KEPT_FOR_EVER = TopicConfig.of({"retention_ms": None})


def adopt(there: Bench, after: PartitionState) -> None:
    changed = attrs.evolve(after, version=there.partition.state.version + 1)
    there.partition.adopt(changed, 1, there.now)


def two_blocks() -> Bench:
    """A block with the offsets 0 to 4, then an open one with 5 to 7."""
    there = Bench(attrs.evolve(state(), config=KEPT_FOR_EVER)).started()
    there.produce(1, batch(5))
    there.write()
    there.seal()
    there.write()
    adopt(there, rolled(there.partition.state, 5))
    there.started()
    there.produce(2, batch(3))
    there.write()
    there.host.replies.clear()
    return there


def fetched(there: Bench, offset: int, *, any_replica: bool = False) -> Fetched:
    request = Fetch(9, "t", "0", offset, 0, 0, any_replica=any_replica)
    there.partition.fetch("reader", request, there.now)
    found = there.host.replies.pop()
    assert isinstance(found, Fetched)
    return found


@pytest.mark.parametrize("start", [2, 5, 6, 8])
def test_earlier_offsets_are_out_of_range(start: int) -> None:
    there = two_blocks()
    adopt(there, attrs.evolve(there.partition.state, deleted_to=start))
    assert fetched(there, BEGIN).offset == start
    error = fetched(there, start - 1).error
    assert isinstance(error, OffsetOutOfRange)
    assert error.details == {"log_start": start, "high_watermark": 8}
    assert fetched(there, start).error is None
    assert there.partition.report().log_start == start


def test_a_start_before_the_first_block_changes_nothing() -> None:
    there = two_blocks()
    state_after = there.partition.state
    adopt(there, attrs.evolve(state_after, blocks=state_after.blocks[1:], deleted_to=3))
    assert fetched(there, BEGIN).offset == 5


@pytest.mark.parametrize(("start", "before"), [(4, None), (5, 1), (7, 1)])
def test_blocks_before_the_start_are_retired(start: int, before: int | None) -> None:
    there = two_blocks()
    adopt(there, attrs.evolve(there.partition.state, deleted_to=start))
    there.reported(RetireBlocks)
    there.partition.tick(there.now)
    found = [m.before for m in there.reported(RetireBlocks)]
    assert found == ([] if before is None else [before])


def end(there: Bench, epoch: int) -> EpochFound:
    there.partition.fetches.find_epoch("client", FindEpoch(3, "t", "0", epoch), there.now)
    found = there.host.replies.pop()
    assert isinstance(found, EpochFound)
    return found


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    there = two_blocks()
    assert end(there, 1) == EpochFound(3, 1, 5)
    assert end(there, 2) == EpochFound(3, 2, 8)
    assert end(there, 7) == EpochFound(3, 2, 8)
    assert end(there, 0) == EpochFound(3, 0, 0)
    adopt(there, attrs.evolve(there.partition.state, deleted_to=6))
    assert end(there, 1) == EpochFound(3, 1, 6)


def test_epochs_of_a_sealed_block_are_those_of_its_batches() -> None:
    there = two_blocks()
    first, last = there.partition.state.blocks
    sealed = attrs.evolve(first, epochs=((1, 0), (4, 3)))
    adopt(there, attrs.evolve(there.partition.state, blocks=(sealed, last)))
    assert [end(there, epoch).end for epoch in (1, 3)] == [3, 3]


def test_only_the_leader_knows_where_epochs_end() -> None:
    there = Bench(state("me", "other", leader="other")).started()
    assert isinstance(end(there, 1).error, NotLeader)
