"""taskiq, on Redis and on pymq: the same program with another broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from benchmarks.network.roles import HandLoop
from benchmarks.queues.board import Board
from benchmarks.queues.sides.plan import Plan
from benchmarks.queues.sides.senders import Coroutines, Sender

NO_OP_TASKS = 100  # no-ops that a worker runs at a time; taskiq's default


def _make_broker(url: str, prefetch: int) -> Any:
    if url.startswith("redis:"):
        from taskiq_redis import RedisStreamBroker

        return RedisStreamBroker(url, consumer_id="0", xread_count=prefetch)
    from pymq.contrib.taskiq import PymqBroker

    return PymqBroker(url, prefetch=prefetch)


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    """``kiq``, up to 200 at a time."""
    broker = _make_broker(url, 1)

    @broker.task("run")  # type: ignore[untyped-decorator]  # a broker of either kind
    async def run(number: int) -> None:
        """A placeholder: the workers have the real task."""

    with closing(HandLoop()) as loop:
        loop.run(broker.startup())
        try:
            yield Coroutines(loop, run.kiq)
        finally:
            loop.run(broker.shutdown())


def work(url: str, board: Board, index: int, plan: Plan) -> None:
    """Run a worker, which acknowledges each task that is done."""
    asyncio.run(_work(url, board, index, plan))


async def _work(url: str, board: Board, index: int, plan: Plan) -> None:
    from taskiq.api import run_receiver_task

    broker = _make_broker(url, plan.prefetch)

    @broker.task("run")  # type: ignore[untyped-decorator]  # a broker of either kind
    async def run(number: int) -> None:
        board.started(number)
        if plan.work_s:
            await asyncio.sleep(plan.work_s)
        board.ended(number)

    await broker.startup()
    await asyncio.to_thread(board.pass_gate, index)
    await run_receiver_task(broker, max_async_tasks=1 if plan.work_s else NO_OP_TASKS)
