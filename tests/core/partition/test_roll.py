"""One broker's part in a roll: seal the open block, report its end, open the next one."""

from __future__ import annotations

import attrs

from pymq.core.block.sealing import TRANSITIONS, SealState
from pymq.core.message import Sealed
from pymq.core.partition.open_block import ReplicaState
from pymq.core.types import AckMode
from pymq.errors import CorruptBlock, NotLeader
from tests.core.partition.bench import Bench, batch, rolled, state


def sealed(bench: Bench) -> list[tuple[int, int]]:
    """Return the broker's reports of seals: the roll's epoch and the block's end."""
    reports = bench.reported(Sealed)
    assert all(report.error is None for report in reports)
    return [(report.epoch, report.end) for report in reports]


def seal_state(bench: Bench) -> SealState:
    return bench.partition.opened.sealing.state


def is_fenced(bench: Bench) -> bool:
    return bench.partition.opened.sealing.is_fenced


def test_the_end_is_reported_when_all_of_the_block_is_durable() -> None:
    bench = Bench().started()
    bench.produce(1, batch(5))
    ready = bench.begin_write()
    bench.seal()
    assert seal_state(bench) is SealState.DRAINING
    bench.write(ready)
    assert sealed(bench) == [], "the records are durable, and the seal is not"
    ready = bench.begin_write()
    assert seal_state(bench) is SealState.WRITING
    bench.write(ready)
    assert seal_state(bench) is SealState.SEALED
    assert sealed(bench) == [(2, 5)]


def test_a_seal_that_is_requested_again_is_answered_again() -> None:
    bench = Bench().started()
    bench.seal(2)
    bench.write()
    assert sealed(bench) == [(2, 0)]
    bench.seal(3)
    assert sealed(bench) == [(3, 0)]
    assert seal_state(bench) is SealState.SEALED


def test_a_request_for_an_earlier_roll_is_ignored() -> None:
    bench = Bench().started()
    bench.seal(epoch=1)
    bench.seal(epoch=2, block=7)
    bench.write()
    assert seal_state(bench) is SealState.OPEN
    assert bench.reported(Sealed) == []


def test_a_follower_refuses_and_in_a_take_over_it_stops_following() -> None:
    bench = Bench(state("me", "b", "c", leader="b")).started()
    bench.seal()
    (report,) = bench.reported(Sealed)
    assert isinstance(report.error, NotLeader)
    assert seal_state(bench) is SealState.OPEN
    bench.seal(3, takeover=True)
    assert is_fenced(bench)
    assert bench.partition.opened.acting is None
    bench.write()
    assert sealed(bench) == [(3, 0)]


def test_a_new_controller_lifts_the_fence_of_an_earlier_take_over() -> None:
    bench = Bench(state("me", "b", "c", leader="b")).started()
    bench.seal(takeover=True)
    bench.partition.adopt(bench.partition.state, 1, 0)
    assert is_fenced(bench), "it is the same controller"
    bench.partition.adopt(bench.partition.state, 2, 0)
    assert not is_fenced(bench)
    assert seal_state(bench) is SealState.OPEN


def test_a_failed_replica_refuses_with_the_reason() -> None:
    bench = Bench()
    bench.recover(CorruptBlock("bad"))
    bench.seal()
    (report,) = bench.reported(Sealed)
    assert isinstance(report.error, CorruptBlock)


def test_the_next_block_knows_the_producers_of_the_last() -> None:
    bench = Bench().started()
    bench.produce(1, batch(3, producer=7))
    bench.write()
    bench.seal()
    bench.write()
    bench.partition.adopt(rolled(bench.partition.state, 3), 1, 0)
    assert bench.partition.opened.replica is ReplicaState.ACTIVE
    assert bench.partition.opened.node.number == 1
    bench.write()
    bench.produced()
    bench.produce(2, batch(1, producer=7, sequence=3))
    bench.produce(3, batch(3, producer=7))
    bench.write()
    assert bench.produced() == [(2, 3), (3, 0)]
    assert bench.recover() == 0, "nothing is read from the disk"


def test_a_roll_without_a_seal_here_sends_its_waiting_producers_elsewhere() -> None:
    """A leader that missed a take-over of its block sends its waiting producers to the
    next leader.
    """
    bench = Bench(state("me", "b", "c")).started()
    bench.produce(1, acks=AckMode.RAFT)
    after = rolled(bench.partition.state, 0)
    moved = attrs.evolve(after.blocks[-1], leader="b", replicas=("b", "c"), in_sync=("b", "c"))
    bench.partition.adopt(attrs.evolve(after, leader="b", blocks=(after.blocks[0], moved)), 1, 0)
    ((_, error),) = bench.produced()
    assert isinstance(error, NotLeader)
    assert bench.partition.opened.replica is ReplicaState.ABSENT
    assert not bench.partition.leads


def test_a_seal_may_be_given_up_in_any_state() -> None:
    for before, found in TRANSITIONS.items():
        assert SealState.OPEN in found or before is SealState.OPEN
