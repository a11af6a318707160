"""Writes the log of an open block: which batches a write holds, and when it is synced.

A writer exists from the end of recovery until the replica restarts its log. Each turn has at most
one write:

1. The partition checks that there is something to write and that no write is in progress
   (:attr:`pymq.core.partition.partition.Partition.is_dirty`).
2. ``flush`` adds the write: batches, the replicator's state, the seal.
3. ``advance`` handles the end of the write.
"""

from __future__ import annotations

from pymq.core.block.log import BlockLog
from pymq.core.block.replicator import Replicator
from pymq.core.block.sealing import Sealing, SealState
from pymq.core.metadata.nodes import PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.ready import Ready
from pymq.core.types import NEVER

DRAINING = SealState.DRAINING
SKIP_MAX = 1 << 31  # offsets that a batch can cover
IDLE_MS = 30_000  # after this long without an append, cached batches for followers are dropped


class LogWriter:
    """The writes of one recovered log."""

    __slots__ = (
        "_idle_at",
        "_idle_end",
        "_interval_ms",
        "_is_shared",
        "_policy",
        "_sealing",
        "_sync_at",
        "deadline",
        "is_unsent",
        "log",
        "replicator",
    )

    def __init__(
        self,
        log: BlockLog,
        replicator: Replicator,
        sealing: Sealing,
        state: PartitionState,
        *,
        is_shared: bool,
    ) -> None:
        self.log = log
        self.replicator = replicator
        self.is_unsent = False  # the followers have not been sent all appended batches
        self._sealing = sealing
        self._is_shared = is_shared
        self._sync_at = NEVER  # when batches written without a sync are synced
        self._idle_at = NEVER  # when cached batches are dropped ...
        self._idle_end = -1  # ... if the log still ends here
        self.deadline = NEVER  # when ``tick`` has something to do
        self.adopt(state)

    def adopt(self, state: PartitionState) -> None:
        """Adopt new topic options."""
        self._policy = state.config.sync_policy(state.blocks[-1].acks)
        self._interval_ms = state.config.fsync_interval_ms

    # --- writing --------------------------------------------------------------------------------

    def flush(self, ready: Ready, committed: int, now: int, *, must_sync: bool) -> int:
        """Add the pending write to *ready*; returns when a later sync is due, or NEVER.

        *committed* is the high watermark for the next checkpoint.
        """
        log, replicator = self.log, self.replicator
        if self.is_unsent and self._is_shared:
            # Send first, so that followers write while this broker's disk writes.
            replicator.appended(now)
        self.is_unsent = False
        log.committed = committed
        sealing = self._sealing
        must_seal = sealing.state is DRAINING and sealing.must_write(log, replicator)
        is_synced = must_sync or self._policy == "always"
        if is_synced:
            self._sync_at = NEVER
        elif self._sync_at == NEVER and self._policy == "interval" and log.unwritten:
            self._sync_at = now + self._interval_ms
        if self._is_shared and self._idle_at == NEVER and log.unwritten:
            self._idle_at, self._idle_end = now + IDLE_MS, log.end
        log.flush(ready, sync=is_synced)
        if must_seal:
            sealing.write(log, ready)
            self._sync_at = NEVER
        if replicator.is_dirty:
            replicator.flush(ready, now)
        self.deadline = min(self._sync_at, self._idle_at)
        return self._sync_at

    def skip_deleted(self, log_start: int, epoch: int) -> None:
        """Let a log that has lost its end begin at *log_start*, if that is later.

        DeleteRecords moves the start up to the high watermark, but in a mode without syncs a crash
        may lose records before it. New records must not get offsets that count as deleted.
        """
        if 0 < log_start - self.log.end <= SKIP_MAX:
            mark("log.lost_before_its_start")
            self.log.skip(log_start, epoch)
            self.is_unsent = True

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Sync written batches and drop cached ones, if that is due."""
        log = self.log
        if now >= self._sync_at:
            self._sync_at = NEVER
            log.sync()
        if now >= self._idle_at:
            self._idle_at = NEVER
            if log.end == self._idle_end:
                log.release()
            else:
                self._idle_at, self._idle_end = now + IDLE_MS, log.end
        self.deadline = min(self._sync_at, self._idle_at)

    def stop(self) -> None:
        """Stop: the replica has failed, and nothing is due any more."""
        self._sync_at = self._idle_at = self.deadline = NEVER
