"""A consumer of typed values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Never, TypeVar

from pymq.client.base import Handle
from pymq.client.consumer.consumer import Consumer
from pymq.client.counters import Counters
from pymq.client.options import REQUEST_S
from pymq.client.typed.values import Bad, TypedRecord, Values
from pymq.core.batch.record import Record

T = TypeVar("T")

Typed = TypedRecord[T] | Iterable[TypedRecord[T]]


class TypedConsumer(Handle, Generic[T]):
    """Gets records with decoded values; made by :meth:`TypedTopic.consumer`.

    The attribute ``consumer`` is the underlying :class:`pymq.Consumer`, for everything except
    values: positions, lag, pause, status.
    """

    def __init__(
        self,
        consumer: Consumer,
        values: Values[T],
        tally: Counters,
        on_bad: Callable[[Bad], object] | None,
    ) -> None:
        self.consumer = consumer
        self._values = values
        self._tally = tally
        self._on_bad = on_bad

    def poll(self, max_records: int = 500, timeout: float | None = 1.0) -> list[TypedRecord[T]]:
        """Return up to *max_records* records as soon as there is one, or none after *timeout*
        seconds.

        Errors are those of :meth:`pymq.Consumer.poll`.
        """
        monotonic = self.consumer._driver.monotonic
        until = None if timeout is None else monotonic() + timeout
        left = timeout
        while records := self.consumer.poll(max_records, left):
            if found := self._decode(records):
                return found
            left = None if until is None else max(0.0, until - monotonic())
        return []

    def __iter__(self) -> Iterator[TypedRecord[T]]:
        """Iterate over records without end, or until the consumer is closed."""
        for record in self.consumer:
            yield from self._decode([record])

    def until_end(self) -> Iterator[TypedRecord[T]]:
        """Iterate up to the current end of the topic; see :meth:`pymq.Consumer.until_end`."""
        for record in self.consumer.until_end():
            yield from self._decode([record])

    def pushed(self, on_record: Callable[[TypedRecord[T]], object]) -> Callable[[Record], None]:
        """Return a callback that calls *on_record* with each record that can be decoded."""

        def push(record: Record) -> None:
            for found in self._decode([record]):
                on_record(found)

        return push

    def _decode(self, records: list[Record]) -> list[TypedRecord[T]]:
        if unknown := self._values.unknown(records):
            self._values.learn(unknown)
        good, bad = self._values.decode(records)
        if bad:
            self._tally.undecodable += len(bad)
            note(bad, self._on_bad)
            if self.consumer.group is not None:
                for record, error in bad:
                    self.consumer.reject(record, error)
        return good

    def ack(self, records: Typed[T]) -> None:
        """Acknowledge records; see :meth:`pymq.Consumer.ack`."""
        self.consumer.ack(raw(records))

    def nack(
        self,
        records: Typed[T],
        delay: float | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        """Return records to the group; see :meth:`pymq.Consumer.nack`."""
        self.consumer.nack(raw(records), delay, error)

    def reject(self, records: Typed[T], error: BaseException | str | None = None) -> None:
        """Give records up as dead letters; see :meth:`pymq.Consumer.reject`."""
        self.consumer.reject(raw(records), error)

    def commit(self, *nothing: Never, timeout: float | None = REQUEST_S) -> None:
        """Wait until all acknowledgements are durable; see :meth:`pymq.Consumer.commit`."""
        self.consumer.commit(*nothing, timeout=timeout)

    def close(self) -> None:
        """Close the consumer; see :meth:`pymq.Consumer.close`."""
        self.consumer.close()

    def _forgo(self) -> None:
        self.consumer._forgo()


def raw(records: Typed[T]) -> list[Record]:
    """Return the records as they were read."""
    return [records.raw] if isinstance(records, TypedRecord) else [each.raw for each in records]


def note(bad: list[Bad], on_bad: Callable[[Bad], object] | None) -> None:
    """Log records that cannot be decoded, and pass these records to the application."""
    import logging  # on demand: it takes long to load

    for each in bad:
        logging.getLogger("pymq").warning("%s", each[1])
        if on_bad is not None:
            on_bad(each)
