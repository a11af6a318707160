"""Wall clocks that jump by days while a producer sends."""

from __future__ import annotations

import pytest

from pymq.client.option_types import Acks
from pymq.testing import Cluster

DAYS_S = 3 * 24 * 3600


@pytest.mark.parametrize("acks", ["raft", "leader"])
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_producer_whose_broker_is_set_ahead_goes_on_where_it_was(
    acks: Acks, brokers: int
) -> None:
    """If a leader's clock is set ahead, the producer counts as active just now, not days ago.

    Found by seed 984 of ``all`` (5 s): the roll forgot the producer, whose next batch began at 0.
    """
    with Cluster(brokers=brokers, zkservers=1, seed=3) as c:
        mq = c.client()
        mq.create_topic("t", acks=acks, replicas=brokers)
        with mq.producer(linger_ms=0) as producer:
            for number in range(10):
                producer.send("t", b"%d" % number).result()
            for name in c.brokers:
                c.clock(name, skew_s=DAYS_S)
            mq.set_partition_state(
                "t", "0", "leader" if acks == "raft" else "raft"
            )  # the jump of the clock makes the partition roll
            c.run(seconds=2)
            producer.send("t", b"10").result()
        c.run(seconds=1)
        assert c.watch is not None
        (history,) = [h for key, h in c.watch.histories.items() if c.watch.names[key][0] == "t"]
        assert len(history.blocks) == 2
        batches = [header for block in history.blocks.values() for header in block.headers]
        assert [b.base_sequence for b in batches if b.producer_id >= 0] == list(range(11))
