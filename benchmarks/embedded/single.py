"""E4 and E5: one durable record at a time, in one thread, in many threads and in many tasks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence

from benchmarks.embedded import ours, peers
from benchmarks.model import At, Goal, Job, Measures, Needs, Part, Side, Stopwatch, random_values

SIZE = 100
ONE = 3_000  # records put by one thread
EACH = 400  # records put by each thread; persist-queue gets a tenth of them
MANY = 64


def _values(job: Job, usual: int = ONE) -> list[bytes]:
    return random_values(job.few(usual), SIZE)


def _time(values: Sequence[bytes], put: Callable[[bytes], object]) -> Measures:
    for value in values[: max(16, len(values) // 10)]:
        put(value)
    with Stopwatch() as watch:
        for value in values:
            put(value)
    return {"put": watch.rate(len(values))}


def _bare(job: Job) -> Measures:
    job.warm(4 << 20)
    file = os.open(job.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def put(value: bytes) -> None:
        os.write(file, value)
        os.fdatasync(file)

    try:
        return _time(_values(job), put)
    finally:
        os.close(file)


def _sqlite(job: Job) -> Measures:
    job.warm(16 << 20)
    db = peers.sqlite(job.folder, "FULL")
    measures = _time(_values(job), lambda value: db.execute(peers.INSERT, (value,)))
    db.close()
    return measures


def _persist_queue(job: Job) -> Measures:
    import persistqueue

    job.warm(16 << 20)
    queue = persistqueue.FIFOSQLiteQueue(str(job.folder / "queue"), auto_commit=True)
    measures = _time(_values(job), queue.put)
    queue.close()
    return measures


def _pymq(job: Job) -> Measures:
    import pymq

    job.warm(4 << 20)
    with pymq.open(job.folder / "pymq") as mq:
        mq.create_topic(ours.TOPIC, fsync="always")
        with mq.producer() as producer:
            return _time(_values(job), lambda value: producer.send(ours.TOPIC, value).result())


# --- many at once -------------------------------------------------------------------------------


def _in_threads(values: Sequence[bytes], put: Callable[[bytes], object]) -> Measures:
    """Put all values in each of the threads, which begin together."""
    gate = threading.Barrier(MANY + 1)

    def work() -> None:
        gate.wait()
        for value in values:
            put(value)

    put(values[0])
    threads = [threading.Thread(target=work) for _ in range(MANY)]
    for thread in threads:
        thread.start()
    gate.wait()
    with Stopwatch() as watch:
        for thread in threads:
            thread.join()
    return {"put": watch.rate(MANY * len(values))}


def _persist_queue_threads(job: Job) -> Measures:
    import persistqueue

    job.warm(16 << 20)
    queue = persistqueue.FIFOSQLiteQueue(
        str(job.folder / "queue"), multithreading=True, auto_commit=True
    )
    measures = _in_threads(_values(job, EACH // 10), queue.put)
    queue.close()
    return measures


def _pymq_threads(job: Job) -> Measures:
    import pymq

    job.warm(16 << 20)
    with pymq.open(job.folder / "pymq") as mq:
        mq.create_topic(ours.TOPIC, fsync="always")
        with mq.producer() as producer:
            values = _values(job, EACH)
            return _in_threads(values, lambda value: producer.send(ours.TOPIC, value).result())


def _pymq_tasks(job: Job) -> Measures:
    return asyncio.run(_tasks(job))


async def _tasks(job: Job) -> Measures:
    import pymq.aio

    job.warm(16 << 20)
    values = _values(job, EACH)
    async with pymq.aio.open(job.folder / "pymq") as mq:
        await mq.create_topic(ours.TOPIC, fsync="always")
        async with mq.producer() as producer:

            async def work() -> None:
                for value in values:
                    await producer.send(ours.TOPIC, value)

            await producer.send(ours.TOPIC, values[0])
            with Stopwatch() as watch:
                await asyncio.gather(*(work() for _ in range(MANY)))
    return {"put": watch.rate(MANY * len(values))}


EVERY = "fdatasync a commit"
PARTS = (
    Part(
        "E4-one-durable",
        "one durable record of 100 B at a time, one thread",
        (
            Side("fdatasync", "bare: append 100 B to a file, fdatasync", _bare),
            Side("sqlite3", "WAL, synchronous FULL, a commit a record", _sqlite),
            Side(
                "persist-queue",
                f"FIFOSQLiteQueue, {EVERY}",
                _persist_queue,
                needs=Needs(("persistqueue",)),
            ),
            Side("pymq", 'fsync="always", send().result()', _pymq),
        ),
        (
            Goal(At("pymq", "put"), (At("fdatasync", "put"),), at_least=0.9),
            Goal(At("pymq", "put"), (At("sqlite3", "put"), At("persist-queue", "put"))),
        ),
    ),
    Part(
        "E5-many-durable",
        f"one durable record of 100 B at a time, {MANY} threads or tasks",
        (
            Side(
                "persist-queue",
                f"FIFOSQLiteQueue, multithreading, {EVERY}",
                _persist_queue_threads,
                needs=Needs(("persistqueue",)),
            ),
            Side("pymq threads", 'fsync="always", send().result()', _pymq_threads),
            Side(
                "pymq tasks",
                'fsync="always", await send()',
                _pymq_tasks,
                needs=Needs(("pymq.aio",)),
            ),
        ),
        (
            Goal(At("pymq threads", "put"), (At("persist-queue", "put"),), at_least=20),
            Goal(At("pymq tasks", "put"), (At("persist-queue", "put"),), at_least=20),
        ),
    ),
)
