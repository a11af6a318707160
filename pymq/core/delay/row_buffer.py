"""Records that the scheduler has read and will append, as copies or to move them."""

from __future__ import annotations

from pymq.core.batch.columns import Headers
from pymq.core.batch.priority import priority_of
from pymq.core.batch.record import EncodedBatch

COPIES_MAX = 1_000  # most records in one batch of copies
COPY_BYTES = 1 << 20

Row = tuple[bytes, bytes | None, Headers]  # value, key, headers


class RowBuffer:
    """The records for the next batch that the scheduler appends."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.ids: list[int] = []  # ids of the rows that are delivered
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

    def take(self) -> tuple[list[Row], list[int]]:
        """Return the rows and their ids, and empty the buffer."""
        rows, ids = self.rows, self.ids
        self.rows, self.ids, self._bytes = [], [], 0
        return rows, ids

    def take_most_urgent(self) -> tuple[list[Row], list[int], list[int]]:
        """Return the rows of the highest priority, their ids, and the ids of the other rows."""
        rows, ids = self.take()
        levels = [priority_of(headers) for _, _, headers in rows]
        top = max(levels, default=0)
        chosen = [index for index, level in enumerate(levels) if level == top]
        later = [id for id, level in zip(ids, levels, strict=True) if level < top]
        return [rows[index] for index in chosen], [ids[index] for index in chosen], later


def rows_of(batch: EncodedBatch) -> dict[int, Row]:
    """The records of a batch, by offset."""
    columns = zip(batch.values, batch.keys, batch.headers, strict=True)
    return dict(zip(batch.offsets, columns, strict=True))
