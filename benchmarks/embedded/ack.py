"""E6: get and acknowledge records one by one."""

from __future__ import annotations

from benchmarks.embedded import ours
from benchmarks.model import At, Goal, Job, Measures, Needs, Part, Side, Stopwatch, random_values

SIZE = 100


def _persist_queue(job: Job) -> Measures:
    import persistqueue

    count = job.few(2_000)
    job.warm(16 << 20)
    queue = persistqueue.SQLiteAckQueue(str(job.folder / "queue"), auto_commit=True)
    for value in random_values(count, SIZE):
        queue.put(value)
    with Stopwatch() as watch:
        for _ in range(count):
            queue.ack(queue.get())
    queue.close()
    return {"get": watch.rate(count)}


def _litequeue(job: Job) -> Measures:
    import litequeue

    # A peer scans its finished items at each get, so a longer queue would only make the peer
    # slower.
    count = job.few(1_000)
    job.warm(16 << 20)
    queue = litequeue.LiteQueue(str(job.folder / "queue.sqlite"))
    for value in random_values(count, SIZE):
        queue.put(value)
    with Stopwatch() as watch:
        for _ in range(count):
            queue.done(queue.pop().message_id)
    queue.close()
    return {"get": watch.rate(count)}


def _diskcache(job: Job) -> Measures:
    import diskcache

    count = job.few(10_000)
    job.warm(32 << 20)
    queue = diskcache.Deque(directory=str(job.folder / "deque"))
    with queue.transact():
        queue.extend(random_values(count, SIZE))
    with Stopwatch() as watch:
        for _ in range(count):
            queue.popleft()
    queue.cache.close()
    return {"get": watch.rate(count)}


def _fill(job: Job) -> None:
    ours.fill(job, random_values(job.count(100_000), SIZE), fsync="os")


def _pymq(job: Job) -> Measures:
    import pymq

    count, left = job.count(100_000), 1000
    with pymq.open(job.folder / "pymq") as mq:
        with mq.consumer(ours.TOPIC, group="warm") as consumer:
            for record in consumer:
                consumer.ack(record)
                left -= 1
                if not left:
                    break
        left = count
        with mq.consumer(ours.TOPIC, group="readers") as consumer, Stopwatch() as watch:
            for record in consumer:
                consumer.ack(record)
                left -= 1
                if not left:
                    break
            consumer.commit()
    return {"get": watch.rate(count)}


def _pymq_commit(job: Job) -> Measures:
    import pymq

    count = left = job.few(2_000)
    with (
        pymq.open(job.folder / "pymq") as mq,
        mq.consumer(ours.TOPIC, group="readers") as consumer,
        Stopwatch() as watch,
    ):
        for record in consumer:
            consumer.ack(record)
            consumer.commit()
            left -= 1
            if not left:
                break
    return {"get": watch.rate(count)}


OF_SQLITE = "WAL, no fsync per commit"
PARTS = (
    Part(
        "E6-ack",
        "get and acknowledge 100 B one by one",
        (
            Side(
                "persist-queue",
                "SQLiteAckQueue get, ack: fsync each",
                _persist_queue,
                needs=Needs(("persistqueue",)),
            ),
            Side("litequeue", f"get, done: {OF_SQLITE}", _litequeue, needs=Needs(("litequeue",))),
            Side(
                "diskcache", f"Deque.popleft: {OF_SQLITE}", _diskcache, needs=Needs(("diskcache",))
            ),
            Side(
                "pymq",
                "group, ack each; sent each 20 ms, written without fsync; commit at the end",
                _pymq,
                prepare=_fill,
            ),
            Side(
                "pymq commit",
                "group, ack and commit each: fsync each",
                _pymq_commit,
                prepare=_fill,
            ),
        ),
        (
            Goal(
                At("pymq", "get"),
                (At("persist-queue", "get"), At("litequeue", "get"), At("diskcache", "get")),
                at_least=20,
            ),
            Goal(At("pymq commit", "get"), (At("persist-queue", "get"),)),
        ),
    ),
)
