"""Reads that must not be answered by a leader that has been replaced (ReadIndex, thesis 6.4)."""

from __future__ import annotations

from collections.abc import Sequence

from pymq.replication.quorum import reached


class PendingReads:
    """Reads that wait until a majority has confirmed that its leader is still the leader.

    All reads that come while a round is under way share the next round, because an answer to a
    message from before the read proves nothing for it.
    """

    def __init__(self) -> None:
        self.round = 0  # the last round
        self._asked: list[int] = []  # tokens that wait for that round
        self._next: list[int] = []  # tokens that wait for the one after it
        self._end = 0  # what was committed when the round was begun

    def __bool__(self) -> bool:
        return bool(self._asked or self._next)

    @property
    def is_asking(self) -> bool:
        """Whether a round is on its way."""
        return bool(self._asked)

    def add(self, token: int) -> None:
        """Let a read wait for the next round."""
        self._next.append(token)

    def begin(self, committed: int) -> bool:
        """Begin a round if some reads wait for one and none is on its way."""
        if self._asked or not self._next:
            return False
        self.round += 1
        self._asked, self._next, self._end = self._next, [], committed
        return True

    def confirmed(self, rounds: Sequence[int]) -> list[tuple[int, int]]:
        """The reads that may be answered, as (token, end), given each member's last round."""
        if not self._asked or reached(rounds) < self.round:
            return []
        done = [(token, self._end) for token in self._asked]
        self._asked = []
        return done

    def give_up(self) -> list[int]:
        """The tokens of all that wait, when the leader is none any more."""
        tokens = self._asked + self._next
        self._asked, self._next = [], []
        return tokens
