"""Deliveries, which ``send`` returns for each record, and batches, which the producer sends.

There is a delivery for each record, so a delivery holds only two references: no lock, no future.
Only the application keeps a delivery, and nothing updates it. When the application asks for the
state of a delivery, the delivery looks for its record in the batches that were made since. A thread
that waits for a delivery waits for its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from pymq.client.base import ClientDriver, Waitable, check_timeout
from pymq.core.batch.columns import ANY, Headers, width_of
from pymq.core.batch.priority import priority_of
from pymq.core.batch.record import EncodedBatch, RecordMetadata
from pymq.core.types import NEVER
from pymq.errors import ConfigError, DeliveryTimeout, PymqError

if TYPE_CHECKING:
    from pymq.client.base import ClientLoop
    from pymq.client.producer.partition_queue import PartitionQueue
    from pymq.client.producer.sender import Sender


# A record in its queue: a value, and optionally a key, headers and the record's own time. Each row
# is a new tuple, so that two equal records stay distinct. The garbage collector soon stops tracking
# such tuples, unlike objects of a class.
Row = tuple[bytes] | tuple[bytes, bytes | None] | tuple[bytes, bytes | None, Headers, int | None]

_VALUE = itemgetter(0)  # of a row
RECORD_BYTES = 16  # overhead counted for each record in the buffer, in addition to value and key


class ColumnBuffer:
    """Records as columns; a column is None if no record has such a part.

    *width* is the result of :func:`pymq.core.batch.columns.width_of` for the values. It is computed
    once, since reading the lengths costs as much as copying the values.
    """

    __slots__ = ("attributes", "headers", "keys", "timestamps", "values", "width")

    def __init__(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        timestamps: Sequence[int] | None = None,
        width: int | None = ANY,
    ) -> None:
        self.values = values
        self.keys = keys
        self.headers = headers
        self.timestamps = timestamps
        # attributes of the batch, for records with a delay, an expiry or a route
        self.attributes = 0
        self.width = width_of(values) if width == ANY else width

    def __len__(self) -> int:
        return len(self.values)

    def sizes(self) -> list[int]:
        """The size of each record in a producer's buffer."""
        sizes = [len(item) + RECORD_BYTES for item in self.values]
        if self.keys is not None:
            sizes = [n + len(key or b"") for n, key in zip(sizes, self.keys, strict=True)]
        if self.headers is not None:
            sizes = [n + header_bytes(h) for n, h in zip(sizes, self.headers, strict=True)]
        return sizes

    @property
    def size(self) -> int:
        """The size of the records in a producer's buffer: their content, and an overhead for each
        record.
        """
        if self.width is not None:
            size = (self.width + RECORD_BYTES) * len(self.values)
        else:
            size = sum(map(len, self.values)) + RECORD_BYTES * len(self.values)
        if self.keys is not None:
            size += sum(len(key) for key in self.keys if key is not None)
        if self.headers is not None:
            size += sum(map(header_bytes, self.headers))
        return size

    @property
    def largest(self) -> int:
        """The size of the largest record, value and key together."""
        if self.keys is not None:
            pairs = zip(self.values, self.keys, strict=True)
            return max(len(value) + len(key or b"") for value, key in pairs)
        return max(map(len, self.values)) if self.width is None else self.width

    def cut(self, start: int, end: int) -> ColumnBuffer:
        """The records with indexes from *start* to *end*, exclusive."""
        if start == 0 and end == len(self.values):
            return self
        keys = self.keys[start:end] if self.keys is not None else None
        headers = self.headers[start:end] if self.headers is not None else None
        times = self.timestamps[start:end] if self.timestamps is not None else None
        # If the values have different lengths, the parts are not checked again.
        part = ColumnBuffer(self.values[start:end], keys, headers, times, self.width)
        part.attributes = self.attributes
        return part

    def with_headers(self, headers: Sequence[Headers]) -> ColumnBuffer:
        """The same records with other headers."""
        other = ColumnBuffer(self.values, self.keys, headers, self.timestamps, self.width)
        other.attributes = self.attributes
        return other


