"""Sealed blocks keep their number of copies, and move only on request.

The rules ``moves-are-asked-for`` and ``never-fewer-copies`` look at every commit of these runs.
"""

from __future__ import annotations

from random import Random

import pytest

from pymq.client.client import Client
from pymq.client.option_types import Acks
from pymq.coord import paths
from pymq.core.metadata.descriptions import BlockDescription, BrokerDescription, ClusterDescription
from pymq.errors import RequestTimeout
from pymq.testing import Cluster
from tests.simulator.whole import check_whole

LOST_MS = 20_000
RECORDS = 24


def fill(mq: Client, topic: str, records: int = RECORDS) -> list[bytes]:
    """Send records of a kilobyte; four of them fill a block."""
    values = [b"%s %d " % (topic.encode(), number) + b"x" * 1_000 for number in range(records)]
    with mq.producer(linger_ms=0) as producer:
        for value in values:
            producer.send(topic, value).result()
    return values


def sealed(mq: Client, topic: str) -> list[BlockDescription]:
    """The sealed blocks of a topic."""
    parts = mq.describe_topic(topic).partitions
    return [block for part in parts for block in part.blocks if block.end_offset is not None]


def read(mq: Client, topic: str) -> list[bytes]:
    """All records of the topic."""
    with mq.consumer(topic, mode="psb", offset="begin") as consumer:
        return [record.value for record in consumer.until_end()]


def begun(cluster: Cluster) -> list[str]:
    """Record the moves that begin from now on, as the paths of their blocks."""
    found: list[str] = []

    def note(session: str, commit: object, plan: object) -> None:
        for path, entry in plan.changes.items():  # type: ignore[attr-defined]  # a Plan
            is_replica = isinstance(paths.parse(path), paths.ReplicaPath)
            block = path.rpartition("/")[0]
            tree = cluster.ensemble.tree
            was_there = tree.get(path) is not None or tree.get(block) is None
            if is_replica and entry is not None and not was_there:
                found.append(path)

    cluster.ensemble.on_commit.append(note)
    return found


@pytest.mark.parametrize("acks", ["raft", "leader"])
def test_what_a_lost_broker_held_is_copied_and_not_before(acks: Acks) -> None:
    with Cluster(brokers=4, seed=2, replica_lost_ms=LOST_MS) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks=acks, block_bytes=4096)
        values = fill(mq, "t")
        cluster.run(1)
        moves = begun(cluster)
        lost = mq.describe_topic("t").partitions[0].replicas[1]
        cluster.crash(lost)
        cluster.run(LOST_MS / 1000 - 4)
        count = len(sealed(mq, "t"))
        assert count >= 5
        assert mq.cluster().under_replicated_blocks == count
        assert moves == []
        cluster.run(20)
        live = sorted(name for name in cluster.brokers if name != lost)
        assert {tuple(sorted(block.in_sync)) for block in sealed(mq, "t")} == {tuple(live)}
        found = mq.cluster()
        assert (found.under_replicated_blocks, found.moving_blocks) == (0, 0)
        assert read(mq, "t") == values
        cluster.restart(lost)
        cluster.run(5)
        host = cluster.brokers[lost]
        assert host.store is not None
        # Blocks that were moved away meanwhile are removed when the broker is back.
        assert {block.number for block in host.store.blocks()} <= {
            block.number for block in mq.describe_topic("t").partitions[0].blocks[-1:]
        }
        check_whole(cluster)


def test_no_data_moves_unless_somebody_asks() -> None:
    """No data moves while all brokers are up, or while a broker is away for less than
    `replica_lost_ms`.
    """
    with Cluster(brokers=4, seed=3, replica_lost_ms=15_000) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=4, replicas=3, acks="leader", block_bytes=4096)
        moves = begun(cluster)
        fill(mq, "t")
        cluster.run(40)
        for name in cluster.brokers:
            cluster.crash(name)
            cluster.run(10)
            cluster.restart(name)
            cluster.run(5)
        mq.reassign("t", "0", replicas=["broker-1", "broker-2", "broker-3"])
        mq.set_partition_state("t", "1", "raft", replicas=1)
        cluster.run(20)
        assert moves == []


def test_a_decommission_ends_with_an_empty_broker() -> None:
    with Cluster(brokers=4, seed=2) as cluster:
        mq = cluster.client()
        values = {}
        for replicas in (1, 2, 3):
            topic = f"t{replicas}"
            mq.create_topic(topic, partitions=2, replicas=replicas, acks="leader", block_bytes=4096)
            values[topic] = fill(mq, topic)
        seen: list[BrokerDescription] = []
        assert mq.decommission("broker-0", wait=True, on_progress=seen.append) > 0
        assert seen[0].blocks > 10
        assert seen[-1].blocks == 0
        assert any("copied" in why for found in seen for why in found.kept_by)
        host = cluster.brokers["broker-0"]
        assert host.store is not None
        assert list(host.store.blocks()) == []
        cluster.stop("broker-0")
        cluster.run(5)
        for topic, expected in values.items():
            assert sorted(read(mq, topic)) == sorted(expected)
        assert mq.cluster().under_replicated_blocks == 0


def test_a_decommission_says_what_keeps_a_broker() -> None:
    """The only copy is on a broker that is away: nothing can be copied, and nothing is given up."""
    with Cluster(brokers=2, seed=5) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=1, acks="leader", block_bytes=4096)
        values = fill(mq, "t")
        (holder,) = mq.describe_topic("t").partitions[0].replicas
        (other,) = {*cluster.brokers} - {holder}
        mq.reassign("t", "0", replicas=[other])
        cluster.crash(holder)
        cluster.run(5)
        with pytest.raises(RequestTimeout, match="no live broker holds all of it"):
            mq.decommission(holder, wait=True, timeout=5.0)
        cluster.restart(holder)
        mq.decommission(holder, wait=True, timeout=30.0)
        cluster.stop(holder)
        assert read(mq, "t") == values


