"""pymq as a broker of FastStream: handlers of messages, publishers, requests and replies.

::

    from faststream import FastStream

    from pymq.contrib.faststream import PymqBroker

    broker = PymqBroker("data/")  # or "memory:", or "zmq+tcp://127.0.0.1:7878"
    app = FastStream(broker)

    @broker.subscriber("orders", group="billing")
    @broker.publisher("invoices")
    async def bill(order: Order) -> Invoice:
        return Invoice(...)

It needs the extra ``faststream``.

A subscriber is a member of a group, or a reader. FastStream decodes and validates messages, calls
the handlers, and documents them in AsyncAPI; pymq delivers, redelivers, delays and stores messages.
"""

# No "from __future__ import annotations" here: that would hide the module of this name.
from pymq.errors import MissingExtra

try:
    import faststream  # noqa: F401 # says which extra is missing before a module below fails
except ImportError as error:
    raise MissingExtra.of("faststream is missing", "faststream") from error

from pymq.contrib.faststream.annotations import PymqMessage
from pymq.contrib.faststream.broker import PymqBroker
from pymq.contrib.faststream.commands import PymqPublishCommand, PymqResponse
from pymq.contrib.faststream.registrator import PymqPublisher, PymqRoute, PymqRouter
from pymq.contrib.faststream.testing import TestPymqBroker

__all__ = [
    "PymqBroker",
    "PymqMessage",
    "PymqPublishCommand",
    "PymqPublisher",
    "PymqResponse",
    "PymqRoute",
    "PymqRouter",
    "TestPymqBroker",
]
