"""What an application has been given under the leases that its consumer has, and not settled.

An acknowledgement names offsets, and the same record may have been given out twice: its lease ran
out, or another coordinator took over, and then it was leased again to the same consumer. Whoever
acknowledges what came first does not mean what is still to come. Were that settled, the record
would be handed out although its settlement had been confirmed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from pymq.client.fetching.offset_spans import Span, drain, ranges
from pymq.core.batch.offset_ranges import insert
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Range


class DeliveredRanges:
    """Ranges of offsets by partition, in order and apart; only :meth:`out` is for any thread."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[Range]] = {}
        self._news: deque[Span] = deque()

    def out(self, view: RecordBatch) -> None:
        """The application has got these records."""
        if len(view) == view.end_offset - view.base_offset:
            self._news.append((view.partition, (view.base_offset, view.end_offset)))
        else:
            self._news.extend((view.partition, span) for span in ranges(list(view.offsets)))

    def forget(self) -> None:
        """Nothing of it is leased any more."""
        self._news.clear()
        self._ranges.clear()

    def put(self, partition: str, span: Range) -> None:
        """Add a range."""
        insert(self._ranges.setdefault(partition, []), *span)

    def take(self, partition: str, span: Range) -> list[Range]:
        """Cut out what there is of a range, and return it."""
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
