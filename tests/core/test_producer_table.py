"""What a partition remembers of its producers."""

from __future__ import annotations

import pytest

from pymq.core import codec
from pymq.core.header import Header
from pymq.core.producers import ProducerTable
from pymq.core.record import RecordBatch
from pymq.errors import CorruptMetadata

PRODUCER = 7


def header(sequence: int, offset: int) -> Header:
    """Of a batch of one record."""
    batch = RecordBatch.encode(
        [b"x"], timestamp_ms=0, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence
    )
    return batch.stamp(offset, 1, 0).header


def test_what_could_not_be_written_is_no_repeat() -> None:
    """Else it would be answered, when it is sent again, with an offset that is somebody else's."""
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
    """Whoever keeps a checkpoint goes by what it raises, and does without."""
    with pytest.raises(CorruptMetadata):
        ProducerTable.restore(codec.dumps(item))
