"""Sequences of Kafka's producers: each epoch begins at 0, and so does the sequence after
2^31 - 1.
"""

from __future__ import annotations

from pymq.core.batch.header import COLUMNS_FORMAT, KAFKA_FORMAT, Header
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import KAFKA_SEQUENCES, ProducerTable
from pymq.errors import DuplicateSequence, OutOfOrderSequence, ProducerFenced

PRODUCER = 7
LAST = KAFKA_SEQUENCES - 1


def header(sequence: int, epoch: int = 0, count: int = 1, *, form: int = KAFKA_FORMAT) -> Header:
    batch = EncodedBatch.encode(
        [b"x"] * count,
        timestamp_ms=0,
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return batch.header._replace(body_format=form)


def table(*headers: Header) -> ProducerTable:
    """Return a table after these batches, at the offsets 0, 10, 20 ..."""
    found = ProducerTable()
    for at, each in enumerate(headers):
        found.replay(each._replace(base_offset=at * 10))
    return found


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert table().check(header(500)) is None
    refused = table().check(header(500, form=COLUMNS_FORMAT))
    assert isinstance(refused, OutOfOrderSequence)


def test_a_later_epoch_begins_at_0() -> None:
    found = table(header(0, count=5))
    assert found.check(header(0, epoch=1)) is None
    assert isinstance(found.check(header(5, epoch=1)), OutOfOrderSequence)
    after = table(header(0, count=5), header(0, epoch=1))
    assert after.check(header(1, epoch=1)) is None
    assert isinstance(after.check(header(5, epoch=0)), ProducerFenced)


def test_the_sequence_after_the_last_is_0() -> None:
    found = table(header(LAST - 1, count=2))
    assert found.check(header(0)) is None
    assert isinstance(found.check(header(1)), OutOfOrderSequence)
    across = table(header(LAST, count=3))
    assert across.check(header(2)) is None
    assert across.check(header(LAST, count=3)) == 0
    assert ProducerTable.restore(across.snapshot()).check(header(2)) is None


def test_a_repeat_has_its_offset_and_a_gap_is_refused() -> None:
    batches = [header(at) for at in range(7)]
    found = table(*batches)
    assert found.check(batches[6]) == 60
    assert found.check(batches[2]) == 20
    assert isinstance(found.check(batches[1]), DuplicateSequence)
    assert isinstance(found.check(header(8)), OutOfOrderSequence)
    other = header(6)._replace(batch_crc=1)
    assert isinstance(found.check(other), DuplicateSequence)
