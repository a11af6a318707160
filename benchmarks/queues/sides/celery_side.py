"""Celery on Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.queues.board import Board
from benchmarks.queues.sides.plan import Plan
from benchmarks.queues.sides.senders import Calls, Sender

HOLD_S = 3 * 3600  # longer than any delay; Celery would deliver such a task again otherwise


def make_app(url: str, **settings: Any) -> Any:
    """Return a Celery app without results, events and remote control, which acknowledges tasks that
    are done.
    """
    from celery import Celery

    app = Celery("bench", broker=url)
    app.conf.update(
        task_acks_late=True,
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": HOLD_S},
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        **settings,
    )
    return app


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    """``apply_async`` with one producer."""
    app = make_app(url)

    @app.task(name="run")  # type: ignore[untyped-decorator]  # Celery has no types
    def run(number: int) -> None:
        """A placeholder: the workers have the real task."""

    with app.producer_or_acquire() as producer:

        def send(number: int) -> None:
            run.apply_async((number,), producer=producer)

        yield Calls(send)


def work(url: str, board: Board, index: int, plan: Plan) -> None:
    """Run one worker; with the pool ``prefork`` this process runs all workers of the plan."""
    from celery import signals

    app = make_app(url, worker_prefetch_multiplier=plan.prefetch)

    @app.task(name="run")  # type: ignore[untyped-decorator]  # Celery has no types
    def run(number: int) -> None:
        board.run(number, plan.work_s)

    workers = range(plan.workers) if plan.variant == "prefork" else range(index, index + 1)

    def gate(**_: Any) -> None:
        # At this point the worker has taken no task yet, and the processes of the pool have
        # started.
        board.pass_gate(*workers)

    signals.worker_ready.connect(gate, weak=False)
    app.worker_main(
        f"worker --pool {plan.variant} --concurrency {len(workers)} --loglevel ERROR "
        f"-n {index}@bench --without-gossip --without-mingle --without-heartbeat".split()
    )
