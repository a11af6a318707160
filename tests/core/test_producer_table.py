"""The producer table of a partition: duplicates, snapshots and expiry."""

from __future__ import annotations

import zlib
from random import Random

import pytest

from pymq.core import cbor
from pymq.core.batch.header import Header
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import (
    NAMED,
    PAST_BYTES,
    PRODUCERS_MAX,
    UNDER_WAY_MS,
    ProducerTable,
)
from pymq.errors import CorruptMetadata

PRODUCER = 7


def header(sequence: int, offset: int) -> Header:
    """Return the header of a batch of one record."""
    batch = EncodedBatch.encode(
        [b"x"], timestamp_ms=0, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence
    )
    return batch.stamp(offset, 1, 0).header


def test_what_could_not_be_written_is_no_repeat() -> None:
    """A failed write leaves no sequence in the table: otherwise a retry would get the offset of
    another batch.
    """
    table = ProducerTable()
    table.propose(header(0, 0))
    table.write()
    table.settle()
    table.propose(header(1, 1))
    table.write()
    table.propose(header(2, 2))
    table.discard()
    assert table.check(header(0, 0)) == 0
    assert table.check(header(1, 1)) is None
    assert table.next_sequence(PRODUCER) == 1


@pytest.mark.parametrize(
    "item", [5, [[1, 0, 5]], [[float("inf"), 0, 5, []]], [[1, 0, 5, [[0, 0, "x", 0]]]], {"a": 1}]
)
def test_what_is_no_snapshot_is_refused(item: object) -> None:
    """Bytes that are no snapshot are refused, and recovery works without the checkpoint."""
    with pytest.raises(CorruptMetadata):
        ProducerTable.restore(cbor.dumps(item))


# --- what goes with a roll ----------------------------------------------------------------------


def table_of(count: int, batches: int, now_ms: int = 0, *, first: int = 0) -> ProducerTable:
    """Return a table of so many producers with so many batches each, and random ids as in
    production.
    """
    table, rng = ProducerTable(), Random(first)
    ids = [rng.getrandbits(62) for _ in range(count)]
    head = header(0, 0)
    for sequence in range(batches):
        for number, producer in enumerate(ids):
            table.propose(
                head._replace(
                    producer_id=producer,
                    base_sequence=sequence,
                    base_offset=sequence * count + number,
                    batch_crc=rng.getrandbits(32),
                )
            )
        table.write(now_ms)
        table.settle()
    return table


def known(table: ProducerTable) -> set[int]:
    return {item[0] for item in cbor.loads(table.snapshot())}


def test_a_table_of_ten_thousand_goes_with_a_roll() -> None:
    """The table must fit into a node that ZooKeeper accepts, or the partition never rolls again.

    No producer is forgotten, and every batch that may be sent again is known.
    """
    table = table_of(PRODUCERS_MAX, 5)
    assert len(table.snapshot()) > PAST_BYTES
    packed = table.hand_on(1_000)
    assert len(packed) <= PAST_BYTES
    assert ProducerTable.restore(packed).snapshot() == table.snapshot()


@pytest.mark.parametrize(
    "bytes_max",
    [
        pytest.param(PAST_BYTES, marks=pytest.mark.slow),
        pytest.param(100_000, marks=pytest.mark.slow),
        5_000,
        pytest.param(200, marks=pytest.mark.slow),
    ],
)
def test_no_table_is_larger_than_a_roll_can_take(bytes_max: int) -> None:
    """The snapshot first omits the producers that were silent longest, and named ones last."""
    table = table_of(9_990 if bytes_max > 5_000 else 990, 5)
    names = [NAMED | number for number in range(10)]
    early = ProducerTable()
    for name in names:
        early.replay(header(0, 0)._replace(producer_id=name))
    table = ProducerTable.restore(
        cbor.dumps([*cbor.loads(early.snapshot()), *cbor.loads(table.snapshot())])
    )
    packed = table.hand_on(UNDER_WAY_MS, bytes_max)
    assert len(packed) <= bytes_max
    left = ProducerTable.restore(packed)
    order = [item[0] for item in cbor.loads(table.snapshot()) if item[0] not in names]
    kept = known(left)
    anonymous = [item for item in order if item in kept]
    assert anonymous == order[len(order) - len(anonymous) :]
    assert not anonymous or kept.issuperset(names)
    if bytes_max >= 100_000:
        assert len(anonymous) > 1_000


