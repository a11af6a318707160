"""A replica set of one, under any ack mode: what its own disk has is committed."""

from __future__ import annotations

from pymq.core.block.replicator import Replica
from pymq.core.message import Replication
from pymq.core.metadata.nodes import PartitionState
from pymq.core.ready import Ready
from pymq.core.types import NEVER


class Solo:
    """The replicator of a block with a single replica."""

    __slots__ = ("_me", "deadline", "epoch", "high_watermark", "is_dirty", "leader")

    def __init__(self, replica: Replica, now: int) -> None:
        self._me = replica.host.me
        self.high_watermark = replica.log.stable_end
        self.epoch = replica.state.epoch
        self.leader = replica.state.leader
        self.is_dirty = False
        self.deadline = NEVER

    @property
    def is_leader(self) -> bool:
        """Whether this replica may append."""
        return self.leader == self._me

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The only replica."""
        return (self._me,) if self.is_leader else ()

    def holders(self, end: int) -> tuple[str, ...]:
        """The only replica."""
        return self.in_sync

    def adopt(self, state: PartitionState, now: int) -> None:
        """Nothing but the epoch can change."""
        self.epoch, self.leader = state.epoch, state.leader

    def step(self, source: str, message: Replication, now: int) -> None:
        """There is nobody else who could say something."""

    def appended(self, now: int) -> None:
        """There is nobody to send it to."""

    def tick(self, now: int) -> None:
        """Nothing is ever due."""

    def flush(self, ready: Ready, now: int) -> None:
        """There is nothing to keep."""

    def stable(self, end: int, now: int) -> None:
        """The own log has reached *end*; there is nobody else to wait for."""
        self.high_watermark = max(self.high_watermark, end)

    def peer_changed(self, peer: str, now: int) -> None:
        """There is none."""

    def transfer(self, peer: str, now: int) -> None:
        """There is nobody who could take over."""

    def relinquish(self, now: int) -> None:
        """There is nobody who could take over."""
