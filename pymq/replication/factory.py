"""Chooses the replication protocol of a block."""

from __future__ import annotations

from pymq.core.block.replicator import Replica, Replicator
from pymq.core.types import AckMode
from pymq.replication.fetch import FetchReplicator
from pymq.replication.raft.raft import Raft
from pymq.replication.solo import Solo


def replicator(replica: Replica, now: int) -> Replicator:
    """Make the replicator of an open block, by its ack mode and its number of replicas."""
    block = replica.state.blocks[-1]
    if len(block.replicas) == 1:
        return Solo(replica, now)
    if block.acks is AckMode.RAFT:
        return Raft(replica, now)
    return FetchReplicator(replica, now)
