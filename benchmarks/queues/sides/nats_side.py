"""A work queue of NATS JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from benchmarks.network.roles import HandLoop
from benchmarks.queues.board import Board
from benchmarks.queues.sides.plan import Plan
from benchmarks.queues.sides.senders import Coroutines, Sender

STREAM, SUBJECT, GROUP = "tasks", "tasks.run", "workers"
PATIENCE_S = 60.0  # enough for an answer on a busy computer


async def _connect(url: str) -> Any:
    import nats

    return await nats.connect(url)


async def _make_stream(connection: Any) -> None:
    from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy

    js = connection.jetstream()
    await js.add_stream(name=STREAM, subjects=[SUBJECT], retention=RetentionPolicy.WORK_QUEUE)
    config = ConsumerConfig(durable_name=GROUP, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=-1)
    await js.add_consumer(STREAM, config)


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    """``publish``, up to 200 at a time."""
    with closing(HandLoop()) as loop:
        connection = loop.run(_connect(url))
        try:
            loop.run(_make_stream(connection))
            publish = partial(connection.jetstream().publish, SUBJECT, timeout=PATIENCE_S)
            yield Coroutines(loop, lambda task: publish(payload=task.to_bytes(8, "big")))
        finally:
            loop.run(connection.close())


def work(url: str, board: Board, index: int, plan: Plan) -> None:
    """Fetch, run, and acknowledge with confirmation."""
    asyncio.run(_work(url, board, index, plan))


async def _work(url: str, board: Board, index: int, plan: Plan) -> None:
    import nats.errors

    connection = await _connect(url)
    queue = await connection.jetstream().pull_subscribe_bind(GROUP, STREAM)
    await asyncio.to_thread(board.pass_gate, index)
    while True:
        try:
            messages = await queue.fetch(plan.prefetch, timeout=1)
        except nats.errors.TimeoutError:
            continue
        for message in messages:
            board.run(int.from_bytes(message.data, "big"), plan.work_s)
        await asyncio.gather(*(message.ack_sync(PATIENCE_S) for message in messages))
