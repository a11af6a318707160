"""Brokers and workers of taskiq for tests, each in its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from taskiq import AckableMessage, AsyncTaskiqTask, BrokerMessage
from taskiq.api import run_receiver_task

import pymq
import pymq.aio
from pymq.contrib.taskiq import PymqBroker, PymqResultBackend

SECONDS = 60.0  # timeout, for a busy machine
SOON = pymq.Backoff(first_s=0.01, factor=2, max_s=0.1)


def play(script: Callable[[], Awaitable[None]]) -> None:
    """Run a script in a new event loop, and therefore on a new queue in memory."""
    asyncio.run(asyncio.wait_for(script(), SECONDS))


def make(url: str | Path | pymq.aio.AsyncClient = "memory:", **options: Any) -> PymqBroker:
    broker = PymqBroker(url, retry=SOON, **options)
    return broker.with_result_backend(PymqResultBackend(url))


@asynccontextmanager
async def working(*brokers: PymqBroker, **options: Any) -> AsyncIterator[None]:
    """Start brokers, each with a worker."""
    for broker in brokers:
        await broker.startup()
    workers = [asyncio.create_task(run_receiver_task(broker, **options)) for broker in brokers]
    try:
        yield
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        for broker in brokers:
            await broker.shutdown()


async def value(task: AsyncTaskiqTask[Any]) -> Any:
    result = await task.wait_result(check_interval=0.01, timeout=SECONDS)
    return result.raise_for_error().return_value


def message(task_id: str = "1", body: bytes = b"body", **labels: Any) -> BrokerMessage:
    return BrokerMessage(task_id=task_id, task_name="name", message=body, labels=labels)


async def take(broker: PymqBroker, timeout: float = SECONDS) -> AckableMessage:
    """Take the next task, as a receiver does."""
    tasks = broker.listen()
    try:
        found = await asyncio.wait_for(anext(tasks), timeout)
    finally:
        await tasks.aclose()
    assert isinstance(found, AckableMessage)
    return found


async def acknowledge(found: AckableMessage) -> None:
    done = found.ack()
    assert done is None


async def letters(broker: PymqBroker) -> list[dict[str, bytes]]:
    found = await broker.client.dead_letters(f"{broker.topic}.dlq")
    return [dict(letter.headers) for letter in found]


async def settled(broker: PymqBroker) -> None:
    """Wait until all tasks are acknowledged."""
    while any((await broker.client.describe_group(broker.group)).lag.values()):
        await asyncio.sleep(0.01)
