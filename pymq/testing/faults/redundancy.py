"""Finds the brokers that a cluster can do without."""

from __future__ import annotations

from pymq.coord import paths
from pymq.core.metadata.nodes import BlockNode, BrokerNode, PartitionNode, decode_node
from pymq.core.types import AckMode, BlockId
from pymq.testing.cluster import Cluster
from pymq.testing.simulation import probe


class Redundancy:
    """Compares the copies of each block with the in-sync sets, and knows the damaged disks."""

    def __init__(self, cluster: Cluster) -> None:
        self.rotten: dict[str, int] = {}  # the damaged disk of each broker, by the disk's number
        self._cluster = cluster

    def tolerates_failed_disk(self, name: str) -> bool:
        """Whether the cluster works without a restart if the disk of *name* has failed."""
        if self.rotten or not (len(self._cluster.brokers) > 2 and self.is_spare(name)):
            return False
        # A restarted broker leaves the in-sync sets when it registers. Until then the sets do not
        # show the blocks that only *name* will hold.
        others = [other for other in self._cluster.brokers if other != name]
        if not all(self._is_registered(other) for other in others):
            return False
        # The controller may roll a partition onto that disk. With one replica no other broker then
        # has the partition, and with two replicas Raft needs both.
        return all(
            _needs_not_all(decode_node(PartitionNode, entry.data))
            for entry in self._cluster.ensemble.entries()
            if isinstance(paths.parse(entry.path), paths.PartitionPath) and entry.data
        )

    def _is_registered(self, name: str) -> bool:
        """Whether a broker has registered since its last start."""
        broker = self._cluster.brokers[name].broker
        for entry in self._cluster.ensemble.entries():
            match paths.parse(entry.path):
                case paths.BrokerPath(broker=other) if other == name and broker is not None:
                    return decode_node(BrokerNode, entry.data).incarnation == broker.incarnation
                case _:
                    pass
        return False

    def is_spare(self, name: str, *, unseen: bool = False) -> bool:
        """Whether other brokers hold each block of *name*: a majority for Raft, else one.

        Only visible records count; with *unseen*, all records that *name* has synced.

        The controller places new blocks on a replaced disk before it learns of the replacement. So
        replace at most one disk at a time: if two of three were replaced, a new block would have no
        leader.
        """
        watch = self._cluster.watch
        for entry in self._cluster.ensemble.entries():
            match paths.parse(entry.path):
                case paths.BrokerPath(broker=other) if other != name:
                    known = decode_node(BrokerNode, entry.data).storage_id
                    if known != self._cluster.brokers[other].storage_id:
                        return False
                case paths.BlockPath(topic=topic, partition=partition):
                    block = decode_node(BlockNode, entry.data)
                    key = watch.indexes.get((topic, partition)) if watch is not None else None
                    if name not in block.replicas or watch is None or topic in watch.mortal:
                        continue
                    if key is None:
                        return False
                    found = BlockId(*key, block.number)
                    seen = watch.history(found).blocks.get(block.number)
                    end = seen.end if seen is not None else block.start
                    mine = watch.ledger.log(name, found)
                    if unseen and mine is not None:
                        end = max(end, mine.synced_end)
                    if not self._has_others(name, end, found, block):
                        return False
                case _:
                    pass
        return True

    def _has_others(self, name: str, end: int, found: BlockId, block: BlockNode) -> bool:
        """Whether enough other brokers have the block up to *end*."""
        watch = self._cluster.watch
        others, counted = 0, self._counted_on(found) if block.end is None else block.in_sync
        for broker, storage in zip(block.replicas, block.storages, strict=False):
            log = watch.ledger.log(broker, found) if watch is not None else None
            host = self._cluster.brokers[broker]
            if broker == name or storage != host.storage_id or log is None:
                continue
            if self.rotten.get(broker) == host.disks:
                continue  # the damage may be in this broker's copy of the block
            # A replica outside the in-sync set may be complete, but no leader knows that.
            is_open_raft = block.end is None and block.acks is AckMode.RAFT
            is_known = is_open_raft or (broker in block.in_sync and broker in counted)
            others += log.synced_end >= end and is_known
        if block.end is None and block.acks is AckMode.RAFT:
            return others > len(block.replicas) // 2
        return others >= 1

    def _counted_on(self, place: BlockId) -> tuple[str, ...]:
        """Return the brokers in the in-sync set of each leader of a partition.

        Without a leader, return all replicas.
        """
        found = tuple(self._cluster.brokers)
        for host in self._cluster.brokers.values():
            for partition in probe.partitions(host.broker) if host.broker is not None else ():
                state = probe.state(partition)
                if (state.topic_id, state.index) == (place.topic_id, place.partition):
                    names = probe.in_sync(partition)
                    found = tuple(n for n in found if names is None or n in names)
        return found


def _needs_not_all(node: PartitionNode) -> bool:
    """Whether a partition accepts records while one of its replicas cannot write."""
    wanted = node.wanted
    counts = [node.replicas, *([wanted.count] if wanted is not None and wanted.count else [])]
    modes = {node.acks, *([wanted.acks] if wanted is not None and wanted.acks is not None else [])}
    return min(counts) > (2 if AckMode.RAFT in modes else 1)
