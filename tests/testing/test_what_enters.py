"""A stranger with write permission sends batches whose content differs from their headers.

The promise to other clients: their acknowledged records stay, and can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pymq
from pymq.client.admin.appends import append
from pymq.client.option_types import Acks
from pymq.core.batch import columns, compression
from pymq.core.batch.header import HEADER_SIZE
from pymq.core.batch.record import EncodedBatch
from pymq.errors import CorruptBatch, InvalidRequest, InvalidTimestamp, PymqError
from pymq.testing import Cluster
from pymq.testing.simulation.world import WALL_MS

HOUR = 3_600_000


def sealed(batch: EncodedBatch, raw: bytes | None = None, **fields: Any) -> EncodedBatch:
    """Give a batch valid CRCs, whatever its content."""
    body = batch.body if raw is None else raw
    header = batch.header._replace(length=HEADER_SIZE + len(body), raw_length=len(body), **fields)
    return strange(EncodedBatch.sealed(header, body))


def strange(batch: EncodedBatch) -> EncodedBatch:
    """Parse the batch as if it came from the network, so that it was not validated."""
    return EncodedBatch(bytes(batch.head), bytes(batch.body), batch.header)


def batch(*values: bytes, time: int = WALL_MS) -> EncodedBatch:
    return strange(EncodedBatch.encode(values or (b"x",), timestamp_ms=time))


def wrong_body() -> EncodedBatch:
    found = batch(b"x")
    return EncodedBatch(found.head, bytes(found.body[:-1]) + b"y", found.header)


def wrong_beside_sound_codec() -> EncodedBatch:
    packed = compression.compress(compression.ZSTD, bytes(1000))
    found = EncodedBatch.encode([b"x"], timestamp_ms=WALL_MS)
    header = found.header._replace(length=HEADER_SIZE + len(packed), raw_length=1001, attributes=2)
    return strange(EncodedBatch.sealed(header, packed))


UNSOUND: dict[str, tuple[Callable[[], EncodedBatch], type[PymqError]]] = {
    "body CRC": (wrong_body, CorruptBatch),
    "count": (lambda: sealed(batch(), count=5, span=5), CorruptBatch),
    "no values": (lambda: sealed(batch(), columns=columns.KEYS), CorruptBatch),
    "format": (lambda: sealed(batch(), body_format=9), CorruptBatch),
    "codec": (lambda: sealed(batch(), attributes=7), CorruptBatch),
    "raw length": (wrong_beside_sound_codec, CorruptBatch),
    "compacted": (lambda: sealed(batch(), attributes=16), InvalidRequest),
    "time of all times": (lambda: batch(time=(1 << 63) - 1), InvalidTimestamp),
    "tomorrow": (lambda: batch(time=WALL_MS + 24 * HOUR), InvalidTimestamp),
    "before 1970": (lambda: batch(time=-1), InvalidTimestamp),
}


def put(mq: pymq.Client, *batches: EncodedBatch) -> None:
    for each in batches:
        append(mq.questions, mq.questions.topic_metadata("t"), {"0": each}, 10.0)


def values(mq: pymq.Client) -> list[bytes]:
    with mq.consumer("t", mode="psb") as consumer:
        return [record.value for record in consumer.until_end()]


@pytest.mark.parametrize("what", UNSOUND)
@pytest.mark.parametrize(("replicas", "acks"), [(1, "leader"), (3, "leader"), (3, "raft")])
def test_an_unsound_batch_is_refused_and_nothing_else_is_touched(
    what: str, replicas: int, acks: Acks
) -> None:
    make, error = UNSOUND[what]
    with Cluster(brokers=replicas, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=replicas, acks=acks, fsync="always")
        put(mq, batch(b"before"))
        with pytest.raises(error):
            put(mq, make())
        put(mq, batch(b"behind"))
        cluster.run(seconds=2)
        for name in [*cluster.brokers]:
            cluster.crash(name)
        for name in [*cluster.brokers]:
            cluster.restart(name)
        cluster.run(seconds=5)
        put(mq, batch(b"afterwards"))
        assert values(mq) == [b"before", b"behind", b"afterwards"]


def test_a_topic_says_how_far_ahead_a_time_may_be() -> None:
    with Cluster(brokers=1, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", timestamp_after_max_ms=60_000)
        now = WALL_MS + 60_000
        with pytest.raises(InvalidTimestamp, match="timestamp_after_max_ms"):
            put(mq, batch(time=now + 60_000))
        put(mq, batch(time=now - 5_000))
        mq.alter_topic("t", timestamp_after_max_ms=None)
        cluster.run(seconds=1)
        put(mq, batch(time=1 << 60))


def test_a_wall_clock_that_is_set_right_is_believed_at_once() -> None:
    """A running broker also gets rid of a wrong time: its machine was suspended, or had a wrong
    time at the start.
    """
    with Cluster(brokers=1, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        broker = next(iter(cluster.brokers))
        cluster.clock(broker, skew_s=-7_200)
        with pytest.raises(InvalidTimestamp):
            put(mq, batch(time=WALL_MS))
        cluster.clock(broker, skew_s=0)
        put(mq, batch(time=WALL_MS))


def test_a_producer_hears_that_its_time_was_refused() -> None:
    with Cluster(brokers=1, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t")
        with mq.producer() as producer:
            refused = producer.send("t", b"v", timestamp_ms=WALL_MS + 2 * HOUR)
            with pytest.raises(InvalidTimestamp):
                refused.result()
            assert producer.send("t", b"v").result().offset == 0