def test_of_those_that_are_long_silent_only_the_last_batch_goes_along() -> None:
    """For producers that were silent for long, the table stores only the next sequence, because
    these producers wait for no answer.
    """
    late, busy = table_of(1_000, 5, 0), table_of(200, 5, UNDER_WAY_MS, first=1)
    table = ProducerTable.restore(
        cbor.dumps([*cbor.loads(late.snapshot()), *cbor.loads(busy.snapshot())])
    )
    is_busy = known(busy)
    handed = {item[0]: item for item in cbor.loads(table.snapshot())}
    left = ProducerTable.restore(table.hand_on(UNDER_WAY_MS + 1, 40_000))
    assert known(left) == known(table)
    for producer, epoch, following, batches, seen in cbor.loads(left.snapshot()):
        kept = 5 if producer in is_busy else 1
        before = handed[producer]
        assert [epoch, following, batches, seen] == [*before[1:3], before[3][-kept:], before[4]]


def test_who_was_silent_too_long_is_forgotten_but_a_name_is_not() -> None:
    table = ProducerTable()
    for producer, epoch in ((1, 0), (3, 1 << 32), (NAMED | 4, 0), (2, 0)):
        table.propose(header(0, producer)._replace(producer_id=producer, epoch_high=epoch >> 32))
        table.write(50 if producer == 2 else 0)
        table.settle()
    table.expire(100, 100)
    assert len(table) == 4
    table.expire(120, 100)
    assert known(table) == {2, 3, NAMED | 4}
    assert table.check(header(0, 9)._replace(producer_id=1)) is None


def test_silence_is_counted_only_once_it_is_known_since_when() -> None:
    """After a restart, with an older table, or after a clock that was ahead, no producer expires
    early.
    """
    old = ProducerTable.restore(cbor.dumps([[7, 0, 1, [[0, 0, 1, 5]]]]))
    replayed = ProducerTable()
    replayed.replay(header(0, 5))
    ahead = ProducerTable()
    ahead.propose(header(0, 5))
    ahead.write(10_000_000)
    ahead.settle()
    for table in (old, replayed, ahead):
        table.expire(1_000, 100)
        table.expire(1_100, 100)
        assert table.next_sequence(PRODUCER) == 1
        table.expire(1_101, 100)
        assert table.next_sequence(PRODUCER) == 0


def test_a_snapshot_that_unpacks_to_too_much_is_refused() -> None:
    packed = table_of(1_000, 1).hand_on(0)
    assert packed[:1] == b"\x78"
    for bad in (packed[:-1], packed[:50], b"\x78", zlib.compress(bytes(17 << 20))):
        with pytest.raises(CorruptMetadata):
            ProducerTable.restore(bad)


def _wrote(*times_ms: int) -> ProducerTable:
    """Return a table of producers 0, 1 and so on, each of which wrote once, at its given time."""
    table = ProducerTable()
    for producer, at in enumerate(times_ms):
        table.propose(header(0, producer)._replace(producer_id=producer))
        table.write(at)
        table.settle()
    return table


DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("set_by", [3 * DAY_MS, -3 * DAY_MS])
def test_a_clock_that_is_set_makes_nobody_silent(set_by: int, moved: bool) -> None:
    """A change of the clock must not expire an active producer, whose retry would then be written
    twice.

    This holds even if the clock of the next leader differs by days from the clock of the last one.
    """
    began = 10 * DAY_MS
    table = _wrote(began, began + 10)
    if moved:
        table = ProducerTable.restore(table.hand_on(began + 20))
    now = began + 30 + set_by
    table.expire(now, DAY_MS)
    assert known(table) == {0, 1}
    for minute in range(1, 24 * 60 + 2):  # from then on the producer's silence counts
        table.tell(now + minute * 60_000)
        if minute == 24 * 60 - 2:
            table.expire(now + minute * 60_000, DAY_MS)
            assert known(table) == {0, 1}
    table.expire(now + (24 * 60 + 1) * 60_000, DAY_MS)
    assert known(table) == set()
