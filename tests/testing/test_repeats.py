"""A producer sends a record again after a recovery from the remaining copies has ended its
block.
"""

from __future__ import annotations

from pymq.testing import Cluster


def test_it_is_answered_once_a_majority_has_it() -> None:
    """One of two disks was replaced: a record that is on only one disk is copied before the broker
    answers.
    """
    with Cluster(brokers=2, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=2, acks="raft")
        with mq.producer(delivery_timeout_s=300) as producer:
            producer.send("t", b"first").result()
            found = mq.describe_topic("t").partitions[0]
            leader = found.leader
            assert leader is not None
            (follower,) = (name for name in found.replicas if name != leader)
            cluster.crash(follower)
            sent = producer.send("t", b"alone")
            cluster.run(seconds=1)
            cluster.wipe(follower)
            cluster.cut(leader, follower)
            cluster.restart(follower)
            cluster.run(seconds=30)
            first, *_ = mq.describe_topic("t").partitions[0].blocks
            assert first.in_sync == (leader,)
            assert not sent.done()
            cluster.heal()
            assert sent.result().offset < (first.end_offset or 0)
            first, *_ = mq.describe_topic("t").partitions[0].blocks
            assert set(first.in_sync) == {leader, follower}
