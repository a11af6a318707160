"""Converts records to the ranges of offsets with which members acknowledge and return records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from pymq.core.batch.offset_ranges import joined
from pymq.core.batch.record import Record
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Range

T = TypeVar("T")

Records = Record | RecordBatch | Iterable[Record | RecordBatch]
Span = tuple[str, Range]  # partition, and a range of its offsets

_PARTITION, _OFFSET = attrgetter("partition"), attrgetter("offset")


def spans(records: Records) -> list[Span]:
    """Return the partitions and offsets of records; consecutive offsets are joined to ranges."""
    if isinstance(records, Record):
        return [(records.partition, (records.offset, records.offset + 1))]
    if isinstance(records, RecordBatch):
        return [(records.partition, (records.base_offset, records.end_offset))]
    if not isinstance(records, Iterable):
        raise TypeError(f"only records can be settled, not {type(records).__name__}")
    rows: list[Record | RecordBatch] = list(records)
    if {Record}.issuperset(map(type, rows)):
        return [
            (partition, span)
            for partition, run in groupby(rows, _PARTITION)
            for span in ranges(list(map(_OFFSET, run)))
        ]
    for row in rows:
        if not isinstance(row, (Record, RecordBatch)):
            raise TypeError(f"only records can be settled, not {type(row).__name__}")
    return [found for row in rows for found in spans(row)]


def ranges(items: Sequence[int | Range]) -> list[Range]:
    """Join offsets and ranges into as few ranges as possible."""
    if not items:
        return []
    first, last = items[0], items[-1]
    # In the usual case the records are in order, and one comparison suffices.
    if isinstance(first, int) and isinstance(last, int) and items == list(range(first, last + 1)):
        return [(first, last + 1)]
    return joined((item, item + 1) if isinstance(item, int) else item for item in items)


def drain(queue: deque[T]) -> list[T]:
    """Take out the items of *queue*; another thread may append items at the same time."""
    return [queue.popleft() for _ in range(len(queue))]
