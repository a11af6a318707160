"""Tasks with taskiq: retries with back-off, delays, priorities, progress and results.

    python examples/taskiq_app.py  # in this folder's shop-data, with a worker in this process

On brokers the same program can also have workers in separate processes:

    export PYMQ_URL=zmq+tcp://127.0.0.1:7878
    taskiq worker examples.taskiq_app:broker &
    python examples/taskiq_app.py
"""

from __future__ import annotations

import asyncio
import os

from taskiq import Context, TaskiqDepends
from taskiq.api import run_receiver_task
from taskiq.depends.progress_tracker import ProgressTracker

import pymq
from pymq.contrib.taskiq import PymqBroker, PymqResultBackend, PymqRetryMiddleware

URL = os.environ.get("PYMQ_URL", "shop-data")
broker = (
    PymqBroker(URL, retry=pymq.Backoff(first_s=0.5, factor=2, max_s=60))
    .with_result_backend(PymqResultBackend(URL))
    .with_middlewares(PymqRetryMiddleware())
)


# Name the task explicitly, since a module that runs as a program has another name than an imported
# one.
@broker.task("shop.charge", retry_on_error=True, max_retries=5, priority=9)
async def charge(customer: str, euros: int, context: Context = TaskiqDepends()) -> str:
    """Fail the first time, and succeed half a second later."""
    if broker.deliveries(context.message.task_id) == 1:
        raise ConnectionError("the bank is busy")
    return f"{customer} paid {euros} euros"


@broker.task("shop.pack")
async def pack(cups: int, progress: ProgressTracker[int] = TaskiqDepends()) -> int:
    """Report how many cups are packed."""
    for packed in range(1, cups + 1):
        await progress.set_progress("packing", packed)
    return cups


@broker.task("shop.remind")
def remind(customer: str) -> str:
    """Send a reminder; taskiq runs this plain function in a thread."""
    return f"{customer}, was the tea good?"


async def main() -> None:
    """Send three tasks, and print their results."""
    await broker.startup()
    worker = asyncio.create_task(run_receiver_task(broker))
    try:
        reminded = await remind.kicker().with_labels(delay=2).kiq("Ann")
        packed = await pack.kiq(6)
        paid = await charge.kiq("Ann", 12)
        print((await paid.wait_result(timeout=60)).raise_for_error().return_value)
        cups = (await packed.wait_result(timeout=60)).raise_for_error().return_value
        print(f"{cups} cups are packed; {await packed.get_progress()}")
        print((await reminded.wait_result(timeout=60)).raise_for_error().return_value)
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
