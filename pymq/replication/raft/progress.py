"""A leader's state of one follower: match index, flow control, messages in flight."""

from __future__ import annotations

from collections import deque
from enum import Enum

from pymq.core.types import NEVER
from pymq.core.values import Factory, define


class Mode(Enum):
    """The way in which a leader sends entries to a follower."""

    PROBE = "probe"  # one message at a time, to find where the logs match
    REPLICATE = "replicate"  # pipelined, without waiting for answers
    READ = "read"  # one message at a time, from disk; the answer shows how much was sent
    # the leader has compacted entries that the follower needs (quorum_features)
    SNAPSHOT = "snapshot"


@define
class FollowerProgress:
    """A leader's state of a follower.

    ``match <= next``; the entries between these offsets were sent but not answered.
    """

    peer: str
    match: int  # the follower's log matches the leader's, and is durable, up to this offset
    next: int  # start of the next append
    commit: int  # the follower's commit index
    mode: Mode = Mode.PROBE
    is_known: bool = False  # *match* was confirmed in this term
    sent: int = 0  # end of the last message
    told_commit: int = 0  # commit index in the last message
    # ends of the unanswered messages of mode REPLICATE, in order
    in_flight: deque[int] = Factory(deque)
    retry_at: int = NEVER  # the time when messages in flight count as lost; NEVER if there are none

    @property
    def is_waiting(self) -> bool:
        """Whether a message is in flight."""
        return self.retry_at != NEVER

    def probe(self, at: int) -> None:
        """Begin to probe at *at*; messages in flight no longer count."""
        self.mode = Mode.PROBE
        self.next = max(at, self.match)
        self.in_flight.clear()
        self.retry_at = NEVER

    def rest(self) -> None:
        """Forget messages in flight to a dead follower; after its return the leader probes it."""
        self.probe(self.match if self.is_known else self.next)
        self.told_commit = 0

    def replicate(self) -> None:
        """Begin to pipeline messages, because the logs match."""
        self.mode = Mode.REPLICATE
        self.next = self.match
        self.in_flight.clear()

    def retry(self) -> None:
        """Count messages in flight as lost; a probe will show which entries the follower has."""
        if self.mode is Mode.SNAPSHOT:
            self.probe(self.sent)
        else:
            self.probe(self.next if self.mode is Mode.PROBE else self.match)

    def answered(self, end: int) -> bool:
        """Advance the match index to *end*; returns whether it advanced."""
        self.is_known = True
        while self.in_flight and self.in_flight[0] <= end:
            self.in_flight.popleft()
        if end <= self.match:
            return False
        self.match = end
        self.next = max(self.next, end)
        return True

    def refused(self, end: int) -> bool:
        """Handle a rejection of a message that followed *end*.

        Returns False if the rejection is out of date.

        A rejection of an older message must not move the indexes back.
        """
        if self.mode is Mode.REPLICATE:
            return end > self.match
        if self.mode is Mode.READ:
            return end >= self.next
        return self.mode is Mode.PROBE and end in (self.next, self.sent)
