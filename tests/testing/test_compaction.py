"""Each replica of a compacted topic compacts its own copies."""

from __future__ import annotations

import pytest

from pymq.client.option_types import Acks
from pymq.core.batch.batch_sequence import split
from pymq.testing import Cluster


@pytest.mark.parametrize("acks", ["leader", "raft"])
def test_every_replica_compacts(acks: Acks) -> None:
    """In an earlier version no follower compacted: its copy of the last sealed block was not
    complete when it checked.
    """
    with Cluster(brokers=3, seed=7) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks=acks, block_bytes=4096, cleanup_policy="compact")
        with mq.producer() as producer:
            for number in range(40):
                producer.send("t", b"%0900d" % number, key=b"%d" % (number % 3)).result()
        cluster.run(seconds=15)
        sealed = mq.describe_topic("t").partitions[0].blocks[:-1]
        assert len(sealed) > 6
        for broker in cluster.brokers.values():
            store = broker.store
            assert store is not None
            files = {block.number: block for block in store.blocks()}
            data = [store.read(files[b.number], b.start_offset, 1 << 40, 1 << 20) for b in sealed]
            assert sum(len(batch) for each in data for batch in split(each)) < 16
        with mq.consumer("t", mode="psb") as consumer:
            found = {record.key: int(record.value) for record in consumer.until_end()}
        assert found == {b"%d" % key: max(range(key, 40, 3)) for key in range(3)}
