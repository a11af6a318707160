"""A topic whose values have a type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, Unpack

from pymq.client.base import Handle
from pymq.client.option_types import ConsumerMode, DeliveryMode, GroupOptions
from pymq.client.options import check_callback
from pymq.client.producer.delivery import Delivery
from pymq.client.producer.producer import HeaderPairs, Producer
from pymq.client.typed.consumer import TypedConsumer
from pymq.client.typed.values import Bad, TypedRecord, Values
from pymq.serde.compatibility import Compatibility
from pymq.serde.serializer import Schema

if TYPE_CHECKING:
    from pymq.client.client import Client

T = TypeVar("T")


class TypedTopic(Handle, Generic[T]):
    """Sends and consumes values of one type; made by :meth:`pymq.Client.topic`."""

    def __init__(
        self, client: Client, values: Values[T], compatibility: Compatibility | None
    ) -> None:
        self.name = values.topic
        self._client = client
        self._values = values
        self._compatibility = compatibility
        self._producer: Producer | None = None
        self._is_registered = False

    @property
    def schema(self) -> Schema:
        """The schema of the values."""
        return self._values.codec.schema

    def register(self) -> None:
        """Register the schema, if the topic was opened with a registry.

        The first send or the first consumer also registers the schema.

        Raises:
            SchemaIncompatible: the schema is not compatible with the earlier schemas of the topic.
        """
        if not self._is_registered and self._compatibility is not None:
            self._client.schemas.register(self.name, self.schema, self._compatibility)
        self._is_registered = True

    def send(
        self,
        value: T,
        key: bytes | None = None,
        headers: HeaderPairs | None = None,
        partition: str | int | None = None,
        timestamp_ms: int | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
        expires_s: float | None = None,
        priority: int = 0,
    ) -> Delivery:
        """Send one value; arguments and errors are those of :meth:`pymq.Producer.send`.

        Raises:
            ValueNotEncoded: the value does not fit the type; nothing was sent.
            SchemaIncompatible: see :meth:`register`.
        """
        data = self._values.encode(value)
        producer = self._producer or self._open()
        pairs = (self._values.header,) if headers is None else (*headers, self._values.header)
        return producer.send(
            self.name,
            data,
            key,
            pairs,
            partition,
            timestamp_ms,
            delay_s=delay_s,
            deliver_at=deliver_at,
            expires_s=expires_s,
            priority=priority,
        )

    def send_many(
        self, values: Iterable[T], keys: Iterable[bytes | None] | None = None
    ) -> list[Delivery]:
        """Send values; if one of them cannot be encoded, none is sent."""
        encoded = [self._values.encode(value) for value in values]
        names = [None] * len(encoded) if keys is None else list(keys)
        producer = self._producer or self._open()
        pairs = (self._values.header,)
        return [
            producer.send(self.name, data, key, pairs)
            for data, key in zip(encoded, names, strict=True)
        ]

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all values sent so far are acknowledged; see :meth:`pymq.Producer.flush`."""
        if self._producer is not None:
            self._producer.flush(timeout)

    def _open(self) -> Producer:
        self.register()
        self._producer = self._client.producer()
        return self._producer

    def consumer(
        self,
        group: str | None = None,
        mode: ConsumerMode = "ptp",
        partition: str | int | None = None,
        offset: int | Literal["begin", "end"] | None = None,
        delivery: DeliveryMode = "pull",
        on_record: Callable[[TypedRecord[T]], object] | None = None,
        credit: int = 1000,
        rack: str | None = None,
        on_bad: Callable[[Bad], object] | None = None,
        **options: Unpack[GroupOptions],
    ) -> TypedConsumer[T]:
        """Make a consumer of values; see :meth:`pymq.Client.consumer` for the other arguments.

        The consumer does not return a record whose value cannot be decoded. It calls *on_bad* with
        the record and the error. In a group the consumer also rejects the record, which becomes a
        dead letter with the error. A reader logs the error and continues.
        ``pymq_consumer_undecodable_total`` counts such records.
        """
        from pymq.client.consumer.options import CalledElsewhere

        check_callback("on_record", on_record)
        check_callback("on_bad", on_bad)
        self.register()
        elsewhere = None if on_record is None else CalledElsewhere()
        inner = self._client.consumer(
            self.name,
            group,
            mode,
            partition,
            offset,
            delivery,
            elsewhere,
            credit,
            rack,
            **options,
        )
        found = TypedConsumer(inner, self._values, self._client.tally, on_bad)
        if on_record is not None:
            inner.start_push(found.pushed(on_record), credit)
        return found

    def close(self) -> None:
        """Flush and close the producer; consumers stay open."""
        if self._producer is not None:
            self._producer.close()
