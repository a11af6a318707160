"""The cost of one more partition: records are spread over all partitions by key, and all of these
records are read.
"""

from __future__ import annotations

from benchmarks.model import RATE, Job, Measures, Part, Side, Stopwatch, Unit, random_values

SIZE = 100
COUNT = 200_000
COUNTS = (1, 10, 100, 1_000, 10_000)
FILES = 1_000  # number of partitions that get records: the first record of each makes a file
STEP = 1000


def _pymq(job: Job) -> Measures:
    import pymq

    found: Measures = {}
    values = random_values(job.count(COUNT), SIZE)
    groups = [values[i : i + STEP] for i in range(0, len(values), STEP)]
    job.warm(3 * SIZE * len(values))
    most = job.pick(tiny=100, default=10_000)
    with pymq.open(job.folder / "pymq") as mq:
        for count in [count for count in COUNTS if count <= most]:
            topic, used = f"over-{count}", min(count, FILES)
            with Stopwatch() as create:
                mq.create_topic(topic, partitions=count, fsync="os")
            found[f"create {count}"] = create.seconds * 1000
            with mq.producer() as producer:
                for index in range(used):
                    producer.send(topic, b"", partition=index)
                producer.flush()
                with Stopwatch() as watch:
                    for index, group in enumerate(groups):
                        producer.send_many(topic, group, partition=index % used)
                    producer.flush()
                found[f"put {count}"] = watch.rate(len(values))
            with mq.consumer(topic, mode="psb") as consumer, Stopwatch() as watch:
                seen = 0
                while seen < len(values) + used:
                    seen += sum([len(batch.values) for batch in consumer.poll_batches()])
            found[f"get {count}"] = watch.rate(len(values))
    return found


UNITS = {"put": RATE, "get": RATE, "create": Unit("ms", False)}
PARTS = (
    Part(
        "G2-partitions",
        f"a topic of so many partitions, up to {FILES:,} of them written to in turn, no fsync",
        (Side("pymq", 'send_many of 1,000 a partition and poll_batches, fsync="os"', _pymq),),
        units={f"{what} {n}": UNITS[what] for what in UNITS for n in COUNTS},
        runs_max=3,
        axis="partitions",
    ),
)