def test_a_decommission_that_is_taken_back_ends_what_it_began() -> None:
    with Cluster(brokers=4, seed=4, copies_at_once=1, delay_us=20_000) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="leader", block_bytes=4096)
        values = fill(mq, "t")
        before = {block.number: block.replicas for block in sealed(mq, "t")}
        victim = mq.describe_topic("t").partitions[0].replicas[0]
        mq.decommission(victim)
        cluster.run_until(lambda: mq.cluster().moving_blocks > 0)
        mq.recommission(victim)
        cluster.run(10)
        after = {block.number: block.replicas for block in sealed(mq, "t")}
        kept = [number for number, replicas in before.items() if after[number] == replicas]
        assert len(kept) >= len(before) - 2
        assert mq.cluster().moving_blocks == 0
        assert all(len(block.in_sync) == 3 for block in sealed(mq, "t"))
        assert read(mq, "t") == values
        check_whole(cluster)


def test_a_reassignment_moves_the_sealed_blocks_if_it_is_to() -> None:
    with Cluster(brokers=5, seed=6) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=2, acks="leader", block_bytes=4096)
        values = fill(mq, "t")
        wanted = ["broker-3", "broker-4"]
        mq.reassign("t", "0", replicas=wanted, move_sealed=True)
        cluster.run_until(lambda: {*sum((b.in_sync for b in sealed(mq, "t")), ())} == {*wanted})
        cluster.run(2)
        assert mq.cluster().moving_blocks == 0
        controller = cluster.zkservers["zkserver-0"].controller
        assert controller is not None
        assert not controller.image.sealed_to
        # A move of the sealed blocks alone, for an administrator who has moved the open block
        # before.
        wanted = ["broker-1", "broker-2"]
        mq.reassign("t", "0", replicas=wanted)
        cluster.run(5)
        assert not any({*block.replicas} <= {*wanted} for block in sealed(mq, "t"))
        assert mq.reassign("t", "0", replicas=wanted, move_sealed=True)
        cluster.run(10)
        assert all({*block.replicas} == {*wanted} for block in sealed(mq, "t"))
        assert read(mq, "t") == values


def test_a_topic_that_is_deleted_ends_its_moves() -> None:
    with Cluster(brokers=4, seed=7, copies_at_once=2, delay_us=20_000) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="leader", block_bytes=4096)
        fill(mq, "t")
        mq.decommission(mq.describe_topic("t").partitions[0].replicas[0])
        cluster.run_until(lambda: mq.cluster().moving_blocks > 0)
        mq.delete_topic("t")
        cluster.run(10)
        assert mq.cluster().moving_blocks == 0
        for host in cluster.brokers.values():
            assert host.store is not None
            assert list(host.store.blocks()) == []


def test_at_most_so_many_are_copied_at_once() -> None:
    with Cluster(brokers=4, seed=8, copies_at_once=2) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=3, replicas=2, acks="leader", block_bytes=4096)
        fill(mq, "t", 60)
        most: list[int] = []

        def look(session: str, commit: object, plan: object) -> None:
            controller = cluster.zkservers["zkserver-0"].controller
            assert controller is not None
            most.append(len(controller.image.moving))

        cluster.ensemble.on_commit.append(look)
        mq.decommission("broker-0", wait=True)
        assert max(most) == 2


@pytest.mark.parametrize("seed", range(6))
def test_whatever_crashes_meanwhile_no_copy_is_lost(seed: int) -> None:
    """Sources, targets and zkservers crash at the same time, and lose unsynced data."""
    dice = Random(seed)
    with Cluster(
        brokers=5,
        zkservers=2,
        seed=seed,
        replica_lost_ms=3_000,
        append_bytes=500,
        restart_ms=1_000,
        replace_ms=1_000,
        holes=True,
    ) as cluster:
        mq = cluster.client()
        mq.create_topic("raft", replicas=3, acks="raft", block_bytes=4096)
        mq.create_topic("fast", replicas=2, acks="leader", block_bytes=4096)
        values = {topic: fill(mq, topic) for topic in ("raft", "fast")}
        cluster.run(2)
        mq.decommission("broker-0")
        for _ in range(8):
            cluster.run(dice.random())
            names = [*cluster.brokers, *cluster.zkservers]
            some = names if dice.random() < 0.2 else dice.sample(names, dice.randrange(1, 3))
            for name in some:
                if cluster.host(name).is_up:
                    cluster.crash(name)
        cluster.run(3)
        cluster.calm()
        mq.decommission("broker-0", wait=True, timeout=120.0)
        for topic, expected in values.items():
            assert read(mq, topic) == expected
        cluster.run_until(lambda: _is_whole(mq.cluster()), 60)
        check_whole(cluster)


def _is_whole(found: ClusterDescription) -> bool:
    return not (found.under_replicated_blocks or found.moving_blocks)


@pytest.mark.parametrize("seed", range(2))
def test_producers_and_readers_go_on_while_blocks_move(seed: int) -> None:
    with Cluster(brokers=5, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft", block_bytes=4096)
        values = fill(mq, "t")
        with mq.consumer("t", mode="psb", offset="begin") as consumer, mq.producer() as producer:
            got = [record.value for record in consumer.poll(max_records=2)]
            mq.decommission(mq.describe_topic("t").partitions[0].replicas[0])
            for number in range(40):
                value = b"more %d" % number
                producer.send("t", value).result()
                values.append(value)
                got += [record.value for record in consumer.poll(timeout=0.1, max_records=2)]
                cluster.run(0.05)
            got += [record.value for record in consumer.until_end()]
            assert got == values
