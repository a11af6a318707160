"""The client that :func:`pymq.aio.open` opens."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, Unpack, overload

import pymq
from pymq.aio.bridge import AsyncHandle, Bridge, Opening, called, close_late, in_thread
from pymq.aio.consumer import AsyncConsumer
from pymq.aio.producer import AsyncProducer
from pymq.client.admin.groups import GroupDescription, LeasesDescription
from pymq.client.base import ClientLoop
from pymq.client.client import Client
from pymq.client.consumer.consumer import Consumer
from pymq.client.consumer.options import CalledElsewhere
from pymq.client.option_types import (
    Acks,
    Compression,
    ConsumerMode,
    DeliveryMode,
    GroupOptions,
    TopicOptions,
)
from pymq.client.producer.producer import Producer
from pymq.client.redrive.redrive import Redriven
from pymq.core.batch.record import Record
from pymq.core.block.idempotence import REMEMBERED
from pymq.core.metadata.descriptions import BrokerDescription, ClusterDescription, TopicDescription
from pymq.core.metadata.nodes import Loss
from pymq.core.observe.metrics import Metrics

if TYPE_CHECKING:
    from pymq.aio.rpc import AsyncRequester, AsyncResponder
    from pymq.aio.typed import AsyncTypedTopic
    from pymq.client.rpc.mailbox import Request
    from pymq.kafka.endpoint import KafkaEndpoint
    from pymq.serde.compatibility import Compatibility
    from pymq.serde.serializer import Serializer

T = TypeVar("T")
H = TypeVar("H", bound="Callable[[Request], Any]")


def open(
    url: str | os.PathLike[str],
    *,
    curve_dir: str | os.PathLike[str] | None = None,
    principal: str | None = None,
    brokers: int | None = None,
    tls_dir: str | os.PathLike[str] | None = None,
) -> Opening[AsyncClient]:
    """Open pymq as :func:`pymq.open` does; use ``async with`` or ``await`` on the result.

    Awaiting the result raises the errors of :func:`pymq.open`.
    """
    opened = partial(
        pymq.open, url, curve_dir=curve_dir, principal=principal, brokers=brokers, tls_dir=tls_dir
    )
    return Opening(lambda: _open(opened))


async def _open(open: Callable[[], Client]) -> AsyncClient:
    def make() -> Client:
        client = open()
        # The errand starts the driver's thread, which waits for a lock.
        client.driver.soon(_nothing)
        return client

    return AsyncClient(await in_thread(make, close_late))


def _nothing(loop: ClientLoop) -> None:
    """Do nothing: this errand only makes pymq's loop run once."""


