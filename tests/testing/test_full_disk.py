"""A leader whose disk was full for a while: its partition goes on, there or elsewhere."""

from __future__ import annotations

import pytest

from pymq.testing import Cluster


@pytest.mark.parametrize("acks", ["leader", "raft"])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_partition_goes_on_after_its_leaders_disk_was_full(acks: str, replicas: int) -> None:
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=replicas, acks=acks)
        with mq.producer(delivery_timeout_s=60.0) as producer:
            producer.send("t", b"before").result()
            leader = mq.describe_topic("t").partitions[0].leader
            assert leader is not None
            cluster.fill_disk(leader)
            delivery = producer.send("t", b"x" * 100_000)
            cluster.run(seconds=3)
            cluster.free_disk(leader)
            cluster.run(seconds=10)
            if delivery.done() and delivery.exception() is not None:
                producer.send("t", b"x" * 100_000).result(30)
            delivery.exception()
        with mq.consumer("t", mode="psb") as consumer:
            assert [len(r.value) for r in consumer.until_end()][:2] == [6, 100_000]