def columns_of(run: list[Row], wall_ms: int, *, has_keys: bool, has_extras: bool) -> ColumnBuffer:
    """Return records as columns; *wall_ms* is the timestamp of records without their own."""
    columns = ColumnBuffer(list(map(_VALUE, run)))
    if has_keys:
        columns.keys = [row[1] if len(row) > 1 else None for row in run]
    if has_extras:
        columns.headers = [row[2] if len(row) > 2 else () for row in run]
        times = [row[3] if len(row) > 2 else None for row in run]
        if any(time is not None for time in times):
            columns.timestamps = [wall_ms if time is None else time for time in times]
    return columns


def by_priority(run: list[Row], *, in_order: bool) -> list[tuple[int, list[Row]]]:
    """Group records by priority, highest first; with *in_order* only consecutive records."""
    levels = [priority_of(row[2]) if len(row) > 2 else 0 for row in run]
    places: Sequence[int] = range(len(run))
    if not in_order:
        places = sorted(places, key=levels.__getitem__, reverse=True)
    grouped = groupby(places, key=levels.__getitem__)
    return [(level, [run[place] for place in group]) for level, group in grouped]


def joined(many: Sequence[ColumnBuffer]) -> ColumnBuffer:
    """Join the records of several bulk sends, which all have keys or all have none."""
    widths = {columns.width for columns in many}
    width = widths.pop() if len(widths) == 1 else None
    values = [value for columns in many for value in columns.values]
    if many[0].keys is None:
        return ColumnBuffer(values, width=width)
    return ColumnBuffer(
        values, [key for columns in many for key in columns.keys or ()], width=width
    )


def header_bytes(headers: Headers) -> int:
    """Return the size of a record's headers in a producer's buffer."""
    return sum([len(name) + len(item) for name, item in headers])


class Batch(Waitable):
    """A batch of records of one partition: closed, sent, answered."""

    __slots__ = (
        "_indexes",
        "base_offset",
        "columns",
        "count",
        "dropped",
        "encoded",
        "error",
        "is_asked_for",
        "is_unsure",
        "maybe",
        "past",
        "place",
        "queue",
        "request",
        "rows",
        "sent_at",
        "sequence",
        "size",
        "timestamp_ms",
        "timestamps",
        "until",
    )

    def __init__(
        self,
        queue: PartitionQueue,
        columns: ColumnBuffer,
        size: int,
        wall_ms: int,
        until: int,
        rows: Sequence[Row] | None = None,
    ) -> None:
        # Like ``Waitable.__init__``, but without a call, because each request makes a batch.
        self.is_done, self.waiters, self._callbacks = False, None, None
        self.queue = queue
        # records of the batch as columns, until they are encoded
        self.columns: ColumnBuffer | None = columns
        self.count = len(columns.values)
        self.size = size  # size of the batch's records in the producer's buffer
        self.timestamp_ms = wall_ms  # timestamp of records without their own
        self.timestamps = columns.timestamps
        self.until = until  # the time at which the batch's delivery times out
        self.rows = rows  # None if the batch was part of a bulk send
        self._indexes: dict[int, int] | None = None  # index of each row by its id, built on request
        self.encoded: EncodedBatch | None = None
        self.sequence = -1
        # (epoch, sequence) pairs under which the batch was sent earlier
        self.past: list[tuple[int, int]] = []
        # the pairs of *past* that the producer has not looked for in the log yet
        self.maybe: list[tuple[int, int]] = []
        # whether the producer is looking for the batch under an earlier pair
        self.is_asked_for = False
        # number of this batch among all batches of its queue, set when the batch is sent
        self.place = 0
        self.request = 0  # id of the request in flight; 0: none
        self.sent_at = 0
        # ids of requests that were resent before they were answered
        self.dropped: tuple[int, ...] = ()
        # whether a broker has refused the batch, but may have written it earlier
        self.is_unsure = False
        self.base_offset = -1
        self.error: PymqError | None = None

    @property
    def may_be_written(self) -> bool:
        """Whether the log may hold the batch, as a broker may carry out one of its requests."""
        return bool(self.request or self.dropped or self.is_unsure)

    def apart(self) -> list[Delivery]:
        """Split a bulk send into single records."""
        if self.rows is None:
            source = self.columns or self.encoded
            assert source is not None, "an unanswered batch has its records"
            keys = source.keys or [None] * self.count
            self.rows = list(zip(source.values, keys, strict=True))
        found = []
        for index, row in enumerate(self.rows):
            delivery = Delivery()
            delivery.owner, delivery.row, delivery.index = self, row, index
            found.append(delivery)
        return found

    def index_of(self, row: Row) -> int | None:
        """Return the index of a single record, if it is in this batch."""
        rows = self.rows
        if rows is None or len(rows) == 1:
            return 0 if rows is not None and rows[0] is row else None
        if self._indexes is None:
            self._indexes = {id(each): index for index, each in enumerate(rows)}
        return self._indexes.get(id(row))

    def metadata(self, index: int) -> RecordMetadata:
        """Return the metadata of record *index* of the batch."""
        base, times = self.base_offset, self.timestamps
        return RecordMetadata(
            self.queue.topic,
            self.queue.partition,
            base + index if base >= 0 else -1,
            self.timestamp_ms if times is None else times[index],
        )

    def all_metadata(self, start: int, end: int) -> list[RecordMetadata]:
        """Return the metadata of its records from *start* to *end*, exclusive."""
        return [self.metadata(index) for index in range(start, end)]


