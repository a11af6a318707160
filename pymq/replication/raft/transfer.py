"""Transfer of leadership (thesis 3.10)."""

from __future__ import annotations

from collections.abc import Mapping

from pymq.core.message import RaftTimeout
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER
from pymq.replication.raft.group import RaftGroup
from pymq.replication.raft.progress import FollowerProgress


class LeadershipTransfer:
    """The transfer of leadership in progress, if any; until it ends, the leader refuses appends."""

    def __init__(
        self, group: RaftGroup, term: int, followers: Mapping[str, FollowerProgress]
    ) -> None:
        self._group = group
        self._term = term
        self._followers = followers
        self.target: str | None = None  # the member that will take over
        self.until = NEVER  # the time when the leader abandons the transfer
        self._is_told = False

    def begin(self, peer: str, now: int) -> bool:
        """Begin a transfer to *peer*, which ends when *peer* leads or time is up; returns whether
        it began.

        A transfer to this member itself cancels the previous transfer, whose target may still be
        elected.
        """
        if peer == self._group.me and self.target is not None:
            mark("raft.transfer.back")
            self._stop()
            return False
        if peer not in self._followers or peer not in self._group.voters:
            mark("raft.transfer.nobody")
            return False
        if not self._group.host.is_alive(peer) or peer == self.target:
            mark("raft.transfer.ignored")
            return False
        mark("raft.transfer")
        self.target, self._is_told = peer, False
        self.until = now + self._group.host.replication.election_ms
        self.tell_target()
        return True

    def tell_target(self) -> None:
        """Ask the target to begin an election, if the target has the whole log."""
        if self.target is None or self._is_told:
            return
        if self._followers[self.target].match == self._group.log.end:
            mark("raft.transfer.told")
            self._is_told = True
            self._group.host.send(self.target, RaftTimeout(self._group.block, self._term))

    def tick(self, now: int) -> None:
        """Give up a transfer that takes too long."""
        if now >= self.until:
            mark("raft.transfer.timeout")
            self._stop()

    def died(self, peer: str) -> None:
        """Give up a transfer whose target seems dead."""
        if peer == self.target:
            mark("raft.transfer.lost")
            self._stop()

    def heir(self) -> str | None:
        """Return the live member that is known to have the longest part of the log."""
        group = self._group
        names = [
            name for name in group.others if name in group.voters and group.host.is_alive(name)
        ]
        return max(names, key=lambda name: self._followers[name].match, default=None)

    def _stop(self) -> None:
        self.target, self.until = None, NEVER
