"""A sealed copy lost its end in a power cut, although it counts as complete."""

from __future__ import annotations

from pymq.coord import paths
from pymq.coord.tree import CommitPlan
from pymq.core.metadata.coordination import Commit
from pymq.core.metadata.nodes import BlockNode, decode_node
from pymq.testing import Cluster

RECORDS = [b"%050d" % number for number in range(40)]
BLOCK = paths.block("t", "0", 0)


def sealed_without_a_sync(cluster: Cluster) -> tuple[str, str]:
    """A follower loses all unsynced records, which its leader cannot know.

    Returns the leader and the follower.
    """
    mq = cluster.client()
    mq.create_topic("t", replicas=2, acks="leader", fsync="os")
    with mq.producer() as producer:
        for record in RECORDS:
            producer.send("t", record).result()
    cluster.run(seconds=1)
    found = mq.describe_topic("t").partitions[0]
    assert found.leader is not None
    (follower,) = (name for name in found.replicas if name != found.leader)
    cluster.crash(follower, "none")
    mq.set_partition_state("t", "0", acks="raft")
    sealed = mq.describe_topic("t").partitions[0].blocks[0]
    assert (sealed.end_offset, set(sealed.in_sync)) == (len(RECORDS), set(found.replicas))
    return found.leader, follower


def test_it_is_told_and_completed() -> None:
    with Cluster(brokers=2, seed=3) as cluster:
        leader, follower = sealed_without_a_sync(cluster)
        known: list[tuple[str, ...]] = []

        def note(session: str, commit: Commit, plan: CommitPlan) -> None:
            entry = plan.changes.get(BLOCK)
            if entry is not None:
                known.append(decode_node(BlockNode, entry.data).in_sync)

        cluster.ensemble.on_commit.append(note)
        cluster.restart(follower)
        cluster.run(seconds=5)
        assert known[0] == (leader,)
        assert set(known[-1]) == {leader, follower}
        with cluster.client().consumer("t", mode="psb") as consumer:
            assert [record.value for record in consumer.until_end()] == RECORDS


def test_it_is_not_taken_for_whole_when_it_is_the_last_one() -> None:
    """In an earlier version such a copy counted as complete forever, and its records were reported
    as available.
    """
    with Cluster(brokers=2, seed=3) as cluster:
        leader, follower = sealed_without_a_sync(cluster)
        cluster.wipe(leader)
        cluster.restart(follower)
        cluster.restart(leader)
        cluster.run(seconds=20)
        first, *_, last = cluster.client().describe_topic("t").partitions[0].blocks
        assert first.in_sync == ()
        assert set(last.in_sync) == {leader, follower}
