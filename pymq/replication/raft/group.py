"""The members of a Raft block, which do not change while it is open."""

from __future__ import annotations

from pymq.core.block.replicator import ReplicaHost, ReplicatedLog
from pymq.core.types import BlockId
from pymq.core.values import define
from pymq.replication.quorum import majority


@define
class RaftGroup:
    """The members of a block."""

    block: BlockId
    log: ReplicatedLog
    host: ReplicaHost
    members: tuple[str, ...]  # all members of the group
    # all members except learners, which neither vote nor count towards a majority
    voters: frozenset[str]

    @property
    def me(self) -> str:
        """This replica's broker."""
        return self.host.me

    @property
    def others(self) -> tuple[str, ...]:
        """All members except this one."""
        return tuple([name for name in self.members if name != self.host.me])

    def has_quorum(self) -> bool:
        """Whether a majority of all members, including this one, is alive and may vote."""
        alive = [
            name
            for name in self.members
            if name in self.voters and (name == self.me or self.host.is_alive(name))
        ]
        return len(alive) >= majority(len(self.members))
