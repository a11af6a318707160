"""How a log grows: the cost of putting, getting and opening by the number of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.embedded import ours, peers
from benchmarks.model import (
    MS,
    RATE,
    Job,
    Measures,
    Part,
    Side,
    Stopwatch,
    Unit,
    batches,
    random_values,
    resident_bytes,
)

if TYPE_CHECKING:
    import pymq

SIZE = 100
COUNTS = (10**5, 10**6, 10**7, 10**8)
# number of records to append, and to read from the middle, at each length of the log
SAMPLE = 10**5


def _counts(job: Job) -> list[int]:
    most = job.pick(tiny=10**5, default=10**7, long=10**8)
    return [count for count in COUNTS if count <= most]


def _pymq(job: Job) -> Measures:
    import pymq

    found: Measures = {}
    groups = batches(random_values(SAMPLE, SIZE))
    folder = job.folder / "pymq"
    job.warm(3 * SAMPLE * SIZE)
    with pymq.open(folder) as mq:
        mq.create_topic(ours.TOPIC, fsync="os")
    for done, count in zip((0, *COUNTS), _counts(job), strict=False):
        with pymq.open(folder) as mq, mq.producer() as producer:
            for _ in range((count - done) // SAMPLE):
                with Stopwatch() as put:  # only the time of the last put counts
                    ours.put_many(producer, groups, False)
            found[f"put {count}"] = put.rate(SAMPLE)
            found[f"get {count}"] = _get(mq, count)
            found[f"memory {count}"] = resident_bytes() / 2**20
        with Stopwatch() as reopen:
            pymq.open(folder).close()
        found[f"open and close {count}"] = reopen.seconds * 1000
    return found


def _get(mq: pymq.Client, count: int) -> float:
    """Return the rate from the middle on."""
    with mq.consumer(ours.TOPIC, mode="psb") as consumer:
        consumer.seek("0", count // 2 - SAMPLE // 2)
        with Stopwatch() as watch:
            seen = 0
            while seen < SAMPLE:
                seen += sum([len(batch.values) for batch in consumer.poll_batches()])
    return watch.rate(seen)


def _sqlite(job: Job) -> Measures:
    found: Measures = {}
    groups = batches(random_values(SAMPLE, SIZE))
    job.warm(3 * SAMPLE * SIZE)
    db = peers.sqlite(job.folder, "OFF")
    for done, count in zip((0, *COUNTS), _counts(job), strict=False):
        for _ in range((count - done) // SAMPLE):
            with Stopwatch() as put:
                peers.sqlite_put(db, groups)
        found[f"put {count}"] = put.rate(SAMPLE)
        with Stopwatch() as watch:
            total = peers.sqlite_get(db, count // 2 - SAMPLE // 2, SAMPLE)
        assert total == SAMPLE * SIZE
        found[f"get {count}"] = watch.rate(SAMPLE)
        found[f"memory {count}"] = resident_bytes() / 2**20
    db.close()
    return found


UNITS = {"put": RATE, "get": RATE, "memory": Unit("MiB", False), "open and close": MS}
PARTS = (
    Part(
        "G1-records",
        "a log of so many records: the last 100,000 put, 100,000 got from its middle, no fsync",
        (
            Side("sqlite3", "WAL, synchronous OFF, 1,000 a commit", _sqlite),
            Side("pymq", 'send_many of 1,000 and poll_batches, fsync="os"', _pymq),
        ),
        units={f"{what} {n}": UNITS[what] for what in UNITS for n in COUNTS},
        runs_max=1,
        axis="records in the log",
    ),
)
