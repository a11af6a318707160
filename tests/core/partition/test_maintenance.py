"""What a partition asks for by itself: here the compaction of its sealed blocks."""

from __future__ import annotations

import random

import attrs

from pymq.core.block.replicator import ReplicationConfig
from pymq.core.message import Fetch, Message
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.partition.host import PartitionHost
from pymq.core.partition.maintenance import RETENTION_CHECK_MS, Maintenance
from pymq.core.partition.open_block import OpenBlock
from pymq.core.partition.pending_fetches import WaitingRoom
from pymq.core.ready import Compact, Ready
from pymq.core.repair.repair_scheduler import RepairScheduler
from pymq.core.repair.repair_throttle import RepairThrottle
from pymq.core.types import NEVER, AckMode, BlockId, TopicPartition
from pymq.errors import PymqError
from pymq.replication.factory import replicator

WALL_MS = 1_000_000
TOMBSTONE_MS = 1_000


class Host:
    """A broker that writes down what it is asked for."""

    me = "me"
    storage_id = "disk"
    incarnation = 1
    replication = ReplicationConfig()

    def __init__(self) -> None:
        self.out = Ready()
        self.rng = random.Random(0)
        self.slots = RepairScheduler(self.replication)
        self.lending = RepairThrottle(self.replication.lend_bytes)
        self.waiting = WaitingRoom()

    def wall_ms(self, now: int) -> int:
        return WALL_MS + now

    def send(self, peer: str, message: Message) -> None:
        raise AssertionError("nothing is for others")

    def reply(self, source: str, message: Message, now: int) -> None:
        raise AssertionError("nobody has asked")

    def admit(self, source: str, m: Fetch, now: int) -> int:
        return m.max_bytes

    def owner(self, source: str) -> tuple[str, str]:
        connection = source.partition("/")[0]
        return connection.partition(".")[0], connection

    def tell_controller(self, message: Message) -> None:
        raise AssertionError("compaction is each broker's own affair")

    def is_alive(self, peer: str) -> bool:
        return True

    def has_failed(self, peer: str, block: BlockId) -> bool:
        return False


class Kept:
    """A partition of *count* sealed blocks, of which this broker has those numbered *here*."""

    name = TopicPartition("t", "0")
    me = "me"
    leads = True
    problem: PymqError | None = None

    def __init__(self, host: Host, *replicas: tuple[str, ...]) -> None:
        blocks = [
            BlockNode(n, 10 * n, 10 * n + 10, 1, AckMode.LEADER, None, names, names)
            for n, names in enumerate(replicas)
        ]
        last = attrs.evolve(blocks[-1], number=len(blocks), start=10 * len(blocks), end=None)
        config = TopicConfig(cleanup_policy="compact", tombstone_ms=TOMBSTONE_MS)
        self.state = PartitionState(
            "t", "ef" * 16, "0", 0, AckMode.LEADER, 1, "me", config, (*blocks, last)
        )
        self.here = {n for n, names in enumerate(replicas) if "me" in names}
        self.opened = OpenBlock(self.state, PartitionHost(host), replicator, lambda block: True, 0)
        self.opened.recover()

    def has(self, block: BlockNode) -> bool:
        return block.number in self.here


def jobs(host: Host) -> list[tuple[list[int], int]]:
    """Which blocks are to be compacted, and before when deletions go."""
    found, host.out.jobs = host.out.jobs, []
    assert all(type(job) is Compact and job.min_dirty == 0.5 for job in found)
    return [([block.number for block in job.blocks], job.tombstones_before_ms) for job in found]


def test_a_block_under_repair_is_compacted_once_it_is_whole() -> None:
    """With replicas the newest one always is, for a moment: such topics were never compacted."""
    host = Host()
    kept = Kept(host, ("me", "b"), ("me", "b"))
    upkeep = Maintenance(kept, host, 0)
    kept.here = {0}
    upkeep.tick(0)
    assert jobs(host) == [([0], WALL_MS - TOMBSTONE_MS)]
    assert upkeep.retention_at == RETENTION_CHECK_MS
    kept.here = {0, 1}
    upkeep.tick(RETENTION_CHECK_MS)
    assert jobs(host) == [([0, 1], WALL_MS + RETENTION_CHECK_MS - TOMBSTONE_MS)]
    assert upkeep.retention_at == NEVER
    upkeep.reconsider(RETENTION_CHECK_MS)
    upkeep.tick(RETENTION_CHECK_MS)
    assert jobs(host) == []


def test_deletions_stay_while_what_they_delete_may_be_elsewhere() -> None:
    """A partition moved: its first block stays with others, and this broker waits for none."""
    host = Host()
    kept = Kept(host, ("a", "b"), ("me", "b"), ("me", "b"))
    upkeep = Maintenance(kept, host, 0)
    upkeep.tick(0)
    assert jobs(host) == [([1, 2], 0)]
    assert upkeep.retention_at == NEVER


def test_deletions_behind_which_others_follow_go() -> None:
    """Blocks that come later hold nothing that is deleted."""
    host = Host()
    kept = Kept(host, ("me", "b"), ("me", "b"), ("a", "b"))
    upkeep = Maintenance(kept, host, 0)
    upkeep.tick(0)
    assert jobs(host) == [([0, 1], WALL_MS - TOMBSTONE_MS)]
