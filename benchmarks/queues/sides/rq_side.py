"""RQ on Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.queues.board import Board
from benchmarks.queues.sides.plan import Plan
from benchmarks.queues.sides.senders import Calls, Sender

CHUNK = 1000  # tasks that are enqueued by one pipeline


class Task:
    """The task that RQ calls by its name; a worker sets *function*."""

    function: Callable[[int], object] = staticmethod(lambda _: None)


def run(number: int) -> None:
    """The task."""
    Task.function(number)


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    """``enqueue``, and ``enqueue_many`` of 1,000."""
    from redis import Redis
    from rq import Queue

    with Redis.from_url(url) as db:
        queue = Queue(connection=db)

        def burst(tasks: Sequence[int]) -> None:
            for start in range(0, len(tasks), CHUNK):
                some = tasks[start : start + CHUNK]
                queue.enqueue_many([queue.prepare_data(run, (n,), result_ttl=0) for n in some])

        yield Calls(lambda task: queue.enqueue(run, task, result_ttl=0), burst)


def work(url: str, board: Board, index: int, plan: Plan) -> None:
    """Run a worker that runs tasks in its own process; RQ's usual worker forks for each task."""
    from redis import Redis
    from rq import Queue, SimpleWorker

    Task.function = staticmethod(lambda number: board.run(number, plan.work_s))
    db = Redis.from_url(url)
    worker = SimpleWorker([Queue(connection=db)], connection=db, log_job_description=False)
    board.pass_gate(index)
    worker.work(logging_level="ERROR")
