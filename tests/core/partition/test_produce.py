"""Produce requests of one partition are appended, parked or refused, and answered when the records
are safe.
"""

from __future__ import annotations

import attrs

from pymq.core.batch.header import ControlKind
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.partition.produce import PARKED_BYTES
from pymq.core.types import AckMode
from pymq.errors import (
    DuplicateSequence,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    PartitionUnset,
    RecordTooLarge,
    ReplicaNotAvailable,
)
from tests.core.partition.bench import Bench, batch, rolled, state


def test_an_answer_waits_for_the_write() -> None:
    bench = Bench().started()
    bench.produce(1, batch(3))
    bench.produce(2)
    ready = bench.begin_write()
    assert bench.produced() == []
    bench.write(ready)
    assert bench.produced() == [(1, 0), (2, 3)]
    assert bench.values() == [b"0", b"1", b"2", b"0"]


def test_batches_of_a_turn_share_one_write() -> None:
    bench = Bench().started()
    for number in range(10):
        bench.produce(number)
    assert len(bench.begin_write().write) == 1


def test_without_acks_there_is_no_answer_but_that_the_leader_moved() -> None:
    bench = Bench().started()
    bench.produce(1, acks=AckMode.NONE)
    bench.write()
    assert bench.produced() == []
    assert bench.values() == [b"0"]
    follower = Bench(state("me", "b", leader="b")).started()
    follower.produce(2, acks=AckMode.NONE)
    ((number, error),) = follower.produced()
    assert number == 2
    assert isinstance(error, NotLeader)
    assert error.details["leader"] == "b"


def test_a_repeat_is_answered_with_the_first_offset_and_not_written_again() -> None:
    bench = Bench().started()
    for number in (1, 2):
        bench.produce(number, batch(2, producer=7))
    bench.write()
    assert bench.produced() == [(1, 0), (2, 0)]
    bench.produce(3, batch(2, producer=7))
    assert bench.produced() == [(3, 0)]
    assert bench.values() == [b"0", b"1"]


def test_another_batch_under_a_used_sequence_is_an_error() -> None:
    bench = Bench().started()
    bench.produce(1, batch(2, producer=7))
    bench.write()
    bench.produced()
    bench.produce(2, batch(1, producer=7))
    ((_, error),) = bench.produced()
    assert isinstance(error, DuplicateSequence)


def test_batches_are_parked_while_the_block_is_sealed_and_go_to_the_next_one() -> None:
    bench = Bench().started()
    bench.produce(1)
    bench.write()
    bench.seal()
    bench.produce(2)
    bench.write()
    assert bench.produced() == [(1, 0)]
    bench.partition.adopt(rolled(bench.partition.state, 1), 1, 0)
    bench.write()
    assert bench.produced() == [(2, 1)]
    assert bench.values() == [b"0"]


def test_parked_bytes_are_bounded() -> None:
    bench = Bench().started()
    bench.seal()
    size = batch(1_000).size
    for number in range(PARKED_BYTES // size + 1):
        bench.produce(number, batch(1_000))
    assert bench.produced() == []
    bench.produce(9, batch(1_000))
    ((_, error),) = bench.produced()
    assert isinstance(error, ReplicaNotAvailable)
    assert error.retriable


def test_what_cannot_be_appended_is_refused_with_the_reason() -> None:
    bench = Bench(state(acks=AckMode.UNSET)).started()
    bench.produce(1)
    ((_, error),) = bench.produced()
    assert isinstance(error, PartitionUnset)

    small = attrs.evolve(state(), config=TopicConfig(max_record_bytes=1_000))
    bench = Bench(small).started()
    bench.produce(1, EncodedBatch.encode([bytes(5_000)], timestamp_ms=0))
    bench.produce(2, EncodedBatch.control(b"", timestamp_ms=0, kind=ControlKind.SEAL))
    (_, too_large), (_, control) = bench.produced()
    assert isinstance(too_large, RecordTooLarge)
    assert isinstance(control, InvalidRequest)

    two = attrs.evolve(state("me", "b", "c"), config=TopicConfig(min_in_sync=2))
    lone = attrs.evolve(two.blocks[0], in_sync=("me",))
    bench = Bench(attrs.evolve(two, blocks=(lone,))).started()
    bench.produce(1, acks=AckMode.RAFT)
    ((_, error),) = bench.produced()
    assert isinstance(error, NotEnoughReplicas)
