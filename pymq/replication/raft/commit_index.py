"""A leader's commit index: the offset up to which a majority of the members is durable."""

from __future__ import annotations

from collections.abc import Mapping

from pymq.core.observe.coverage import mark
from pymq.replication.quorum import reached
from pymq.replication.raft.group import RaftGroup
from pymq.replication.raft.progress import FollowerProgress


class CommitIndex:
    """Computes a term's commit index from the followers' match indexes and the leader's disk."""

    def __init__(
        self,
        group: RaftGroup,
        term: int,
        followers: Mapping[str, FollowerProgress],
        committed: int,
        durable: int,
        is_opened: bool,
    ) -> None:
        self._group = group
        self._log = group.log
        self._me = group.me
        self._term = term
        self._followers = followers
        self.committed = committed
        self.durable = durable  # the offset up to which the leader's own log is durable
        # whether an entry of this term is committed, or the log was empty
        self.is_opened = is_opened

    def advance(self) -> None:
        """Commit the entries that a majority has, if the last of them is of this term."""
        end = reached([self._counted(name) for name in self._group.members])
        if end <= self.committed:
            return
        if self._log.epoch_at(end) != self._term:
            # A majority has the entry, but a later leader may still truncate it (Raft 5.4.2, figure
            # 8).
            mark("raft.commit.earlier_term")
            return
        mark("raft.commit")
        self.committed = end
        self.is_opened = True

    def _counted(self, name: str) -> int:
        if name not in self._group.voters:
            return self._log.start
        return self.durable if name == self._me else self._followers[name].match

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The members that are alive and, as far as known, have all committed entries."""
        return tuple([name for name in self._group.members if self._keeps_up(name)])

    def _keeps_up(self, name: str) -> bool:
        if name == self._me:
            return True
        progress = self._followers[name]
        return (
            name in self._group.voters
            and self._group.host.is_alive(name)
            and (progress.match >= self.committed or not progress.is_known)
        )

    def holders(self, end: int) -> tuple[str, ...]:
        """The members whose log is durable up to *end*."""
        return tuple(
            [
                name
                for name in self._group.members
                if (self.durable if name == self._me else self._followers[name].match) >= end
            ]
        )
