"""Dramatiq on Redis."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.queues.board import Board
from benchmarks.queues.sides.plan import Plan
from benchmarks.queues.sides.senders import Calls, Sender


def _actor(url: str, run: Callable[[int], object]) -> tuple[Any, Any]:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url, middleware=[])
    return broker, dramatiq.actor(run, actor_name="run", broker=broker)


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    """``send``."""
    broker, actor = _actor(url, lambda _: None)
    yield Calls(actor.send)
    broker.close()


def work(url: str, board: Board, index: int, plan: Plan) -> None:
    """Run a worker of one thread, which acknowledges each task that is done."""
    os.environ["dramatiq_queue_prefetch"] = str(plan.prefetch)  # noqa: SIM112  # its name
    from dramatiq import Worker

    broker, _ = _actor(url, lambda number: board.run(number, plan.work_s))
    worker = Worker(broker, worker_threads=1)
    board.pass_gate(index)
    worker.start()
    for thread in worker.workers:
        thread.join()
