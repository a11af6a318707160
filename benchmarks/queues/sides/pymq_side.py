"""pymq: a group of workers, on a broker or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from benchmarks.queues.board import Board
from benchmarks.queues.sides.plan import Plan
from benchmarks.queues.sides.senders import Calls, Sender
from benchmarks.queues.workers import Crew

if TYPE_CHECKING:
    import pymq

TOPIC, GROUP = "tasks", "workers"
PARTITIONS = 4
JOIN_S = 0.2
POLL_S = 0.5


@contextmanager
def sender(url: str) -> Iterator[Sender]:
    """``send``, and a ``flush`` at the end."""
    import pymq

    with pymq.open(url) as mq, sending(mq) as found:
        yield found


@contextmanager
def sending(mq: pymq.Client) -> Iterator[Sender]:
    """Create the topic, and send with a client that is open."""
    mq.create_topic(TOPIC, partitions=PARTITIONS, acks="leader", fsync="always")
    with mq.producer(linger_ms=2, delivery_timeout_s=300) as producer:

        def send(task: int) -> None:
            producer.send(TOPIC, task.to_bytes(8, "big"))

        yield Calls(send, flush=producer.flush)


def work(url: str, board: Board, index: int, plan: Plan) -> None:
    """Run a worker in a separate process."""
    import pymq

    with pymq.open(url) as mq:
        _work(mq, board, index, plan, lambda: False)


def _work(
    mq: pymq.Client, board: Board, index: int, plan: Plan, is_over: Callable[[], bool]
) -> None:
    """Poll, run and acknowledge."""
    with mq.consumer(TOPIC, group=GROUP) as consumer:
        # after this poll, the consumer is a member of the group
        records = consumer.poll(timeout=JOIN_S)
        board.pass_gate(index)
        while not is_over():
            size = 1 if plan.variant == "commit each" else max(1, len(records))
            for start in range(0, len(records), size):
                some = records[start : start + size]
                for record in some:
                    board.run(int.from_bytes(record.value, "big"), plan.work_s)
                consumer.ack(some)
                if plan.variant:
                    consumer.commit()
            records = consumer.poll(timeout=POLL_S)


@contextmanager
def embedded(folder: Path, plan: Plan, tasks: int) -> Iterator[tuple[Sender, Crew]]:
    """Send and work in this process, with a folder; each worker is a thread."""
    import pymq

    board = Board.make(folder / "board", plan.workers, tasks)
    is_over = Event()
    with pymq.open(folder / "queue") as mq, sending(mq) as found:
        with ThreadPoolExecutor(plan.workers) as pool:
            work = [
                pool.submit(_work, mq, board, index, plan, is_over.is_set)
                for index in range(plan.workers)
            ]

            def check() -> None:
                for each in work:
                    if each.done():
                        each.result()

            try:
                yield found, Crew(board, check)
            finally:
                is_over.set()
                board.open_gate()
        check()
