"""The members of a Raft block, which do not change while it is open."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pymq.core.block.replicator import ReplicaHost, ReplicatedLog
from pymq.core.types import BlockId
from pymq.core.values import define
from pymq.replication.quorum import majority

__all__ = ["RaftGroup", "ReplicaHost", "ReplicatedLog", "SnapshotLog"]


@runtime_checkable
class SnapshotLog(Protocol):
    """A log whose beginning may be replaced by a snapshot.

    The log of a block is none: its first batch has all that the block needs of the past.
    """

    def snapshot(self) -> tuple[int, int, bytes] | None:
        """The latest snapshot: (end, epoch of the last batch before it, data); None if
        unavailable.
        """
        ...

    def install(self, end: int, epoch: int, data: bytes) -> None:
        """Replace the log by a snapshot: it starts and ends at *end*, and ``epoch_at(end) ==
        epoch``.

        The write belongs to the same turn, as with an append.
        """
        ...


@define
class RaftGroup:
    """The members of a block."""

    block: BlockId
    log: ReplicatedLog
    host: ReplicaHost
    members: tuple[str, ...]  # all of them
    learners: frozenset[str]  # members that neither vote nor count

    @property
    def me(self) -> str:
        """This replica's broker."""
        return self.host.me

    @property
    def others(self) -> tuple[str, ...]:
        """All members but this one."""
        return tuple([name for name in self.members if name != self.host.me])

    def has_quorum(self) -> bool:
        """Whether a majority of all members, this one included, is alive and counts."""
        alive = [
            name
            for name in self.members
            if name not in self.learners and (name == self.me or self.host.is_alive(name))
        ]
        return len(alive) >= majority(len(self.members))
