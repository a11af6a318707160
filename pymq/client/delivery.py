"""What ``send`` returns, and what travels: a delivery a record, a batch a request.

A delivery is made for every record, so it holds three references and nothing else: no lock, no
future. It learns its place when its batch is sealed, and its offset when the batch is answered;
whoever waits for it waits for the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pymq.client.base import Driver, Waitable
from pymq.core.columns import ANY, Headers, width_of
from pymq.core.record import RecordBatch, RecordMetadata
from pymq.core.types import NEVER
from pymq.errors import DeliveryTimeout, PymqError

if TYPE_CHECKING:
    from pymq.client.base import Loop
    from pymq.client.queue import Queue
    from pymq.client.sender import Sender


RECORD_BYTES = 16  # what a record counts in the buffer beside its value and key


class Columns:
    """Records as columns; None where no record has such a thing.

    How long the values are is looked at once, since that costs as much as to copy them: *width* is
    what :func:`pymq.core.columns.width_of` says.
    """

    __slots__ = ("headers", "keys", "timestamps", "values", "width")

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
        self.width = width_of(values) if width == ANY else width

    def __len__(self) -> int:
        return len(self.values)

    def sizes(self) -> list[int]:
        """What each record counts in a producer's buffer."""
        sizes = [len(item) + RECORD_BYTES for item in self.values]
        if self.keys is not None:
            sizes = [n + len(key or b"") for n, key in zip(sizes, self.keys, strict=True)]
        if self.headers is not None:
            sizes = [n + header_bytes(h) for n, h in zip(sizes, self.headers, strict=True)]
        return sizes

    @property
    def size(self) -> int:
        """What the records count in a producer's buffer: what they hold and something for each."""
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
        """What the largest record has, value and key together; there is one at least."""
        if self.keys is not None:
            pairs = zip(self.values, self.keys, strict=True)
            return max(len(value) + len(key or b"") for value, key in pairs)
        return max(map(len, self.values)) if self.width is None else self.width

    def cut(self, start: int, end: int) -> Columns:
        """The records from number *start* up to, not including, number *end*."""
        if start == 0 and end == len(self.values):
            return self
        keys = self.keys[start:end] if self.keys is not None else None
        headers = self.headers[start:end] if self.headers is not None else None
        times = self.timestamps[start:end] if self.timestamps is not None else None
        # What is cut from values of many lengths is not looked at again.
        return Columns(self.values[start:end], keys, headers, times, self.width)


def joined(many: Sequence[Columns]) -> Columns:
    """The records of bulk sends one behind the other: all of these have keys, or none has."""
    widths = {columns.width for columns in many}
    width = widths.pop() if len(widths) == 1 else None
    values = [value for columns in many for value in columns.values]
    if many[0].keys is None:
        return Columns(values, width=width)
    return Columns(values, [key for columns in many for key in columns.keys or ()], width=width)


def header_bytes(headers: Headers) -> int:
    """What a record's headers count in a producer's buffer."""
    return sum([len(name) + len(item) for name, item in headers])


class Batch(Waitable):
    """Records of one partition on their way: sealed, sent, answered."""

    __slots__ = (
        "base_offset",
        "columns",
        "count",
        "deliveries",
        "encoded",
        "error",
        "is_asked_for",
        "maybe",
        "past",
        "place",
        "queue",
        "request",
        "sent_at",
        "sequence",
        "size",
        "timestamp_ms",
        "timestamps",
        "until",
    )

    def __init__(
        self,
        queue: Queue,
        columns: Columns,
        size: int,
        wall_ms: int,
        until: int,
        deliveries: list[Delivery] | None = None,
    ) -> None:
        super().__init__()
        self.queue = queue
        self.columns: Columns | None = columns  # until it is encoded
        self.count = len(columns)
        self.size = size  # bytes that its records count in the producer's buffer
        self.timestamp_ms = wall_ms  # of its records that have no time of their own
        self.timestamps = columns.timestamps
        self.until = until  # when its delivery has taken too long
        self.deliveries = deliveries  # None: it was part of a bulk send
        self.encoded: RecordBatch | None = None
        self.sequence = -1
        self.past: list[tuple[int, int]] = []  # (epoch, sequence): sent so, before other numbers
        self.maybe: list[tuple[int, int]] = []  # those of them that are still to be asked for
        self.is_asked_for = False  # by numbers that it had before
        self.place = 0  # among all batches that its queue ever sent, once it is sent
        self.request = 0  # 0: not under way
        self.sent_at = 0
        self.base_offset = -1
        self.error: PymqError | None = None
        if deliveries is not None:
            for index, delivery in enumerate(deliveries):
                delivery.owner = self
                delivery.index = index

    def apart(self) -> list[Delivery]:
        """The records one by one, also those of a bulk send."""
        if self.deliveries is None:
            source = self.columns or self.encoded
            assert source is not None, "an unanswered batch has its records"
            keys = source.keys or [None] * self.count
            self.deliveries = []
            for index, (item, key) in enumerate(zip(source.values, keys, strict=True)):
                delivery = delivery_of(self, item, key)
                delivery.index = index
                self.deliveries.append(delivery)
        return self.deliveries

    def metadata(self, index: int) -> RecordMetadata:
        """Where record number *index* of the batch was written."""
        base, times = self.base_offset, self.timestamps
        return RecordMetadata(
            self.queue.topic,
            self.queue.partition,
            base + index if base >= 0 else -1,
            self.timestamp_ms if times is None else times[index],
        )

    def all_metadata(self, start: int, end: int) -> list[RecordMetadata]:
        """Where its records from number *start* up to, not including, *end* were written."""
        return [self.metadata(index) for index in range(start, end)]


