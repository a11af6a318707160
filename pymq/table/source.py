"""Reads a topic for a table, from the positions that the table has."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pymq.core.batch.view import RecordBatch
from pymq.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from pymq.client.client import Client

POLL_BYTES = 8 << 20

log = logging.getLogger("pymq.table")


class TopicSource:
    """A reader of all partitions of a topic, including partitions that are added later."""

    def __init__(
        self, client: Client, topic: str, positions: Mapping[str, int], *, skips_gaps: bool
    ) -> None:
        self._client = client
        self._topic = topic
        self._skips_gaps = skips_gaps
        self.positions = dict(positions)  # by partition: the offset after the last returned record
        self._consumer = client.consumer(topic, mode="psb", offset="begin")
        try:
            for partition, position in self._consumer.begin_offsets().items():
                if partition in self.positions:
                    self._begin(partition, position)
        except BaseException:
            self._consumer.close()
            raise

    def poll(self, timeout: float) -> list[RecordBatch]:
        """Return the next records, in views; none after *timeout* seconds.

        Raises:
            OffsetOutOfRange: retention has removed records that were not read.
        """
        try:
            views = self._consumer.poll_batches(max_bytes=POLL_BYTES, timeout=timeout)
        except OffsetOutOfRange:
            if not self._overtaken():
                raise
            return []
        for view in views:
            before = self.positions.get(view.partition)
            assert before is None or view.base_offset >= before, (view, before)
            self.positions[view.partition] = view.end_offset
        return views

    def ends(self) -> dict[str, int]:
        """Return the present end of each partition, from its leader."""
        names = self._client.questions.partitions(self._topic)
        bounds = self._client.questions.all_bounds(self._topic, names)
        return {name: end for name, (start, end) in bounds.items() if end > start}

    def has_reached(self, ends: Mapping[str, int]) -> bool:
        """Whether all records before *ends* have been returned."""
        return all(self._at(name) >= end for name, end in ends.items())

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _at(self, partition: str) -> int:
        """Return the position in a partition; the position also advances over batches that readers
        never get.
        """
        try:
            position = self._consumer.position(partition)
        except LookupError:
            return 0  # The partition is new: the reader looks for partitions every few seconds.
        return max(self.positions.get(partition, 0), position)

    def _begin(self, partition: str, start: int) -> None:
        """Continue at the position of the table; *start* is the present start of the log."""
        position = self.positions[partition]
        if position < start:
            what = (
                f"{self._topic}/{partition} begins at offset {start}, and the table ends before "
                f"{position}: retention has removed records that it lacks"
            )
            if not self._skips_gaps:
                raise OffsetOutOfRange(
                    f"{what}; on_gap='continue' goes on without them", start=start
                )
            log.warning("%s; it goes on without them", what)
            self.positions[partition] = start
        self._consumer.seek(partition, self.positions[partition])

    def _overtaken(self) -> bool:
        """Handle logs that begin after the table's position; return whether there was one."""
        found = False
        for partition, start in self._consumer.begin_offsets().items():
            if partition not in self.positions:
                found = found or start > 0
                self._consumer.seek(partition, start)
            elif self.positions[partition] < start:
                self._begin(partition, start)
                found = True
        return found
