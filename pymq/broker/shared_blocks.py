"""Knows which other brokers hold replicas of a broker's open blocks.

When a peer seems gone or is back, the broker notifies the partitions that share a block with that
peer. In its pings, the broker tells its peers which open blocks it cannot serve.
"""

from __future__ import annotations

from pymq.broker.peer_liveness import PeerLiveness
from pymq.core.partition.partition import Partition


class SharedBlocks:
    """The other brokers that hold replicas of this broker's open blocks."""

    def __init__(self, peers: PeerLiveness) -> None:
        self._peers = peers
        self._by_peer: dict[str, dict[Partition, None]] = {}
        self._names: dict[Partition, tuple[str, ...]] = {}  # peers, by partition

    def with_peer(self, peer: str) -> list[Partition]:
        """The partitions whose open block is shared with *peer*."""
        return list(self._by_peer.get(peer, ()))

    def look(self, partition: Partition, now: int) -> None:
        """Note that the other replicas of *partition*'s open block may have changed."""
        self.note_unable(partition)
        before, after = self._names.get(partition, ()), partition.peers
        if before == after:
            return
        self._names[partition] = after
        for peer in before:
            self._by_peer[peer].pop(partition, None)
        for peer in after:
            self._by_peer.setdefault(peer, {})[partition] = None
        self._peers.share(before, after, now)

    def note_unable(self, partition: Partition) -> None:
        """Note for the next pings whether this broker can serve the open block."""
        key, block = (partition.state.topic_id, partition.state.index), partition.unable
        if block is not None:
            self._peers.failed[key] = block
        else:
            self._peers.failed.pop(key, None)

    def drop(self, partition: Partition, now: int) -> None:
        """Remove a partition that this broker no longer hosts, and which has no peers here."""
        self.look(partition, now)
        self._names.pop(partition, None)
        self._peers.failed.pop((partition.state.topic_id, partition.state.index), None)
