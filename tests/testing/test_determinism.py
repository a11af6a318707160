"""The same seed gives the same run, in another process and under another hash seed.

Other seeds give other runs.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
from pymq.testing import Cluster
with Cluster(brokers=1, seed={seed}, restart_ms=200) as cluster:
    mq = cluster.client()
    mq.create_topic("t", partitions=2, acks="raft", block_bytes=4096)
    with mq.producer(compression=None) as producer:
        for i in range(60):
            producer.send("t", b"%d" % i * 20, key=b"%d" % (i % 7))
            if i == 30:
                cluster.crash("broker-0", at_boundary=9)
    cluster.run(seconds=2)
    with mq.consumer("t", group="g") as consumer:
        for record in consumer.until_end():
            consumer.ack(record)
        consumer.commit()
    print(cluster.digest, cluster.world.events, cluster.now, mq.describe_topic("t"))
"""


def run(seed: int, hash_seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(seed=seed)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.parametrize("seed", [1, 2])
def test_the_hash_seed_changes_nothing(seed: int) -> None:
    assert run(seed, 0) == run(seed, 4711)


def test_another_seed_is_another_run() -> None:
    assert run(1, 0) != run(2, 0)
