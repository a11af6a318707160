"""What a leader knows of one follower's log, and what it may send it."""

from __future__ import annotations

from collections import deque
from enum import Enum

from pymq.core.types import NEVER
from pymq.core.values import Factory, define


class Mode(Enum):
    """How a leader sends to a follower."""

    PROBE = "probe"  # one message at a time, to find out where the logs part
    REPLICATE = "replicate"  # one after the other, without waiting for the answers
    READ = "read"  # one at a time, from disk; what was sent is known by the answer
    SNAPSHOT = "snapshot"  # the log does not go back so far


@define
class FollowerProgress:
    """A follower, as its leader sees it.

    ``match <= next``: between them lies what was sent and not answered.
    """

    peer: str
    match: int  # the follower's log is durable, and the leader's, up to here
    next: int  # where the next append begins
    commit: int  # what the follower said it knows to be committed
    mode: Mode = Mode.PROBE
    is_known: bool = False  # *match* was confirmed in this term
    sent: int = 0  # where the last message ended
    told_commit: int = 0  # in the last message
    told_round: int = 0  # in the last message
    round: int = 0  # the latest round that it answered
    in_flight: deque[int] = Factory(deque)  # the ends of what was sent in REPLICATE, in order
    retry_at: int = NEVER  # when what was sent counts as lost; NEVER when nothing is awaited

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is awaited."""
        return self.retry_at != NEVER

    def probe(self, at: int) -> None:
        """Begin to search at *at*; whatever is on its way counts no more."""
        self.mode = Mode.PROBE
        self.next = max(at, self.match)
        self.in_flight.clear()
        self.retry_at = NEVER

    def rest(self) -> None:
        """Nothing is awaited of a follower that is gone; it begins with a probe when it is back."""
        self.probe(self.match if self.is_known else self.next)
        self.told_commit = self.told_round = 0

    def replicate(self) -> None:
        """The logs are known to match."""
        self.mode = Mode.REPLICATE
        self.next = self.match
        self.in_flight.clear()

    def retry(self) -> None:
        """What was sent counts as lost; if the follower has it, a probe will show that."""
        if self.mode is Mode.SNAPSHOT:
            self.probe(self.sent)
        else:
            self.probe(self.next if self.mode is Mode.PROBE else self.match)

    def answered(self, end: int) -> bool:
        """The follower has everything up to *end*; return whether that is news."""
        self.is_known = True
        while self.in_flight and self.in_flight[0] <= end:
            self.in_flight.popleft()
        if end <= self.match:
            return False
        self.match = end
        self.next = max(self.next, end)
        return True

    def refused(self, end: int) -> bool:
        """A message that claimed the log up to *end* was refused; return whether it still counts.

        An answer to something older than what is awaited now must not move anything back.
        """
        if self.mode is Mode.REPLICATE:
            return end > self.match
        if self.mode is Mode.READ:
            return end >= self.next
        return self.mode is Mode.PROBE and end in (self.next, self.sent)
