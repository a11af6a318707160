"""pymq's side: the code shared by all parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.model import Job, Measures, Stopwatch

if TYPE_CHECKING:
    import pymq
from pymq.client.option_types import Fsync

TOPIC = "records"


def put_many(
    producer: pymq.Producer, groups: Sequence[Sequence[bytes]], wait: bool, topic: str = TOPIC
) -> None:
    """Send with one ``send_many`` per batch; wait after each call, or for all of them at
    the end.
    """
    if wait:
        for group in groups:
            producer.send_many(topic, group).wait()
    else:
        for group in groups:
            producer.send_many(topic, group)
        producer.flush()


def put_each(
    producer: pymq.Producer, groups: Sequence[Sequence[bytes]], wait: bool, topic: str = TOPIC
) -> None:
    """Send with one ``send`` per record; flush after each batch, or at the end."""
    for group in groups:
        for value in group:
            producer.send(topic, value)
        if wait:
            producer.flush()
    producer.flush()


def run_put(
    job: Job,
    groups: Sequence[Sequence[bytes]],
    size: int,
    *,
    fsync: Fsync,
    wait: bool,
    many: bool,
) -> Measures:
    """Measure puts, from the first to the last acknowledgement."""
    import pymq

    count = sum(map(len, groups))
    put = put_many if many else put_each
    job.warm(3 * count * size)
    with pymq.open(job.folder / "pymq") as mq:
        mq.create_topic("warm", fsync=fsync)
        mq.create_topic(TOPIC, fsync=fsync)
        with mq.producer() as producer:
            put(producer, groups[: max(1, len(groups) // 20)], wait, "warm")
            put(producer, groups[:1], wait)
            with Stopwatch() as watch:
                put(producer, groups, wait)
    return {"put": watch.rate(count)}


def fill(job: Job, values: Sequence[bytes], fsync: Fsync) -> None:
    """Make a folder with a topic that holds *values*."""
    import pymq

    job.warm(2 * sum(map(len, values)))
    with pymq.open(job.folder / "pymq") as mq:
        mq.create_topic(TOPIC, fsync=fsync)
        with mq.producer() as producer:
            put_many(producer, [values[i : i + 1000] for i in range(0, len(values), 1000)], False)
