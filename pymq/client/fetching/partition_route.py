"""Whom to ask for the records of a partition, and whom next when that one cannot serve them.

Records that are new are the leader's to give. A block that was sealed may lie on other brokers; the
leader then says which ones. A broker that has died says nothing: it does not answer. While there is
no leader, or it does not answer, or fails, the other replicas are asked for what they know to be
committed; and so they are where they serve a reader better
(:mod:`pymq.client.fetching.replica_preference`).
"""

from __future__ import annotations

from pymq.client.fetching.replica_preference import LEADER, Preference, live, preferred
from pymq.client.router import Router
from pymq.core.values import Factory, define
from pymq.errors import (
    CorruptBatch,
    NotLeader,
    OffsetOutOfRange,
    PymqError,
    QuotaExceeded,
    ReplicaNotAvailable,
    StoreError,
)

RETRY_MS = 50  # before a broker is asked again, the first time; then twice as long, up to ...
RETRY_MAX_MS = 250
ANSWER_MS = 500  # how long an answer may take beyond what it was asked to wait ...
ANSWER_MAX_MS = 4_000  # ... at first and in the end
_OWN = (StoreError, CorruptBatch, ReplicaNotAvailable)  # another replica may do without it
OWN_TRIES = 8  # before that is the reader's error: a follower may not have all of it yet
LEADERLESS_TRIES = 2  # the next leader is mostly found by then
CONFIRMED = 3  # times that a leader must say that the log ends before what was read of it


@define
class PartitionRoute:
    """The way to one partition."""

    topic: str
    partition: str
    asked: str = ""  # who was asked last
    others: list[str] = Factory(list)  # who may hold what the leader does not
    tries: int = 0  # since something has come
    trouble: str | None = None  # why nothing comes, for people
    preference: Preference = LEADER
    is_behind: bool = False  # what is wanted is far from the end
    is_chosen: bool = False  # the others are our own choice: the leader has not named them
    is_substitute: bool = False  # and that because the leader fails, or there is none
    is_leaders_turn: bool = False  # a follower had nothing: the leader is asked next

    @property
    def is_elsewhere(self) -> bool:
        """Whether another broker than the leader is asked."""
        return bool(self.others)

    @property
    def is_near(self) -> bool:
        """Whether a follower is asked that is preferred for its rack, and so may be waited at."""
        return self.is_chosen and self.preference.rack is not None and not self.is_behind

    @property
    def patience_ms(self) -> int:
        """How long an answer may take beyond what it was asked to wait."""
        return min(ANSWER_MS << min(self.tries, 10), ANSWER_MAX_MS)

    def find(self, router: Router, *, of_leader: bool = False) -> str | None:
        """Whom to ask now; None while that is being found out.

        *of_leader*: only the leader knows the answer.
        """
        if of_leader:
            self.forget()
        if not self.others:
            found = router.leader(self.topic, self.partition)
            leader = found.leader if found is not None else None
            if of_leader or (leader is not None and not router.is_lost(leader)):
                self._choose(router, leader)
            else:
                # Ask the replica last that has just been asked.
                names = live(router, self.topic, self.partition, leader or "")
                self._stand_in(sorted(names, key=lambda name: name == self.asked))
            if not self.others:
                self.asked = leader or self.asked
                return leader
        self.asked = self.others[0]
        return self.asked

    def _choose(self, router: Router, leader: str | None) -> None:
        """Turn to a follower if it serves this reader better than a leader that can be reached."""
        is_choosing = self.preference.name and not self.is_leaders_turn
        if leader is None or not is_choosing:
            return
        name = preferred(
            router,
            self.topic,
            self.partition,
            leader,
            self.preference,
            is_behind=self.is_behind,
        )
        if name != leader:
            self._turn_to([name])

    def _turn_to(self, names: list[str]) -> None:
        self.others, self.is_chosen, self.is_substitute = names, bool(names), False

    def _stand_in(self, names: list[str]) -> None:
        """Turn to *names* while the leader fails, for as long as they have something."""
        self._turn_to(names)
        self.is_substitute = self.is_chosen

    def leave(self) -> None:
        """The others have nothing more: the leader is asked next."""
        self.forget()
        self.is_leaders_turn = True

    def forget(self) -> None:
        """Forget which brokers hold what is wanted."""
        self._turn_to([])

    def has_moved(self, router: Router) -> bool:
        """Whether another broker leads than the one that was asked, or none that can be reached."""
        if self.others:
            return False
        leader = router.leader(self.topic, self.partition)
        name = leader.leader if leader is not None else None
        if name is None or router.is_lost(name):
            return bool(live(router, self.topic, self.partition, self.asked))
        return name != self.asked

    def came(self) -> None:
        """What was asked for has come; whom to ask for what follows is chosen anew."""
        self.tries = 0
        self.is_leaders_turn = False
        if self.is_substitute:
            return
        self.trouble = None
        if self.is_chosen:
            self.forget()

    def silent(self, router: Router) -> None:
        """Nothing has come, for longer than it should take."""
        self.tries += 1
        if not self.is_chosen:
            self.trouble = f"{self.asked} did not answer"
        if self.others:
            self._next()
        else:
            router.distrust(self.topic, self.partition)
            self._stand_in(live(router, self.topic, self.partition, self.asked))

    def _next(self) -> None:
        """Turn away from the one of the others that was asked."""
        self.others.pop(0)
        if not self.others:
            self.leave()

    def refused(self, router: Router, error: PymqError) -> int | None:
        """It was refused: returns in how many ms to try again, or None if that is of no use."""
        before = self.trouble
        self.tries += 1
        if not self.is_chosen:  # else the leader will tell, or its being missing is the trouble
            self.trouble = f"{self.asked}: {error}"
        # The first time something else is tried at once: brokers may mistake each other for ever.
        pause = 0
        if self.tries > 1:
            pause = min(RETRY_MS << min(self.tries - 2, 10), RETRY_MAX_MS)
        if isinstance(error, QuotaExceeded):
            return max(pause, error.retry_ms)  # Nobody else is to be asked, nor is anything wrong.
        if self.others:
            is_final = not (
                error.retriable or self.is_chosen or isinstance(error, OffsetOutOfRange)
            )
            self._next()
            if self.others:
                return 0
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
                self.is_chosen = self.is_substitute = False
                return 0
        if isinstance(error, _OWN) and self.tries <= OWN_TRIES:
            names = live(router, self.topic, self.partition, self.asked)
            if names:
                self._stand_in(names)
                return pause
        if isinstance(error, NotLeader):
            is_known = router.refused(self.topic, self.partition, self.asked, error)
            if not is_known and self.tries > LEADERLESS_TRIES:
                # Nobody leads, so all replicas are as good, and this one may be the last.
                names = live(router, self.topic, self.partition)
                self._stand_in(sorted(names, key=lambda name: name == self.asked))
            return pause if is_known else max(pause, RETRY_MS)
        if error.retriable:
            router.refresh(self.topic)
            return max(pause, RETRY_MS)
        return None

    def why(self, router: Router) -> str | None:
        """What keeps the records from coming, if something does."""
        is_usual = self.is_chosen or not self.others
        if is_usual and router.find(self.topic, self.partition) is None:
            reason = router.why_no_leader(self.topic)
            return f"the leader of {self.topic}/{self.partition} is unknown: {reason}"
        return self.trouble
