"""Delayed tasks: the memory that a million of them take, and how exactly they run at their times.

Most tasks are due in an hour or two, so the queue only stores them. Some tasks, sent between these,
become due one by one within a minute. The benchmark measures how long after its due time each of
them runs.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.machine import ROOT
from benchmarks.model import MS, At, Goal, Job, Measures, Needs, Part, Side, Stopwatch, Unit
from benchmarks.network import pymq_side, servers
from benchmarks.queues import delayed_peers
from benchmarks.queues.arrivals import OTHER, Arrivals, children_bytes, settled_bytes

if TYPE_CHECKING:
    import pymq

TOPIC = pymq_side.TOPIC
MANY = 1_000_000
# tasks without a delay first, so that the server allocates the memory that it needs for any task
WARM = 100_000
# seconds until the first of the many tasks is due; the last is due after twice this time
FAR_S = 3600.0
NUMBER = struct.Struct("<q")


def _tasks(count: int, timed: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Return *count* tasks with their due times, in random order, which is the hardest to store."""
    rng, now = random.Random(0), time.time()
    found = [(OTHER, now + rng.uniform(FAR_S, 2 * FAR_S)) for _ in range(count)]
    for place, entry in zip(rng.sample(range(count), len(timed)), enumerate(timed), strict=True):
        found[place] = entry
    return iter(found)


@contextmanager
def _holding(count: int, found: Measures) -> Iterator[None]:
    """Measure the time and memory for *count* tasks that the block sends."""
    before = children_bytes()
    with Stopwatch() as watch:
        yield
    found["send"] = watch.rate(count)
    found["memory"] = (settled_bytes() - before) / count


def _pymq(job: Job) -> Measures:
    """Measure pymq: the memory of the broker and the zkserver, since no client stores delayed
    tasks.
    """
    import pymq

    count = job.whole(MANY)
    found: Measures = {}
    arrivals = Arrivals()
    with pymq_side.cluster(job.folder) as url:
        pymq_side.make_topic(url, acks="raft", replicas=1)
        with (
            pymq.open(url) as mq,
            mq.producer(delivery_timeout_s=300) as producer,
            mq.consumer(TOPIC, group="workers") as consumer,
        ):
            _warm(producer, consumer, min(count, WARM))
            tasks = _tasks(count, arrivals.plan(job))
            with _holding(count, found):
                for number, due in tasks:
                    at = datetime.fromtimestamp(due, UTC)
                    producer.send(TOPIC, NUMBER.pack(number), deliver_at=at)
                producer.flush()
            with Stopwatch() as watch:  # the group skips all records that are not due yet, once
                producer.send(TOPIC, NUMBER.pack(OTHER)).result()
                while not _take(consumer):
                    pass
            found["pass"] = watch.seconds * 1000
            arrivals.check()
            while arrivals.is_awaited:
                for number in _take(consumer):
                    arrivals.ran(number, time.time())
    measures = arrivals.measures()
    if measures["late min"] < 0:
        raise RuntimeError(f"a record came {-measures['late min']:.3f} ms early")
    return found | measures


def _warm(producer: pymq.Producer, consumer: pymq.Consumer, count: int) -> None:
    producer.send_many(TOPIC, [NUMBER.pack(OTHER)] * count).wait()
    left = count
    while left > 0:
        left -= len(_take(consumer))


def _take(consumer: pymq.Consumer) -> list[int]:
    """Take and acknowledge the next tasks; return their numbers."""
    records = consumer.poll(500, timeout=1.0)
    if records:
        consumer.ack(records)
    # since the empty record, the client knows the topic's leader
    return [NUMBER.unpack(record.value)[0] for record in records if record.value]


def _peer(name: str, usual: int, job: Job) -> Measures:
    """Measure a peer: the memory of Redis and of the worker, which may also store delayed tasks."""
    count = job.pick(tiny=200, default=usual, long=4 * usual)
    found: Measures = {}
    arrivals = Arrivals()
    file = job.folder / "arrivals"
    with servers.redis(job.folder, "always") as port:
        url = f"redis://{servers.HOST}:{port}/0"
        command = [sys.executable, "-m", "benchmarks.queues.delayed_peers", name, url]
        with delayed_peers.SENDERS[name](url, str(file)) as send:
            send(OTHER, time.time())  # a worker that has run a task has loaded all modules
            with servers.running(
                command, job.folder / "worker.log", file.exists, {"PYTHONPATH": str(ROOT)}
            ):
                tasks = _tasks(count, arrivals.plan(job))
                with _holding(count, found):
                    for number, due in tasks:
                        send(number, due)
                arrivals.check()
                arrivals.read(file)
    return found | arrivals.measures()


REDIS = "Redis, append-only file synced always"
LATE = ("late min", "late p50", "late p99", "late max")
CELERY, RQ = 20_000, 20_000  # a million tasks would take them half an hour

PARTS = (
    Part(
        "Q5-delayed",
        f"{MANY:,} delayed tasks: memory of each, and how late the next ones run",
        (
            Side(
                "celery",
                f"{CELERY:,} tasks with an eta, held by a worker; {REDIS}",
                partial(_peer, "celery", CELERY),
                Needs(("celery", "redis"), ("redis-server",)),
            ),
            Side(
                "rq",
                f"{RQ:,} tasks by enqueue_at, looked for once a second; {REDIS}",
                partial(_peer, "rq", RQ),
                Needs(("rq", "redis"), ("redis-server",)),
            ),
            Side(
                "pymq",
                f"{MANY:,} tasks with deliver_at; one broker, synced; 1 partition",
                _pymq,
                Needs(("zmq",)),
            ),
        ),
        (
            Goal(At("pymq", "memory"), at_most=200),
            Goal(At("pymq", "late p50"), at_most=50),
        ),
        units={
            "send": Unit("tasks/s"),
            "memory": Unit("B/task", False),
            "pass": MS,
            **dict.fromkeys(LATE, MS),
        },
        patience=2,
        runs_max=2,
    ),
)
