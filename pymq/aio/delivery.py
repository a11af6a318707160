"""Awaitable deliveries of sent records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from pymq.aio.bridge import Bridge, wait_for
from pymq.client.base import ClientLoop, Waitable, check_timeout
from pymq.client.producer.delivery import Deliveries, Delivery, batch_of
from pymq.core.batch.record import RecordMetadata
from pymq.errors import ConfigError, DeliveryTimeout, PymqError

if TYPE_CHECKING:
    from pymq.aio.producer import AsyncProducer


class AsyncDelivery:
    """The delivery of one record; awaiting it is optional."""

    __slots__ = ("_delivery", "_error", "_held", "_producer")

    def __init__(self, producer: AsyncProducer, delivery: Delivery | None) -> None:
        self._producer = producer
        # None while the record waits for the metadata of its topic
        self._delivery = delivery
        # done once the record no longer waits
        self._held: asyncio.Future[None] | None = None
        self._error: Exception | None = None  # the error that prevented the sending

    def done(self) -> bool:
        """Whether the record is acknowledged or has failed."""
        if self._delivery is None:
            return self._error is not None
        return self._delivery.done()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait as :meth:`result` does, without a timeout."""
        delivery = self._delivery
        if delivery is None:
            delivery = yield from self._released(None).__await__()
        if not delivery.done():
            yield from self._producer._watch(delivery).__await__()
        return self._found(delivery)

    async def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged, and return its metadata.

        The record is sent at once, regardless of ``linger_ms``. Cancelling the wait does not affect
        the record.

        Raises:
            DeliveryTimeout: *timeout* seconds are over; the record is still being sent.
            PymqError: the error because of which the record was not written.
        """
        return self._found(await self._settled(timeout))

    async def exception(self, timeout: float | None = None) -> PymqError | None:
        """Wait as :meth:`result` does, and return the error, or None."""
        try:
            delivery = await self._settled(timeout)
        except (DeliveryTimeout, ConfigError):
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
        check_timeout(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        delivery = self._delivery or await self._released(timeout)
        if not delivery.done():
            left = None if until is None else until - time.monotonic()
            if not await wait_for(self._producer._watch(delivery), left):
                raise DeliveryTimeout(
                    f"no answer within {timeout} s; the record is still being sent"
                )
        return delivery

    def _found(self, delivery: Delivery) -> RecordMetadata:
        batch = batch_of(delivery)
        if batch is not None and batch.error is None:
            return batch.metadata(delivery.index)
        return delivery.result(0)  # raises the error

    def __repr__(self) -> str:
        return f"<AsyncDelivery {'done' if self.done() else 'pending'}>"


class AsyncDeliveries:
    """The deliveries of the records of one call; awaiting them is optional."""

    __slots__ = ("_bridge", "_deliveries")

    def __init__(self, bridge: Bridge, deliveries: Deliveries) -> None:
        self._bridge = bridge
        self._deliveries = deliveries

    def __len__(self) -> int:
        return len(self._deliveries)

    def __await__(self) -> Generator[Any, None, list[RecordMetadata]]:
        """Wait as :meth:`result` does, without a timeout."""
        return self.result().__await__()

    def done(self) -> bool:
        """Whether all records are acknowledged or have failed."""
        return self._deliveries.done()

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until all records are acknowledged; see :meth:`pymq.Deliveries.wait`."""
        await self._settled(timeout)
        # all deliveries are done, so this call does not wait, and only raises errors
        self._deliveries.wait(0)

    async def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait as :meth:`wait` does, and return the metadata of each record."""
        await self._settled(timeout)
        return self._deliveries.result(0)

    async def exception(self, timeout: float | None = None) -> PymqError | None:
        """Wait as :meth:`wait` does, and return the first error or None."""
        await self._settled(timeout)
        return self._deliveries.exception(0)

    async def _settled(self, timeout: float | None) -> None:
        check_timeout(timeout)
        if self.done():
            return

        def start(loop: ClientLoop) -> Waitable | None:
            pending = self._deliveries._pending(loop)
            everything, left = Waitable(), len(pending)

            def one() -> None:  # always called with the driver's lock held
                nonlocal left
                left -= 1
                if not left:
                    everything.finish()

            for batch in pending:
                batch.then(one)
            return everything if pending else None

        if not await self._bridge.wait(start, timeout):
            raise DeliveryTimeout(f"not all records were answered within {timeout} s")
