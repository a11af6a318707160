"""The producer table of a partition: duplicates, epochs and sequences."""

from __future__ import annotations

from pymq.core import cbor
from pymq.core.batch.header import DELAYED
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import REMEMBERED, ProducerTable
from pymq.errors import DuplicateSequence, OutOfOrderSequence, ProducerFenced


def batch(epoch: int, sequence: int, count: int = 1) -> EncodedBatch:
    """Return a batch of a given number of records of producer 7."""
    return EncodedBatch.encode(
        [b"x"] * count,
        timestamp_ms=0,
        producer_id=7,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def log(*batches: tuple[int, int, int]) -> ProducerTable:
    """Return the log of a partition with batches of these epochs, sequences and counts, the first
    at offset 100.
    """
    table, offset = ProducerTable(), 100
    for epoch, sequence, count in batches:
        header = batch(epoch, sequence, count).header
        assert table.check(header) is None
        table.replay(header._replace(base_offset=offset))
        offset += count
    return table


def test_a_repeat_under_an_epoch_that_was_replaced_is_told_its_offset() -> None:
    """A duplicate under a replaced epoch is answered with its offset.

    The answer "fenced" would mean that the batch is not in the log.
    """
    table = log((0, 0, 2), (0, 2, 1), (1, 3, 1))
    assert table.check(batch(0, 0, 2).header) == 100
    assert table.check(batch(0, 2).header) == 102
    assert table.check(batch(1, 3).header) == 103


def test_what_is_new_under_an_epoch_that_was_replaced_is_fenced() -> None:
    """A new batch under a replaced epoch is fenced, even if its sequence fits or is forgotten."""
    table = log((0, 0, 2), (0, 2, 1), (1, 3, 1))
    for sequence, count in ((4, 1), (3, 1), (0, 1), (5, 1)):
        assert isinstance(table.check(batch(0, sequence, count).header), ProducerFenced)
    table = log(*((0, number, 1) for number in range(REMEMBERED)), (1, REMEMBERED, 1))
    assert isinstance(table.check(batch(0, 0).header), ProducerFenced)
    assert table.check(batch(0, 1).header) == 101


def test_a_higher_epoch_goes_on_where_the_one_before_stopped() -> None:
    """The first batch of a higher epoch continues the sequences, and the answer has the next
    sequence.
    """
    table = log((0, 0, 2))
    error = table.check(batch(1, 0, 2).header)
    assert isinstance(error, OutOfOrderSequence)
    assert error.details["expected"] == 2
    assert table.check(batch(1, 2).header) is None


def test_a_repeat_that_is_remembered_no_more_is_told_to_be_one() -> None:
    """A duplicate under the current epoch is reported as a duplicate, although its offset is no
    longer known.
    """
    table = log(*((0, number, 1) for number in range(REMEMBERED + 1)))
    error = table.check(batch(0, 0).header)
    assert isinstance(error, DuplicateSequence)
    assert table.check(batch(0, 1).header) == 101


def test_another_batch_under_the_same_numbers_is_not_acknowledged() -> None:
    """If another batch has the sequences of a known one, it is not acknowledged with the offset of
    the known one.
    """
    table = log((0, 0, 1), (0, 1, 1))
    other = EncodedBatch.encode(
        [b"y"], timestamp_ms=0, producer_id=7, producer_epoch=0, base_sequence=1
    )
    error = table.check(other.header)
    assert isinstance(error, DuplicateSequence)
    assert not error.retriable
    assert table.check(batch(0, 1).header) == 101
    restored = ProducerTable.restore(table.snapshot())
    assert isinstance(restored.check(other.header), DuplicateSequence)


def test_a_snapshot_of_before_tells_no_crc_and_repeats_are_known_all_the_same() -> None:
    """Batches in a snapshot of an older version have no CRC, and are still detected as
    duplicates.
    """
    table = ProducerTable.restore(cbor.dumps([[7, 0, 2, [[0, 0, 1, 100], [0, 1, 1, 101]]]]))
    assert table.check(batch(0, 1).header) == 101
    assert table.check(batch(0, 2).header) is None


def test_recovery_finds_delayed_records_that_no_producer_is_named_for() -> None:
    table = ProducerTable()
    nameless = EncodedBatch.encode([b"x"], timestamp_ms=0, attributes=DELAYED).header
    table.replay(nameless._replace(base_offset=7, attributes=0))
    assert table.last_note() is None
    table.replay(nameless._replace(base_offset=8))
    assert table.last_note() == (8, 0)