class OpenBatch:
    """Collects records of a queue until they are closed into batches; then has these batches.

    A thread may add a record just after the machine has replaced the queue's open batch. The thread
    then reports the old open batch as late
    (:meth:`pymq.client.producer.partition_queue.PartitionQueue.add`), and the record goes into a
    later batch.
    """

    __slots__ = ("batches", "items", "queue")

    def __init__(self, queue: PartitionQueue) -> None:
        self.queue = queue
        self.items: list[Row | DeliveryPart] = []  # appended to by any thread
        self.batches: list[Batch] = []  # batches that may contain some of the rows

    def take(self) -> list[Row | DeliveryPart]:
        """Take out the records; records that other threads append at the same time remain."""
        taken = self.items[:]
        del self.items[: len(taken)]
        return taken


class Delivery:
    """The result of one ``send``, now or in the future.

    Two deliveries are equal if they belong to the same record.
    """

    __slots__ = ("index", "owner", "row")

    # The caller sets these attributes, because an ``__init__`` would cost more than the rest of a
    # delivery.
    owner: OpenBatch | Batch  # the record's open batch, until its final batch is known; ...
    row: Row
    index: int  # ... then the record's index in the batch

    @property
    def topic(self) -> str:
        """The topic of the record."""
        return self.owner.queue.topic

    @property
    def partition(self) -> str:
        """The partition of the record."""
        return self.owner.queue.partition

    @property
    def value(self) -> bytes:
        """The payload."""
        return self.row[0]

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        row = self.row
        return row[1] if len(row) > 1 else None

    @property
    def headers(self) -> Headers:
        """Pairs of a name and a value."""
        row = self.row
        return row[2] if len(row) > 2 else ()

    @property
    def timestamp_ms(self) -> int | None:
        """The record's own time, or None for that of its batch."""
        row = self.row
        return row[3] if len(row) > 2 else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Delivery) and self.row is other.row

    def __hash__(self) -> int:
        return id(self.row)

    def done(self) -> bool:
        """Whether the record was acknowledged or has failed."""
        batch = batch_of(self)
        return batch is not None and batch.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged, and return its metadata.

        Waiting for a delivery sends the record at once, regardless of ``linger_ms``.

        Raises:
            DeliveryTimeout: *timeout* seconds are over; the producer continues to send.
            PymqError: the reason why the record was not written.
        """
        batch = self.owner.queue.backlog.settle(self, timeout)
        if batch.error is not None:
            raise batch.error
        return batch.metadata(self.index)

    def exception(self, timeout: float | None = None) -> PymqError | None:
        """Wait like :meth:`result`, and return the error or None."""
        return self.owner.queue.backlog.settle(self, timeout).error

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call *callback* with this delivery when it is done, in the thread that finishes the
        delivery.
        """

        def call() -> None:
            callback(self)

        self.owner.queue.backlog.on_done(self, call)

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<Delivery {self.topic}/{self.partition} {state}>"


