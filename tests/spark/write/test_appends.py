"""Batches in flight, simulated: brokers append each batch once and in order."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

from pymq.core.batch.record import EncodedBatch
from pymq.spark.write.sink import Direct
from pymq.testing import Cluster

BATCHES, ROWS = 60, 3


@pytest.mark.parametrize("seed", range(6))
def test_leaders_may_die_under_batches_on_their_way(seed: int) -> None:
    """Acknowledged batches are at the offsets in the answers; the broker detects duplicates."""
    rng = random.Random(seed)
    values = [[b"%d-%d" % (number, row) for row in range(ROWS)] for number in range(BATCHES)]
    with Cluster(brokers=4, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        direct = Direct(mq, 60.0)
        dies_at = rng.randrange(BATCHES)
        for number, each in enumerate(values):
            if number == dies_at:
                leader = mq.describe_topic("t").partitions[0].leader
                assert leader is not None
                cluster.crash(leader, disk="none", at_boundary=rng.randrange(30))
            direct.put(("t", str(number % 2)), EncodedBatch.encode(each, timestamp_ms=5))
        offsets = direct.flush()
        with mq.consumer("t", mode="psb") as consumer:
            records = list(consumer.until_end())
    found = {(record.partition, record.offset): record.value for record in records}
    assert len(found) == len(records) == BATCHES * ROWS
    for number, (offset, each) in enumerate(zip(offsets, values, strict=True)):
        assert [found[str(number % 2), offset + row] for row in range(ROWS)] == each
    assert offsets[::2] == sorted(offsets[::2])
    assert offsets[1::2] == sorted(offsets[1::2])
