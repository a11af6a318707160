"""A partition's own requests: here the compaction of its sealed blocks."""

from __future__ import annotations

import random

import attrs

from pymq.core.block.replicator import ReplicationConfig
from pymq.core.message import Fetch, Message
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.partition.context import PartitionContext
from pymq.core.partition.local_blocks import LocalBlocks
from pymq.core.partition.maintenance import RETENTION_CHECK_MS, Maintenance
from pymq.core.pending.growth import Growth
from pymq.core.pending.pending_fetches import WaitingRoom
from pymq.core.pending.pending_produces import DelayedAppended
from pymq.core.ready import Compact, Ready
from pymq.core.repair.repair_scheduler import RepairScheduler
from pymq.core.repair.repair_throttle import RepairThrottle
from pymq.core.types import NEVER, AckMode, BlockId, TopicPartition
from pymq.replication.factory import replicator

WALL_MS = 1_000_000
TOMBSTONE_MS = 1_000


class Host:
    """A broker that records the requests of its partition."""

    me = "me"
    storage_id = "disk"
    incarnation = 1
    replication = ReplicationConfig()
    wall_offset_ms = WALL_MS

    def __init__(self) -> None:
        self.out = Ready()
        self.rng = random.Random(0)
        self.slots = RepairScheduler(self.replication)
        self.lending = RepairThrottle(self.replication.lend_bytes)
        self.waiting = WaitingRoom()
        self.awaited: dict[str, object] = {}

    def wall_ms(self, now: int) -> int:
        return self.wall_offset_ms + now

    def send(self, peer: str, message: Message) -> None:
        raise AssertionError("nothing is for others")

    def reply(self, source: str, message: Message, now: int) -> None:
        raise AssertionError("nobody has asked")

    def grown(self, growth: Growth, now: int) -> None:
        raise AssertionError("no group waits for records")

    def admit(self, source: str, m: Fetch, now: int) -> int:
        return m.max_bytes

    def delayed(self, name: TopicPartition, news: DelayedAppended, now: int) -> None:
        raise AssertionError("no test of a partition alone has delayed records")

    def owner(self, source: str) -> tuple[str, str]:
        connection = source.partition("/")[0]
        return connection.partition(".")[0], connection

    def tell_controller(self, message: Message) -> None:
        raise AssertionError("compaction is each broker's own affair")

    def is_alive(self, peer: str) -> bool:
        return True

    def has_failed(self, peer: str, block: BlockId) -> bool:
        return False


class Blocks(LocalBlocks):
    """The blocks of a partition; this broker has complete copies of the blocks *here*."""

    here: frozenset[int] | set[int] = frozenset()

    def has(self, block: BlockNode) -> bool:
        return block.number in self.here


class Kept(PartitionContext):
    """The blocks of a partition; this broker has complete copies of the blocks *here*."""

    def __init__(self, host: Host, *replicas: tuple[str, ...]) -> None:
        blocks = [
            BlockNode(n, 10 * n, 10 * n + 10, 1, AckMode.LEADER, None, names, names)
            for n, names in enumerate(replicas)
        ]
        last = attrs.evolve(blocks[-1], number=len(blocks), start=10 * len(blocks), end=None)
        config = TopicConfig(cleanup_policy="compact", tombstone_ms=TOMBSTONE_MS)
        state = PartitionState(
            "t", "ef" * 16, "0", 0, AckMode.LEADER, 1, "me", config, (*blocks, last)
        )
        self.local = Blocks(host, replicator)
        self.local.here = {n for n, names in enumerate(replicas) if "me" in names}
        super().__init__(state, host, self.local, self.local.open(state, 0))
        self.leads_at = 1
        self.opened.recover()


def jobs(host: Host) -> list[tuple[list[int], int]]:
    """Return the blocks to compact, and the time before which tombstones go."""
    found, host.out.jobs = host.out.jobs, []
    assert all(type(job) is Compact and job.min_dirty == 0.5 for job in found)
    return [([block.number for block in job.blocks], job.tombstones_before_ms) for job in found]


def test_a_block_under_repair_is_compacted_once_it_is_whole() -> None:
    """With replicas the newest block is under repair for a moment after each roll.

    The other blocks are compacted meanwhile.
    """
    host = Host()
    kept = Kept(host, ("me", "b"), ("me", "b"))
    upkeep = Maintenance(kept, 0)
    kept.local.here = {0}
    upkeep.tick(0)
    assert jobs(host) == [([0], WALL_MS - TOMBSTONE_MS)]
    assert upkeep.retention_at == RETENTION_CHECK_MS
    kept.local.here = {0, 1}
    upkeep.tick(RETENTION_CHECK_MS)
    assert jobs(host) == [([0, 1], WALL_MS + RETENTION_CHECK_MS - TOMBSTONE_MS)]
    assert upkeep.retention_at == NEVER
    upkeep.reconsider(RETENTION_CHECK_MS)
    upkeep.tick(RETENTION_CHECK_MS)
    assert jobs(host) == []


def test_deletions_stay_while_what_they_delete_may_be_elsewhere() -> None:
    """Tombstones stay while only other brokers have a block that still needs them."""
    host = Host()
    kept = Kept(host, ("a", "b"), ("me", "b"), ("me", "b"))
    upkeep = Maintenance(kept, 0)
    upkeep.tick(0)
    assert jobs(host) == [([1, 2], 0)]
    assert upkeep.retention_at == NEVER


def test_deletions_behind_which_others_follow_go() -> None:
    """Tombstones are removed if all missing blocks are later ones, which hold no older records of
    the keys.
    """
    host = Host()
    kept = Kept(host, ("me", "b"), ("me", "b"), ("a", "b"))
    upkeep = Maintenance(kept, 0)
    upkeep.tick(0)
    assert jobs(host) == [([0, 1], WALL_MS - TOMBSTONE_MS)]
