"""The asyncio twin of pymq: the same names and arguments, with ``await`` where the others wait.

    async with pymq.aio.open("data/") as mq:
        await mq.create_topic("greetings")
        async with mq.producer() as producer:
            await producer.send("greetings", b"hello")
        async with mq.consumer("greetings", group="readers") as consumer:
            async for record in consumer.until_end():
                consumer.ack(record)

No call blocks the event loop, not even for the time of an fsync: the background thread of the
driver does the work. A coroutine that waits for a record leaves an errand with it, and is called
back once for each batch that was answered, not once for each record. What is rare (topics, groups,
opening, closing, bulk sends) runs in a thread of the event loop's executor.

All handles belong to the event loop in which they were made, and only its thread may use them.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from functools import partial
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

import pymq
from pymq.client.base import Loop, Waitable
from pymq.client.client import Client, GroupDescription
from pymq.client.consumer import CHUNK, REQUEST_S, Consumer, ConsumerStatus, Records
from pymq.client.delivery import Batch, Deliveries, Delivery
from pymq.client.producer import HeaderPairs, Producer, Topic, _bytes, _headers
from pymq.client.sender import Queue
from pymq.client.worker import Settling
from pymq.core.metadata import ClusterDescription, TopicDescription
from pymq.core.producers import REMEMBERED
from pymq.core.record import Record, RecordMetadata
from pymq.core.types import AckMode
from pymq.core.view import BatchView
from pymq.errors import (
    BufferFull,
    Closed,
    ConfigError,
    DeliveryFailed,
    DeliveryTimeout,
    PymqError,
    RequestTimeout,
)

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeliveries",
    "AsyncDelivery",
    "AsyncProducer",
    "Opening",
    "open",
]

T = TypeVar("T")
P = ParamSpec("P")
UNTIL_END_S = 0.05  # how often ``until_end`` looks whether others of the group have finished


class Handle(ABC):
    """Something with a resource: ``async with`` closes it."""

    @abstractmethod
    async def close(self) -> None:
        """Let go."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except PymqError as second:
            # The first error is the one to raise; this one is told beside it.
            if error is None:
                raise
            error.add_note(f"and on closing it: {second}")


H = TypeVar("H", bound=Handle)


class Opening(Generic[H]):
    """A handle that is still to be opened: ``await`` it, or enter it with ``async with``."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, H]]) -> None:
        self._make = make
        self._made: H | None = None

    def __await__(self) -> Generator[Any, None, H]:
        return self._make().__await__()

    async def __aenter__(self) -> H:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._made is not None:
            await self._made.__aexit__(kind, error, trace)


def open(url: str | os.PathLike[str]) -> Opening[AsyncClient]:
    """Open pymq as :func:`pymq.open` does; ``async with`` or ``await`` what is returned.

    Raises, when awaited, what :func:`pymq.open` raises.
    """
    return Opening(lambda: _open(url))


async def _open(url: str | os.PathLike[str]) -> AsyncClient:
    def make() -> Client:
        client = pymq.open(url)
        client.driver.soon(_nothing)  # starts its thread, which waits for a lock
        return client

    return AsyncClient(await _in_thread(make, _close_late))


def _nothing(loop: Loop) -> None:
    """An errand for those who only want the loop to turn."""


def _close_late(handle: Client | Producer | Consumer) -> None:
    """Close what was opened for somebody who had gone meanwhile."""
    try:
        handle.close()
    except PymqError:
        pass  # Nobody is left to be told.


async def _in_thread(make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Call *make* in a thread; if the waiting is cancelled, *undo* what it made."""
    running = asyncio.get_running_loop()
    making = running.run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:

        def made(future: asyncio.Future[T]) -> None:
            if not future.cancelled() and future.exception() is None:
                running.run_in_executor(None, undo, future.result())

        making.add_done_callback(made)
        raise


