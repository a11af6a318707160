"""E8: the cost of partitions: memory, idle time, and the time of a put beside many partitions."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.embedded import ours
from benchmarks.model import (
    NS,
    At,
    Goal,
    Job,
    Measures,
    Part,
    Side,
    Stopwatch,
    Unit,
    random_values,
    resident_bytes,
)

SIZE = 100
COUNT = 200_000
IDLE_S = 2.0
MANY = 10_000
SPREAD = 1_000  # each partition needs a file, which takes milliseconds to make on a busy disk
COUNTS = {"one": 1, "some": 100, "many": MANY}


def _partitions(job: Job, usual: int) -> int:
    return min(usual, job.pick(tiny=50, default=MANY))


def _idle(job: Job, usual: int) -> Measures:
    import pymq

    count = _partitions(job, usual)
    with pymq.open(job.folder / "pymq") as mq:
        mq.create_topic("warm")
        with mq.producer() as producer:
            producer.send("warm", b"x").result()
        before = resident_bytes()
        with Stopwatch() as create:
            mq.create_topic(ours.TOPIC, partitions=count)
        used = resident_bytes() - before
        with mq.producer() as producer:  # starts the background threads
            producer.send(ours.TOPIC, b"x").result()
        time.sleep(0.5 if job.scale == "tiny" else 2.5)  # the background thread becomes idle
        seconds = IDLE_S / (20 if job.scale == "tiny" else 1)
        start = time.process_time()
        time.sleep(seconds)
        cpu = time.process_time() - start
    with Stopwatch() as reopen:
        pymq.open(job.folder / "pymq").close()
    return {
        "memory": used / 1024 / count,
        "idle": 100 * cpu / seconds,
        "create": create.seconds * 1000,
        "reopen": reopen.seconds * 1000,
    }


def _put(job: Job, usual: int) -> Measures:
    """Put into one of the partitions; the cost includes the final flush."""
    import pymq

    count, values = _partitions(job, usual), random_values(job.count(COUNT), SIZE)
    groups = [values[i : i + 1000] for i in range(0, len(values), 1000)]
    job.warm(3 * SIZE * len(values))
    with pymq.open(job.folder / "pymq") as mq:
        mq.create_topic(ours.TOPIC, partitions=count, fsync="os")
        with mq.producer() as producer:
            for value in values[: len(values) // 10]:
                producer.send(ours.TOPIC, value, partition=0)
            producer.flush()
            with Stopwatch() as each:
                for value in values:
                    producer.send(ours.TOPIC, value, partition=0)
                producer.flush()
            with Stopwatch() as many:
                for group in groups:
                    producer.send_many(ours.TOPIC, group, partition=0)
                producer.flush()
            with Stopwatch() as one:
                for value in values[:500]:
                    producer.send(ours.TOPIC, value, partition=0).result()
    return {
        "send": each.each_ns(len(values)),
        "send_many": many.each_ns(len(values)),
        "send().result()": one.each_ns(500),
    }


def _spread(job: Job, usual: int) -> Measures:
    """Put into all partitions by key, after the file of each partition exists."""
    import pymq

    count, values = _partitions(job, usual), random_values(job.count(COUNT // 2), SIZE)
    job.warm(3 * SIZE * len(values))
    with pymq.open(job.folder / "pymq") as mq:
        mq.create_topic(ours.TOPIC, partitions=count, fsync="os")
        with mq.producer() as producer:
            with Stopwatch() as first:
                for index in range(count):
                    producer.send(ours.TOPIC, b"x", partition=index)
                producer.flush()
            keys = [value[:8] for value in values]
            with Stopwatch() as watch:
                for value, key in zip(values, keys, strict=True):
                    producer.send(ours.TOPIC, value, key=key)
                producer.flush()
    return {"spread send": watch.each_ns(len(values)), "first each": first.seconds * 1e6 / count}


def _idle_side(name: str, usual: int) -> Side:
    said = f"{usual:,} partitions, one of them with a record"
    return Side(f"pymq idle {name}", said, partial(_idle, usual=usual))


def _put_side(name: str, usual: int) -> Side:
    said = f'fsync="os", into one of {usual:,} partitions'
    return Side(f"pymq put {name}", said, partial(_put, usual=usual))


def _spread_side(name: str, usual: int) -> Side:
    said = f'fsync="os", over {usual:,} partitions by key'
    return Side(f"pymq spread {name}", said, partial(_spread, usual=usual))


ONE, ALL = "pymq put one", "pymq put many"
PARTS = (
    Part(
        "E8-partitions",
        "one, some (100) and many (10,000) partitions",
        (
            *(_idle_side(name, count) for name, count in COUNTS.items()),
            *(_put_side(name, count) for name, count in COUNTS.items()),
            _spread_side("one", 1),
            _spread_side("many", SPREAD),
        ),
        (
            Goal(At("pymq idle many", "memory"), at_most=10),
            Goal(At("pymq idle many", "idle"), at_most=1),
            *(
                Goal(At(ALL, how), (At(ONE, how),), at_most=1.3)
                for how in ("send", "send_many", "send().result()")
            ),
            Goal(At("pymq spread many", "spread send"), (At("pymq spread one", "spread send"),)),
        ),
        {
            "memory": Unit("KiB/partition", False),
            "idle": Unit("% of a core", False),
            "create": Unit("ms", False),
            "reopen": Unit("ms", False),
            "send": NS,
            "send_many": NS,
            "send().result()": NS,
            "spread send": NS,
            "first each": Unit("us/partition", False),
        },
        runs_max=3,
    ),
)
