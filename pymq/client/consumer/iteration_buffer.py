"""The records that an iteration has polled but not returned yet.

An iteration polls many records and returns ("shows") them one by one to the application. Records
that the iteration has not shown count as not received: a reader's position is before these records,
and a group's member renews their leases or returns the records. The next iteration or poll shows
these records first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence

from pymq.client.consumer.reader import Reader
from pymq.client.fetching.consumer_machine import ConsumerMachine
from pymq.client.fetching.offset_spans import Span
from pymq.client.group.group_member import GroupConsumer
from pymq.core.batch.record import Record
from pymq.core.batch.view import RecordBatch


class IterationBuffer:
    """The records that a consumer shows next; only the polling thread changes this buffer."""

    def __init__(self, intake: ConsumerMachine) -> None:
        # records in the order in which the iteration shows them
        self.records: deque[Record] = deque()
        self._aside: list[Record] = []  # set aside for the next iteration or poll
        # the first offset of the records set aside, by partition
        self._first_aside: dict[str, int] = {}
        self._reader = intake if isinstance(intake, Reader) else None
        self._worker = intake if isinstance(intake, GroupConsumer) else None

    def take(self, views: Sequence[RecordBatch]) -> None:
        """Append *records*."""
        for view in views:
            self.records.extend(view.records())
        if self._reader is not None:
            for view in reversed(views):
                self._stand(view.partition, view.base_offset)

    def show(self) -> Record:
        """Take out the first record for the application; there must be one."""
        record = self.records.popleft()
        if self._reader is not None:
            if self._first_aside:
                self._stand(record.partition, record.offset + 1)
            else:  # the usual case; this runs for each record
                self._reader.cursors[record.partition].handed = record.offset + 1
        elif self._worker is not None:
            self._worker.poll_timer.is_used = True
        return record

    def set_aside(self, record: Record) -> None:
        """Hide *record* and all later records until :meth:`bring_back`."""
        self._aside.append(record)
        self._first_aside.setdefault(record.partition, record.offset)
        if self._reader is not None:
            self._stand(record.partition, record.offset)

    def _stand(self, partition: str, offset: int) -> None:
        """Return a reader's position: *offset*, or the first offset set aside if that is lower."""
        assert self._reader is not None
        self._reader.cursors[partition].handed = self._first_aside.get(partition, offset)

    def bring_back(self) -> None:
        """Show the records that were set aside, before all others."""
        self.records.extendleft(reversed(self._aside))
        self._aside.clear()
        self._first_aside.clear()

    def drop(self, partitions: Container[str]) -> list[Span]:
        """Drop the records of some partitions; returns their offsets."""
        dropped = [span for span in self.spans() if span[0] in partitions]
        self.records = deque(r for r in self.records if r.partition not in partitions)
        self._aside = [r for r in self._aside if r.partition not in partitions]
        for partition in [p for p in self._first_aside if p in partitions]:
            del self._first_aside[partition]
        return dropped

    def clear(self) -> None:
        """Drop all records."""
        self.records.clear()
        self._aside.clear()
        self._first_aside.clear()

    def partitions(self) -> set[str]:
        """The first offset of each partition with records in this buffer."""
        return {record.partition for record in (*self.records, *self._aside)}

    def spans(self) -> list[Span]:
        """The offsets of all records; any thread may call this."""
        # Iterate over copies, because the application may remove records while the loop's thread
        # calls this method.
        return [_span(record) for record in (*self.records.copy(), *self._aside.copy())]


def _span(record: Record) -> Span:
    return record.partition, (record.offset, record.offset + 1)
