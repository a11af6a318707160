"""Typed topics for asyncio: :class:`pymq.client.typed.topic.TypedTopic` with ``await``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Literal, Never, TypeVar, Unpack

from pymq.aio.bridge import AsyncHandle, Opening, called
from pymq.aio.consumer import AsyncConsumer
from pymq.aio.delivery import AsyncDelivery
from pymq.aio.producer import AsyncProducer
from pymq.client.option_types import ConsumerMode, DeliveryMode, GroupOptions
from pymq.client.options import REQUEST_S, check_callback
from pymq.client.producer.producer import HeaderPairs
from pymq.client.typed.consumer import Typed, note, raw
from pymq.client.typed.topic import TypedTopic
from pymq.client.typed.values import Bad, TypedRecord
from pymq.core.batch.record import Record
from pymq.serde.serializer import Schema

if TYPE_CHECKING:
    from pymq.aio.client import AsyncClient

T = TypeVar("T")


class AsyncTypedTopic(AsyncHandle, Generic[T]):
    """Sends and consumes values of one type; made by :meth:`AsyncClient.topic`."""

    def __init__(self, client: AsyncClient, topic: TypedTopic[T], producer: AsyncProducer) -> None:
        self.name = topic.name
        self._client = client
        self._topic = topic
        self._values = topic._values
        self._producer = producer

    @property
    def schema(self) -> Schema:
        """The schema of the values."""
        return self._topic.schema

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
    ) -> AsyncDelivery:
        """Send one value; arguments and errors are those of :meth:`AsyncProducer.send`.

        Raises:
            ValueNotEncoded: the value does not fit the type; nothing was sent.
        """
        data = self._values.encode(value)
        pairs = (self._values.header,) if headers is None else (*headers, self._values.header)
        return self._producer.send(
            self.name,
            data,
            key,
            pairs,
            partition,
            timestamp_ms,
            delay_s,
            deliver_at,
            expires_s,
            priority,
        )

    async def flush(self, timeout: float | None = None) -> None:
        """See :meth:`AsyncProducer.flush`."""
        await self._producer.flush(timeout)

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
    ) -> Opening[AsyncTypedConsumer[T]]:
        """Make a consumer: ``async with`` or ``await`` it.

        See :meth:`pymq.client.typed.topic.TypedTopic.consumer`. ``on_record`` may be a coroutine
        function.
        """
        check_callback("on_record", on_record)
        check_callback("on_bad", on_bad)
        made: list[AsyncTypedConsumer[T]] = []

        async def push(record: Record) -> None:
            assert on_record is not None
            for found in await made[0]._decode([record]):
                await called(on_record, found)

        opening = self._client.consumer(
            self.name,
            group,
            mode,
            partition,
            offset,
            delivery,
            None if on_record is None else push,
            credit,
            rack,
            **options,
        )

        async def opened() -> AsyncTypedConsumer[T]:
            # This function does not wait, so the task that calls *on_record* begins only after the
            # function returns.
            made.append(AsyncTypedConsumer(await opening, self._topic, on_bad))
            return made[0]

        return Opening(opened)

    async def close(self) -> None:
        """Flush and close the producer; consumers stay open."""
        await self._producer.close()


class AsyncTypedConsumer(AsyncHandle, Generic[T]):
    """Gets records with decoded values; made by :meth:`AsyncTypedTopic.consumer`.

    The attribute ``consumer`` is the :class:`AsyncConsumer` underneath.
    """

    def __init__(
        self,
        consumer: AsyncConsumer,
        topic: TypedTopic[T],
        on_bad: Callable[[Bad], object] | None,
    ) -> None:
        self.consumer = consumer
        self._values = topic._values
        self._tally = topic._client.tally
        self._on_bad = on_bad

    async def poll(
        self, max_records: int = 500, timeout: float | None = 1.0
    ) -> list[TypedRecord[T]]:
        """Return up to *max_records* records as soon as there is one; none after *timeout* seconds.

        Raises as :meth:`pymq.Consumer.poll`.
        """
        loop = self.consumer._bridge.loop
        until = None if timeout is None else loop.time() + timeout
        left = timeout
        while records := await self.consumer.poll(max_records, left):
            if found := await self._decode(records):
                return found
            left = None if until is None else max(0.0, until - loop.time())
        return []

    async def __aiter__(self) -> AsyncIterator[TypedRecord[T]]:
        """Iterate over records without end, or until the consumer is closed."""
        async for record in self.consumer:
            for found in await self._decode([record]):
                yield found

    async def until_end(self) -> AsyncIterator[TypedRecord[T]]:
        """Iterate up to the current end of the topic."""
        async for record in self.consumer.until_end():
            for found in await self._decode([record]):
                yield found

    async def _decode(self, records: list[Record]) -> list[TypedRecord[T]]:
        if unknown := self._values.unknown(records):
            await self.consumer._bridge.call(self._values.learn, unknown)
        good, bad = self._values.decode(records)
        if bad:
            self._tally.undecodable += len(bad)
            note(bad, self._on_bad)
            if self.consumer.group is not None:
                for record, error in bad:
                    await self.consumer.reject(record, error)
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

    async def reject(self, records: Typed[T], error: BaseException | str | None = None) -> None:
        """Give records up as dead letters; see :meth:`pymq.Consumer.reject`."""
        await self.consumer.reject(raw(records), error)

    async def commit(self, *nothing: Never, timeout: float | None = REQUEST_S) -> None:
        """Wait until all acknowledgements are durable; see :meth:`pymq.Consumer.commit`."""
        await self.consumer.commit(*nothing, timeout=timeout)

    async def close(self) -> None:
        """Close the consumer."""
        await self.consumer.close()
