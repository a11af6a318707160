"""How puts and gets grow with the size of a record; a curve in the plot."""

from __future__ import annotations

from benchmarks.embedded import ours, peers
from benchmarks.model import Job, Measures, Part, Side, Stopwatch, Unit, random_values

SIZES = (10, 100, 1024, 4096, 16384, 65536, 1 << 18, 1 << 20)
BYTES = 24 << 20  # upper limit of the data for each record size
COUNT = 100_000
GROUP_BYTES = 1 << 18


def _groups(job: Job, size: int) -> list[list[bytes]]:
    count = min(job.count(COUNT), max(64, job.few(BYTES) // size))
    values = random_values(count, size)
    step = min(1000, max(1, GROUP_BYTES // size))
    return [values[i : i + step] for i in range(0, count, step)]


def _sqlite(job: Job) -> Measures:
    found: Measures = {}
    job.warm(6 * BYTES)
    for size in SIZES:
        groups = _groups(job, size)
        count = sum(map(len, groups))
        (job.folder / str(size)).mkdir()
        db = peers.sqlite(job.folder / str(size), "OFF")
        peers.sqlite_put(db, groups[: max(1, len(groups) // 20)])
        db.execute("DELETE FROM records")
        with Stopwatch() as watch:
            peers.sqlite_put(db, groups)
        found[f"put {size}"] = watch.rate(count)
        with Stopwatch() as watch:
            total = peers.sqlite_get(db)
        found[f"get {size}"] = watch.rate(count)
        assert total == size * count
        db.close()
    return found


def _pymq(job: Job) -> Measures:
    import pymq

    found: Measures = {}
    job.warm(6 * BYTES)
    with pymq.open(job.folder / "pymq") as mq:
        for size in SIZES:
            groups = _groups(job, size)
            count, topic = sum(map(len, groups)), f"of-{size}"
            mq.create_topic("warm", fsync="os", exist_ok=True)
            mq.create_topic(topic, fsync="os")
            with mq.producer() as producer:
                ours.put_many(producer, groups[: max(1, len(groups) // 20)], False, "warm")
                ours.put_many(producer, groups[:1], True, topic)  # creates the file
                with Stopwatch() as watch:
                    ours.put_many(producer, groups, False, topic)
            found[f"put {size}"] = watch.rate(count)
            with mq.consumer(topic, mode="psb") as consumer, Stopwatch() as watch:
                total, seen = 0, count + len(groups[0])
                while total < size * seen:
                    total += sum([sum(map(len, b.values)) for b in consumer.poll_batches()])
            found[f"get {size}"] = watch.rate(seen)
    return found


PARTS = (
    Part(
        "G5-sizes",
        "put and get by the size of a record, no fsync",
        (
            Side("sqlite3", "WAL, synchronous OFF, 256 KiB or 1,000 a commit", _sqlite),
            Side("pymq", 'send_many and poll_batches, fsync="os"', _pymq),
        ),
        units={f"{how} {size}": Unit("records/s") for how in ("put", "get") for size in SIZES},
        runs_max=3,
        axis="bytes a record",
    ),
)
