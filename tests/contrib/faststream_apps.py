"""Brokers of FastStream for tests, each in an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pymq
import pymq.aio
from pymq.contrib.faststream import PymqBroker
from pymq.core.batch.record import Record

SECONDS = 60.0  # timeout, for a busy machine
SOON = pymq.Backoff(first_s=0.01, factor=2, max_s=0.1)
QUIET = logging.CRITICAL + 1

T = TypeVar("T")


def play(script: Callable[[], Awaitable[None]], timeout: float = SECONDS) -> None:
    """Run a script in a new event loop, and therefore on a new queue in memory."""
    asyncio.run(asyncio.wait_for(script(), timeout))


def make(url: str | Path | pymq.aio.AsyncClient = "memory:", **options: Any) -> PymqBroker:
    return PymqBroker(url, **{"log_level": QUIET, **options})


@asynccontextmanager
async def started(*brokers: PymqBroker) -> AsyncIterator[PymqBroker]:
    """Start brokers, yield the first one, and stop them."""
    for broker in brokers:
        await broker.start()
    try:
        yield brokers[0]
    finally:
        for broker in brokers:
            await broker.stop()


class Seen(asyncio.Queue[Any]):
    """The messages that handlers have seen, in order."""

    async def next(self, timeout: float = SECONDS) -> Any:
        return await asyncio.wait_for(self.get(), timeout)

    async def several(self, count: int) -> list[Any]:
        return [await self.next() for _ in range(count)]

    async def nothing_for(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self.get(), seconds)
        except TimeoutError:
            return True
        return False


async def letters(broker: PymqBroker, topic: str, count: int = 1) -> list[Record]:
    """Wait for dead letters of a topic."""
    while True:
        try:
            found = await broker.client.dead_letters(f"{topic}.dlq")
        except pymq.errors.UnknownTopic:
            found = []
        if len(found) >= count:
            return found
        await asyncio.sleep(0.01)


def reason(letter: Record) -> str:
    return dict(letter.headers)["pymq.error"].decode()


async def settled(broker: PymqBroker, group: str) -> None:
    """Wait until all messages are acknowledged."""
    while any((await broker.client.describe_group(group)).lag.values()):
        await asyncio.sleep(0.01)
