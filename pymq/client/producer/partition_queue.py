"""One partition's records on their way through a producer: sent, sealed into batches, numbered.

``send`` runs in the user's threads and takes no lock: it appends to what gathers in a queue, which
only the producer's machine empties, under the driver's lock. What makes that safe is the order of
two steps on each side. The sender appends, then looks whether the queue is armed; the machine
disarms it, then empties it. So a record is either taken, or its sender arms the queue again. With
each seal another gathering takes the place of the last. The sender appends to one, then looks
whether it is still in its place; the machine puts another there, then empties it. So a record is
either taken, or its sender says that there is more in that one.
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
    joined,
)
from pymq.core.batch.header import NO_PRODUCER
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.nodes import PartitionLeader
from pymq.core.types import AckMode
from pymq.errors import PymqError

if TYPE_CHECKING:
    from pymq.client.producer.producer import ProducerTopic
    from pymq.client.producer.sender import Sender

COUNT_MAX = 100_000  # records a batch
# With so many bytes in a batch, records without a key begin one in the next partition.
SPREAD_BYTES = 1 << 10
RETRY_MS = 20  # before what was refused is sent again; each time twice as long, up to ...
RETRY_MAX_MS = 250
PAST_MAX = 32  # numbers that a batch may have been written under; more are not looked for
_SINGLE = frozenset({tuple})


class PartitionQueue:
    """One partition's records on their way."""

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
        self.topic_id = ""  # of the topic that the numbers below are for
        self.gathering = OpenBatch(self)  # what is sent now, by any thread
        self.late: deque[OpenBatch] = deque()  # earlier ones that something was added to since
        self.bytes = 0  # about what has gathered
        self.limit = self.config.batch_bytes  # with so many bytes ``send`` looks what is to be done
        self.topic_queues: ProducerTopic | None = (
            None  # where others of its topic may take its turn
        )
        self.has_keys = self.has_extras = self.has_parts = False  # whether any ever had
        self.is_armed = False
        self.is_due = False  # somebody waits, and has seen to it that it is sealed
        self.held_at = -1  # when it was due and not sealed, since nothing more could leave
        self.callbacks: deque[tuple[Delivery, Callable[[], None]]] = deque()
        self.waiters: deque[threading.Lock] = deque()  # of threads that want it all answered
        # Below is the machine's alone.
        self.sealed: deque[Batch] = deque()  # not sent yet
        # What was sent, in order, from the first that is not answered on.
        self.in_flight: deque[Batch] = deque()
        self.places = 0  # batches that were ever sent: a partition remembers the last few of them
        self.target: PartitionLeader | None = None  # to whom they were sent
        self.epoch = self.config.producer_epoch  # rises when a batch is lost for good
        self.next_sequence = -1 if self.config.is_named else 0  # -1: to be asked for
        self.is_asking = 0  # the request for it that is under way: see Sequences
        self.known = Waitable()  # done once the next sequence is known
        self.must_resend = self.must_ask = self.is_renumbering = False
        # Whether the partition has taken a batch of this epoch since we began to send. Before, only
        # one is sent at a time. An epoch goes on where the partition stands, and that may not be
        # where we think: of two batches it would refuse the first, and could take the second.
        self.is_sure = not self.config.is_named
        self.retry_at = 0
        self.tries = 0  # since something was answered last
        self.trouble: PymqError | None = None  # what stood in the way last, since then

    # --- sealing --------------------------------------------------------------------------------

    def add(self, item: Row | DeliveryPart) -> OpenBatch:
        """Take something in, and say where it gathers; any thread may call this.

        ``Producer.send`` does the same by itself.
        """
        gathering = self.gathering
        gathering.items.append(item)
        if self.gathering is not gathering:
            self.late.append(gathering)
        return gathering

    def _take(self) -> tuple[list[Row | DeliveryPart], list[OpenBatch]]:
        """Take out what has gathered; returns it in its order, and where it did."""
        gathering = self.gathering
        self.gathering = OpenBatch(self)  # First this, then empty it: see the module's top.
        taken, sources = gathering.take(), [gathering]
        before: list[Row | DeliveryPart] = []
        for _ in range(len(self.late)):  # after that, since what a thread adds next is not late
            late = self.late.popleft()
            if late is gathering:
                taken += late.take()
            else:
                before += late.take()
                sources.append(late)
        return before + taken if before else taken, sources

    def seal(self, now: int, wall_ms: int) -> None:
        """Make batches of everything that was sent so far."""
        # First this, then empty it: see the module's top.
        self.is_armed = self.is_due = False
        self.held_at = -1
        taken, sources = self._take()
        self.bytes = 0
        if self.topic_queues is not None:
            self.limit = min(SPREAD_BYTES, self.config.batch_bytes)
            self.topic_queues.left(self)
        made: list[Batch] = []
        until = now + self.config.delivery_timeout_ms
        if self.has_parts and not _SINGLE.issuperset(map(type, taken)):
            for is_bulk, group in groupby(taken, _is_part):
                items: list[Any] = list(group)
                if is_bulk:
                    self._seal_parts(items, wall_ms, until)
                else:
                    made += self._seal_run(items, wall_ms, until)
        else:
            made = self._seal_run(taken, wall_ms, until)  # type: ignore[arg-type] # no parts among them
        for source in sources:
            source.batches += made
        if self.sealed:
            while self.waiters:
                self.sealed[-1].wake(self.waiters.popleft())
            # Some are put back, for records that come while we seal: those are the next seal's.
            for _ in range(len(self.callbacks)):
                try:
                    entry = self.callbacks.popleft()
                except IndexError:
                    break  # Whoever added it has found its batch, and taken it back.
                self._attach(*entry)

    def _attach(self, delivery: Delivery, callback: Callable[[], None]) -> None:
        batch = batch_of(delivery)
        if batch is not None:
            batch.then(callback)
        else:
            self.callbacks.append((delivery, callback))  # Its record came after this seal.

    def _seal_run(self, run: list[Row], wall_ms: int, until: int) -> list[Batch]:
        """Make batches of records that follow each other; as a rule it is one."""
        if not run:
            return []
        columns = ColumnBuffer([row[0] for row in run])
        if self.has_keys:
            columns.keys = [row[1] if len(row) > 1 else None for row in run]
        if self.has_extras:
            columns.headers = [row[2] if len(row) > 2 else () for row in run]
            times = [row[3] if len(row) > 2 else None for row in run]
            if any(time is not None for time in times):
                columns.timestamps = [wall_ms if time is None else time for time in times]
        limit, size = self.config.batch_bytes, columns.size
        if len(run) <= COUNT_MAX and size <= limit + (limit >> 1):
            batch = Batch(self, columns, size, wall_ms, until, run)
            self.sealed.append(batch)
            return [batch]
        start, made = 0, []
        for end in _cuts(columns, limit):
            part = columns.cut(start, end)
            made.append(Batch(self, part, part.size, wall_ms, until, run[start:end]))
            start = end
        self.sealed += made
        return made

    def _seal_parts(self, parts: list[DeliveryPart], wall_ms: int, until: int) -> None:
        """Make batches of bulk sends in a row: small ones together, large ones cut."""
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
        """Make one batch of several bulk sends, or as many as it takes of a single one."""
        if len(parts) == 1:
            (part,) = parts
            start = 0
            for end in _cuts(part.columns, self.config.batch_bytes):
                columns = part.columns.cut(start, end)
                batch = Batch(self, columns, columns.size, wall_ms, until)
                part.pieces.append((batch, 0, batch.count))
                self.sealed.append(batch)
                start = end
        elif parts:
            columns = joined([part.columns for part in parts])
            size = sum(part.size for part in parts)
            batch = Batch(self, columns, size, wall_ms, until)
            start = 0
            for part in parts:
                part.pieces.append((batch, start, start + part.count))
                start += part.count
            self.sealed.append(batch)

    # --- numbering ------------------------------------------------------------------------------

    def is_for_another(self, topic_id: str) -> bool:
        """Whether the numbers here are for another topic of that name."""
        return self.topic_id not in ("", topic_id)

    def meet(self, topic_id: str) -> None:
        """A topic that was deleted and made anew knows nothing of the numbers of the old one.

        Under the same epoch, what was sent to the old one could be taken for what comes now.
        """
        if self.is_for_another(topic_id):
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
        """Only the broker knows where the partition stands; whoever wants to know it waits."""
        self.next_sequence = -1
        if self.known.is_done:
            self.known = Waitable()

    def number(self, batch: Batch, acks: AckMode) -> EncodedBatch:
        """Encode a batch with the numbers that it has in its partition.

        What is not answered has none: its loss could not be told from its repetition.
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
                width=columns.width,
            )
            batch.columns = None
        assert encoded is not None, "a batch has its records, encoded or not"
        if not named:
            return encoded
        if batch.sequence < 0 or self._is_void(batch, encoded):
            if batch.sequence >= 0:
                self._remember(batch, encoded)
            batch.sequence = self.next_sequence
            encoded = batch.encoded = encoded.numbered(self.epoch, batch.sequence)
        # What was sent before keeps its number, even if those after it were answered: under another
        # it would be written twice, and under that of another it would be taken for that one.
        self.next_sequence = max(self.next_sequence, batch.sequence + batch.count)
        return encoded

    def _is_void(self, batch: Batch, encoded: EncodedBatch) -> bool:
        """Whether the numbers of a batch are of an earlier epoch, and nothing is written there."""
        is_past = encoded.header.producer_epoch != self.epoch
        return is_past and batch.sequence >= self.next_sequence

    def renumber(self, batch: Batch, now: int) -> None:
        """A batch is lost for good: those after it take its place, under a new epoch.

        The new epoch fences the lost batch, should it turn up at the broker after all. It may be
        there already, and those after it, too: the partition says so when it is sent the next one.
        """
        if batch.sequence < 0:
            return
        self._raise_epoch()
        if self.next_sequence >= 0:
            self.next_sequence = min(self.next_sequence, batch.sequence)
        self.must_resend = True
        self.retry_at = now

    def void(self, expected: int) -> None:
        """The partition goes on at *expected*: what is in flight is not there, by these numbers.

        It may be there by earlier ones: it is asked for by those first, the last ones first. What
        is not there by any gets a new number, and its old ones are kept, since whoever said so may
        have been a leader that was none any more.
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
        """A batch may have been written under the numbers that it has now."""
        batch.past = [*batch.past, (encoded.header.producer_epoch, batch.sequence)][-PAST_MAX:]

    def taken(self, batch: Batch, epoch: int) -> None:
        """The partition has taken a batch of *epoch*: those behind it may be sent together."""
        if batch.sequence >= 0 and epoch == self.epoch:
            self.is_sure = True

    def _raise_epoch(self) -> None:
        self.is_sure = False
        if not self.is_renumbering:
            self.is_renumbering = True
            self.epoch += 1

    # --- sending --------------------------------------------------------------------------------

    def next_batch(self, unanswered: int) -> Batch | None:
        """Take out the next batch if it may leave; *unanswered* have left that need no answer."""
        in_flight, most = self.in_flight, self.config.max_in_flight
        if not self.sealed or len(in_flight) + unanswered >= most:
            return None
        batch = self.sealed[0]
        if in_flight:
            last = in_flight[-1]
            if not self.is_sure and last.sequence >= 0:
                return None  # It tells where the partition stands.
            if self._is_of_the_past(last):
                return None  # The next one would fence it.
            place = batch.place or self.places + 1
            if place >= in_flight[0].place + most:
                return None  # The partition would forget the first one.
        if not batch.place:
            self.places += 1
            batch.place = self.places
        return self.sealed.popleft()

    def _is_of_the_past(self, batch: Batch) -> bool:
        """Whether a batch is asked for by the numbers of an earlier epoch."""
        encoded = batch.encoded
        return (
            encoded is not None
            and batch.sequence >= 0
            and encoded.header.producer_epoch < self.epoch
        )

    @property
    def pause_ms(self) -> int:
        """How long to wait before something is tried again, after what has failed so far."""
        return min(RETRY_MS << min(self.tries, 10), RETRY_MAX_MS)

    def shift(self) -> None:
        """Let go of what is answered, up to the first that is not."""
        in_flight = self.in_flight
        while in_flight and in_flight[0].is_done:
            in_flight.popleft()

    def resume(self) -> bool:
        """Begin again, once nothing in flight is waited for, at the first that is not written."""
        if not self.must_resend or any(batch.request for batch in self.in_flight):
            return False
        self.must_resend = False
        again = [batch for batch in self.in_flight if not batch.is_done]
        self.in_flight.clear()
        self.target, self.is_sure = None, False
        if self.must_ask:
            self.must_ask = False
            self.forget_sequence()  # Who knows what became of what was given up?
        self.is_renumbering = False
        self.sealed.extendleft(reversed(again))
        return True


def _is_part(item: Row | DeliveryPart) -> bool:
    return isinstance(item, DeliveryPart)


def _cuts(columns: ColumnBuffer, limit: int) -> Sequence[int]:
    """Where to cut records so that each batch has about *limit* bytes: the end of each."""
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
