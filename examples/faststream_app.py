"""A shop with FastStream: retries with back-off, a delay, requests and replies, typed messages.

    python examples/faststream_app.py  # in this folder's shop-data, with handlers in this process

On brokers the handlers may also run in separate processes, as many as you like:

    export PYMQ_URL=zmq+tcp://127.0.0.1:7878
    faststream run examples.faststream_app:app --workers 2 &
    python examples/faststream_app.py

``faststream docs gen examples.faststream_app:app`` writes the AsyncAPI document.
"""

from __future__ import annotations

import asyncio
import os
from uuid import uuid4

from faststream import AckPolicy, FastStream, Logger
from pydantic import BaseModel

import pymq
from pymq.contrib.faststream import PymqBroker, PymqMessage

URL = os.environ.get("PYMQ_URL", "shop-data")
broker = PymqBroker(URL)
app = FastStream(broker)


class Order(BaseModel):
    """An order of a customer."""

    customer: str
    euros: int


@broker.subscriber(
    "charges",
    ack_policy=AckPolicy.NACK_ON_ERROR,
    retry=pymq.Backoff(first_s=0.5, factor=2, max_s=60),
    max_deliver=5,
)
@broker.publisher("receipts")
async def charge(order: Order, message: PymqMessage) -> str:
    """Fail the first time, and succeed half a second later; the requester waits for the result."""
    if message.delivery_count == 1:
        raise ConnectionError("the bank is busy")
    return f"{order.customer} paid {order.euros} euros"


@broker.subscriber("receipts", group="archive", batch=True)
async def archive(receipts: list[str], logger: Logger) -> None:
    """Handle all messages that have arrived."""
    logger.info("%d receipts", len(receipts))


@broker.subscriber("reminders")
async def remind(customer: str) -> str:
    """Return a reply, which goes to the topic that the message names."""
    return f"{customer}, was the tea good?"


async def main() -> None:
    """Send an order and a reminder, and print the replies."""
    answers = broker.subscriber("answers", mode="reader", offset="end")
    async with broker:
        await broker.start()
        mine = str(uuid4())
        await broker.publish("Ann", "reminders", delay_s=2, reply_to="answers", correlation_id=mine)
        paid = await broker.request(Order(customer="Ann", euros=12), "charges", timeout=60)
        print(await paid.decode())
        async for answer in answers:
            if answer.correlation_id == mine:
                print(await answer.decode())
                break


if __name__ == "__main__":
    asyncio.run(main())