def batch_of(delivery: Delivery) -> Batch | None:
    """Return a record's batch when it is closed; ``delivery.index`` is then the record's index."""
    owner = delivery.owner
    if isinstance(owner, Batch):
        return owner
    for batch in owner.batches:
        index = batch.index_of(delivery.row)
        if index is not None:
            # Set the index first: another thread that finds the batch needs it.
            delivery.index = index
            delivery.owner = batch
            return batch
    return None


Piece = tuple[Batch, int, int]  # a batch, and the first and last (exclusive) of some records in it


class Deliveries:
    """The result of one ``send_many``: one entry for each record, in the order of the call."""

    __slots__ = ("_driver", "_parts", "_sender")

    def __init__(self, driver: ClientDriver, parts: Sequence[DeliveryPart], sender: Sender) -> None:
        self._driver = driver
        self._parts = parts
        self._sender = sender

    def __len__(self) -> int:
        return sum(part.count for part in self._parts)

    def done(self) -> bool:
        """Whether all records were acknowledged or have failed."""
        return all(part.batches_done() for part in self._parts)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all records are acknowledged.

        Raises:
            DeliveryTimeout: *timeout* seconds are over; the producer continues to send.
            PymqError: the error of the first record that was not written.
            ConfigError: *timeout* is not a number of seconds.
        """
        check_timeout(timeout)
        until = NEVER if timeout is None else self._driver.monotonic() + timeout
        if not all(part.pieces for part in self._parts):
            self._sender.seal()  # Records have no batches until they are closed.
        for batch, _, _ in self._pieces():
            left = None if timeout is None else until - self._driver.monotonic()
            if not self._driver.wait(batch, left):
                raise DeliveryTimeout(f"not all records were answered within {timeout} s")
        failed = [piece for piece in self._pieces() if piece[0].error is not None]
        for batch, start, end in failed:
            batch.queue.backlog.looked_at_batch(batch, start, end)
        if failed and (error := failed[0][0].error) is not None:
            raise error

    def _pending(self, loop: ClientLoop) -> list[Batch]:
        """Return the unfinished batches; the caller holds the driver's lock and runs the loop."""
        if not all(part.pieces for part in self._parts):
            self._sender.seal_by(loop)
        return [batch for batch, _, _ in self._pieces() if not batch.is_done]

    def _pieces(self) -> Iterator[Piece]:
        for part in self._parts:
            yield from part.pieces

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait like :meth:`wait`, and return the metadata of each record."""
        self.wait(timeout)
        found: list[RecordMetadata | None] = [None] * len(self)
        for part in self._parts:
            rows = [row for batch, *span in part.pieces for row in batch.all_metadata(*span)]
            if part.places is None:
                return rows
            for place, row in zip(part.places, rows, strict=True):
                found[place] = row
        return [row for row in found if row is not None]

    def exception(self, timeout: float | None = None) -> PymqError | None:
        """Wait like :meth:`wait`, and return the first error or None."""
        try:
            self.wait(timeout)
        except (DeliveryTimeout, ConfigError):
            raise
        except PymqError as error:
            return error
        return None


class DeliveryPart:
    """The records of one bulk send that go to one partition."""

    __slots__ = ("columns", "count", "pieces", "places", "size")

    def __init__(self, columns: ColumnBuffer, places: Sequence[int] | None) -> None:
        self.columns = columns
        self.count = len(columns)
        self.size = columns.size
        self.places = places  # the indexes of the part's records in the call; None: all records
        self.pieces: list[Piece] = []  # the part's records in batches, after the part is closed

    def batches_done(self) -> bool:
        """Whether the part was closed and all of its batches were answered."""
        return bool(self.pieces) and all(batch.is_done for batch, _, _ in self.pieces)
