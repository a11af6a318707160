"""Views of a batch behave like slices of a list of its records."""

from __future__ import annotations

import sys
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch


def _batch(count: int) -> EncodedBatch:
    batch = EncodedBatch.encode(
        [b"v%d" % i for i in range(count)],
        timestamp_ms=0,
        keys=[b"k%d" % i for i in range(count)],
        timestamps=list(range(count)),
    )
    return batch.stamp(100, 1, 100).at("t", "0")


@given(st.data())
def test_parts_of_parts_are_slices_of_slices(data: st.DataObject) -> None:
    """A view of a view equals a slice of a slice, also for a compacted batch with gaps."""
    batch = _batch(20)
    kept = data.draw(st.lists(st.integers(0, 19), unique=True, min_size=1).map(sorted))
    if len(kept) < 20:
        batch = batch.keep(kept)
    view, rows = RecordBatch(batch), batch.records()
    for _ in range(data.draw(st.integers(1, 4))):
        start, end = data.draw(st.tuples(st.integers(95, 125), st.integers(95, 125)))
        view = view.part(start, end, 1)
        rows = [row for row in rows if start <= row.offset < end]
        assert view.records() == rows
        assert view.keys == [row.key for row in rows]
        assert view.batch is batch


def test_a_batch_may_be_cut_as_often_as_it_has_records() -> None:
    """If the consumer polls for one record at a time, each poll cuts one record off the batch,
    thousands of times.
    """
    count = sys.getrecursionlimit() + 2_000
    rest = RecordBatch(_batch(count))
    tracemalloc.start()
    try:
        for offset in range(100, 100 + count):
            one, rest = rest.cut(1)
            assert [record.offset for record in one.records()] == [offset]
            assert rest.size == one.size
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1000 * count, "what is left holds all that there was before"
