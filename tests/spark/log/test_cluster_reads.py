"""Long reads of a simulated cluster: which replicas serve them, and damaged copies."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

import pymq
from pymq.core.observe.coverage import counting
from pymq.errors import CorruptBlock
from pymq.spark.backfill import BlockSpan
from pymq.spark.log.cluster_log import ClusterLog
from pymq.spark.planning import Range
from pymq.testing import Cluster

SERVED, REFUSED = "serving.follower.serves", "serving.not_here"
FETCH = 1 << 19
VALUES = [b"%06d" % number + bytes(10_000) for number in range(300)]


def filled(mq: pymq.Client, replicas: int = 3) -> None:
    """Create topic ``t`` with 3 MB in several blocks."""
    mq.create_topic("t", replicas=replicas, acks="raft", block_bytes=1 << 20)
    with mq.producer() as producer:
        for at in range(0, len(VALUES), 20):
            producer.send_many("t", VALUES[at : at + 20]).result()


def read(mq: pymq.Client, *, start: int = 0, rack: str | None = None) -> Iterator[bytes]:
    """Yield the values from offset *start* on; rolls add batches that readers do not see."""
    log = ClusterLog(mq, 30.0, rack=rack)
    end = mq.questions.bounds("t", "0")[1]
    for batch in log.read(Range("t", "0", start, end), FETCH):
        if not batch.header.is_hidden:
            yield from batch.values[max(0, start - batch.base_offset) :]


def test_old_records_are_read_from_all_replicas() -> None:
    """Followers serve fetches of a long read; which one depends on where the task begins."""
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        filled(mq)
        cluster.run(seconds=1)
        with counting() as counts:
            for start in range(0, 100, 20):
                assert list(read(mq, start=start)) == VALUES[start:]
        assert counts[SERVED] > 5


def test_a_replica_in_the_rack_is_preferred() -> None:
    with Cluster(brokers=3, seed=2) as cluster:
        mq = cluster.client()
        filled(mq)
        cluster.run(seconds=1)
        leader = mq.describe_topic("t").partitions[0].leader
        served = {}
        for broker in mq.cluster().brokers:
            with counting() as counts:
                assert list(read(mq, rack=broker.rack)) == VALUES
            served[broker.name] = counts[SERVED]
        fetches = len(VALUES) * 10_000 // FETCH
        assert leader is not None
        assert served.pop(leader) < fetches
        assert min(served.values()) >= fetches - 1


def test_a_follower_without_the_block_is_not_asked_again() -> None:
    """A replica that was added later lacks the sealed blocks; the leader names who has them."""
    with Cluster(brokers=4, seed=3) as cluster:
        mq = cluster.client()
        filled(mq)
        old = mq.describe_topic("t").partitions[0].replicas
        (new,) = set(cluster.brokers) - set(old)
        mq.reassign("t", "0", [new, *old[1:]])
        cluster.run(seconds=1)
        with counting() as counts:
            for start in range(0, 60, 20):
                assert list(read(mq, start=start)) == VALUES[start:]
        assert counts[SERVED] + counts[REFUSED] > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_follower_dies_while_it_serves_a_read(seed: int) -> None:
    with Cluster(brokers=3, seed=seed) as cluster:
        mq = cluster.client()
        filled(mq)
        cluster.run(seconds=1)
        leader = mq.describe_topic("t").partitions[0].leader
        reading = read(mq, start=seed)
        found = [next(reading) for _ in range(100)]
        for name in cluster.brokers:
            if name != leader:
                cluster.crash(name)
                break
        assert [*found, *reading] == VALUES[seed:]


@pytest.mark.parametrize("number", range(3))
def test_a_damaged_copy_is_replaced_by_a_sound_one(number: int) -> None:
    """A bit flips on one disk: the read gets the block from another replica."""
    with Cluster(brokers=3, seed=4, check=False) as cluster:
        mq = cluster.client()
        filled(mq)
        cluster.run(seconds=1)
        name = f"broker-{number}"
        for at, path in enumerate(blocks_of(cluster, name)):
            cluster.flip(name, Random(at), path)
        for start in range(0, 60, 20):
            assert list(read(mq, start=start)) == VALUES[start:]


def test_damage_without_a_sound_copy_is_named_with_its_place() -> None:
    with Cluster(brokers=1, seed=5, check=False) as cluster:
        mq = cluster.client()
        filled(mq, replicas=1)
        cluster.run(seconds=1)
        path = blocks_of(cluster, "broker-0")[1]
        cluster.flip("broker-0", Random(1), path)
        with pytest.raises(CorruptBlock, match="is damaged at byte") as raised:
            list(read(mq))
        assert str(raised.value.details["file"]).endswith(path)
        first, second, *_ = mq.describe_topic("t").partitions[0].blocks
        assert first.end_offset is not None
        assert second.end_offset is not None
        offset = raised.value.details["offset"]
        assert isinstance(offset, int)
        assert first.end_offset <= offset < second.end_offset


def blocks_of(cluster: Cluster, name: str) -> list[str]:
    """Return the sealed blocks of topic ``t`` on a broker's disk: those with an index."""
    paths = cluster.brokers[name].disk.paths()
    sealed = {path.removesuffix(".index") for path in paths if path.endswith(".index")}
    return sorted(f"{path}.block" for path in sealed)


def test_blocks_of_a_topic_are_known() -> None:
    with Cluster(brokers=3, seed=6) as cluster:
        mq = cluster.client()
        filled(mq)
        found = ClusterLog(mq, 30.0).blocks("t", ["0"])["0"]
        described = mq.describe_topic("t").partitions[0].blocks
        assert len(found) > 1
        assert found == [
            BlockSpan(block.start_offset, block.end_offset, block.size_bytes)
            for block in described
            if block.end_offset is not None
        ]
        assert all(span.size > 1 << 19 for span in found)
        assert ClusterLog(mq, 30.0).blocks("t", ["nobody"]) == {}