class Delivery:
    """The fate of one record that was sent."""

    __slots__ = ("index", "key", "owner", "value")

    headers: Headers = ()
    timestamp_ms: int | None = None
    # Whoever makes one sets these: an ``__init__`` would cost more than all the rest of a delivery.
    owner: Queue | Batch  # its queue, then its batch
    value: bytes
    key: bytes | None
    index: int  # its place in the batch, once it has one

    @property
    def topic(self) -> str:
        """The topic that it was sent to."""
        owner = self.owner
        return owner.queue.topic if isinstance(owner, Batch) else owner.topic

    @property
    def partition(self) -> str:
        """The partition that it was sent to."""
        owner = self.owner
        return owner.queue.partition if isinstance(owner, Batch) else owner.partition

    def done(self) -> bool:
        """Whether the record was answered for, or has failed."""
        return isinstance(self.owner, Batch) and self.owner.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is as safe as was asked for, and return where it is.

        Waiting sends it at once, whatever ``linger_ms`` says.

        Raises:
            DeliveryTimeout: *timeout* seconds are over; the record is still being sent.
            PymqError: what kept the record from being written.
        """
        batch = self._settled(timeout)
        if batch.error is not None:
            raise batch.error
        return batch.metadata(self.index)

    def exception(self, timeout: float | None = None) -> PymqError | None:
        """Wait as :meth:`result` does, and return the error or None."""
        return self._settled(timeout).error

    def _settled(self, timeout: float | None) -> Batch:
        owner = self.owner
        queue = owner.queue if isinstance(owner, Batch) else owner
        batch = queue.backlog.settle(self, timeout)
        if batch.error is not None:
            queue.backlog.looked_at(self)
        return batch

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call *callback* with this delivery once it is done, in the thread that finishes it."""
        owner = self.owner
        queue = owner.queue if isinstance(owner, Batch) else owner

        def call() -> None:
            callback(self)

        queue.backlog.on_done(self, call)

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<Delivery {self.topic}/{self.partition} {state}>"


class FullDelivery(Delivery):
    """A delivery whose record has headers or a time of its own."""

    __slots__ = ("headers", "timestamp_ms")

    headers: Headers
    timestamp_ms: int | None


def delivery_of(owner: Queue | Batch, value: bytes, key: bytes | None) -> Delivery:
    """Make a delivery, where it need not be fast."""
    made = Delivery()
    made.owner, made.value, made.key = owner, value, key
    return made


Piece = tuple[Batch, int, int]  # records of a batch, from one number up to another


class Deliveries:
    """The fates of many records that were sent with one call, in the order of the call."""

    __slots__ = ("_driver", "_parts", "_sender")

    def __init__(self, driver: Driver, parts: Sequence[Part], sender: Sender) -> None:
        self._driver = driver
        self._parts = parts
        self._sender = sender

    def __len__(self) -> int:
        return sum(part.count for part in self._parts)

    def done(self) -> bool:
        """Whether all are answered for, or have failed."""
        return all(part.batches_done() for part in self._parts)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all are as safe as was asked for.

        Raises:
            DeliveryTimeout: *timeout* seconds are over; the records are still being sent.
            PymqError: the first thing that kept a record from being written.
        """
        until = NEVER if timeout is None else self._driver.monotonic() + timeout
        if not all(part.pieces for part in self._parts):
            self._sender.seal()  # There is nothing to wait for before they are sealed.
        for batch, _, _ in self._pieces():
            left = None if timeout is None else until - self._driver.monotonic()
            if not self._driver.wait(batch, left):
                raise DeliveryTimeout(f"not all records were answered within {timeout} s")
        failed = [piece for piece in self._pieces() if piece[0].error is not None]
        for batch, start, end in failed:
            batch.queue.backlog.looked_at_batch(batch, start, end)
        if failed and (error := failed[0][0].error) is not None:
            raise error

    def _pending(self, loop: Loop) -> list[Batch]:
        """What is still waited for; the caller holds the driver, and turns the loop."""
        if not all(part.pieces for part in self._parts):
            self._sender.seal_by(loop)
        return [batch for batch, _, _ in self._pieces() if not batch.is_done]

    def _pieces(self) -> Iterator[Piece]:
        for part in self._parts:
            yield from part.pieces

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait as :meth:`wait` does, and return where each record is."""
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
        """Wait as :meth:`wait` does, and return the first error or None."""
        try:
            self.wait(timeout)
        except DeliveryTimeout:
            raise
        except PymqError as error:
            return error
        return None


class Part:
    """The records of one bulk send that go to one partition."""

    __slots__ = ("columns", "count", "pieces", "places", "size")

    def __init__(self, columns: Columns, places: Sequence[int] | None) -> None:
        self.columns = columns
        self.count = len(columns)
        self.size = columns.size
        self.places = places  # where its records were in the call; None: everywhere
        self.pieces: list[Piece] = []  # once it is sealed

    def batches_done(self) -> bool:
        """Whether it was sealed and all of it was answered."""
        return bool(self.pieces) and all(batch.is_done for batch, _, _ in self.pieces)
