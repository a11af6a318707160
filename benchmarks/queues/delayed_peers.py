"""Delayed tasks of Celery and RQ; ``python -m benchmarks.queues.delayed_peers NAME URL FILE`` is
a worker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.queues.arrivals import note
from benchmarks.queues.sides import celery_side

Send = Callable[[int, float], object]  # a task's number, and its due time in seconds since 1970


def run(file: str, number: int) -> None:
    """The task."""
    note(Path(file), number)


def _celery(url: str) -> tuple[Any, Any]:
    app = celery_side.make_app(url)
    return app, app.task(name="run")(run)


@contextmanager
def _celery_sender(url: str, file: str) -> Iterator[Send]:
    app, task = _celery(url)
    with app.producer_or_acquire() as producer:

        def send(number: int, due: float) -> None:
            eta = datetime.fromtimestamp(due, UTC)
            task.apply_async((file, number), eta=eta, producer=producer)

        yield send


def _celery_worker(url: str) -> None:
    """Start a worker, which takes delayed tasks from Redis and holds them until they are due."""
    app, _ = _celery(url)
    app.worker_main(
        "worker --pool solo --concurrency 1 --loglevel ERROR --without-gossip --without-mingle "
        "--without-heartbeat".split()
    )


@contextmanager
def _rq_sender(url: str, file: str) -> Iterator[Send]:
    import rq
    from redis import Redis

    with Redis.from_url(url) as db:
        queue = rq.Queue(connection=db)

        def send(number: int, due: float) -> None:
            at = datetime.fromtimestamp(due, UTC)
            queue.enqueue_at(at, run, file, number, result_ttl=0)

        yield send


def _rq_worker(url: str) -> None:
    """Start a worker, which moves the due tasks into the queue once a second."""
    from redis import Redis
    from rq import Queue, SimpleWorker

    db = Redis.from_url(url)
    worker = SimpleWorker([Queue(connection=db)], connection=db, log_job_description=False)
    worker.work(logging_level="ERROR", with_scheduler=True)


SENDERS: dict[str, Callable[[str, str], AbstractContextManager[Send]]] = {
    "celery": _celery_sender,
    "rq": _rq_sender,
}
WORKERS: dict[str, Callable[[str], None]] = {"celery": _celery_worker, "rq": _rq_worker}


if __name__ == "__main__":
    WORKERS[sys.argv[1]](sys.argv[2])
