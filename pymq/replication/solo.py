"""Replication of a block with one replica, in any ack mode: synced records are committed."""

from __future__ import annotations

from pymq.core.block.replicator import Replica
from pymq.core.message import Replication
from pymq.core.metadata.nodes import PartitionState
from pymq.core.ready import Ready
from pymq.core.types import NEVER


class Solo:
    """The replicator of a block with a single replica."""

    __slots__ = ("_me", "deadline", "epoch", "high_watermark", "is_dirty", "is_leader", "leader")

    def __init__(self, replica: Replica, now: int) -> None:
        self._me = replica.host.me
        self.high_watermark = replica.log.stable_end
        self.epoch = replica.state.epoch
        self.leader = replica.state.leader
        self.is_leader = self.leader == self._me  # a leader may append records
        self.is_dirty = False
        self.deadline = NEVER

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The only replica."""
        return (self._me,) if self.is_leader else ()

    def holders(self, end: int) -> tuple[str, ...]:
        """The only replica."""
        return self.in_sync

    def adopt(self, state: PartitionState, now: int) -> None:
        """Adopt a new state of the partition, of which only the epoch matters."""
        self.epoch, self.leader = state.epoch, state.leader
        self.is_leader = self.leader == self._me

    def step(self, source: str, message: Replication, now: int) -> None:
        """Ignore messages, because there is no other replica."""

    def appended(self, now: int) -> None:
        """Send nothing, because there is no other replica."""

    def tick(self, now: int) -> None:
        """Do nothing, because there are no deadlines."""

    def flush(self, ready: Ready, now: int) -> None:
        """Do nothing, because there is no state to save."""

    def stable(self, end: int, now: int) -> None:
        """Note that the log is on the disk up to *end*, which commits its records."""
        self.high_watermark = max(self.high_watermark, end)

    def peer_changed(self, peer: str, now: int) -> None:
        """Do nothing, because there is no other replica."""

    def transfer(self, peer: str, now: int) -> None:
        """Do nothing, because no other replica could take over."""

    def relinquish(self, now: int) -> None:
        """Do nothing, because no other replica could take over."""
