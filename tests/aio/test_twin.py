"""The asyncio twin has the same names and arguments as the rest of pymq."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable
from typing import Any

import pytest

import pymq
from pymq.aio import AsyncClient, AsyncConsumer, AsyncDeliveries, AsyncDelivery, AsyncProducer
from pymq.aio.producer import Feed
from pymq.client.client import Client
from pymq.client.consumer.consumer import Consumer
from pymq.client.producer.delivery import Deliveries, Delivery
from pymq.client.producer.producer import Producer

PAIRS = [
    (Client, AsyncClient),
    (Producer, AsyncProducer),
    (Consumer, AsyncConsumer),
    (Delivery, AsyncDelivery),
    (Deliveries, AsyncDeliveries),
]
# Public names that only pymq itself uses.
OWN: dict[type, set[str]] = {
    Client: {"forget"},
    Consumer: {"start_push"},
}
# Methods that never wait stay plain calls.
PLAIN: dict[type, set[str]] = {
    Client: {"closed", "consumer", "producer", "reply", "topic"},
    Producer: {"send"},
    Consumer: {"ack", "assignment", "nack"},
    Delivery: {"add_done_callback", "done"},
    Deliveries: {"done"},
}
NO_TWIN: dict[type, set[str]] = {
    Client: {"schemas"},  # Opening a typed topic registers its schema.
    Delivery: {"topic", "partition", "headers", "timestamp_ms", "index", "key", "value"},
}

METHODS = [
    (sync, twin, name)
    for sync, twin in PAIRS
    for name in dir(sync)
    if not name.startswith("_") and name not in OWN.get(sync, set()) | NO_TWIN.get(sync, set())
    if callable(getattr(sync, name)) or isinstance(getattr(sync, name), property)
]


@pytest.mark.parametrize(("sync", "twin", "name"), METHODS)
def test_the_signature_is_the_same(sync: type, twin: type, name: str) -> None:
    original, found = getattr(sync, name), getattr(twin, name)
    if isinstance(original, property):
        assert isinstance(found, property)
        return
    assert parameters(found) == parameters(original)


@pytest.mark.parametrize(("sync", "twin", "name"), METHODS)
def test_what_waits_is_a_coroutine(sync: type, twin: type, name: str) -> None:
    found = getattr(twin, name)
    waits = inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found)
    assert waits != (name in PLAIN.get(sync, set()))


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    signature = inspect.signature(function)
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


def test_iterating_is_asynchronous() -> None:
    assert issubclass(AsyncConsumer, AsyncIterable)


def test_aio_is_found_in_the_package() -> None:
    assert pymq.aio.open is not None


def test_the_feed_overrides_what_there_is() -> None:
    """If a method of the producer is renamed, its asyncio twin must not begin to wait in the event
    loop.
    """
    assert {"_fill"} <= set(vars(Feed)) & set(vars(Producer))