def _resolve(future: asyncio.Future[None], error: Exception | None = None) -> None:
    if future.done():
        return  # Whoever waited was cancelled.
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class _Bridge:
    """The way from an event loop to the thread that turns pymq's loop, and back."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.driver = client.driver
        self.loop = asyncio.get_running_loop()

    def tell(self, callback: Callable[..., object], *args: object) -> None:
        """Call *callback* in the event loop; any thread may say so."""
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            pass  # The event loop has ended, and with it everybody who waited.

    async def wait(
        self, start: Callable[[Loop], Waitable | None], timeout: float | None = None
    ) -> bool:
        """Let the background thread *start* something, and wait until it is done.

        Returns False when *timeout* seconds are over.
        """
        future: asyncio.Future[None] = self.loop.create_future()

        def errand(loop: Loop) -> None:
            try:
                found = start(loop)
            except Exception as error:  # It is the caller's, and must not stop the loop.
                self.tell(_resolve, future, error)
                return
            if found is None:
                self.tell(_resolve, future)
            else:
                found.then(partial(self.tell, _resolve, future))

        self.driver.soon(errand)
        return await _wait_for(future, timeout)

    async def turn(self, errand: Callable[[Loop], object]) -> None:
        """Do an errand, and wait until pymq's loop has done all that follows from it."""
        future: asyncio.Future[None] = self.loop.create_future()

        def begin(loop: Loop) -> None:
            try:
                errand(loop)
            finally:
                self.driver.soon(end)  # An errand of an errand comes after the turns between them.

        def end(loop: Loop) -> None:
            self.tell(_resolve, future)

        self.driver.soon(begin)
        await future

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what may block, in a thread."""
        return await asyncio.to_thread(function, *args, **kwargs)


async def _wait_for(future: asyncio.Future[None], timeout: float | None) -> bool:
    if timeout is not None and not future.done():
        # Unlike ``asyncio.wait_for`` this makes no task and cancels nothing.
        await asyncio.wait([future], timeout=max(0.0, timeout))
        if not future.done():
            future.cancel()
            return False
    await future
    return True


# --- the client ---------------------------------------------------------------------------------


class AsyncClient(Handle):
    """What :func:`pymq.aio.open` returns: :class:`pymq.Client`, for one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._bridge = _Bridge(client)
        self._handles: dict[AsyncProducer | AsyncConsumer, None] = {}
        # A consumer that nobody holds any more is given up, so it must not be held here.
        self._pulling: weakref.WeakSet[AsyncConsumer] = weakref.WeakSet()

    @property
    def name(self) -> str:
        """The client's name."""
        return self._client.name

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._client.closed

    async def create_topic(
        self,
        name: str,
        partitions: int | Iterable[str] = 1,
        replicas: int = 1,
        acks: AckMode | int | str = "leader",
        *,
        exist_ok: bool = False,
        **config: Any,
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

    async def alter_topic(self, topic: str, **config: Any) -> None:
        """See :meth:`pymq.Client.alter_topic`."""
        await self._bridge.call(self._client.alter_topic, topic, **config)

    async def set_partition_state(
        self,
        topic: str,
        partition: str | int,
        acks: AckMode | int | str,
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

    async def reset_group(self, group: str, topic: str, offset: int | str = "begin") -> None:
        """See :meth:`pymq.Client.reset_group`."""
        await self._bridge.call(self._client.reset_group, group, topic, offset)

    async def reassign(self, topic: str, partition: str | int, replicas: Sequence[str]) -> bool:
        """See :meth:`pymq.Client.reassign`."""
        return await self._bridge.call(self._client.reassign, topic, partition, replicas)

    async def decommission(self, broker: str) -> int:
        """See :meth:`pymq.Client.decommission`."""
        return await self._bridge.call(self._client.decommission, broker)

    async def cluster(self) -> ClusterDescription:
        """See :meth:`pymq.Client.cluster`."""
        return await self._bridge.call(self._client.cluster)

    def producer(
        self,
        acks: AckMode | int | str | None = None,
        linger_ms: int = 5,
        batch_bytes: int = 1 << 18,
        buffer_bytes: int = 64 << 20,
        compression: str | None = None,
        idempotent: bool = True,
        producer_id: str | int | None = None,
        delivery_timeout_s: float = 120.0,
        max_in_flight: int = REMEMBERED,
        **unknown: object,
    ) -> Opening[AsyncProducer]:
        """Make a producer: ``async with`` or ``await`` it; see :meth:`pymq.Client.producer`."""

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
            producer = AsyncProducer(self, self._bridge, await _in_thread(make, _close_late))
            self._handles[producer] = None
            return producer

        return Opening(opened)

    def consumer(
        self,
        topic: str,
        group: str | None = None,
        mode: str = "ptp",
        partition: str | int | None = None,
        offset: int | str = "begin",
        delivery: str = "pull",
        on_record: Callable[[Record], object] | None = None,
        credit: int = 1000,
        auto_ack: bool = False,
        ack_wait_s: float = 30.0,
        max_deliver: int = 5,
        dead_letter: str | None = None,
        auto_offset_reset: str = "begin",
        assignor: str = "sticky",
        on_assigned: Callable[[tuple[str, ...]], object] | None = None,
        on_revoked: Callable[[tuple[str, ...]], object] | None = None,
        **unknown: object,
    ) -> Opening[AsyncConsumer]:
        """Make a consumer: ``async with`` or ``await`` it; see :meth:`pymq.Client.consumer`.

        ``on_record``, ``on_assigned`` and ``on_revoked`` may be coroutine functions. With
        ``delivery="push"`` a task of this event loop calls ``on_record``, one record after another.
        """
        changes: deque[Callable[[], Awaitable[object]]] = deque()

        def noted(callback: Callable[[tuple[str, ...]], object]) -> Callable[..., None]:
            # Changes are found in whatever thread; their callbacks run in the event loop.
            def note(partitions: tuple[str, ...]) -> None:
                changes.append(partial(_called, callback, partitions))

            return note

        def make() -> Consumer:
            return self._client.consumer(
                topic,
                group,
                mode,
                partition,
                offset,
                "pull" if delivery == "push" else delivery,
                None,
                credit,
                auto_ack,
                ack_wait_s,
                max_deliver,
                dead_letter,
                auto_offset_reset,
                assignor,
                noted(on_assigned) if on_assigned is not None else None,
                noted(on_revoked) if on_revoked is not None else None,
                **unknown,
            )

        async def opened() -> AsyncConsumer:
            if (delivery == "push") != (on_record is not None):
                raise ConfigError("on_record goes with delivery='push', and the other way round")
            made = await _in_thread(make, _close_late)
            consumer = AsyncConsumer(self, self._bridge, made, changes)
            self._pulling.add(consumer)
            await consumer._tell_changes()
            if on_record is not None:
                self._handles[consumer] = None
                consumer._start_push(on_record, credit)
            return consumer

        return Opening(opened)

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
        """Close all producers and consumers, flush, and let go; closing twice is allowed."""
        await asyncio.shield(self._close())  # a close that is cancelled goes on by itself

    async def _close(self) -> None:
        first: Exception | None = None
        for handle in list(dict.fromkeys([*self._pulling, *self._handles])):
            try:
                await handle.close()
            except Exception as error:  # the others are to be closed all the same
                first = first or error
        await self._bridge.call(self._client.close)
        if first is not None:
            raise first


async def _called(callback: Callable[..., object], *args: object) -> object:
    """Call what may be a coroutine function."""
    found = callback(*args)
    return await found if inspect.isawaitable(found) else found


# --- producing ----------------------------------------------------------------------------------


class AsyncDelivery:
    """The fate of one record that was sent: ``await`` it, or let it be."""

    __slots__ = ("_delivery", "_error", "_held", "_producer")

    def __init__(self, producer: AsyncProducer, delivery: Delivery | None) -> None:
        self._producer = producer
        self._delivery = delivery  # None while it is held back, because its topic is not known yet
        self._held: asyncio.Future[None] | None = None  # done once it is not held back any more
        self._error: Exception | None = None  # why it was never sent

    def done(self) -> bool:
        """Whether the record was answered for, or has failed."""
        if self._delivery is None:
            return self._error is not None
        return self._delivery.done()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait as :meth:`result` does, for as long as it takes."""
        delivery = self._delivery
        if delivery is None:
            delivery = yield from self._released(None).__await__()
        if not delivery.done():
            yield from self._producer._watch(delivery).__await__()
        return self._found(delivery)

    async def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is as safe as was asked for, and return where it is.

        Waiting sends it at once, whatever ``linger_ms`` says. To cancel the waiting changes nothing
        for the record.

        Raises:
            DeliveryTimeout: *timeout* seconds are over; the record is still being sent.
            PymqError: what kept the record from being written.
        """
        return self._found(await self._settled(timeout))

    async def exception(self, timeout: float | None = None) -> PymqError | None:
        """Wait as :meth:`result` does, and return the error or None."""
        try:
            delivery = await self._settled(timeout)
        except DeliveryTimeout:
            raise
        except PymqError as error:
            return error
        return delivery.exception(0)

    def add_done_callback(self, callback: Callable[[AsyncDelivery], object]) -> None:
        """Call *callback* with this delivery once it is done, in the event loop."""
        call = partial(callback, self)
        if self._delivery is not None:
            self._producer._watch(self._delivery, call)
        elif self._held is not None and self._error is None:
            self._held.add_done_callback(lambda _: self.add_done_callback(callback))
        else:
            self._producer._loop.call_soon(call)

    async def _released(self, timeout: float | None) -> Delivery:
        if self._delivery is None and self._error is None and self._held is not None:
            await asyncio.wait([self._held], timeout=timeout)
        if self._error is not None:
            self._producer._unsent.pop(id(self), None)
            raise self._error.with_traceback(None)
        if self._delivery is None:
            raise DeliveryTimeout(f"no answer within {timeout} s; the record is still being sent")
        return self._delivery

    async def _settled(self, timeout: float | None) -> Delivery:
        until = None if timeout is None else time.monotonic() + timeout
        delivery = self._delivery or await self._released(timeout)
        if not delivery.done():
            left = None if until is None else until - time.monotonic()
            if not await _wait_for(self._producer._watch(delivery), left):
                raise DeliveryTimeout(
                    f"no answer within {timeout} s; the record is still being sent"
                )
        return delivery

    def _found(self, delivery: Delivery) -> RecordMetadata:
        batch = delivery.owner
        if isinstance(batch, Batch) and batch.error is None:
            return batch.metadata(delivery.index)
        return delivery.result(0)  # raises

    def __repr__(self) -> str:
        return f"<AsyncDelivery {'done' if self.done() else 'pending'}>"


class AsyncDeliveries:
    """The fates of many records that were sent with one call: ``await`` them, or let them be."""

    __slots__ = ("_bridge", "_deliveries")

    def __init__(self, bridge: _Bridge, deliveries: Deliveries) -> None:
        self._bridge = bridge
        self._deliveries = deliveries

    def __len__(self) -> int:
        return len(self._deliveries)

    def __await__(self) -> Generator[Any, None, list[RecordMetadata]]:
        """Wait as :meth:`result` does, for as long as it takes."""
        return self.result().__await__()

    def done(self) -> bool:
        """Whether all are answered for, or have failed."""
        return self._deliveries.done()

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until all are as safe as was asked for; see :meth:`pymq.Deliveries.wait`."""
        await self._settled(timeout)
        self._deliveries.wait(0)  # has nothing to wait for, but looks for errors

    async def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait as :meth:`wait` does, and return where each record is."""
        await self._settled(timeout)
        return self._deliveries.result(0)

    async def exception(self, timeout: float | None = None) -> PymqError | None:
        """Wait as :meth:`wait` does, and return the first error or None."""
        await self._settled(timeout)
        return self._deliveries.exception(0)

    async def _settled(self, timeout: float | None) -> None:
        if self.done():
            return

        def start(loop: Loop) -> Waitable | None:
            pending = [batch for batch in self._deliveries._batches() if not batch.is_done]
            everything, left = Waitable(), len(pending)

            def one() -> None:  # under the driver's lock, always
                nonlocal left
                left -= 1
                if not left:
                    everything.finish()

            for batch in pending:
                batch.then(one)
            return everything if pending else None

        if not await self._bridge.wait(start, timeout):
            raise DeliveryTimeout(f"not all records were answered within {timeout} s")


class _Feed(Producer):
    """A producer's other face, for the thread of the event loop: its ``send`` never waits."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer._client, producer._sender, producer._config)
        self._topics = producer._topics
        self._filled: set[Queue] = set()  # to be sealed by the errand under way

    def _wait_for_space(self) -> None:
        """The asynchronous ``send`` has looked for room before."""

    def _fill(self, topic: Topic, queue: Queue) -> None:
        """The batch is full: have it sent."""
        if queue is topic.sticky:
            topic.rotate()
        if queue not in self._filled:
            self._filled.add(queue)
            self._sender.full.append(queue)
            self._driver.soon(self._seal)

    def _seal(self, loop: Loop) -> None:
        self._filled.clear()  # First this: what comes now either is sealed below, or asks again.
        loop.touch(self._sender.name)


class AsyncProducer(Handle):
    """Sends records; made by :meth:`AsyncClient.producer`. See :class:`pymq.Producer`."""

    def __init__(self, client: AsyncClient, bridge: _Bridge, producer: Producer) -> None:
        self._client = client
        self._bridge = bridge
        self._loop = bridge.loop
        self._producer = producer
        self._feed = _Feed(producer)
        self._sender = producer._sender
        self._topics = producer._topics
        self._limit = producer._config.buffer_bytes
        self._timeout = producer._config.delivery_timeout_ms / 1000
        self._is_closed = False
        self._watched: deque[tuple[Delivery, Callable[[], object] | asyncio.Future[None]]] = deque()
        self._is_looking = False  # an errand is under way that will see what is in ``_watched``
        self._held: dict[str, deque[tuple[AsyncDelivery, Callable[[], Delivery]]]] = {}  # by topic
        self._releases: dict[str, asyncio.Future[None]] = {}  # by topic
        self._held_bytes = 0
        self._unsent: dict[int, AsyncDelivery] = {}  # failed before they were sent, by id

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: HeaderPairs | None = None,
        partition: str | int | None = None,
        timestamp_ms: int | None = None,
    ) -> AsyncDelivery:
        """Send one record and return its delivery, which may be awaited or left alone.

        This never waits. So a full buffer is an error at once, and a topic that is not known is
        found out later: :class:`UnknownTopic` and the like are raised by awaiting the delivery, or
        by :meth:`flush`.

        Raises:
            TypeError: value, key or a header is not bytes-like.
            RecordTooLarge: it is; nothing was sent.
            BufferFull: ``buffer_bytes`` are unanswered; await a delivery or :meth:`flush`, then
                send again. Nothing was sent.
            Closed: the producer was closed.
        """
        if self._sender.buffered + self._held_bytes >= self._limit:
            self._refuse()
        found = self._topics.get(topic)
        if (
            found is None
            or (self._held and topic in self._held)
            or (partition is not None and not _has(found, partition))
        ):
            return self._hold(topic, value, key, headers, partition, timestamp_ms)
        delivery = self._feed.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return AsyncDelivery(self, delivery)

    def _refuse(self) -> None:
        def empty(loop: Loop) -> None:
            # What lingers would keep the buffer full.
            self._sender._seal_due(loop.clock(), everything=True)
            loop.touch(self._sender.name)

        self._bridge.driver.soon(empty)
        raise BufferFull(
            f"{self._sender.buffered + self._held_bytes} bytes wait to be answered; await a "
            "delivery or flush(), then send again"
        )

    def _hold(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        headers: HeaderPairs | None,
        partition: str | int | None,
        timestamp_ms: int | None,
    ) -> AsyncDelivery:
        """Keep a record until a thread has found out about its topic, and has sent it."""
        if self._is_closed:
            raise Closed("the producer was closed")
        data = _bytes(value, "value")
        name = None if key is None else _bytes(key, "key")
        send = partial(
            self._producer.send,
            topic,
            data,
            key=name,
            headers=None if headers is None else _headers(headers),
            partition=partition,
            timestamp_ms=timestamp_ms,
        )
        held = self._held.get(topic)
        if held is None:
            held = self._held[topic] = deque()
            self._releases[topic] = self._loop.create_task(self._release(topic, held))
        delivery = AsyncDelivery(self, None)
        delivery._held = self._releases[topic]
        held.append((delivery, send))
        self._held_bytes += len(data) + len(name or b"")
        return delivery

    async def _release(
        self, topic: str, held: deque[tuple[AsyncDelivery, Callable[[], Delivery]]]
    ) -> None:
        try:
            while held:  # More may come while a thread is at it; it comes behind.
                await self._bridge.call(self._send_held, held)
        finally:
            del self._held[topic], self._releases[topic]
            if not self._held:
                self._held_bytes = 0

    def _send_held(self, held: deque[tuple[AsyncDelivery, Callable[[], Delivery]]]) -> None:
        while held:
            delivery, send = held.popleft()
            try:
                delivery._delivery = send()
            except Exception as error:  # raised to whoever awaits it, or by flush()
                delivery._error = error
                self._unsent[id(delivery)] = delivery

    async def send_many(
        self,
        topic: str,
        values: Iterable[bytes],
        keys: Iterable[bytes | None] | None = None,
        *,
        partition: str | int | None = None,
    ) -> AsyncDeliveries:
        """Send many records with one call, once there is room for them in the buffer.

        Returns their deliveries as one, which may be awaited or left alone.

        Raises:
            TypeError, UnknownTopic, UnknownPartition, RecordTooLarge, Closed: as they say.
            BufferFull: the buffer stayed full for ``delivery_timeout_s``; nothing was sent.
        """
        rows = values if isinstance(values, list) else list(values)
        names = keys if keys is None or isinstance(keys, list) else list(keys)
        if topic in self._releases:
            await asyncio.wait([self._releases[topic]])

        def send() -> Deliveries:
            sender = self._sender
            if sender.buffered >= self._limit and not sender.wait_for_space(self._timeout):
                raise BufferFull(
                    f"{sender.buffered} bytes wait to be answered, and none was for "
                    f"{self._timeout:g} s; slow down or look at the broker"
                )
            return self._producer.send_many(topic, rows, names, partition=partition)

        return AsyncDeliveries(self._bridge, await self._bridge.call(send))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is answered.

        Raises:
            DeliveryTimeout: *timeout* seconds are over; the records are still being sent.
            DeliveryFailed: records failed, and nobody has looked at their deliveries.
        """
        until = None if timeout is None else time.monotonic() + timeout
        if self._releases:
            _, late = await asyncio.wait(list(self._releases.values()), timeout=timeout)
            if late:
                raise DeliveryTimeout(f"not everything was answered within {timeout} s")
        left = None if until is None else until - time.monotonic()
        failed: DeliveryFailed | None = None
        try:
            await self._bridge.call(self._producer.flush, left)
        except DeliveryFailed as error:
            failed = error
        self._raise_failed(failed)

    def _raise_failed(self, failed: DeliveryFailed | None) -> None:
        unsent, self._unsent = list(self._unsent.values()), {}
        if not unsent:
            if failed is not None:
                raise failed
            return
        records = [*(failed.records if failed is not None else ()), *unsent]
        first = unsent[0]._error
        raise DeliveryFailed(
            f"{len(records)} records were not written, the first because: {first}", records=records
        ) from first

    async def next_sequence(self, topic: str, partition: str | int) -> int:
        """How many records this producer, by its ``producer_id``, has written to a partition."""
        return await self._bridge.call(self._producer.next_sequence, topic, partition)

    # --- waiting for deliveries -----------------------------------------------------------------

    def _watch(
        self, delivery: Delivery, call: Callable[[], object] | None = None
    ) -> asyncio.Future[None]:
        """Have *delivery* sent at once; its future is done, or *call* called, when it is."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._watched.append((delivery, future if call is None else call))
        if not self._is_looking:
            self._is_looking = True
            self._bridge.driver.soon(self._look)
        return future

    def _look(self, loop: Loop) -> None:
        """Seal what somebody waits for, and have each batch tell when it is done (an errand)."""
        self._is_looking = False  # First this, then empty it: what comes now asks again.
        watched, sender = self._watched, self._sender
        batches: dict[Batch, list[Callable[[], object] | asyncio.Future[None]]] = {}
        now = loop.clock()
        while watched:
            delivery, waiter = watched.popleft()
            owner = delivery.owner
            if not isinstance(owner, Batch):
                if sender._is_closed:
                    self._bridge.tell(_answer, [waiter], Closed("the producer was closed"))
                    continue
                sender.full.append(owner)
                sender._seal_due(now)
                loop.touch(sender.name)
                owner = delivery.owner
                assert isinstance(owner, Batch), "a sealed delivery has a batch"
            batches.setdefault(owner, []).append(waiter)
        for batch, waiters in batches.items():
            batch.then(partial(self._bridge.tell, _answer, waiters))

    # --- leaving --------------------------------------------------------------------------------

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then let go; closing twice is allowed. Errors are those of :meth:`flush`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._client._forget(self)
        await asyncio.shield(self._close(timeout))  # a close that is cancelled goes on by itself

    async def _close(self, timeout: float | None) -> None:
        failed: DeliveryFailed | None = None
        try:
            if self._releases:
                await asyncio.wait(list(self._releases.values()), timeout=timeout)
            await self._bridge.call(self._producer.close, timeout)
        except DeliveryFailed as error:
            failed = error
        self._raise_failed(failed)


def _answer(
    waiters: Iterable[Callable[[], object] | asyncio.Future[None]], error: Exception | None = None
) -> None:
    """Tell everybody who waits for one batch; in the event loop."""
    for waiter in waiters:
        if isinstance(waiter, asyncio.Future):
            if error is not None:
                _resolve(waiter, error)
            elif not waiter.done():
                waiter.set_result(None)
        else:
            asyncio.get_running_loop().call_soon(waiter)


def _has(topic: Topic, partition: str | int) -> bool:
    if isinstance(partition, int):
        return 0 <= partition < len(topic.queues)
    return partition in topic.by_name


# --- consuming ----------------------------------------------------------------------------------


class AsyncConsumer(Handle):
    """Gets records; made by :meth:`AsyncClient.consumer`. See :class:`pymq.Consumer`.

    One task at a time may poll it. A poll that is cancelled has taken nothing.
    """

    def __init__(
        self,
        client: AsyncClient,
        bridge: _Bridge,
        consumer: Consumer,
        changes: deque[Callable[[], Awaitable[object]]],
    ) -> None:
        self.topic = consumer.topic
        self.group = consumer.group
        self._client = client
        self._bridge = bridge
        self._consumer = consumer
        self._intake = consumer._intake
        self._changes = changes  # callbacks that are to be called, in their order
        self._burial: asyncio.Future[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._pump_is_idle = False
        self._is_closing = False
        self._closing: asyncio.Future[None] | None = None

    # --- getting records ------------------------------------------------------------------------

    async def poll(self, max_records: int = 500, timeout: float | None = 1.0) -> list[Record]:
        """Return up to *max_records*, as soon as there is one; none after *timeout* seconds.

        Errors are those of :meth:`pymq.Consumer.poll`.
        """
        consumer = self._consumer
        if max_records >= 1 and not consumer._buffer:
            consumer._ack_last()
            if not await self._arrive(max_records, timeout):
                return []
        return consumer.poll(max_records, 0)

    async def poll_batches(
        self, max_bytes: int = 4 << 20, timeout: float | None = 1.0
    ) -> list[BatchView]:
        """Return record batches with their columns; the way to read in bulk."""
        consumer = self._consumer
        consumer._ack_last()
        if not await self._arrive(consumer._records_in(max_bytes), timeout):
            return []
        return consumer.poll_batches(max_bytes, 0)

    async def _arrive(self, records: int, timeout: float | None) -> bool:
        """Wait until a poll would not have to wait; takes nothing, so it may be cancelled."""
        intake, loop = self._intake, self._bridge.loop
        until = None if timeout is None else loop.time() + timeout

        def ask(turning: Loop) -> Waitable:
            if self._consumer._is_closed:
                raise Closed("the consumer was closed")
            intake.want(records, turning.clock())
            turning.touch(intake.name)
            return intake.arrival()

        await asyncio.sleep(0)  # Others may run, even if there is always something at hand.
        is_last = False
        while True:
            await self._tell_changes()
            await self._bury_dead()
            if intake.chunks or intake.problem is not None or self._consumer._is_closed:
                return True
            if is_last:
                return False
            left = None if until is None else until - loop.time()
            if left is not None and left <= 0:
                # Who does not wait gets at least what there was when the call was made.
                await self._bridge.turn(partial(_quietly, ask))
                is_last = True
            elif not await self._bridge.wait(ask, left):
                is_last = True

    async def _bury_dead(self) -> None:
        worker = self._consumer._worker
        if worker is None or not worker.dead:
            return
        if self._burial is None or self._burial.done():
            bury = self._consumer._bury_dead
            self._burial = self._bridge.loop.run_in_executor(None, bury)
        await asyncio.shield(self._burial)

    async def _tell_changes(self) -> None:
        self._consumer._tell_changes()
        while self._changes:
            await self._changes.popleft()()

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate over records for ever, or until the consumer is closed."""
        consumer = self._consumer
        while not self._is_closing:
            try:
                if not consumer._buffer:
                    consumer._ack_previous()
                    await self._arrive(CHUNK, None)
                for record in consumer._chunk(0):
                    yield record
            except Closed:
                if not self._has_left():
                    raise

    async def until_end(self) -> AsyncIterator[Record]:
        """Iterate up to what is there now, then end; see :meth:`pymq.Consumer.until_end`."""
        consumer = self._consumer
        ends = await self._bridge.call(consumer.end_offsets)
        try:
            while not await self._is_at_end(ends):
                if not consumer._buffer:
                    consumer._ack_previous()
                    if not await self._arrive(CHUNK, UNTIL_END_S):
                        continue
                for record in consumer._before(ends, consumer._chunk(0)):
                    yield record
            consumer._ack_previous()
        finally:
            consumer._bring_back()

    async def _is_at_end(self, ends: dict[str, int]) -> bool:
        consumer = self._consumer
        if consumer._reader is None and (consumer._buffer or self._intake.chunks):
            return False
        if consumer._reader is not None:
            return consumer._is_at_end(ends)
        return await self._bridge.call(consumer._is_at_end, ends)

    # --- settling (PTP) -------------------------------------------------------------------------

    def ack(self, records: Records) -> None:
        """The records are done. Sent and synced soon; :meth:`commit` waits for both."""
        self._consumer.ack(records)

    def nack(self, records: Records, delay: float = 0.0) -> None:
        """The records could not be done: deliver them again, after *delay* seconds."""
        self._consumer.nack(records, delay)

    async def commit(self, timeout: float | None = REQUEST_S) -> None:
        """Wait until everything acknowledged so far is on the disk; see :class:`pymq.Consumer`.

        Raises:
            RequestTimeout: the group coordinator did not answer in time.
            FencedMember: the group had given this consumer up; its records go to others.
            StoreFull, StoreError: the offsets could not be written; they are tried again.
        """
        worker = self._consumer._member()
        settling: list[Settling | None] = []

        def settle(loop: Loop) -> Waitable | None:
            done = worker.settle(wait=True, durable=True)
            settling.append(done)
            loop.touch(worker.name)
            return done

        if not await self._bridge.wait(settle, timeout):
            raise RequestTimeout(f"the coordinator of group {self.group!r} did not answer")
        if settling[0] is not None and settling[0].error is not None:
            raise settling[0].error

    # --- positions ------------------------------------------------------------------------------

    async def seek(self, partition: str, offset: int | str) -> None:
        """See :meth:`pymq.Consumer.seek`."""
        await self._bridge.call(self._consumer.seek, partition, offset)

    async def seek_to_time(self, partition: str, timestamp_ms: int) -> None:
        """See :meth:`pymq.Consumer.seek_to_time`."""
        await self._bridge.call(self._consumer.seek_to_time, partition, timestamp_ms)

    async def position(self, partition: str) -> int:
        """See :meth:`pymq.Consumer.position`."""
        return await self._bridge.call(self._consumer.position, partition)

    async def end_offsets(self) -> dict[str, int]:
        """See :meth:`pymq.Consumer.end_offsets`."""
        return await self._bridge.call(self._consumer.end_offsets)

    async def begin_offsets(self) -> dict[str, int]:
        """See :meth:`pymq.Consumer.begin_offsets`."""
        return await self._bridge.call(self._consumer.begin_offsets)

    async def offset_at(self, partition: str, timestamp_ms: int) -> int:
        """See :meth:`pymq.Consumer.offset_at`."""
        return await self._bridge.call(self._consumer.offset_at, partition, timestamp_ms)

    def assignment(self) -> tuple[str, ...]:
        """The partitions that this consumer reads."""
        return self._consumer.assignment()

    async def committed(self) -> dict[str, int]:
        """See :meth:`pymq.Consumer.committed`."""
        return await self._bridge.call(self._consumer.committed)

    async def lag(self) -> dict[str, int]:
        """See :meth:`pymq.Consumer.lag`."""
        return await self._bridge.call(self._consumer.lag)

    # --- steering -------------------------------------------------------------------------------

    async def pause(self, *partitions: str) -> None:
        """See :meth:`pymq.Consumer.pause`."""
        await self._bridge.call(self._consumer.pause, *partitions)

    async def resume(self, *partitions: str) -> None:
        """See :meth:`pymq.Consumer.resume`."""
        await self._bridge.call(self._consumer.resume, *partitions)

    async def status(self) -> ConsumerStatus:
        """See :meth:`pymq.Consumer.status`."""
        return await self._bridge.call(self._consumer.status)

    # --- pushing --------------------------------------------------------------------------------

    def _start_push(self, on_record: Callable[[Record], object], credit: int) -> None:
        self._pump = self._bridge.loop.create_task(self._push(on_record, credit), name="pymq-push")

    async def _push(self, on_record: Callable[[Record], object], credit: int) -> None:
        consumer = self._consumer
        try:
            while not self._is_closing:
                self._pump_is_idle = True
                try:
                    await self._arrive(credit, None)
                finally:
                    self._pump_is_idle = False
                if not consumer._buffer:
                    consumer._fill(credit, 0)
                while consumer._buffer and not self._has_left():
                    record = consumer._buffer.popleft()
                    consumer._position(record)
                    await self._hand_over(record, on_record)
        except Closed:
            return

    async def _hand_over(self, record: Record, on_record: Callable[[Record], object]) -> None:
        """Call the application; in a group, a record that it fails on is delivered again."""
        consumer = self._consumer
        if consumer._worker is None:
            await _called(on_record, record)
            return
        try:
            await _called(on_record, record)
            if consumer._auto_ack:
                consumer.ack(record)
        except Closed:
            raise
        except Exception:
            import logging  # only now: it takes long to load

            logging.getLogger("pymq").exception("on_record failed; the record is given back")
            consumer.nack(record)

    # --- leaving --------------------------------------------------------------------------------

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._consumer._forgo()
        await super().__aexit__(kind, error, trace)

    def _has_left(self) -> bool:
        # Another task may close it during any await, which a type checker cannot know.
        return self._is_closing

    async def close(self) -> None:
        """Settle what was acknowledged, give back what was not handed out, and leave.

        An ``on_record`` that runs is waited for; what it has raised without a group is raised here.
        """
        if self._closing is None:
            self._is_closing = True
            self._client._forget(self)
            self._closing = asyncio.ensure_future(self._close(asyncio.current_task()))
        elif self._closing.done():
            return
        await asyncio.shield(self._closing)  # a close that is cancelled goes on by itself

    async def _close(self, caller: asyncio.Task[Any] | None) -> None:
        pump = self._pump
        if pump is not None and pump is not caller:
            if self._pump_is_idle:
                pump.cancel()
            await asyncio.wait([pump])
        while self._changes:
            await self._changes.popleft()()
        await self._bridge.call(self._consumer.close)
        if pump is not None and pump is not caller and not pump.cancelled():
            problem = pump.exception()
            if problem is not None:
                raise problem


def _quietly(ask: Callable[[Loop], object], loop: Loop) -> None:
    """Do an errand whose outcome is seen elsewhere."""
    try:
        ask(loop)
    except Closed:
        pass  # The next look finds it closed.
