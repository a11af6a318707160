"""The unacknowledged records that were delivered under the consumer's present leases.

An acknowledgement names offsets, and the same consumer may get a record twice: after the first
lease has expired, or after another coordinator has taken over. An acknowledgement of the first
delivery must not count for the second delivery, which the application has not seen. Otherwise the
application would get the record after a commit had confirmed its acknowledgement.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from pymq.client.fetching.offset_spans import Span, drain, ranges
from pymq.core.batch.offset_ranges import insert
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Range


class DeliveredRanges:
    """Disjoint ranges of offsets by partition, in order; only :meth:`out` is thread-safe."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[Range]] = {}
        self._news: deque[Span] = deque()

    def out(self, view: RecordBatch) -> None:
        """Add records that were delivered to the application."""
        if len(view) == view.end_offset - view.base_offset:
            self._news.append((view.partition, (view.base_offset, view.end_offset)))
        else:
            self._news.extend((view.partition, span) for span in ranges(list(view.offsets)))

    def forget(self) -> None:
        """Remove all ranges, because no record is leased any more."""
        self._news.clear()
        self._ranges.clear()

    def put(self, partition: str, span: Range) -> None:
        """Add a range."""
        insert(self._ranges.setdefault(partition, []), *span)

    def take(self, partition: str, span: Range) -> list[Range]:
        """Remove a range; returns the parts of the range that were present."""
        for name, news in drain(self._news):
            self.put(name, news)
        found = self._ranges.get(partition, [])
        start, end = span
        first = bisect_left(found, (start,))
        if first and found[first - 1][1] > start:
            first -= 1
        last, taken, rest = first, list[Range](), list[Range]()
        while last < len(found) and found[last][0] < end:
            low, high = found[last]
            taken.append((max(low, start), min(high, end)))
            rest += [(low, start)] if low < start else []
            rest += [(end, high)] if high > end else []
            last += 1
        found[first:last] = rest
        return taken
