"""The undelivered delayed records of one partition, by the time when they are due.

The index is derived from the log: from batches with delayed records, from the copies that the
leader appends when the records are due, and from the leader's notes, which are control records in
the log. A new leader reads the log, beginning at the offset in the last note
(``pymq.pending_from``).

======================================  ======================================================
batch                                   effect
======================================  ======================================================
``DELAYED``, record with a time         the record is pending; its id is its offset
``DELAYED_COPY``, with an id            the record was delivered
note with an id and a time              the leader moved the record to the end of the log, so that
                                        retention can remove the record's former block
note with ``pymq.cancelled``            the record was cancelled and must not be delivered
======================================  ======================================================

The timestamp of a batch of copies is not before the due time of any record in the batch. The
timestamp of a note is not before that of any earlier copy. So no delivered record was due after the
latest of these timestamps.

For each pending record the index keeps an integer in a heap and a bit for the record's offset: 60
bytes, or up to 230 if few of the records at nearby offsets are pending.

A client that got no answer repeats its request to cancel a record, and the record may be due by
then. So the index remembers cancelled records for a minute. Each note of the leader also names the
offset of the first note about such a record, so that a new leader reads from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from pymq.core.batch.header import DELAYED_COPY, NOTE
from pymq.core.batch.record import EncodedBatch
from pymq.core.delay.record_times import CANCELLED, DELAYED_ID, DELIVER_AT, offset_of, time_of
from pymq.core.types import NEVER

PENDING_MAX = 1 << 20  # pending records of a partition; its leader refuses more
CANCELLED_MS = 60_000  # how long cancelled records are remembered ...
CANCELLED_MAX = 10_000  # ... and how many of them
SEGMENT = 256  # offsets that share an integer of bits
ID_BITS = 62
ID_MASK = (1 << ID_BITS) - 1


class DelayIndex:
    """The pending records of a partition."""

    def __init__(self) -> None:
        self._heap: list[int] = []  # due time << ID_BITS | id; may hold cancelled records too
        self._bits: dict[int, int] = {}  # a bit for each pending offset, by segment
        self._first: int | None = None  # the first segment; None if it has to be searched for
        self._moved: dict[int, int] = {}  # current offsets of the moved records, by id
        # by id: the offset of the note, and the time when the note was written
        self._cancelled: dict[int, tuple[int, int]] = {}
        self._is_loading = True
        # No delivered record was due after this time. It may be in the future of this broker's
        # clock, which can be set back, or be behind that of the former leader.
        self.delivered_until = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due(self) -> int:
        """When the next record is due, in milliseconds since 1970."""
        return self._heap[0] >> ID_BITS if self._heap else NEVER

    @property
    def pending_from(self) -> int:
        """The offset of the first pending record; NEVER if there is none."""
        if not self._bits:
            return NEVER
        if self._first is None:
            self._first = min(self._bits)
        first = self._first
        bits = self._bits[first]
        return first * SEGMENT + (bits & -bits).bit_length() - 1

    def offset(self, id: int) -> int:
        """The current offset of a record."""
        return self._moved.get(id, id)

    def is_pending(self, id: int, offset: int) -> bool:
        """Whether the record with this id is pending at this offset."""
        return self.offset(id) == offset and self._has(offset)

    # --- from the log ---------------------------------------------------------------------------

    def take_in(self, batch: EncodedBatch) -> None:
        """Add the next committed batch of the log.

        Raises:
            CorruptBatch: the headers of the records cannot be decoded.
        """
        kind = batch.header.attributes & NOTE
        if kind & DELAYED_COPY:
            self.delivered_until = max(self.delivered_until, batch.header.max_timestamp)
        for offset, headers in zip(batch.offsets, batch.headers, strict=True):
            due = time_of(headers, DELIVER_AT)
            if not kind & DELAYED_COPY:
                if due is not None:
                    self._add(offset, due, offset)
            elif (id := offset_of(headers, CANCELLED)) is not None:
                self.remove(id)
                self._remember(id, offset, batch.header.max_timestamp)
            elif (id := offset_of(headers, DELAYED_ID)) is None:
                continue
            elif kind != NOTE or due is None:
                self.remove(id)
            else:
                self._move(id, due, offset)

    def loaded(self) -> None:
        """Note that the log has been read to its end."""
        self._is_loading = False
        self._heap = [each for each in self._heap if self._has(self.offset(each & ID_MASK))]
        heapify(self._heap)

    def remove(self, id: int) -> bool:
        """Remove a delivered, cancelled or lost record; returns whether the record was pending."""
        offset = self._moved.pop(id, id)
        if not self._has(offset):
            return False
        segment = offset // SEGMENT
        if bits := self._bits[segment] & ~(1 << offset % SEGMENT):
            self._bits[segment] = bits
        else:
            del self._bits[segment]
            if segment == self._first:
                self._first = None
        return True

    def _add(self, id: int, due: int, offset: int) -> None:
        self._set(offset)
        if self._is_loading:
            self._heap.append(due << ID_BITS | id)
        else:
            heappush(self._heap, due << ID_BITS | id)

    def _move(self, id: int, due: int, offset: int) -> None:
        if self.remove(id):
            self._set(offset)
        else:
            # The original is at an offset before the part of the log that was read.
            self._add(id, due, offset)
        self._moved[id] = offset

    def _set(self, offset: int) -> None:
        segment = offset // SEGMENT
        if self._first is not None and segment < self._first:
            self._first = None
        self._bits[segment] = self._bits.get(segment, 0) | 1 << offset % SEGMENT

    def _has(self, offset: int) -> bool:
        return bool(self._bits.get(offset // SEGMENT, 0) >> offset % SEGMENT & 1)

    # --- cancelled records ----------------------------------------------------------------------

    def was_cancelled(self, id: int) -> bool:
        """Whether a record was cancelled in the last minute; the index forgets older ones."""
        return id in self._cancelled

    def cancelled_from(self, wall_ms: int) -> int:
        """The offset of the first note about a record that was cancelled in the last minute."""
        self._forget(wall_ms)
        return next((offset for offset, _ in self._cancelled.values()), NEVER)

    def _remember(self, id: int, offset: int, at_ms: int) -> None:
        self._cancelled[id] = offset, at_ms
        self._forget(at_ms)

    def _forget(self, wall_ms: int) -> None:
        known = self._cancelled
        while known:
            id, (_, at_ms) = next(iter(known.items()))
            if wall_ms - at_ms < CANCELLED_MS and len(known) <= CANCELLED_MAX:
                return
            del known[id]

    # --- in time --------------------------------------------------------------------------------

    def take_due(self, wall_ms: int, most: int) -> list[tuple[int, int]]:
        """Take out the earliest due records; returns offset and id of each, by offset.

        The records count as pending until :meth:`take_in` gets their copies.
        """
        heap, taken = self._heap, list[tuple[int, int]]()
        while heap and heap[0] >> ID_BITS <= wall_ms and len(taken) < most:
            id = heappop(heap) & ID_MASK
            if self._has(offset := self.offset(id)):
                taken.append((offset, id))
        taken.sort()
        return taken

    def put_back(self, ids: Sequence[int], due: int) -> None:
        """Put back undeliverable records, which become due again at *due*."""
        for id in ids:
            heappush(self._heap, due << ID_BITS | id)
