"""The asyncio twin of pymq: the same names and arguments, with ``await`` where the others wait.

::

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
