"""E7: reopen a large log, after a clean close and after kill -9."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from benchmarks.embedded import ours
from benchmarks.model import At, Goal, Job, Measures, Part, Side, Stopwatch, Unit, random_values

SIZE = 1024
GIB = 1 << 30


def _bytes(job: Job) -> int:
    return job.pick(tiny=4 << 20, default=GIB, long=10 * GIB)


def _fill(job: Job, *, is_killed: bool) -> None:
    import pymq

    group = random_values(250, SIZE)
    mq = pymq.open(job.folder / "pymq")
    mq.create_topic(ours.TOPIC, fsync="interval")
    producer = mq.producer()
    for _ in range(_bytes(job) // (SIZE * len(group))):
        producer.send_many(ours.TOPIC, group)
    producer.flush()
    if is_killed:
        producer.send_many(ours.TOPIC, group)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    mq.close()


def _fill_clean(job: Job) -> None:
    _fill(job, is_killed=False)


def _fill_killed(job: Job) -> None:
    _fill(job, is_killed=True)


def _reopen(job: Job) -> Measures:
    import pymq
    import pymq.nodes.embedded

    with Stopwatch() as watch:
        mq = pymq.open(job.folder / "pymq")
        opened = time.perf_counter()
        with mq.consumer(ours.TOPIC, mode="psb") as consumer:
            first = consumer.poll(1, timeout=60.0)
    assert first
    with Stopwatch() as put, mq.producer() as producer:
        producer.send(ours.TOPIC, b"x").result()
    mq.close()
    return {
        "open": (opened - watch._start) * 1000,
        "first record": watch.seconds * 1000,
        "first put": put.seconds * 1000,
    }


def _verify(job: Job) -> Measures:
    from pymq.store.verification.verify import verify

    size = sum(path.stat().st_size for path in Path(job.folder).rglob("*.block"))
    with Stopwatch() as watch:
        report = verify(str(job.folder / "pymq"))
    assert report.is_ok, report
    return {"verify": size / watch.seconds / 1e6}


FIRST = "first record"
PARTS = (
    Part(
        "E7-reopen",
        "open a log of 1 GiB again (--long: 10 GiB), 1-KiB records",
        (
            Side("pymq clean", "closed; page cache warm", _reopen, prepare=_fill_clean),
            Side(
                "pymq killed",
                "kill -9 after the last batch; page cache warm",
                _reopen,
                prepare=_fill_killed,
                is_killed=True,
            ),
            Side("pymq verify", "every CRC", _verify, prepare=_fill_clean, is_kept=True),
        ),
        (
            Goal(At("pymq clean", FIRST), at_most=1000, note="at 10 GiB"),
            Goal(At("pymq killed", FIRST), at_most=5000, note="at 10 GiB"),
        ),
        {
            **dict.fromkeys(("open", FIRST, "first put"), Unit("ms", False)),
            "verify": Unit("MB/s"),
        },
        runs_max=3,
    ),
)
