"""What an iteration has taken and not shown yet.

An iteration takes records by the chunk, and shows them one by one. What it has not shown is as if
it had not come: a reader's position is before it, and a member of a group keeps it leased, or gives
it back. Whoever asks for records next is shown it first, another iteration or a poll.
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
    """The records that a consumer shows next, each of them once; by the thread that polls."""

    def __init__(self, intake: ConsumerMachine) -> None:
        self.records: deque[Record] = deque()  # in the order in which they are shown
        self._aside: list[Record] = []  # they are shown by what follows this iteration
        self._first_aside: dict[str, int] = {}  # their first offset, by partition
        self._reader = intake if isinstance(intake, Reader) else None
        self._worker = intake if isinstance(intake, GroupConsumer) else None

    def take(self, views: Sequence[RecordBatch]) -> None:
        """These come last."""
        for view in views:
            self.records.extend(view.records())
        if self._reader is not None:
            for view in reversed(views):
                self._stand(view.partition, view.base_offset)

    def show(self) -> Record:
        """Take out the first one, which the application sees now; there must be one."""
        record = self.records.popleft()
        if self._reader is not None:
            if self._first_aside:
                self._stand(record.partition, record.offset + 1)
            else:  # as nearly always, and this is for each record
                self._reader.cursors[record.partition].handed = record.offset + 1
        elif self._worker is not None:
            self._worker.poll_timer.is_used = True
        return record

    def set_aside(self, record: Record) -> None:
        """What was to be shown is not to be seen before :meth:`bring_back`."""
        self._aside.append(record)
        self._first_aside.setdefault(record.partition, record.offset)
        if self._reader is not None:
            self._stand(record.partition, record.offset)

    def _stand(self, partition: str, offset: int) -> None:
        """A reader is before *offset*, or before what is set aside: who pauses goes on there."""
        assert self._reader is not None
        self._reader.cursors[partition].handed = self._first_aside.get(partition, offset)

    def bring_back(self) -> None:
        """What was set aside comes first."""
        self.records.extendleft(reversed(self._aside))
        self._aside.clear()
        self._first_aside.clear()

    def drop(self, partitions: Container[str]) -> list[Span]:
        """Let go of what is of some partitions; returns what was to come of them."""
        dropped = [span for span in self.spans() if span[0] in partitions]
        self.records = deque(r for r in self.records if r.partition not in partitions)
        self._aside = [r for r in self._aside if r.partition not in partitions]
        for partition in [p for p in self._first_aside if p in partitions]:
            del self._first_aside[partition]
        return dropped

    def clear(self) -> None:
        """Let go of everything."""
        self.records.clear()
        self._aside.clear()
        self._first_aside.clear()

    def partitions(self) -> set[str]:
        """Of which there is something."""
        return {record.partition for record in (*self.records, *self._aside)}

    def spans(self) -> list[Span]:
        """All of them; any thread may ask."""
        # Copies: whoever turns the loop asks, while the application goes on.
        return [_span(record) for record in (*self.records.copy(), *self._aside.copy())]


def _span(record: Record) -> Span:
    return record.partition, (record.offset, record.offset + 1)
