"""A follower's log: how much of it is durable, equals the leader's log, and is committed."""

from __future__ import annotations

from pymq.core.block.replicator import ReplicatedLog
from pymq.core.message import RaftAppend, RaftAppended
from pymq.core.observe.coverage import invariant, mark
from pymq.core.types import NEVER, BlockId
from pymq.errors import CorruptBatch
from pymq.replication.raft.log_matching import conflict, end_of_data, held
from pymq.replication.raft.quorum_features.messages import RoundAppend, RoundAppended


class LogCopy:
    """Applies the leader's messages to the log, and collects the answers.

    The answers in :meth:`answers` may be sent when the whole log, as of that call, is durable.
    """

    def __init__(self, block: BlockId, log: ReplicatedLog) -> None:
        self._block = block
        self._log = log
        # the commit index that this member knows; the entries may not be durable on its disk yet
        self.committed = log.start
        self.durable = log.stable_end
        # the offset up to which the log is durable after the write in progress; a truncation lowers
        # it
        self._counts_to = NEVER
        # up to this offset the log matches the log of this term's leader
        self._verified = log.start
        # latest round of reads of this term's leader (quorum_features)
        self._round = 0
        self._has_answer = False
        self._refusal: RaftAppended | None = None

    @property
    def owes_answer(self) -> bool:
        """Whether there are answers for the leader."""
        return self._has_answer or self._refusal is not None

    def new_term(self) -> None:
        """Begin a new term: forget the match with the former leader's log."""
        self._verified = self.committed  # every later leader has all committed entries
        self._round = 0
        self._has_answer, self._refusal = False, None

    # --- the disk -------------------------------------------------------------------------------

    def flushed(self) -> None:
        """Note that the whole log is being written."""
        self._counts_to = self._log.end

    def stable(self, end: int) -> None:
        """Note that the write is durable, except entries that were truncated meanwhile (etcd
        #14370).
        """
        self.durable = max(self.durable, min(end, self._counts_to))
        self._counts_to = NEVER

    def answers(self, term: int) -> list[RaftAppended]:
        """Return the answers that may leave when the log is durable up to its end."""
        found = [self._answer(term, self._verified)] if self._has_answer else []
        if self._refusal is not None:
            found.append(self._refusal)
        self._has_answer, self._refusal = False, None
        return found

    def _answer(self, term: int, end: int, pair: tuple[int, int] | None = None) -> RaftAppended:
        if self._round:
            return RoundAppended(self._block, term, end, self.committed, pair, self._round)
        return RaftAppended(self._block, term, end, self.committed, pair)

    # --- messages of the leader -------------------------------------------------------------------

    def append(self, m: RaftAppend) -> None:
        """Handle an append of this term's leader."""
        if isinstance(m, RoundAppend):
            self._round = max(self._round, m.round)
        # Up to ``_verified`` the log equals the leader's, so there is nothing to compare.
        pair = conflict(self._log, m.prev, m.prev_epoch) if m.prev > self._verified else None
        if pair is not None:
            mark("raft.append.conflict")
            self._refusal = self._answer(m.epoch, m.prev, pair)
            return
        try:
            self._take(m)
        except CorruptBatch:
            mark("raft.append.corrupt")  # The leader will send the batches again.
        # The commit index counts only up to the end of the part that is known to match the leader's
        # log.
        self.committed = max(self.committed, min(m.commit, self._verified))
        self._has_answer = True

    def _take(self, m: RaftAppend) -> None:
        """Append the new entries of a message that continues the log."""
        log = self._log
        position, end = 0, m.prev
        if m.data and m.prev < log.end:
            position, end = held(log, m.prev, m.data)
            mark("raft.append.known" if position == len(m.data) else "raft.append.partly_known")
        if position == len(m.data):
            self._verified = max(self._verified, end)
            return
        if end < log.end:
            self._cut(end)
            self._verified = end
            # After the truncation the log may have to be recovered; the leader will resend this
            # message.
            refused = end_of_data(end, m.data[position:])
            self._refusal = self._answer(m.epoch, refused, (log.epoch_at(end), end))
            return
        log.extend(m.data[position:])
        self._verified = log.end

    def _cut(self, end: int) -> None:
        """Truncate entries that the leader does not have."""
        mark("raft.truncated")
        invariant(
            end >= max(self.committed, self._verified),
            "committed entries are never truncated",
            end=end,
            committed=self.committed,
            verified=self._verified,
        )
        self._log.truncate(end)
        self.durable = min(self.durable, end)
        self._counts_to = min(self._counts_to, end)
