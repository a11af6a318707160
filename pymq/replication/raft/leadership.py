"""The leader's half of Raft: replication, commit, and transfer of leadership.

Each term that a replica leads has an object of its own.
"""

from __future__ import annotations

from pymq.core.message import RaftAppend, RaftAppended, RaftSnapshot, RaftTimeout
from pymq.core.observe.coverage import invariant, mark
from pymq.core.types import NEVER
from pymq.replication.quorum import reached
from pymq.replication.raft.group import RaftGroup, SnapshotLog
from pymq.replication.raft.log_matching import end_of_data, resume
from pymq.replication.raft.progress import FollowerProgress, Mode
from pymq.replication.raft.reads import PendingReads


class Leadership:
    """A leader's knowledge of its followers in one term."""

    def __init__(
        self, group: RaftGroup, term: int, committed: int, durable: int, opened: bool
    ) -> None:
        self._group = group
        self._log = group.log
        self._host = group.host
        self._config = group.host.replication
        self.term = term
        self.committed = committed
        self.durable = durable  # of the own log
        self.reads = PendingReads()
        self.read_ends: list[tuple[int, int]] = []  # (token, end) of reads that were confirmed
        self._opened = opened  # an entry of this term is committed, or the log was empty
        self.target: str | None = None  # the member to which leadership is being transferred
        self._target_until = NEVER
        self._told_target = False
        self._tell_at = NEVER  # when the commit index is sent without data
        self._tell_end = 0  # the commit index when that was set
        start, end = group.log.start, group.log.end
        match = start if opened else 0  # A follower's log may end before this one begins.
        self.progress = {name: FollowerProgress(name, match, end, start) for name in group.others}

    @property
    def deadline(self) -> int:
        """When a message must be resent, or a transfer given up."""
        due = min(self._target_until, self._tell_at)
        for progress in self.progress.values():
            if progress.retry_at < due:
                due = progress.retry_at
        return due

    # --- sending --------------------------------------------------------------------------------

    def feed_all(self, now: int) -> None:
        """Send each follower the entries that it lacks."""
        for progress in self.progress.values():
            self._feed(progress, now)

    def probe(self, peer: str, now: int) -> None:
        """Probe *peer*, which seems not to know this leader."""
        progress = self.progress[peer]
        progress.rest()
        progress.commit = self._log.start  # The peer may have restarted.
        if self._host.is_alive(peer):
            self._probe(progress, now)

    def _lacks(self, progress: FollowerProgress) -> bool:
        """Whether the follower lacks entries or the commit index."""
        return (
            progress.match < self._log.end
            or progress.commit < self.committed
            or (self.reads.is_asking and progress.round < self.reads.round)
        )

    def _feed(self, progress: FollowerProgress, now: int) -> None:
        if not self._host.is_alive(progress.peer):
            progress.rest()
        elif progress.mode is Mode.REPLICATE:
            self._stream(progress, now)
        elif progress.mode is Mode.PROBE and not progress.is_waiting and self._lacks(progress):
            self._probe(progress, now)

    def _probe(self, progress: FollowerProgress, now: int, bare: bool = False) -> None:
        """Send one probe that shows whether the logs match; *bare*: without data."""
        if progress.next < self._log.start:
            self._send_snapshot(progress, now)
            return
        data = b"" if bare else self._log.recent(progress.next, self._config.append_bytes)
        self._append(progress, data or b"", now)

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
        if progress.told_round < self.reads.round:
            self._append(progress, b"", now)
        elif not progress.in_flight and progress.told_commit < self.committed:
            self._tell_soon(progress, now)

    def _tell_soon(self, progress: FollowerProgress, now: int) -> None:
        """Plan to send the commit index: with the next data, or alone if none follows soon."""
        wait = self._config.tell_ms
        if not wait:
            self._tell(progress, now)
        elif self._tell_at == NEVER:
            self._tell_at, self._tell_end = now + wait, self.committed

    def _tell_late(self, now: int) -> None:
        """Send the commit index to followers that got no message since it advanced."""
        end, self._tell_at = self._tell_end, NEVER
        for progress in self.progress.values():
            is_idle = progress.mode is Mode.REPLICATE and not progress.in_flight
            if is_idle and progress.told_commit < end and self._host.is_alive(progress.peer):
                self._tell(progress, now)
        self.feed_all(now)  # A later commit index waits again.

    def _tell(self, progress: FollowerProgress, now: int) -> None:
        mark("raft.commit.told_alone")
        self._append(progress, b"", now)

    def _append(self, progress: FollowerProgress, data: bytes, now: int) -> None:
        message = self._message(progress, data)
        progress.sent = end_of_data(progress.next, data)
        progress.retry_at = now + self._config.retry_ms
        self._host.send(progress.peer, message)

    def _read(self, progress: FollowerProgress, now: int) -> None:
        """Let the store send entries that are not cached any more."""
        mark("raft.flow.read")
        progress.mode = Mode.READ
        progress.sent = progress.next
        progress.retry_at = now + self._config.retry_ms
        message = self._message(progress, b"")
        self._log.read(progress.peer, message, progress.next, self._config.append_bytes)

    def _message(self, progress: FollowerProgress, data: bytes) -> RaftAppend:
        progress.told_commit, progress.told_round = self.committed, self.reads.round
        return RaftAppend(
            self._group.block,
            self.term,
            progress.next,
            self._log.epoch_at(progress.next),
            self.committed,
            data,
            self.reads.round,
        )

    def _send_snapshot(self, progress: FollowerProgress, now: int) -> None:
        progress.retry_at = now + self._config.retry_ms
        found = self._log.snapshot() if isinstance(self._log, SnapshotLog) else None
        if found is None:
            mark("raft.snapshot.missing")
            return
        mark("raft.snapshot.sent")
        end, epoch, data = found
        progress.mode = Mode.SNAPSHOT
        progress.sent = end
        message = RaftSnapshot(self._group.block, self.term, end, epoch, data)
        self._host.send(progress.peer, message)

    # --- answers --------------------------------------------------------------------------------

    def answered(self, peer: str, m: RaftAppended, now: int) -> None:
        """Take in a follower's answer of this term."""
        if m.end < 0:
            return  # The answer is to the leader of an earlier term.
        progress = self.progress[peer]
        progress.round = max(progress.round, m.round)
        progress.commit = m.commit
        if m.conflict is not None:
            self._conflict(progress, m.conflict, m.end, now)
        else:
            self._matched(progress, m.end, now)
        self._commit()
        self._confirm_reads()
        self._tell_target(now)
        self.feed_all(now)

    def _matched(self, progress: FollowerProgress, end: int, now: int) -> None:
        invariant(
            end <= self._log.end,
            "a follower has nothing that its leader has not",
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
                pass  # nothing changes
        if not self._lacks(progress):
            progress.retry_at = NEVER
        elif is_news or not progress.is_waiting:
            progress.retry_at = now + self._config.retry_ms

    def _conflict(
        self, progress: FollowerProgress, pair: tuple[int, int], end: int, now: int
    ) -> None:
        """Take in a rejection: the follower lacks the entry before the last message."""
        if not progress.refused(end):
            mark("raft.conflict.stale")
            return
        if pair[1] < progress.match:
            if progress.peer not in self._group.learners:
                # The follower reports that it has lost entries it had confirmed. No message can
                # mend that.
                mark("raft.conflict.lost")
                return
            mark("raft.conflict.learner")
            progress.match, progress.is_known = 0, False
        mark("raft.conflict")
        if end == progress.next == self._log.start:
            at = self._log.start - 1  # The follower lacks even the beginning: it needs a snapshot.
        else:
            at = resume(self._log, *pair)
        progress.probe(at)
        self._probe(progress, now)

    def stable(self, durable: int, now: int) -> None:
        """Count the leader's own log, which is durable up to *durable* (Raft 5.3)."""
        self.durable = durable
        self._commit()
        self._confirm_reads()
        self.feed_all(now)

    def _commit(self) -> None:
        end = reached([self._counted(name) for name in self._group.members])
        if end <= self.committed:
            return
        if self._log.epoch_at(end) != self.term:
            # A majority has the entry, and yet a later leader may truncate it (Raft 5.4.2, figure
            # 8).
            mark("raft.commit.earlier_term")
            return
        mark("raft.commit")
        self.committed = end
        self._opened = True

    def _counted(self, name: str) -> int:
        if name in self._group.learners:
            return self._log.start
        return self.durable if name == self._group.me else self.progress[name].match

    # --- time and peers -------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Resend unanswered messages, and give up a transfer that takes too long."""
        if now >= self._target_until:
            mark("raft.transfer.timeout")
            self._stop_transfer()
        if now >= self._tell_at:
            self._tell_late(now)
        for progress in self.progress.values():
            if now < progress.retry_at:
                continue
            if not self._host.is_alive(progress.peer):
                progress.rest()
                continue
            mark("raft.retry")
            # A probe without data costs little if the answer is only late.
            progress.retry()
            self._probe(progress, now, bare=True)

    def peer_changed(self, peer: str, now: int) -> None:
        """Take in that a follower's broker is gone, back, or restarted."""
        if self._host.is_alive(peer):
            self.probe(peer, now)
            return
        self.progress[peer].rest()
        if peer == self.target:
            mark("raft.transfer.lost")
            self._stop_transfer()

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The members that are alive and, as far as known, have all committed entries."""
        return tuple([name for name in self._group.members if self._keeps_up(name)])

    def _keeps_up(self, name: str) -> bool:
        if name == self._group.me:
            return True
        progress = self.progress[name]
        return (
            name not in self._group.learners
            and self._host.is_alive(name)
            and (progress.match >= self.committed or not progress.is_known)
        )

    def holders(self, end: int) -> tuple[str, ...]:
        """The members whose log is durable up to *end*."""
        me = self._group.me
        return tuple(
            [
                name
                for name in self._group.members
                if (self.durable if name == me else self.progress[name].match) >= end
            ]
        )

    # --- transfer (thesis 3.10) -----------------------------------------------------------------

    def transfer(self, peer: str, now: int) -> None:
        """Begin a transfer: refuse appends until *peer* has all entries and takes over, or time is
        up.

        A transfer to this member itself cancels it; a peer that was asked already may be elected.
        """
        if peer == self._group.me and self.target is not None:
            mark("raft.transfer.back")
            self._stop_transfer()
            return
        if peer not in self.progress or peer in self._group.learners:
            mark("raft.transfer.nobody")
            return
        if not self._host.is_alive(peer) or peer == self.target:
            mark("raft.transfer.ignored")
            return
        mark("raft.transfer")
        self.target, self._told_target = peer, False
        self._target_until = now + self._config.election_ms
        self._tell_target(now)
        self._feed(self.progress[peer], now)

    def heir(self) -> str | None:
        """Return the live member that is known to hold most of the log; the first of equals."""
        names = [
            name
            for name in self._group.others
            if name not in self._group.learners and self._host.is_alive(name)
        ]
        return max(names, key=lambda name: self.progress[name].match, default=None)

    def _tell_target(self, now: int) -> None:
        if self.target is None or self._told_target:
            return
        if self.progress[self.target].match == self._log.end:
            mark("raft.transfer.told")
            self._told_target = True
            self._host.send(self.target, RaftTimeout(self._group.block, self.term))

    def _stop_transfer(self) -> None:
        self.target, self._target_until = None, NEVER

    # --- reads ----------------------------------------------------------------------------------

    def read_index(self, token: int, now: int) -> None:
        """Begin to confirm that this is still the leader, for a read (ReadIndex)."""
        self.reads.add(token)
        self._confirm_reads()
        self.feed_all(now)

    def _confirm_reads(self) -> None:
        """Release the reads of a round that a majority has answered, and begin the next round."""
        if not self.reads:
            return
        if not self._opened:
            mark("raft.read.too_early")  # The commit index is not known before (thesis 6.4).
            return
        self.reads.begin(self.committed)
        while done := self.reads.confirmed([self._round(name) for name in self._group.members]):
            mark("raft.read.confirmed")
            self.read_ends += done
            self.reads.begin(self.committed)

    def _round(self, name: str) -> int:
        if name in self._group.learners:
            return -1
        return self.reads.round if name == self._group.me else self.progress[name].round
