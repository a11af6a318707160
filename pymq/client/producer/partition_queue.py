"""A producer's queue for one partition: records, closed into batches, with sequences.

``send`` runs in the user's threads without a lock. The thread appends to the queue's open batch,
which only the producer's state machine empties, under the driver's lock. The order of the steps
makes this safe:

| | user's thread | machine |
|---|---|---|
| 1 | appends the record | disarms the queue |
| 2 | arms the queue (sets its timer) unless it is armed | empties the open batch |

So either the machine takes the record, or the thread arms the queue again.

| | user's thread | machine |
|---|---|---|
| 1 | appends to the open batch | puts a new open batch in its place |
| 2 | if the open batch was replaced, reports the old one as late | empties the old open batch |

So either the machine takes the record, or it finds the record in a late batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pymq.client.base import Waitable
from pymq.client.producer.delivery import (
    RECORD_BYTES,
    Batch,
    ColumnBuffer,
    Delivery,
    DeliveryPart,
    OpenBatch,
    Row,
    batch_of,
    by_priority,
    columns_of,
    joined,
)
from pymq.core.batch.header import NO_PRODUCER, PRIORITY_SHIFT
from pymq.core.batch.record import EncodedBatch
from pymq.core.delay.record_times import times_of
from pymq.core.metadata.descriptions import PartitionLeader
from pymq.core.types import AckMode
from pymq.errors import PymqError

if TYPE_CHECKING:
    from pymq.client.producer.producer_topic import ProducerTopic, Routing
    from pymq.client.producer.sender import Sender

COUNT_MAX = 100_000  # most records in a batch
# bytes in a batch at which records without a key go to the next partition
SPREAD_BYTES = 1 << 10
RETRY_MS = 20  # pause before a refused batch is resent; doubles each time, up to ...
RETRY_MAX_MS = 250
PAST_MAX = 32  # most earlier sequences under which the producer looks for a batch
_SINGLE = frozenset({tuple})


class PartitionQueue:
    """The unacknowledged records of one partition."""

    __slots__ = (
        "backlog",
        "bytes",
        "callbacks",
        "config",
        "epoch",
        "gathering",
        "has_extras",
        "has_keys",
        "has_parts",
        "held_at",
        "in_flight",
        "is_armed",
        "is_asking",
        "is_due",
        "is_renumbering",
        "is_sure",
        "known",
        "late",
        "limit",
        "must_ask",
        "must_resend",
        "next_sequence",
        "partition",
        "places",
        "retry_at",
        "routing",
        "sealed",
        "target",
        "topic",
        "topic_id",
        "topic_queues",
        "tries",
        "trouble",
        "waiters",
    )

    def __init__(self, sender: Sender, topic: str, partition: str) -> None:
        self.backlog = sender.backlog
        self.config = sender.config
        self.topic = topic
        self.partition = partition
        self.topic_id = ""  # id of the topic to which the sequences below belong
        self.gathering = OpenBatch(self)  # the open batch, to which any thread appends
        # replaced open batches to which a thread has added a record afterwards
        self.late: deque[OpenBatch] = deque()
        self.bytes = 0  # size of the open batch, roughly
        # bytes of the open batch at which ``send`` lets the machine close it
        self.limit = self.config.batch_bytes
        self.topic_queues: ProducerTopic | None = (
            None  # None after this limit was reached, when the topic chooses another partition
        )
        self.routing: Routing | None = None
        # whether any record so far had a key, headers or its own time, or was part of a bulk send
        self.has_keys = self.has_extras = self.has_parts = False
        self.is_armed = False
        # whether a thread waits for the open batch, so that the machine will close it
        self.is_due = False
        # the time since which the open batch is due but cannot be sent; -1: no such batch
        self.held_at = -1
        self.callbacks: deque[tuple[Delivery, Callable[[], None]]] = deque()
        self.waiters: deque[threading.Lock] = deque()  # locks of threads that wait for all answers
        # Only the machine uses the attributes below.
        self.sealed: deque[Batch] = deque()  # closed batches that were not sent yet
        # Sent batches in order, beginning with the first one that was not answered.
        self.in_flight: deque[Batch] = deque()
        self.places = 0  # number of batches sent; a partition remembers only the last few batches
        # the broker to which the batches in flight were sent
        self.target: PartitionLeader | None = None
        # rises when a batch is lost and later batches get its sequence
        self.epoch = self.config.producer_epoch
        self.next_sequence = -1 if self.config.is_named else 0  # -1: not known
        # id of the request for the next sequence, if one is in flight: see Sequences
        self.is_asking = 0
        self.known = Waitable()  # done when the next sequence is known
        self.must_resend = self.must_ask = self.is_renumbering = False
        # Whether the partition has accepted a batch of this epoch. Until then the producer sends
        # one batch at a time: the partition may expect another sequence than the producer's, so it
        # could refuse the first of two batches and accept the second.
        self.is_sure = not self.config.is_named
        self.retry_at = 0
        self.tries = 0  # failures since the last success
        self.trouble: PymqError | None = None  # the last error since the last success

    # --- sealing --------------------------------------------------------------------------------

    def add(self, item: Row | DeliveryPart) -> OpenBatch:
        """Append a record and return its open batch; any thread may call this.

        ``Producer.send`` does the same without calling this method.
        """
        gathering = self.gathering
        gathering.items.append(item)
        if self.gathering is not gathering:
            self.late.append(gathering)
        return gathering

    def _take(self) -> tuple[list[Row | DeliveryPart], list[OpenBatch]]:
        """Take out the records of all open batches, in order."""
        gathering = self.gathering
        # Disarm before emptying the open batch: see the module's docstring.
        self.gathering = OpenBatch(self)
        # like ``OpenBatch.take``, but without a call, because each request does this
        taken, sources = gathering.items[:], [gathering]
        del gathering.items[: len(taken)]
        before: list[Row | DeliveryPart] = []
        # Threads now append to the new open batch, so their records are not late.
        for _ in range(len(self.late)):
            late = self.late.popleft()
            if late is gathering:
                taken += late.take()
            else:
                before += late.take()
                sources.append(late)
        return before + taken if before else taken, sources

    def seal(self, now: int, wall_ms: int) -> None:
        """Close all records sent so far into batches."""
        # Disarm before emptying the open batch: see the module's docstring.
        self.is_armed = self.is_due = False
        self.held_at = -1
        taken, sources = self._take()
        self.bytes = 0
        if self.topic_queues is not None:
            self.limit = min(SPREAD_BYTES, self.config.batch_bytes)
            self.topic_queues.left(self)
        made: list[Batch] = []
        until = now + self.config.delivery_timeout_ms
        has_priorities = self.has_extras and self.backlog.has_priorities
        seal_run = self._seal_by_priority if has_priorities else self._seal_run
        if self.has_parts and not _SINGLE.issuperset(map(type, taken)):
            for is_bulk, group in groupby(taken, _is_part):
                items: list[Any] = list(group)
                if is_bulk:
                    self._seal_parts(items, wall_ms, until)
                else:
                    made += seal_run(items, wall_ms, until)
        else:
            made = seal_run(taken, wall_ms, until)  # type: ignore[arg-type] # no parts among them
        for source in sources:
            source.batches += made
        if self.sealed:
            while self.waiters:
                self.sealed[-1].wake(self.waiters.popleft())
            # Callbacks that other threads add at the same time are handled the next time.
            for _ in range(len(self.callbacks)):
                try:
                    entry = self.callbacks.popleft()
                except IndexError:
                    break  # A thread has found the batch of its record, and removed its callback.
                self._attach(*entry)

    def _attach(self, delivery: Delivery, callback: Callable[[], None]) -> None:
        batch = batch_of(delivery)
        if batch is not None:
            batch.then(callback)
        else:
            # A thread added the record after the open batch was emptied.
            self.callbacks.append((delivery, callback))

    def _seal_by_priority(self, run: list[Row], wall_ms: int, until: int) -> list[Batch]:
        """Make batches of consecutive records with the same priority."""
        # A named producer resumes by the count of its records, so the records must stay in order.
        groups = by_priority(run, in_order=self.config.is_named)
        return [
            batch
            for priority, rows in groups
            for batch in self._seal_run(rows, wall_ms, until, priority << PRIORITY_SHIFT)
        ]

    def _seal_run(
        self, run: list[Row], wall_ms: int, until: int, attributes: int = 0
    ) -> list[Batch]:
        """Make batches of consecutive records: usually one."""
        if not run:
            return []
        columns = columns_of(run, wall_ms, has_keys=self.has_keys, has_extras=self.has_extras)
        if columns.headers is not None and self.backlog.has_times:
            attributes |= times_of(columns.headers)
        columns.attributes = attributes
        limit, size = self.config.batch_bytes, columns.size
        if len(run) <= COUNT_MAX and size <= limit + (limit >> 1):
            return [self._close(columns, size, wall_ms, until, run)]
        start, made = 0, []
        for end in _cuts(columns, limit):
            part = columns.cut(start, end)
            made.append(self._close(part, part.size, wall_ms, until, run[start:end]))
            start = end
        return made

    def _seal_parts(self, parts: list[DeliveryPart], wall_ms: int, until: int) -> None:
        """Make batches of consecutive bulk sends: join small ones, cut large ones."""
        limit = self.config.batch_bytes
        most = limit + (limit >> 1)
        together: list[DeliveryPart] = []
        size = count = 0
        for part in parts:
            is_like = not together or (part.columns.keys is None) == (
                together[0].columns.keys is None
            )
            if not is_like or size + part.size > most or count + part.count > COUNT_MAX:
                self._seal_together(together, wall_ms, until)
                together, size, count = [], 0, 0
            together.append(part)
            size += part.size
            count += part.count
        self._seal_together(together, wall_ms, until)

    def _seal_together(self, parts: list[DeliveryPart], wall_ms: int, until: int) -> None:
        """Make one batch of several bulk sends, or several batches of a single bulk send."""
        if len(parts) == 1:
            (part,) = parts
            start = 0
            for end in _cuts(part.columns, self.config.batch_bytes):
                columns = part.columns.cut(start, end)
                batch = self._close(columns, columns.size, wall_ms, until)
                part.pieces.append((batch, 0, batch.count))
                start = end
        elif parts:
            columns = joined([part.columns for part in parts])
            size = sum(part.size for part in parts)
            batch = self._close(columns, size, wall_ms, until)
            start = 0
            for part in parts:
                part.pieces.append((batch, start, start + part.count))
                start += part.count

    def _close(
        self,
        columns: ColumnBuffer,
        size: int,
        wall_ms: int,
        until: int,
        run: list[Row] | None = None,
    ) -> Batch:
        """Make a batch; *size* is the size of its records without route headers."""
        if self.routing is not None:
            columns = self.routing.stamp(columns)
        batch = Batch(self, columns, size, wall_ms, until, run)
        self.sealed.append(batch)
        return batch

    # --- numbering ------------------------------------------------------------------------------

    def meet(self, topic_id: str) -> None:
        """Start again for a topic that was deleted and created again.

        The new topic needs another epoch: under the same epoch a batch for the old topic could be
        mistaken for a new batch.
        """
        if self.topic_id not in ("", topic_id):  # The sequences belong to the deleted topic.
            self.epoch += 1
            self.is_sure = False
            if self.config.is_named:
                self.forget_sequence()
            else:
                self.next_sequence = 0
            for batch in self.sealed:
                batch.sequence, batch.past, batch.maybe = -1, [], []
                batch.is_asked_for = False
        self.topic_id = topic_id

    def forget_sequence(self) -> None:
        """Forget the next sequence, so that the producer asks the broker for it."""
        self.next_sequence = -1
        if self.known.is_done:
            self.known = Waitable()

    def number(self, batch: Batch, acks: AckMode) -> EncodedBatch:
        """Encode a batch with its epoch and sequence.

        A batch without acks has no sequence, because the broker could not distinguish a lost batch
        from a repeated one.
        """
        config = self.config
        named = config.producer_id != NO_PRODUCER and acks is not AckMode.NONE
        columns, encoded = batch.columns, batch.encoded
        if columns is not None:
            batch.sequence = self.next_sequence if named else -1
            encoded = batch.encoded = EncodedBatch.encode(
                columns.values,
                timestamp_ms=batch.timestamp_ms,
                keys=columns.keys,
                headers=columns.headers,
                timestamps=columns.timestamps,
                producer_id=config.producer_id if named else NO_PRODUCER,
                producer_epoch=self.epoch,
                base_sequence=batch.sequence,
                codec=config.codec,
                attributes=columns.attributes,
                width=columns.width,
            )
            batch.columns = None
        assert encoded is not None, "a batch has its records, encoded or not"
        if named and columns is None and (batch.sequence < 0 or self._is_void(batch, encoded)):
            if batch.sequence >= 0:
                self._remember(batch, encoded)
            batch.sequence = self.next_sequence
            encoded = batch.encoded = encoded.numbered(self.epoch, batch.sequence)
        if not named:
            return encoded
        # A batch that was sent keeps its sequence, even if later batches were answered. With a new
        # sequence the batch could be written twice; with the sequence of another batch it would be
        # mistaken for that batch.
        self.next_sequence = max(self.next_sequence, batch.sequence + batch.count)
        return encoded

    def _is_void(self, batch: Batch, encoded: EncodedBatch) -> bool:
        """Whether a batch has a sequence of an earlier epoch, which the broker now refuses."""
        is_past = encoded.header.producer_epoch != self.epoch
        return is_past and batch.sequence >= self.next_sequence

    def renumber(self, batch: Batch, now: int) -> None:
        """Give the sequences of a lost batch to the batches after it, in a new epoch.

        The new epoch fences the lost batch, which may still be on its way to the broker. If the
        broker has written the lost batch or later batches, its answer to the next batch says so.
        """
        if batch.sequence < 0:
            return
        self._raise_epoch()
        if self.next_sequence >= 0:
            self.next_sequence = min(self.next_sequence, batch.sequence)
        self.must_resend = True
        self.retry_at = now

    def void(self, expected: int) -> None:
        """Handle that the partition expects *expected*, so that batches in flight were not written.

        Such a batch may have been written under an earlier sequence, so the producer first asks for
        its earlier sequences, beginning with the latest. If the partition knows none of them, the
        batch gets a new sequence. The producer keeps the earlier sequences, since the answer may
        come from a former leader.
        """
        self._raise_epoch()
        for batch in self.in_flight:
            encoded = batch.encoded
            if batch.is_done or batch.sequence < 0 or encoded is None:
                continue
            if not batch.is_asked_for:
                batch.maybe = [numbers for numbers in batch.past if numbers[1] < expected]
                self._remember(batch, encoded)
            batch.is_asked_for = bool(batch.maybe)
            batch.sequence = -1
            if batch.maybe:
                epoch, batch.sequence = batch.maybe.pop()
                batch.encoded = encoded.numbered(epoch, batch.sequence)
        self.next_sequence = expected
        self.must_resend = True

    def _remember(self, batch: Batch, encoded: EncodedBatch) -> None:
        """Note that a batch may have been written under its present sequence."""
        batch.past = [*batch.past, (encoded.header.producer_epoch, batch.sequence)][-PAST_MAX:]

    def taken(self, batch: Batch, epoch: int) -> None:
        """Note that the partition has accepted a batch of *epoch*: several batches may now be in
        flight.
        """
        if batch.sequence >= 0 and epoch == self.epoch:
            self.is_sure = True

    def _raise_epoch(self) -> None:
        self.is_sure = False
        if not self.is_renumbering:
            self.is_renumbering = True
            self.epoch += 1

    # --- sending --------------------------------------------------------------------------------

    def next_batch(self, unanswered: int) -> Batch | None:
        """Take out the next batch if it may be sent while *unanswered* batches are in flight."""
        in_flight, most = self.in_flight, self.config.max_in_flight
        if not self.sealed or len(in_flight) + unanswered >= most:
            return None
        batch = self.sealed[0]
        if in_flight:
            last = in_flight[-1]
            if not self.is_sure and last.sequence >= 0:
                # The answer to the batch in flight shows the partition's next sequence.
                return None
            if self._is_of_the_past(last):
                # A batch in flight has this epoch, and the next epoch would fence it.
                return None
            place = batch.place or self.places + 1
            if place >= in_flight[0].place + most:
                # With more batches in flight, the partition would no longer remember the first one.
                return None
        if not batch.place:
            self.places += 1
            batch.place = self.places
        return self.sealed.popleft()

    def _is_of_the_past(self, batch: Batch) -> bool:
        """Whether a batch in flight has a sequence of an earlier epoch."""
        encoded = batch.encoded
        return (
            encoded is not None
            and batch.sequence >= 0
            and encoded.header.producer_epoch < self.epoch
        )

    @property
    def pause_ms(self) -> int:
        """The pause before the next try, after the failures so far."""
        return min(RETRY_MS << min(self.tries, 10), RETRY_MAX_MS)

    def shift(self) -> None:
        """Drop answered batches, up to the first batch without an answer."""
        in_flight = self.in_flight
        while in_flight and in_flight[0].is_done:
            in_flight.popleft()

    def resume(self) -> bool:
        """Start again at the first unwritten batch, when no batch in flight is awaited any more."""
        if not self.must_resend or any(batch.request for batch in self.in_flight):
            return False
        self.must_resend = False
        again = [batch for batch in self.in_flight if not batch.is_done]
        self.in_flight.clear()
        self.target, self.is_sure = None, False
        if self.must_ask:
            self.must_ask = False
            # The producer does not know whether an abandoned batch was written.
            self.forget_sequence()
        self.is_renumbering = False
        self.sealed.extendleft(reversed(again))
        return True


def _is_part(item: Row | DeliveryPart) -> bool:
    return isinstance(item, DeliveryPart)


def _cuts(columns: ColumnBuffer, limit: int) -> Sequence[int]:
    """Return the ends of the parts when records are cut into batches of about *limit* bytes."""
    count = len(columns)
    width = columns.width
    if columns.keys is None and columns.headers is None and width is not None:
        step = min(max(1, limit // (width + RECORD_BYTES)), COUNT_MAX)
        return [*range(step, count, step), count]
    ends: list[int] = []
    total = 0
    for index, size in enumerate(columns.sizes()):
        total += size
        if total >= limit or index + 1 - (ends[-1] if ends else 0) >= COUNT_MAX:
            ends.append(index + 1)
            total = 0
    if not ends or ends[-1] != count:
        ends.append(count)
    return ends
