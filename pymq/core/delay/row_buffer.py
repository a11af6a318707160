"""Records that the scheduler has read: those to append next, and those that are due soon."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from pymq.core.batch.columns import HEADERS, HeaderPairs, Headers, split_headers
from pymq.core.batch.priority import priority_of
from pymq.core.batch.record import EncodedBatch
from pymq.core.delay.record_times import DELAYED_ID, DELIVER_AT, DIGITS_MAX, PENDING_FROM, time_of
from pymq.core.observe.coverage import mark

COPIES_MAX = 1_000  # most records in one batch of copies
COPY_BYTES = 1 << 20
AHEAD_MS = 60_000  # how long before their due times records are kept ...
AHEAD_BYTES = 4 << 20  # ... and how many bytes of them
ROW_BYTES = 500  # memory of a record without its key, value and headers

OF_DELAYS = (
    DELIVER_AT,
    DELAYED_ID,
    PENDING_FROM,
)  # headers that are left out of the copy of a record

Row = tuple[bytes, bytes | None, Headers]  # value, key, headers


class RowBuffer:
    """The records for the next batch that the scheduler appends."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.ids: list[int] = []  # ids of the rows that are delivered
        self.due = 0  # when the last of them was due, in milliseconds since 1970
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the rows fill a batch."""
        return len(self.rows) >= COPIES_MAX or self._bytes >= COPY_BYTES

    def add(self, row: Row, id: int | None = None) -> None:
        """Add a record; *id* is set if the record is to be delivered."""
        self.rows.append(row)
        self._bytes += len(row[0])
        if id is not None:
            self.ids.append(id)

    def add_copy(self, row: Row, id: int) -> None:
        """Add the copy of the delayed record *id*, which is to be delivered."""
        value, key, headers = row
        own = tuple(each for each in headers if each[0] not in OF_DELAYS)
        self.due = max(self.due, time_of(headers, DELIVER_AT) or 0)
        self.add((value, key, (*own, (DELAYED_ID, str(id).encode()))), id)

    def take(self) -> tuple[list[Row], list[int]]:
        """Return the rows and their ids, and empty the buffer."""
        rows, ids = self.rows, self.ids
        self.rows, self.ids, self.due, self._bytes = [], [], 0, 0
        return rows, ids

    def take_most_urgent(self) -> tuple[list[Row], list[int], list[int]]:
        """Return the rows of the highest priority, their ids, and the ids of the other rows."""
        rows, ids = self.take()
        levels = [priority_of(headers) for _, _, headers in rows]
        top = max(levels, default=0)
        chosen = [index for index, level in enumerate(levels) if level == top]
        later = [id for id, level in zip(ids, levels, strict=True) if level < top]
        return [rows[index] for index in chosen], [ids[index] for index in chosen], later


class SoonDue:
    """Records that are due within a minute, by offset.

    To deliver one record the scheduler reads the batch that holds it. If it forgot the other
    records of the batch, it would read and decode the batch again for each of them: 5 ms for a
    batch of 6,000 records.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Row]] = {}  # due time and record
        self._bytes = 0
        self._ahead_ms = AHEAD_MS  # shorter if more records are due than there is memory for

    def __len__(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        """Forget all records."""
        self._rows.clear()
        self._bytes, self._ahead_ms = 0, AHEAD_MS

    def take(self, offset: int) -> Row | None:
        """Return the record at *offset* and forget it; None if it is unknown."""
        found = self._rows.pop(offset, None)
        if found is None:
            return None
        self._bytes -= _size(found[1])
        return found[1]

    def keep(self, records: BatchRecords, wall_ms: int) -> None:
        """Keep the records that are due soon after *wall_ms*, but not now."""
        if self._bytes < AHEAD_BYTES // 4:
            self._ahead_ms = min(AHEAD_MS, 2 * self._ahead_ms)
        for index, due in records.due_in(wall_ms + 1, wall_ms + self._ahead_ms):
            row = records.row(index)
            if self._rows.setdefault(records.offsets[index], (due, row))[1] is row:
                self._bytes += _size(row)
        while self._bytes > AHEAD_BYTES and self._ahead_ms > 1:
            self._shorten(wall_ms)

    def _shorten(self, wall_ms: int) -> None:
        """Forget overdue records, which were cancelled or moved, and those due latest."""
        mark("delays.soon_full")
        self._ahead_ms //= 2
        span = range(wall_ms, wall_ms + self._ahead_ms + 1)
        self._rows = {at: entry for at, entry in self._rows.items() if entry[0] in span}
        self._bytes = sum(_size(row) for _, row in self._rows.values())


def _size(row: Row) -> int:
    """Estimate the memory of a record in bytes."""
    value, key, headers = row
    return ROW_BYTES + len(value) + len(key or b"") + sum(len(n) + len(v) for n, v in headers)


class BatchRecords:
    """The records of a batch, of which a few are needed.

    A record's tuples are made only on request: for all records of a batch they would cost more
    than its decoding.

    Raises:
        CorruptBatch: the batch cannot be decoded.
    """

    def __init__(self, batch: EncodedBatch) -> None:
        self.offsets = batch.offsets
        self._values, self._keys = batch.values, batch.keys
        column, count = batch.column(HEADERS), len(self._values)
        self._pairs = (
            split_headers(column, count, 0, count)
            if column is not None
            else HeaderPairs([0] * count, [], [])
        )
        self._ends = list(accumulate(self._pairs.counts))  # places of headers after each record

    def row(self, index: int) -> Row:
        """Return the record at an index of the batch."""
        counts, names, values = self._pairs
        headers = range(self._ends[index] - counts[index], self._ends[index])
        return (
            self._values[index],
            self._keys[index],
            tuple((names[place], values[place]) for place in headers),
        )

    def rows(self) -> Iterable[tuple[int, Row]]:
        """Return all records, each with its offset."""
        return ((offset, self.row(index)) for index, offset in enumerate(self.offsets))

    def at(self, offset: int) -> Row | None:
        """Return the record at *offset*; None if compaction has removed it."""
        index = bisect_right(self.offsets, offset) - 1
        return self.row(index) if index >= 0 and self.offsets[index] == offset else None

    def due_in(self, first_ms: int, last_ms: int) -> Iterator[tuple[int, int]]:
        """Yield the index and due time of each record that is due in this span."""
        _, names, values = self._pairs
        for place, name in enumerate(names):
            if name == DELIVER_AT:
                text = values[place]
                if text.isdigit() and len(text) <= DIGITS_MAX:
                    due = int(text)
                    if first_ms <= due <= last_ms:
                        yield bisect_right(self._ends, place), due
