"""The cost or gain of one more broker, all of them on this one machine."""

from __future__ import annotations

from benchmarks.model import (
    RATE,
    Job,
    Measures,
    Part,
    Side,
    Stopwatch,
    Unit,
    batches,
    random_values,
)
from benchmarks.network import pymq_side

SIZE = 100
COUNT = 200_000
COUNTS = (3, 5, 7, 9)
PARTITIONS = 18
TOPIC = "spread"


def _pymq(job: Job) -> Measures:
    import pymq

    found: Measures = {}
    most = job.pick(tiny=3, default=9)
    groups = batches(random_values(job.count(COUNT), SIZE))
    for count in [count for count in COUNTS if count <= most]:
        folder = job.folder / str(count)
        folder.mkdir()
        job.warm(10 * job.count(COUNT) * SIZE)
        with pymq_side.cluster(folder, count) as url:
            pymq_side.make_topic(url, acks="raft", replicas=count)
            with pymq.open(url) as mq, mq.producer(delivery_timeout_s=120) as producer:
                with Stopwatch() as watch:
                    mq.create_topic(TOPIC, partitions=PARTITIONS, replicas=3, acks="raft")
                    for name in range(PARTITIONS):
                        producer.send(TOPIC, b"", partition=name)
                    producer.flush()
                found[f"ready {count}"] = watch.seconds * 1000
                for what, topic in (("put", TOPIC), ("on all", pymq_side.TOPIC)):
                    with Stopwatch() as watch:
                        for group in groups:
                            producer.send_many(topic, group)
                        producer.flush()
                    found[f"{what} {count}"] = watch.rate(job.count(COUNT))
    return found


UNITS = {"put": RATE, "on all": RATE, "ready": Unit("ms", False)}
PARTS = (
    Part(
        "G4-brokers",
        f"so many brokers, a process each: {PARTITIONS} partitions on three, one on all; ack -1",
        (Side("pymq", "send_many of 1,000, raft, fsync a batch on a majority", _pymq),),
        units={f"{what} {n}": UNITS[what] for what in UNITS for n in COUNTS},
        runs_max=1,
        axis="brokers",
    ),
)
