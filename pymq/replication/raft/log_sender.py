"""Sends a leader's log and its commit index to the followers."""

from __future__ import annotations

from collections.abc import Mapping

from pymq.core.message import RaftAppend
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER
from pymq.replication.raft.commit_index import CommitIndex
from pymq.replication.raft.group import RaftGroup
from pymq.replication.raft.log_matching import end_of_data
from pymq.replication.raft.progress import FollowerProgress, Mode
from pymq.replication.raft.quorum_features.read_index import ReadIndex
from pymq.replication.raft.quorum_features.snapshots import send_snapshot


class LogSender:
    """Decides which messages each follower gets, and when they are resent; see :class:`Mode`.

    When the commit index advances, the leader waits up to ``tell_ms`` for data, to send both in one
    message. After that time it sends the commit index alone.
    """

    def __init__(
        self,
        group: RaftGroup,
        term: int,
        followers: Mapping[str, FollowerProgress],
        commit: CommitIndex,
        reads: ReadIndex,
    ) -> None:
        self._group = group
        self._log = group.log
        self._host = group.host
        self._config = group.host.replication
        self._term = term
        self._followers = followers
        self._commit = commit
        self._reads = reads
        self.tell_at = NEVER  # the time when the commit index must be sent without data
        self._tell_end = 0  # the commit index when *tell_at* was set

    def feed_all(self, now: int) -> None:
        """Send each follower the entries that it lacks."""
        for progress in self._followers.values():
            self.feed(progress, now)

    def feed(self, progress: FollowerProgress, now: int) -> None:
        """Send a follower the entries and the commit index that it lacks, as far as its mode
        allows.
        """
        if not self._host.is_alive(progress.peer):
            self.rest(progress)
        elif progress.mode is Mode.REPLICATE:
            self._stream(progress, now)
        elif progress.mode is Mode.PROBE and not progress.is_waiting and self.lacks(progress):
            self.probe(progress, now)

    def rest(self, progress: FollowerProgress) -> None:
        """Send nothing more to a dead follower; after its return the leader probes it."""
        progress.rest()
        self._reads.forget(progress.peer)

    def lacks(self, progress: FollowerProgress) -> bool:
        """Whether the follower lacks entries or the commit index."""
        return (
            progress.match < self._log.end
            or progress.commit < self._commit.committed
            or (self._reads.is_used and self._reads.lacks(progress.peer))
        )

    def introduce(self, peer: str, now: int) -> None:
        """Probe *peer*, which seems not to know this leader."""
        progress = self._followers[peer]
        self.rest(progress)
        progress.commit = self._log.start  # the follower may have restarted
        if self._host.is_alive(peer):
            self.probe(progress, now)

    def probe(self, progress: FollowerProgress, now: int, bare: bool = False) -> None:
        """Send one probe that shows whether the logs match; with *bare*, a probe without data."""
        if progress.next < self._log.start:
            self._send_snapshot(progress, now)
            return
        data = b"" if bare else self._log.recent(progress.next, self._config.append_bytes)
        self._append(progress, data or b"", now)

    def tick(self, now: int) -> None:
        """Send the commit index if it has waited long enough, and resend unanswered messages."""
        if now >= self.tell_at:
            self._tell_late(now)
        for progress in self._followers.values():
            if now < progress.retry_at:
                continue
            if not self._host.is_alive(progress.peer):
                self.rest(progress)
                continue
            mark("raft.retry")
            # If the answer is only late, a probe without data costs little.
            progress.retry()
            self.probe(progress, now, bare=True)

    def _stream(self, progress: FollowerProgress, now: int) -> None:
        """Send entries until as many messages are in flight as allowed."""
        if progress.next < self._log.start:
            self._send_snapshot(progress, now)
            return
        while progress.next < self._log.end:
            if len(progress.in_flight) >= self._config.in_flight:
                mark("raft.flow.full")
                break
            data = self._log.recent(progress.next, self._config.append_bytes)
            if data is None:
                self._read(progress, now)
                return
            self._append(progress, data, now)
            progress.next = progress.sent
            progress.in_flight.append(progress.sent)
        if self._reads.is_used and not self._reads.is_told(progress.peer):
            self._append(progress, b"", now)
        elif not progress.in_flight and progress.told_commit < self._commit.committed:
            self._tell_soon(progress, now)

    def _tell_soon(self, progress: FollowerProgress, now: int) -> None:
        """Plan to send the commit index: with the next data, or alone if no data follows soon."""
        wait = self._config.tell_ms
        if not wait:
            self._tell(progress, now)
        elif self.tell_at == NEVER:
            self.tell_at, self._tell_end = now + wait, self._commit.committed

    def _tell_late(self, now: int) -> None:
        """Send the commit index to followers that got no message after it had advanced."""
        end, self.tell_at = self._tell_end, NEVER
        for progress in self._followers.values():
            is_idle = progress.mode is Mode.REPLICATE and not progress.in_flight
            if is_idle and progress.told_commit < end and self._host.is_alive(progress.peer):
                self._tell(progress, now)
        self.feed_all(now)  # afterwards a later commit index waits for data again

    def _tell(self, progress: FollowerProgress, now: int) -> None:
        mark("raft.commit.told_alone")
        self._append(progress, b"", now)

    def _append(self, progress: FollowerProgress, data: bytes, now: int) -> None:
        message = self._message(progress, data)
        progress.sent = end_of_data(progress.next, data)
        progress.retry_at = now + self._config.retry_ms
        self._host.send(progress.peer, message)

    def _read(self, progress: FollowerProgress, now: int) -> None:
        """Ask the store to send entries that are no longer cached."""
        mark("raft.flow.read")
        progress.mode = Mode.READ
        progress.sent = progress.next
        progress.retry_at = now + self._config.retry_ms
        message = self._message(progress, b"")
        self._log.read(progress.peer, message, progress.next, self._config.append_bytes)

    def _message(self, progress: FollowerProgress, data: bytes) -> RaftAppend:
        committed = progress.told_commit = self._commit.committed
        message = RaftAppend(
            self._group.block,
            self._term,
            progress.next,
            self._log.epoch_at(progress.next),
            committed,
            data,
        )
        return self._reads.stamp(progress.peer, message) if self._reads.is_used else message

    def _send_snapshot(self, progress: FollowerProgress, now: int) -> None:
        progress.retry_at = now + self._config.retry_ms
        end = send_snapshot(self._group, self._term, progress.peer)
        if end is not None:
            progress.mode, progress.sent = Mode.SNAPSHOT, end
