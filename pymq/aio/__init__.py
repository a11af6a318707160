"""The asyncio interface of pymq: the same names and arguments, with ``await`` on blocking calls.

::

    async with pymq.aio.open("data/") as mq:
        await mq.create_topic("greetings")
        async with mq.producer() as producer:
            await producer.send("greetings", b"hello")
        async with mq.consumer("greetings", group="readers") as consumer:
            async for record in consumer.until_end():
                consumer.ack(record)

No call blocks the event loop, not even for an fsync: the driver's background thread does the work.
A waiting coroutine queues a callback for that thread, which notifies the event loop once per
acknowledged batch, not once per record. Rare calls (topics, groups, opening, closing, bulk sends)
run in the event loop's executor.

A handle belongs to the event loop in which it was created, and only that loop's thread may use it.
"""

from __future__ import annotations

from pymq.aio.bridge import Opening
from pymq.aio.client import AsyncClient, open
from pymq.aio.consumer import AsyncConsumer
from pymq.aio.delivery import AsyncDeliveries, AsyncDelivery
from pymq.aio.producer import AsyncProducer

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeliveries",
    "AsyncDelivery",
    "AsyncProducer",
    "Opening",
    "open",
]
