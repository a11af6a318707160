"""Snapshots, for followers that lack entries which the leader has removed (Raft 7)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pymq.core.observe.coverage import mark
from pymq.replication.raft.group import RaftGroup
from pymq.replication.raft.log_copy import LogCopy
from pymq.replication.raft.log_matching import conflict
from pymq.replication.raft.quorum_features.messages import RaftSnapshot


@runtime_checkable
class SnapshotLog(Protocol):
    """A log whose beginning may be replaced by a snapshot; a block's log does not support this."""

    def snapshot(self) -> tuple[int, int, bytes] | None:
        """The latest snapshot: (end, epoch of the last batch before it, data).

        The value is None if there is no snapshot now.
        """
        ...

    def send_snapshot(self, peer: str, message: RaftSnapshot) -> None:
        """Send a snapshot to another member in this turn."""
        ...

    def install(self, end: int, epoch: int, data: bytes) -> None:
        """Replace the log by a snapshot: the log then starts and ends at *end*, and ``epoch_at(end)
        == epoch``.

        The write is part of the same turn, like that of an append.
        """
        ...


def send_snapshot(group: RaftGroup, term: int, peer: str) -> int | None:
    """Send *peer* the latest snapshot, and return its end; None if there is none now."""
    log = group.log
    found = log.snapshot() if isinstance(log, SnapshotLog) else None
    if found is None or not isinstance(log, SnapshotLog):
        mark("raft.snapshot.missing")
        return None
    mark("raft.snapshot.sent")
    end, epoch, data = found
    log.send_snapshot(peer, RaftSnapshot(group.block, term, end, epoch, data))
    return end


class SnapshotCopy(LogCopy):
    """A follower's log that installs its leader's snapshots."""

    def install(self, m: RaftSnapshot) -> None:
        """Install a snapshot in place of entries that the leader no longer has."""
        log = self._log
        if m.end <= self._verified:
            mark("raft.snapshot.ignored")
        elif conflict(log, m.end, m.last_epoch) is None:
            mark("raft.snapshot.known")  # the log has these entries and perhaps more: keep it
            self._verified = m.end
            self.committed = max(self.committed, m.end)
        else:
            assert isinstance(log, SnapshotLog)
            mark("raft.snapshot.installed")
            # No entry on the disk beyond the commit index belongs to this log.
            self.durable = self._counts_to = min(self.durable, self.committed)
            log.install(m.end, m.last_epoch, m.data)
            self._verified = self.committed = m.end
        self._has_answer = True
