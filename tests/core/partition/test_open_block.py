"""The replica of an open block takes the transitions of its table, and no others."""

from __future__ import annotations

import pytest

from pymq.core.block.recovery import READ_AGAIN_MAX_MS
from pymq.core.partition.open_block import RESTART_MS, TRANSITIONS, ReplicaState
from pymq.core.types import NEVER, AckMode
from pymq.errors import CorruptBlock, NotLeader, ReplicaNotAvailable, StoreError
from tests.core.partition.bench import Bench, rolled, state

THREE = ("me", "b", "c")


def replica(bench: Bench) -> ReplicaState:
    return bench.partition.opened.replica


def test_a_block_that_may_be_on_the_disk_is_recovered_before_it_is_written() -> None:
    bench = Bench()
    assert replica(bench) is ReplicaState.RECOVERING
    bench.produce()
    assert bench.produced() == [], "the batch waits until the log's end is known"
    bench.recover()
    assert replica(bench) is ReplicaState.ACTIVE
    bench.write()
    assert bench.produced() == [(1, 0)]


def test_a_block_that_is_assigned_to_others_is_absent() -> None:
    bench = Bench(state("b", "c", leader="b"))
    assert replica(bench) is ReplicaState.ABSENT
    assert bench.recover() == 0
    bench.produce()
    ((_, error),) = bench.produced()
    assert isinstance(error, NotLeader)


def test_a_block_that_cannot_be_read_now_is_read_again_after_a_pause() -> None:
    bench = Bench()
    bench.recover(StoreError("cannot read"))
    assert replica(bench) is ReplicaState.WAITING
    assert bench.recover() == 0
    bench.now = bench.partition.deadline
    assert 0 < bench.now < READ_AGAIN_MAX_MS
    bench.partition.tick(bench.now)
    assert replica(bench) is ReplicaState.RECOVERING
    bench.recover()
    assert replica(bench) is ReplicaState.ACTIVE


def test_a_damaged_block_fails_for_good() -> None:
    bench = Bench()
    bench.recover(CorruptBlock("bad"))
    assert replica(bench) is ReplicaState.FAILED
    assert bench.partition.deadline == NEVER
    bench.produce()
    ((_, error),) = bench.produced()
    assert isinstance(error, CorruptBlock)


def test_a_replica_whose_sync_failed_fails_for_good() -> None:
    bench = Bench().started()
    bench.produce()
    bench.fail_write(is_fatal=True)
    assert replica(bench) is ReplicaState.FAILED
    assert not bench.partition.leads
    bench.fail_write()
    assert replica(bench) is ReplicaState.FAILED, "nothing brings it back"


def test_a_shared_replica_starts_over_after_a_failed_write() -> None:
    """After a failed write, the leader of a block with several replicas stops leading and recovers
    the block from its disk: its followers may have records that its own disk lacks.
    """
    bench = Bench(state(*THREE)).started()
    assert bench.host.led == [True]
    bench.produce()
    bench.fail_write()
    assert replica(bench) is ReplicaState.WAITING
    ((_, error),) = bench.produced()
    assert isinstance(error, ReplicaNotAvailable)
    assert bench.host.led[-1] is False
    bench.now = RESTART_MS
    bench.partition.tick(bench.now)
    assert bench.recover() == 1
    assert replica(bench) is ReplicaState.ACTIVE


def test_a_replica_of_its_own_goes_on_after_a_failed_write() -> None:
    """A replica without followers continues, because no other broker has the unwritten records."""
    bench = Bench().started()
    bench.produce()
    bench.fail_write()
    assert replica(bench) is ReplicaState.ACTIVE
    ((_, error),) = bench.produced()
    assert isinstance(error, StoreError)
    bench.produce(2)
    bench.write()
    assert bench.produced() == [(2, 0)]


def test_an_appointed_leader_parks_batches_until_it_leads() -> None:
    """An appointed Raft leader parks batches until it has saved its term and leads."""
    opened = rolled(state(*THREE, acks=AckMode.RAFT), 0)
    bench = Bench(state(*THREE, acks=AckMode.RAFT))
    bench.recover()
    bench.partition.adopt(opened, 1, 0)
    assert replica(bench) is ReplicaState.APPOINTED
    assert bench.partition.opened.is_parking
    bench.write()
    assert replica(bench) is ReplicaState.ACTIVE
    assert bench.partition.leads
    assert not bench.partition.opened.is_parking


@pytest.mark.parametrize("to", ReplicaState)
def test_each_state_can_be_reached_and_only_failure_is_final(to: ReplicaState) -> None:
    reached = {after for before, found in TRANSITIONS.items() for after in found - {before}}
    assert (to in reached) == (to is not ReplicaState.ABSENT)
    assert (not TRANSITIONS[to] - {to}) == (to is ReplicaState.FAILED)


def test_a_step_that_the_table_does_not_have_is_a_bug() -> None:
    bench = Bench().started()
    with pytest.raises(AssertionError, match="ACTIVE -> RECOVERING"):
        bench.partition.opened.recover()
