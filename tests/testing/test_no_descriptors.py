"""If a broker has no free descriptors when a block is opened, the block is opened once there are
some.
"""

from __future__ import annotations

import pytest

from pymq.client.option_types import Acks
from pymq.testing import Cluster


@pytest.mark.parametrize("times", [1, 3, 10])
@pytest.mark.parametrize("acks", ["leader", "raft"])
def test_a_partition_goes_on_after_its_next_block_could_not_be_begun(
    acks: Acks, times: int
) -> None:
    """In an earlier version the store forgot the block, and all later appends were refused until a
    restart.
    """
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", acks=acks, block_bytes=4096)
        with mq.producer(linger_ms=0, delivery_timeout_s=10.0) as producer:
            sent = []
            for number in range(200):
                if number % 20 == 10:
                    cluster.fail_disk("broker-0", "descriptors", times)
                sent.append(producer.send("t", b"%d" % number + bytes(500)))
                cluster.run(seconds=0.05)
            cluster.fail_disk("broker-0", "descriptors", 0)
            cluster.run(seconds=5)
            offsets = [delivery.result(20).offset for delivery in sent]
            last = producer.send("t", b"last").result()
        assert mq.tally.retries, "none was refused"
        assert offsets == list(range(200))
        assert mq.describe_topic("t").partitions[0].problem is None
        with mq.consumer("t", mode="psb") as consumer:
            records = list(consumer.until_end())
        assert [r.value for r in records[:-1]] == [b"%d" % i + bytes(500) for i in range(200)]
        assert (records[-1].offset, records[-1].value) == (last.offset, b"last")
