"""The producer that coroutines hold."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from pymq.aio.bridge import AsyncHandle, Bridge, resolve
from pymq.aio.delivery import AsyncDeliveries, AsyncDelivery
from pymq.client.base import Loop, check_timeout
from pymq.client.producer.delivery import Batch, Deliveries, Delivery, batch_of
from pymq.client.producer.producer import HeaderPairs, Producer, ProducerTopic, _bytes, _headers
from pymq.client.producer.sender import PartitionQueue
from pymq.errors import BufferFull, Closed, DeliveryFailed, DeliveryTimeout

if TYPE_CHECKING:
    from pymq.aio.client import AsyncClient


class Feed(Producer):
    """A producer's other face, for the thread of the event loop: its ``send`` never waits."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer._client, producer._sender, producer._config)
        self._topics = producer._topics
        self._filled: set[PartitionQueue] = set()  # to be sealed by the errand under way

    def _wait_for_space(self) -> None:
        """The asynchronous ``send`` has looked for room before."""

    def _fill(self, topic: ProducerTopic, queue: PartitionQueue) -> None:
        """The batch is full: have it sent."""
        if queue is topic.sticky:
            topic.rotate()
        if queue not in self._filled:
            self._filled.add(queue)
            self._backlog.full.append(queue)
            self._driver.soon(self._seal)

    def _seal(self, loop: Loop) -> None:
        self._filled.clear()  # First this: what comes now either is sealed below, or asks again.
        loop.touch(self._sender.name)


class AsyncProducer(AsyncHandle):
    """Sends records; made by :meth:`AsyncClient.producer`. See :class:`pymq.Producer`."""

    def __init__(self, client: AsyncClient, bridge: Bridge, producer: Producer) -> None:
        self._client = client
        self._bridge = bridge
        self._loop = bridge.loop
        self._producer = producer
        self._feed = Feed(producer)
        self._sender = producer._sender
        self._backlog = producer._backlog
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
        if self._backlog.buffered + self._held_bytes >= self._limit:
            self._refuse()
        found = self._topics.get(topic)
        if (
            found is None
            or (self._held and topic in self._held)
            or (partition is not None and not _has(found, partition))
        ):
            return self._hold(topic, value, key, headers, partition, timestamp_ms)
        delivery = self._feed.send(topic, value, key, headers, partition, timestamp_ms)
        return AsyncDelivery(self, delivery)

    def _refuse(self) -> None:
        def empty(loop: Loop) -> None:
            # What lingers would keep the buffer full.
            self._sender._seal_due(loop.clock(), everything=True)
            loop.touch(self._sender.name)

        self._bridge.driver.soon(empty)
        raise BufferFull(
            f"{self._backlog.buffered + self._held_bytes} bytes wait to be answered; await a "
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
        rows = list(values)  # They are looked at later, when the caller may have changed his list.
        names = None if keys is None else list(keys)
        if topic in self._releases:
            await asyncio.wait([self._releases[topic]])

        def send() -> Deliveries:
            backlog = self._backlog
            if backlog.buffered >= self._limit and not backlog.wait_for_space(self._timeout):
                raise BufferFull(
                    f"{backlog.buffered} bytes wait to be answered, and none was for "
                    f"{self._timeout:g} s; slow down or look at the broker"
                )
            return self._producer.send_many(topic, rows, names, partition=partition)

        return AsyncDeliveries(self._bridge, await self._bridge.call(send))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is answered.

        Raises:
            DeliveryTimeout: *timeout* seconds are over; the records are still being sent.
            DeliveryFailed: records failed, and nobody has looked at their deliveries.
            ConfigError: *timeout* is no number of seconds.
        """
        check_timeout(timeout)
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
            f"{len(records)} records failed, the first because: {first}", records=records
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
            batch = batch_of(delivery)
            if batch is None:
                if sender._is_closed:
                    self._bridge.tell(_answer, [waiter], Closed("the producer was closed"))
                    continue
                sender.backlog.full.append(delivery.owner.queue)
                sender._seal_due(now)
                loop.touch(sender.name)
                batch = batch_of(delivery)
                assert batch is not None, "a sealed delivery has a batch"
            batches.setdefault(batch, []).append(waiter)
        for batch, waiters in batches.items():
            batch.then(partial(self._bridge.tell, _answer, waiters))

    # --- leaving --------------------------------------------------------------------------------

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then let go; closing twice is allowed. Errors are those of :meth:`flush`."""
        check_timeout(timeout)
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
                resolve(waiter, error)
            elif not waiter.done():
                waiter.set_result(None)
        else:
            asyncio.get_running_loop().call_soon(waiter)


def _has(topic: ProducerTopic, partition: str | int) -> bool:
    if isinstance(partition, int) and not isinstance(partition, bool):
        return 0 <= partition < len(topic.queues)
    return partition in topic.by_name
