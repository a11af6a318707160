"""Whom to ask for the records of a partition, and whom next when that one cannot serve them.

Records that are new are the leader's to give. A block that was sealed may lie on other brokers; the
leader then says which ones. Nobody says that a broker has died: it does not answer.
"""

from __future__ import annotations

from pymq.client.router import Router
from pymq.core.values import Factory, define
from pymq.errors import (
    NotLeader,
    OffsetOutOfRange,
    PymqError,
    QuotaExceeded,
    ReplicaNotAvailable,
)

RETRY_MS = 50  # before a broker is asked again, the first time; then twice as long, up to ...
RETRY_MAX_MS = 250
ANSWER_MS = 500  # how long an answer may take beyond what it was asked to wait ...
ANSWER_MAX_MS = 4_000  # ... at first and in the end
CONFIRMED = 3  # times that a leader must say that the log ends before what was read of it


@define
class Route:
    """The way to one partition."""

    topic: str
    partition: str
    asked: str = ""  # who was asked last
    others: list[str] = Factory(list)  # who may hold what the leader does not
    tries: int = 0  # since something has come
    trouble: str | None = None  # why nothing comes, for people

    @property
    def is_elsewhere(self) -> bool:
        """Whether what is wanted lies on another broker than the leader."""
        return bool(self.others)

    @property
    def patience_ms(self) -> int:
        """How long an answer may take beyond what it was asked to wait."""
        return min(ANSWER_MS << min(self.tries, 10), ANSWER_MAX_MS)

    def find(self, router: Router) -> str | None:
        """Whom to ask now; None while that is being found out."""
        if self.others:
            self.asked = self.others[0]
            return self.asked
        leader = router.leader(self.topic, self.partition)
        if leader is None or leader.leader is None:
            return None
        self.asked = leader.leader
        return self.asked

    def has_moved(self, router: Router) -> bool:
        """Whether another broker leads than the one that was asked."""
        if self.others:
            return False
        leader = router.leader(self.topic, self.partition)
        return leader is not None and leader.leader not in (None, self.asked)

    def came(self) -> None:
        """What was asked for has come."""
        self.tries, self.trouble = 0, None

    def silent(self, router: Router) -> None:
        """Nothing has come, for longer than it should take."""
        self.tries += 1
        self.trouble = f"{self.asked} did not answer"
        if self.others:
            self.others.pop(0)
        else:
            router.distrust(self.topic, self.partition)

    def refused(self, router: Router, error: PymqError) -> int | None:
        """It was refused: returns in how many ms to try again, or None if that is of no use."""
        before = self.trouble
        self.tries += 1
        self.trouble = f"{self.asked}: {error}"
        # The first time something else is tried at once: brokers may mistake each other for ever.
        pause = 0
        if self.tries > 1:
            pause = min(RETRY_MS << min(self.tries - 2, 10), RETRY_MAX_MS)
        if isinstance(error, QuotaExceeded):
            return max(pause, error.retry_ms)  # Nobody else is to be asked, nor is anything wrong.
        if self.others:
            self.others.pop(0)
            if self.others:
                return 0
            is_final = not error.retriable and not isinstance(error, OffsetOutOfRange)
            return None if is_final else pause  # The leader tells where to go on.
        if isinstance(error, ReplicaNotAvailable):
            names = error.details.get("brokers")
            found = (
                [n for n in names if n != self.asked] if isinstance(names, (list, tuple)) else []
            )
            if found:
                self.trouble = before  # It has told where to go.
                turn = (self.tries - 1) % len(found)
                self.others = [*found[turn:], *found[:turn]]
                return 0
        if isinstance(error, NotLeader):
            is_known = router.refused(self.topic, self.partition, self.asked, error)
            return pause if is_known else max(pause, RETRY_MS)
        if error.retriable:
            router.refresh(self.topic)
            return max(pause, RETRY_MS)
        return None

    def why(self, router: Router) -> str | None:
        """What keeps the records from coming, if something does."""
        if not self.others and router.find(self.topic, self.partition) is None:
            reason = router.why_no_leader(self.topic)
            return f"the leader of {self.topic}/{self.partition} is unknown: {reason}"
        return self.trouble