class AsyncClient(AsyncHandle):
    """:class:`pymq.Client` for one event loop; :func:`pymq.aio.open` returns it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._bridge = Bridge(client)
        self._handles: dict[AsyncProducer | AsyncConsumer, None] = {}
        self._requester: AsyncRequester | None = None
        self._replying: dict[AsyncResponder, None] = {}
        self._starting: set[asyncio.Task[AsyncResponder]] = set()
        # Weak references, so that a consumer that the application has dropped can be closed.
        self._pulling: weakref.WeakSet[AsyncConsumer] = weakref.WeakSet()

    @property
    def name(self) -> str:
        """The client's name."""
        return self._client.name

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._client.closed

    async def create_topic(
        self,
        name: str,
        partitions: int | Iterable[str] = 1,
        replicas: int = 1,
        acks: Acks = "leader",
        *,
        exist_ok: bool = False,
        **config: Unpack[TopicOptions],
    ) -> None:
        """See :meth:`pymq.Client.create_topic`."""
        make = self._client.create_topic
        await self._bridge.call(make, name, partitions, replicas, acks, exist_ok=exist_ok, **config)

    async def create_partition(self, topic: str, partition: str) -> None:
        """See :meth:`pymq.Client.create_partition`."""
        await self._bridge.call(self._client.create_partition, topic, partition)

    async def delete_topic(self, topic: str) -> None:
        """See :meth:`pymq.Client.delete_topic`."""
        await self._bridge.call(self._client.delete_topic, topic)

    async def alter_topic(self, topic: str, **config: Unpack[TopicOptions]) -> None:
        """See :meth:`pymq.Client.alter_topic`."""
        await self._bridge.call(self._client.alter_topic, topic, **config)

    async def set_partition_state(
        self,
        topic: str,
        partition: str | int,
        acks: Acks,
        replicas: int | None = None,
    ) -> bool:
        """See :meth:`pymq.Client.set_partition_state`."""
        change = self._client.set_partition_state
        return await self._bridge.call(change, topic, partition, acks, replicas)

    async def topics(self) -> list[str]:
        """See :meth:`pymq.Client.topics`."""
        return await self._bridge.call(self._client.topics)

    async def describe_topic(self, topic: str) -> TopicDescription:
        """See :meth:`pymq.Client.describe_topic`."""
        return await self._bridge.call(self._client.describe_topic, topic)

    async def groups(self) -> list[str]:
        """See :meth:`pymq.Client.groups`."""
        return await self._bridge.call(self._client.groups)

    async def describe_group(self, group: str) -> GroupDescription:
        """See :meth:`pymq.Client.describe_group`."""
        return await self._bridge.call(self._client.describe_group, group)

    async def describe_leases(
        self, group: str, topic: str, partition: str | int, offset: int = 0, limit: int = 100
    ) -> LeasesDescription:
        """See :meth:`pymq.Client.describe_leases`."""
        describe = self._client.describe_leases
        return await self._bridge.call(describe, group, topic, partition, offset, limit)

    async def offsets_at(self, topic: str, timestamp_ms: int) -> dict[str, int]:
        """See :meth:`pymq.Client.offsets_at`."""
        return await self._bridge.call(self._client.offsets_at, topic, timestamp_ms)

    async def reset_group(
        self, group: str, topic: str, offset: int | str | Mapping[str, int | str] = "begin"
    ) -> None:
        """See :meth:`pymq.Client.reset_group`."""
        await self._bridge.call(self._client.reset_group, group, topic, offset)

    async def unsubscribe(self, group: str, topics: str | Iterable[str] | None = None) -> list[str]:
        """See :meth:`pymq.Client.unsubscribe`."""
        return await self._bridge.call(self._client.unsubscribe, group, topics)

    async def delete_group(self, group: str) -> None:
        """See :meth:`pymq.Client.delete_group`."""
        await self._bridge.call(self._client.delete_group, group)

    async def reassign(
        self,
        topic: str,
        partition: str | int,
        replicas: Sequence[str],
        *,
        move_sealed: bool = False,
    ) -> bool:
        """See :meth:`pymq.Client.reassign`."""
        ask = partial(self._client.reassign, topic, partition, replicas, move_sealed=move_sealed)
        return await self._bridge.call(ask)

    async def decommission(
        self,
        broker: str,
        *,
        wait: bool = False,
        timeout: float | None = None,
        on_progress: Callable[[BrokerDescription], object] | None = None,
    ) -> int:
        """See :meth:`pymq.Client.decommission`; *on_progress* is called in another thread."""
        ask = partial(
            self._client.decommission, broker, wait=wait, timeout=timeout, on_progress=on_progress
        )
        return await self._bridge.call(ask)

    async def balance(self) -> int:
        """See :meth:`pymq.Client.balance`."""
        return await self._bridge.call(self._client.balance)

    async def recommission(self, broker: str) -> bool:
        """See :meth:`pymq.Client.recommission`."""
        return await self._bridge.call(self._client.recommission, broker)

    async def recover_partition(self, topic: str, partition: str | int) -> Loss | None:
        """See :meth:`pymq.Client.recover_partition`."""
        return await self._bridge.call(self._client.recover_partition, topic, partition)

    async def cluster(self) -> ClusterDescription:
        """See :meth:`pymq.Client.cluster`."""
        return await self._bridge.call(self._client.cluster)

    async def kafka(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        partitions: int = 1,
        auto_create: bool = True,
        batch_records_max: int = 100_000,
    ) -> KafkaEndpoint:
        """See :meth:`pymq.Client.kafka`: ``with await mq.kafka() as kafka:``."""
        return await self._bridge.call(
            self._client.kafka,
            host,
            port,
            partitions=partitions,
            auto_create=auto_create,
            batch_records_max=batch_records_max,
        )

    async def cancel(self, topic: str, partition: str | int, offset: int) -> bool:
        """See :meth:`pymq.Client.cancel`."""
        return await self._bridge.call(self._client.cancel, topic, partition, offset)

    async def redrive(
        self,
        topic: str,
        to: str | None = None,
        where: Callable[[Record], object] | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        limit: int | None = None,
    ) -> Redriven:
        """See :meth:`pymq.Client.redrive`; *where* is called in another thread."""
        return await self._bridge.call(self._client.redrive, topic, to, where, dry_run, rate, limit)

    async def purge_dead_letters(
        self, topic: str, where: Callable[[Record], object] | None = None
    ) -> int:
        """See :meth:`pymq.Client.purge_dead_letters`."""
        return await self._bridge.call(self._client.purge_dead_letters, topic, where)

    async def dead_letters(
        self, topic: str, where: Callable[[Record], object] | None = None
    ) -> list[Record]:
        """Return the letters of :meth:`pymq.Client.dead_letters` as a list."""
        return await self._bridge.call(lambda: list(self._client.dead_letters(topic, where)))

    async def metrics(self) -> Metrics:
        """See :meth:`pymq.Client.metrics`."""
        return await self._bridge.call(self._client.metrics)

    def producer(
        self,
        acks: Acks | None = None,
        linger_ms: int = 5,
        batch_bytes: int = 1 << 18,
        buffer_bytes: int = 64 << 20,
        compression: Compression | None = None,
        idempotent: bool = True,
        producer_id: str | int | None = None,
        delivery_timeout_s: float = 120.0,
        max_in_flight: int = REMEMBERED,
        **unknown: Never,
    ) -> Opening[AsyncProducer]:
        """Create a producer: ``async with`` or ``await`` it; see :meth:`pymq.Client.producer`."""

        def make() -> Producer:
            return self._client.producer(
                acks,
                linger_ms,
                batch_bytes,
                buffer_bytes,
                compression,
                idempotent,
                producer_id,
                delivery_timeout_s,
                max_in_flight,
                **unknown,
            )

        async def opened() -> AsyncProducer:
            producer = AsyncProducer(self, self._bridge, await in_thread(make, close_late))
            self._handles[producer] = None
            return producer

        return Opening(opened)

    def consumer(
        self,
        topic: str,
        group: str | None = None,
        mode: ConsumerMode = "ptp",
        partition: str | int | None = None,
        offset: int | Literal["begin", "end"] | None = None,
        delivery: DeliveryMode = "pull",
        on_record: Callable[[Record], object] | None = None,
        credit: int = 1000,
        rack: str | None = None,
        **options: Unpack[GroupOptions],
    ) -> Opening[AsyncConsumer]:
        """Create a consumer: ``async with`` or ``await`` it; see :meth:`pymq.Client.consumer`.

        ``on_record``, ``on_assigned`` and ``on_revoked`` may be coroutine functions. With
        ``delivery="push"`` a task of this event loop calls ``on_record``, one record after another.
        """
        changes: deque[Callable[[], Awaitable[object]]] = deque()

        def noted(callback: Callable[[tuple[str, ...]], object]) -> Callable[..., None]:
            # Any thread may find changes of the assignment; the callbacks run in the event loop.
            def note(partitions: tuple[str, ...]) -> None:
                changes.append(partial(called, callback, partitions))

            return note

        if (on_assigned := options.get("on_assigned")) is not None:
            options["on_assigned"] = noted(on_assigned)
        if (on_revoked := options.get("on_revoked")) is not None:
            options["on_revoked"] = noted(on_revoked)

        def make() -> Consumer:
            elsewhere = None if on_record is None else CalledElsewhere()
            return self._client.consumer(
                *(topic, group, mode, partition, offset, delivery, elsewhere, credit, rack),
                **options,
            )

        async def opened() -> AsyncConsumer:
            made = await in_thread(make, close_late)
            consumer = AsyncConsumer(self, self._bridge, made, changes)
            self._pulling.add(consumer)
            await consumer._tell_changes()
            if on_record is not None:
                self._handles[consumer] = None
                consumer._start_push(on_record, credit)
            return consumer

        return Opening(opened)

    def topic(
        self,
        name: str,
        kind: type[T],
        serializer: Serializer | None = None,
        *,
        compatibility: Compatibility | None = None,
    ) -> Opening[AsyncTypedTopic[T]]:
        """Open a topic of typed values: ``async with`` or ``await`` it.

        See :meth:`pymq.Client.topic`. Opening the topic registers its schema, if it has a
        *compatibility*.
        """
        from pymq.aio.typed import AsyncTypedTopic  # on demand, as in the client

        typed = self._client.topic(name, kind, serializer, compatibility=compatibility)

        async def opened() -> AsyncTypedTopic[T]:
            await self._bridge.call(typed.register)
            return AsyncTypedTopic(self, typed, await self.producer())

        return Opening(opened)

    async def request(
        self,
        service: str,
        value: bytes,
        timeout: float = 2.0,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
    ) -> Record:
        """See :meth:`pymq.Client.request`."""
        if self._requester is None:
            from pymq.aio.rpc import AsyncRequester

            self._requester = AsyncRequester(self)
        return await self._requester.ask(service, value, timeout, key, headers)

    @overload
    def reply(
        self,
        service: str,
        handler: None = None,
        workers: int = 1,
        **options: Unpack[GroupOptions],
    ) -> Callable[[H], H]: ...

    @overload
    def reply(
        self,
        service: str,
        handler: Callable[[Request], Any],
        workers: int = 1,
        **options: Unpack[GroupOptions],
    ) -> Opening[AsyncResponder]: ...

    def reply(
        self,
        service: str,
        handler: Callable[[Request], Any] | None = None,
        workers: int = 1,
        **options: Unpack[GroupOptions],
    ) -> Opening[AsyncResponder] | Callable[[H], H]:
        """Answer requests of a service; see :meth:`pymq.Client.reply`.

        With a *handler*, a function or a coroutine function, ``async with`` or ``await`` the
        result. Used as a decorator, it starts a task that joins the group soon. Up to *workers*
        requests are answered at the same time, in tasks of this event loop.
        """
        from pymq.aio.rpc import AsyncResponder

        async def opened(function: Callable[[Request], Any]) -> AsyncResponder:
            found = AsyncResponder(self, service, function, workers)
            self._replying[found] = None
            return await found.open(options)

        def decorate(function: H) -> H:
            task = self._bridge.loop.create_task(opened(function))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)
            return function

        if handler is None:
            return decorate
        chosen = handler
        return Opening(lambda: opened(chosen))

    def _forget(self, handle: AsyncProducer | AsyncConsumer) -> None:
        self._handles.pop(handle, None)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            for consumer in self._pulling:
                consumer._consumer._forgo()
        await super().__aexit__(kind, error, trace)

    async def close(self) -> None:
        """Flush and close all producers and consumers, then the client.

        Closing twice is allowed.
        """
        await asyncio.shield(self._close())  # if the caller is cancelled, closing continues

    async def _close(self) -> None:
        first: Exception | None = None
        if self._starting:
            await asyncio.wait(self._starting)
        for handle in list(dict.fromkeys([*self._replying, *self._pulling, *self._handles])):
            try:
                await handle.close()
            except Exception as error:  # close the other handles, too
                first = first or error
        await self._bridge.call(self._client.close)
        if first is not None:
            raise first
