"""The asyncio producer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from pymq.aio.bridge import AsyncHandle, Bridge, resolve
from pymq.aio.delivery import AsyncDeliveries, AsyncDelivery
from pymq.client.base import ClientLoop, check_timeout
from pymq.client.producer.delivery import Batch, Deliveries, Delivery, batch_of
from pymq.client.producer.producer import HeaderPairs, Producer, _bytes, _headers
from pymq.client.producer.producer_topic import ProducerTopic
from pymq.client.producer.send_times import with_priority, with_times
from pymq.client.producer.sender import PartitionQueue
from pymq.core.counts import plural
from pymq.errors import BufferFull, Closed, DeliveryFailed, DeliveryTimeout

if TYPE_CHECKING:
    from pymq.aio.client import AsyncClient


class Feed(Producer):
    """The same producer, for the event loop's thread: its ``send`` never waits."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer._client, producer._sender, producer._config)
        self._topics = producer._topics
        self._filled: set[PartitionQueue] = set()  # full queues that the queued errand will close

    def _wait_for_space(self) -> None:
        """Do nothing: the asynchronous ``send`` has already checked the space."""

    def _fill(self, topic: ProducerTopic, queue: PartitionQueue) -> None:
        """Queue an errand that closes and sends the full batch."""
        if queue is topic.sticky:
            topic.rotate()
        if queue not in self._filled:
            self._filled.add(queue)
            self._backlog.full.append(queue)
            self._driver.soon(self._seal)

    def _seal(self, loop: ClientLoop) -> None:
        # Clear the set first: a batch that becomes full from now on is closed below, or queues a
        # new errand.
        self._filled.clear()
        loop.touch(self._sender.name)


class AsyncProducer(AsyncHandle):
    """Sends records; created by :meth:`AsyncClient.producer`. See :class:`pymq.Producer`."""

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
        self._is_looking = False  # True while a queued errand is going to read ``_watched``
        self._held: dict[str, deque[tuple[AsyncDelivery, Callable[[], Delivery]]]] = {}  # by topic
        self._releases: dict[str, asyncio.Future[None]] = {}  # by topic
        self._held_bytes = 0
        self._unsent: dict[int, AsyncDelivery] = {}  # deliveries that failed before sending, by id

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None = None,
        headers: HeaderPairs | None = None,
        partition: str | int | None = None,
        timestamp_ms: int | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
        expires_s: float | None = None,
        priority: int = 0,
    ) -> AsyncDelivery:
        """Send one record and return its delivery; awaiting the delivery is optional.

        This method never waits. So if the buffer is full, it raises at once; awaiting the delivery,
        or :meth:`flush`, raises other errors, such as :class:`UnknownTopic`.

        Raises:
            TypeError: value, key or a header is not bytes-like.
            RecordTooLarge: the record exceeds the limit; nothing was sent.
            BufferFull: ``buffer_bytes`` are not acknowledged yet; await a delivery or
                :meth:`flush`, then send again. Nothing was sent.
            Closed: the producer was closed.
        """
        if delay_s is not None or deliver_at is not None or expires_s is not None:
            wall_ms = self._producer._client._wall_ms
            headers = with_times(headers, wall_ms, delay_s, deliver_at, expires_s)
            self._backlog.has_times = True
        if priority != 0:
            headers = with_priority(headers, priority)
            self._backlog.has_priorities = True
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
        def empty(loop: ClientLoop) -> None:
            # Batches that wait for ``linger_ms`` would keep the buffer full.
            self._sender.sealer.seal_due(loop.clock(), everything=True)
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
        """Hold a record until a thread has fetched its topic's metadata and has sent it."""
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
            while held:  # records that arrive meanwhile join the end of the queue
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
            except Exception as error:  # awaiting the delivery, or flush(), raises the error
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
        """Send many records with one call, once the buffer has space for them.

        The call returns the deliveries of all records as one object; awaiting it is optional.

        Raises:
            TypeError, UnknownTopic, UnknownPartition, RecordTooLarge, Closed: as for :meth:`send`.
            BufferFull: the buffer stayed full for ``delivery_timeout_s``; nothing was sent.
        """
        # A copy, because a thread reads the rows later and the caller may change the list.
        rows = list(values)
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
        """Wait until all records sent so far are acknowledged or have failed.

        Raises:
            DeliveryTimeout: *timeout* seconds are over; the records are still being sent.
            DeliveryFailed: records failed, and the application has not looked at their deliveries.
            ConfigError: *timeout* is not a number of seconds.
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
            f"{plural(len(records), 'record')} failed, the first because: {first}", records=records
        ) from first

    async def next_sequence(self, topic: str, partition: str | int) -> int:
        """Return the number of records that this ``producer_id`` has written to a partition."""
        return await self._bridge.call(self._producer.next_sequence, topic, partition)

    # --- waiting for deliveries -----------------------------------------------------------------

    def _watch(
        self, delivery: Delivery, call: Callable[[], object] | None = None
    ) -> asyncio.Future[None]:
        """Send the record of *delivery* at once; once it is acknowledged, complete the returned
        future or call *call*.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._watched.append((delivery, future if call is None else call))
        if not self._is_looking:
            self._is_looking = True
            self._bridge.driver.soon(self._look)
        return future

    def _look(self, loop: ClientLoop) -> None:
        """Close the awaited batches, and notify the waiters of each batch when it is done.

        Runs in the loop.
        """
        # Reset the flag before reading ``_watched``: a later wait queues a new errand.
        self._is_looking = False
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
                sender.sealer.seal_due(now)
                loop.touch(sender.name)
                batch = batch_of(delivery)
                assert batch is not None, "a sealed delivery has a batch"
            batches.setdefault(batch, []).append(waiter)
        for batch, waiters in batches.items():
            batch.then(partial(self._bridge.tell, _answer, waiters))

    # --- closing --------------------------------------------------------------------------------

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close; closing twice is allowed. Raises the same errors as :meth:`flush`."""
        check_timeout(timeout)
        if self._is_closed:
            return
        self._is_closed = True
        self._client._forget(self)
        await asyncio.shield(self._close(timeout))  # if the caller is cancelled, closing continues

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
    """Complete the waiters of one batch; runs in the event loop."""
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
