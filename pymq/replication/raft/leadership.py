"""The leader's half of Raft: one object for each term that a replica leads.

======================  ========================================================================
:class:`LogSender`      sends entries and the commit index to followers, and resends them
:class:`Leadership`     handles the followers' answers
:class:`CommitIndex`    computes the commit index from these answers and the leader's own disk
:class:`ReadIndex`      confirms reads; no broker uses it
``LeadershipTransfer``  transfers the leadership to a follower
======================  ========================================================================

All of these parts read the followers' progress; only the first two change it.
"""

from __future__ import annotations

from pymq.core.message import RaftAppended
from pymq.core.observe.coverage import invariant, mark
from pymq.core.types import NEVER
from pymq.replication.raft.commit_index import CommitIndex
from pymq.replication.raft.group import RaftGroup
from pymq.replication.raft.log_matching import resume
from pymq.replication.raft.log_sender import LogSender
from pymq.replication.raft.progress import FollowerProgress, Mode
from pymq.replication.raft.quorum_features.read_index import ReadIndex
from pymq.replication.raft.transfer import LeadershipTransfer


class Leadership:
    """A leader's knowledge of its followers in one term."""

    def __init__(
        self,
        group: RaftGroup,
        term: int,
        reads: ReadIndex,
        *,
        committed: int,
        durable: int,
        is_opened: bool,
    ) -> None:
        self._group = group
        self._log = group.log
        self._config = group.host.replication
        self._reads = reads
        start, end = group.log.start, group.log.end
        match = start if is_opened else 0  # a follower's log may end before the leader's log begins
        self.followers = {name: FollowerProgress(name, match, end, start) for name in group.others}
        self.commit = CommitIndex(group, term, self.followers, committed, durable, is_opened)
        self.sender = LogSender(group, term, self.followers, self.commit, reads)
        self.transfer = LeadershipTransfer(group, term, self.followers)

    @property
    def deadline(self) -> int:
        """The time when a message must be resent, or a transfer given up."""
        due = min(self.transfer.until, self.sender.tell_at)
        for progress in self.followers.values():
            if progress.retry_at < due:
                due = progress.retry_at
        return due

    def answered(self, peer: str, m: RaftAppended, now: int) -> None:
        """Handle a follower's answer of this term."""
        if m.end < 0:
            return  # The answer is to the leader of an earlier term.
        progress = self.followers[peer]
        progress.commit = m.commit
        if self._reads.is_used:
            self._reads.answered(peer, m)
        if m.conflict is not None:
            self._conflict(progress, m.conflict, m.end, now)
        else:
            self._matched(progress, m.end, now)
        self._advance(now)

    def _advance(self, now: int) -> None:
        """Act on a new match index of a follower, or on a longer durable log of the leader."""
        self.commit.advance()
        if self._reads.is_used:
            self._reads.confirm(self.commit.committed, self.commit.is_opened)
        if self.transfer.target is not None:
            self.transfer.tell_target()
        self.sender.feed_all(now)

    def _matched(self, progress: FollowerProgress, end: int, now: int) -> None:
        invariant(
            end <= self._log.end,
            "a follower has no entry that its leader lacks",
            peer=progress.peer,
            end=end,
            own=self._log.end,
        )
        is_news = progress.answered(end)
        match progress.mode:
            case Mode.PROBE if end >= progress.next:
                mark("raft.probe.matched")
                progress.replicate()
            case Mode.READ if is_news:
                progress.replicate()
            case Mode.SNAPSHOT if end >= progress.sent:
                mark("raft.snapshot.done")
                progress.replicate()
            case _:
                pass  # nothing to do
        if not self.sender.lacks(progress):
            progress.retry_at = NEVER
        elif is_news or not progress.is_waiting:
            progress.retry_at = now + self._config.retry_ms

    def _conflict(
        self, progress: FollowerProgress, pair: tuple[int, int], end: int, now: int
    ) -> None:
        """Handle a rejection: the follower lacks the entry before the last message."""
        if not progress.refused(end):
            mark("raft.conflict.stale")
            return
        if pair[1] < progress.match:
            if progress.peer in self._group.voters:
                # The follower reports that it has lost entries that it had confirmed. No message
                # can repair this.
                mark("raft.conflict.lost")
                return
            mark("raft.conflict.learner")
            progress.match, progress.is_known = 0, False
        mark("raft.conflict")
        if end == progress.next == self._log.start:
            # The follower lacks even the beginning of the leader's log, so it needs a snapshot.
            at = self._log.start - 1
        else:
            at = resume(self._log, *pair)
        progress.probe(at)
        self.sender.probe(progress, now)

    def stable(self, durable: int, now: int) -> None:
        """Count the leader's own log, which is durable up to *durable* (Raft 5.3)."""
        self.commit.durable = durable
        self._advance(now)

    def tick(self, now: int) -> None:
        """Resend unanswered messages, and give up a transfer that takes too long."""
        self.transfer.tick(now)
        self.sender.tick(now)

    def peer_changed(self, peer: str, now: int) -> None:
        """Note that a follower's broker is gone, back, or restarted."""
        if self._group.host.is_alive(peer):
            self.sender.introduce(peer, now)
        else:
            self.sender.rest(self.followers[peer])
            self.transfer.died(peer)

    def transfer_to(self, peer: str, now: int) -> None:
        """Transfer leadership to *peer* as soon as it has all entries."""
        if self.transfer.begin(peer, now):
            self.sender.feed(self.followers[peer], now)

    def read_index(self, token: int, now: int) -> None:
        """Begin to confirm, for a read, that this member is still the leader (ReadIndex)."""
        self._reads.add(token)
        self._reads.confirm(self.commit.committed, self.commit.is_opened)
        self.sender.feed_all(now)
