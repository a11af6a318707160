"""Reading a range of a cluster, simulated: all of it and in order, whoever dies meanwhile."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

import pymq
from pymq.errors import StoreError
from pymq.spark.folder import FolderLog
from pymq.spark.logs import ClusterLog
from pymq.spark.planning import Range
from pymq.testing import Cluster


@pytest.mark.parametrize("seed", range(4))
def test_a_range_is_read_while_leaders_die(seed: int) -> None:
    """The next part is asked for ahead, of a leader who may be none any more when it answers."""
    rng = random.Random(seed)
    values = [b"%04d" % number for number in range(400)]
    with Cluster(brokers=4, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=1, replicas=3, acks="raft")
        with mq.producer() as producer:
            for at in range(0, len(values), 10):
                producer.send_many("t", values[at : at + 10]).result()
        start, end = rng.randrange(30), len(values) - rng.randrange(30)
        leader = mq.describe_topic("t").partitions[0].leader
        assert leader is not None
        found: list[bytes] = []
        dies_at = rng.randrange(5) * 40
        for batch in ClusterLog(mq, 60.0).read(Range("t", "0", start, end), 500):
            if leader and len(found) >= dies_at:
                cluster.crash(leader, disk="none", at_boundary=rng.randrange(20))
                leader = None
            first = max(0, start - batch.base_offset)
            found += batch.values[first : end - batch.base_offset]
        assert found == values[start:end]


def test_a_folder_of_several_brokers_is_not_read_from_its_files(tmp_path: Path) -> None:
    """What each of them has may not be committed; it must not look like an empty topic either."""
    with pymq.open(tmp_path, brokers=2) as mq:
        mq.create_topic("t", replicas=2)
    with pytest.raises(StoreError, match="holds several brokers"):
        FolderLog(str(tmp_path)).topics()
