"""The cost of one more consumer: members that share a topic, and readers that each read
all of it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from benchmarks.model import RATE, Job, Measures, Part, Side, Stopwatch, Unit, random_values

if TYPE_CHECKING:
    import pymq

SIZE = 100
COUNT = 100_000
COUNTS = (1, 10, 100, 500)
PARTITIONS = 500  # one for each member of the largest group
PULL = 200
SEEN = 400_000  # records delivered to all readers together, at least one run through the topic each


def _pymq(job: Job) -> Measures:
    import pymq

    found: Measures = {}
    most = job.pick(tiny=10, default=500)
    values = random_values(job.count(COUNT), SIZE)
    job.warm(3 * SIZE * len(values))
    with pymq.open(job.folder / "pymq") as mq:
        for count in [count for count in COUNTS if count <= most]:
            topic = f"for-{count}"
            mq.create_topic(topic, partitions=PARTITIONS, fsync="os")
            with mq.producer() as producer:
                step = max(1, len(values) // PARTITIONS)
                for index in range(PARTITIONS):
                    group = values[index * step : (index + 1) * step]
                    producer.send_many(topic, group, partition=index)
                producer.flush()
            _share(mq, topic, count, step * PARTITIONS, found)
            _read(mq, f"all-{count}", values[: max(1000, SEEN // count)], count, found)
    return found


def _share(mq: pymq.Client, topic: str, count: int, records: int, found: Measures) -> None:
    """Consume with one group: each record goes to one member, which acknowledges it."""
    with ExitStack() as stack:
        with Stopwatch() as join:
            members = [stack.enter_context(mq.consumer(topic, group="group")) for _ in range(count)]
            seen = 0
            while not seen:
                seen = sum(_take(member) for member in members)
        with Stopwatch() as watch:
            first = seen
            while seen < records:
                seen += sum(_take(member) for member in members)
    found[f"joined {count}"] = join.seconds * 1000
    found[f"shared {count}"] = watch.rate(max(1, records - first))


def _take(member: Any) -> int:
    records = member.poll(PULL, timeout=0)
    if records:
        member.ack(records)
    return len(records)


def _read(mq: pymq.Client, topic: str, values: list[bytes], count: int, found: Measures) -> None:
    """Read without a group: each consumer reads all records."""
    mq.create_topic(topic, fsync="os")
    with mq.producer() as producer:
        producer.send_many(topic, values).wait()
    with ExitStack() as stack:
        readers = [stack.enter_context(mq.consumer(topic, mode="psb")) for _ in range(count)]
        left = dict.fromkeys(range(count), len(values))
        with Stopwatch() as watch:
            while left:
                for number in list(left):
                    batches = readers[number].poll_batches(timeout=0)
                    left[number] -= sum([len(batch.values) for batch in batches])
                    if left[number] <= 0:
                        del left[number]
    found[f"each sees all {count}"] = watch.rate(count * len(values))


UNITS = {"shared": RATE, "each sees all": RATE, "joined": Unit("ms", False)}
PARTS = (
    Part(
        "G3-consumers",
        f"so many consumers in one process; a group over {PARTITIONS} partitions, readers of one",
        (Side("pymq", "poll and ack of up to 200 each; poll_batches", _pymq),),
        units={f"{what} {n}": UNITS[what] for what in UNITS for n in COUNTS},
        runs_max=1,
        axis="consumers",
    ),
)
