"""What does not change about the replicas of a Raft block while it is open."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pymq.core.block.replicator import ReplicaHost, ReplicatedLog
from pymq.core.types import BlockId
from pymq.core.values import define
from pymq.replication.quorum import majority

__all__ = ["RaftGroup", "ReplicaHost", "ReplicatedLog", "SnapshotLog"]


@runtime_checkable
class SnapshotLog(Protocol):
    """What a log offers besides when its beginning may be replaced by a snapshot of it.

    A block's log is none: what a new block must know of the past is its first batch.
    """

    def snapshot(self) -> tuple[int, int, bytes] | None:
        """The latest one: (end, epoch of the last batch before it, data); None if not at hand."""
        ...

    def install(self, end: int, epoch: int, data: bytes) -> None:
        """Let the log be empty behind *end*: start and end there, and ``epoch_at(end) == epoch``.

        It is a write of the same turn, like an append.
        """
        ...


@define
class RaftGroup:
    """What does not change about the replicas of a block."""

    block: BlockId
    log: ReplicatedLog
    host: ReplicaHost
    members: tuple[str, ...]  # all of them
    learners: frozenset[str]  # those that may neither vote nor be counted

    @property
    def me(self) -> str:
        """This replica's broker."""
        return self.host.me

    @property
    def others(self) -> tuple[str, ...]:
        """All members but this one."""
        return tuple([name for name in self.members if name != self.host.me])

    def has_quorum(self) -> bool:
        """Whether a majority of all members, this one included, is alive and may be counted."""
        alive = [
            name
            for name in self.members
            if name not in self.learners and (name == self.me or self.host.is_alive(name))
        ]
        return len(alive) >= majority(len(self.members))
