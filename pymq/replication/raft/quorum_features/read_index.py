"""Reads that a replaced leader must not answer (ReadIndex, thesis 6.4)."""

from __future__ import annotations

from collections.abc import Sequence

from pymq.core.message import RaftAppend, RaftAppended
from pymq.core.observe.coverage import mark
from pymq.replication.quorum import reached
from pymq.replication.raft.group import RaftGroup
from pymq.replication.raft.quorum_features.messages import RoundAppend, RoundAppended


class PendingReads:
    """Reads that wait until a majority has confirmed that the leader is still the leader.

    All reads that arrive during a round share the next round, because answers to messages that were
    sent before a read do not confirm that read.
    """

    def __init__(self) -> None:
        self.round = 0  # the last round
        self._asked: list[int] = []  # tokens of reads that wait for this round
        self._next: list[int] = []  # tokens of reads that wait for the next round
        self._end = 0  # commit index when the round began

    def __bool__(self) -> bool:
        return bool(self._asked or self._next)

    @property
    def is_asking(self) -> bool:
        """Whether a round is in progress."""
        return bool(self._asked)

    def add(self, token: int) -> None:
        """Let a read wait for the next round."""
        self._next.append(token)

    def begin(self, committed: int) -> bool:
        """Begin a round if reads wait for one and no round is in progress."""
        if self._asked or not self._next:
            return False
        self.round += 1
        self._asked, self._next, self._end = self._next, [], committed
        return True

    def confirmed(self, rounds: Sequence[int]) -> list[tuple[int, int]]:
        """Return the reads that may be answered, as (token, end), from each member's last round."""
        if not self._asked or reached(rounds) < self.round:
            return []
        done = [(token, self._end) for token in self._asked]
        self._asked = []
        return done

    def give_up(self) -> list[int]:
        """Drop all reads and return their tokens, because this member no longer leads."""
        tokens = self._asked + self._next
        self._asked, self._next = [], []
        return tokens


class ReadIndex:
    """The reads of one member: waiting, confirmed, or refused when it no longer leads."""

    def __init__(self, group: RaftGroup) -> None:
        self._group = group
        self.is_used = False  # whether any read has begun in this term; never in a broker
        self.pending = PendingReads()
        self.confirmed: list[tuple[int, int]] = []  # (token, end)
        self._lost: list[int] = []
        self._told: dict[str, int] = {}  # the round in the last message to a follower
        self._answered: dict[str, int] = {}  # the latest round that a follower has answered

    def add(self, token: int) -> None:
        """Let a read wait for the next round."""
        self.is_used = True
        self.pending.add(token)

    def stamp(self, peer: str, m: RaftAppend) -> RoundAppend:
        """Return *m* with the current round, and note that *peer* gets this round."""
        found = self._told[peer] = self.pending.round
        return RoundAppend(
            m.block, m.epoch, m.prev, m.prev_epoch, m.commit, m.data, m.error, round=found
        )

    def is_told(self, peer: str) -> bool:
        """Whether the last message to *peer* had the current round."""
        return self._told.get(peer, 0) >= self.pending.round

    def forget(self, peer: str) -> None:
        """Note that the messages to *peer* are lost."""
        self._told.pop(peer, None)

    def lacks(self, peer: str) -> bool:
        """Whether an answer of *peer* to the current round is still needed."""
        return self.pending.is_asking and self._answered.get(peer, 0) < self.pending.round

    def answered(self, peer: str, m: RaftAppended) -> None:
        """Handle the round that *peer* has answered."""
        if isinstance(m, RoundAppended):
            self._answered[peer] = max(self._answered.get(peer, 0), m.round)

    def confirm(self, committed: int, is_opened: bool) -> None:
        """Release the reads of a round that a majority has answered, and begin the next round.

        A leader does not know the commit index until an entry of its term is committed
        (*is_opened*).
        """
        if not self.pending:
            return
        if not is_opened:
            mark("raft.read.too_early")  # thesis 6.4
            return
        self.pending.begin(committed)
        members = self._group.members
        while done := self.pending.confirmed([self._round(name) for name in members]):
            mark("raft.read.confirmed")
            self.confirmed += done
            self.pending.begin(committed)

    def _round(self, name: str) -> int:
        if name not in self._group.voters:
            return -1
        return self.pending.round if name == self._group.me else self._answered.get(name, 0)

    def give_up(self) -> None:
        """Refuse all reads, because this member no longer leads."""
        self._lost += self.pending.give_up()
        self._lost += [token for token, _ in self.confirmed]
        self.is_used, self.pending, self.confirmed = False, PendingReads(), []
        self._told, self._answered = {}, {}

    def take(self, high_watermark: int) -> list[tuple[int, int | None]]:
        """Return decided reads as (token, end): the read may see all entries before *end*.

        *end* is at most *high_watermark*. If *end* is None, this member no longer leads.
        """
        found: list[tuple[int, int | None]] = [(token, None) for token in self._lost]
        found += [(token, end) for token, end in self.confirmed if end <= high_watermark]
        self._lost = []
        self.confirmed = [(token, end) for token, end in self.confirmed if end > high_watermark]
        return found
