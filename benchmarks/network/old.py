"""R5: the read rate of old records while a producer writes at full speed.

Three brokers, one partition with three replicas. The records to read were written before. The
readers begin together, at the first record, and each ends when it has read all records. On one side
the readers read from the leader only, as in earlier versions; on the other side from all replicas,
as today's readers do far from the end. The benchmark also measures the producer's rate.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.model import RATE, At, Goal, Job, Measures, Part, Side, batches, random_values
from benchmarks.network import pymq_side
from benchmarks.network.roles import Actor

if TYPE_CHECKING:
    import pymq

SIZE = 1024
COUNT = 500_000
READERS = 6  # two for each replica, if spread evenly
NEVER = 1 << 62


def write(url: str) -> Generator[None, None, int]:
    """Write batches until stopped; the log end gives the rate."""
    import pymq

    groups = batches(random_values(10_000, SIZE), pymq_side.BATCH)
    with pymq.open(url) as mq, mq.producer(delivery_timeout_s=120) as producer:
        producer.send(pymq_side.TOPIC, b"").result(timeout=30)
        yield
        while True:
            for group in groups:
                producer.send_many(pymq_side.TOPIC, group)
            producer.flush()


def read(url: str, count: int, is_spread: bool) -> Generator[None, None, int]:
    """Read the first *count* records, from the leader alone or from the best replica."""
    import pymq
    from pymq.client.consumer import reader

    if not is_spread:
        setattr(reader, "BEHIND_BYTES", NEVER)  # noqa: B010 # so nothing is far from the end
    with (
        pymq.open(url) as mq,
        mq.consumer(pymq_side.TOPIC, mode="psb", partition=0, offset="begin") as consumer,
    ):
        while not consumer.poll(1, timeout=1.0):
            pass
        yield
        seen = 1
        while seen < count:
            seen += sum(map(len, consumer.poll_batches(timeout=1.0)))
        return seen


def _run(job: Job, is_spread: bool) -> Measures:
    import pymq

    count = job.count(COUNT)
    with pymq_side.cluster(job.folder, 3) as url:
        pymq_side.make_topic(url, acks="raft", replicas=3)
        with pymq.open(url) as mq:
            with mq.producer(delivery_timeout_s=120) as producer:
                for group in batches(random_values(min(count, 10_000), SIZE), pymq_side.BATCH):
                    for _ in range(max(1, count // 10_000)):
                        producer.send_many(pymq_side.TOPIC, group)
            with Actor(write, url) as writer:
                readers = [Actor(read, url, count, is_spread) for _ in range(READERS)]
                for each in (writer, *readers):
                    each.ready()
                before, start = _end(mq), time.monotonic()
                for each in (writer, *readers):
                    each.go()
                done = [each.result() for each in readers]
                seconds = max(each.end for each in done) - min(each.start for each in done)
                written = (_end(mq) - before) / (time.monotonic() - start)
                writer.abandon()
    return {"read": sum(each.found for each in done) / seconds, "written": written}


def _end(mq: pymq.Client) -> int:
    return mq.describe_topic(pymq_side.TOPIC).partitions[0].end_offset


PARTS = (
    Part(
        "R5-old",
        f"{READERS} readers of old records of {SIZE} B, three replicas, a producer at full speed",
        (
            Side("leader", "all readers at the leader", partial(_run, is_spread=False)),
            Side("pymq", "readers at all replicas", partial(_run, is_spread=True)),
        ),
        (Goal(At("pymq", "read"), (At("leader", "read"),), at_least=2.0),),
        units={"read": RATE, "written": RATE},
    ),
)
