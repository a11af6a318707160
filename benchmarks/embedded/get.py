"""E3: get in bulk, by a fresh process from a log that another process has written."""

from __future__ import annotations

from benchmarks.embedded import ours, peers
from benchmarks.model import At, Goal, Job, Measures, Part, Side, Stopwatch, random_values

SIZE = 100
COUNT = 500_000


def _fill_sqlite(job: Job) -> None:
    db = peers.sqlite(job.folder, "OFF")
    peers.sqlite_put(db, [random_values(job.count(COUNT), SIZE)])
    db.close()


def _sqlite(job: Job) -> Measures:
    count = job.count(COUNT)
    db = peers.sqlite(job.folder, "OFF")
    peers.sqlite_get(db)  # so that no side measures the disk
    with Stopwatch() as watch:
        total = peers.sqlite_get(db)
    assert total == count * SIZE
    return {"get": watch.rate(count)}


def _fill_pymq(job: Job) -> None:
    ours.fill(job, random_values(job.count(COUNT), SIZE), fsync="os")


def _columns(job: Job) -> Measures:
    import pymq

    count, total = job.count(COUNT), 0
    with pymq.open(job.folder / "pymq") as mq:
        for _ in range(2):  # the first time is the warm-up
            total = 0
            with mq.consumer(ours.TOPIC, mode="psb") as consumer, Stopwatch() as watch:
                while total < count * SIZE:
                    for batch in consumer.poll_batches():
                        total += sum(map(len, batch.values))
    assert total == count * SIZE
    return {"get": watch.rate(count)}


def _records(job: Job) -> Measures:
    import pymq

    count, total = job.count(COUNT), 0
    with pymq.open(job.folder / "pymq") as mq:
        for _ in range(2):
            total = 0
            with mq.consumer(ours.TOPIC, mode="psb") as consumer, Stopwatch() as watch:
                while total < count * SIZE:
                    total += sum([len(record.value) for record in consumer.poll(1000)])
    assert total == count * SIZE
    return {"get": watch.rate(count)}


def _group(job: Job) -> Measures:
    import pymq

    count, total = job.count(COUNT), 0
    with pymq.open(job.folder / "pymq") as mq:
        for turn in range(2):
            group, total = f"group-{job.round}-{turn}", 0
            with mq.consumer(ours.TOPIC, group=group) as consumer, Stopwatch() as watch:
                while total < count * SIZE:
                    records = consumer.poll(1000)
                    total += sum([len(record.value) for record in records])
                    consumer.ack(records)
                consumer.commit()
    assert total == count * SIZE
    return {"get": watch.rate(count)}


def _ours(name: str, setting: str, run: object) -> Side:
    assert callable(run)
    return Side(name, setting, run, prepare=_fill_pymq, is_kept=True)


BEST = (At("sqlite3", "get"),)
PARTS = (
    Part(
        "E3-get",
        "get 100 B in bulk, every value touched",
        (
            Side(
                "sqlite3",
                "one cursor, fetchmany of 1,000",
                _sqlite,
                prepare=_fill_sqlite,
                is_kept=True,
            ),
            _ours("pymq poll_batches", "psb, the values column of each batch", _columns),
            _ours("pymq poll", "psb, poll(1000) records", _records),
            _ours("pymq poll ptp", "a group: poll(1000), ack them, commit at the end", _group),
        ),
        (
            Goal(At("pymq poll_batches", "get"), BEST, at_least=1.5),
            Goal(At("pymq poll", "get"), BEST, at_least=0.5),
            Goal(At("pymq poll ptp", "get"), BEST),
        ),
    ),
)
