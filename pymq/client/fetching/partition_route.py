"""The choice of the broker that serves fetches of one partition.

| situation | broker |
|---|---|
| usually | the leader |
| the leader does not hold a sealed block | one of the brokers that the leader names |
| no leader, or it does not answer, or its disk fails | another replica, for committed records |
| another replica serves the reader better | see :mod:`pymq.client.fetching.replica_preference` |
"""

from __future__ import annotations

from pymq.client.fetching.replica_preference import LEADER, Preference, live, preferred
from pymq.client.router import Router
from pymq.core.observe.coverage import mark
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

RETRY_MS = 50  # pause before the first retry; doubles with each retry, up to ...
RETRY_MAX_MS = 250
ANSWER_MS = 500  # timeout of an answer, in addition to the wait that the fetch allows: at first ...
ANSWER_MAX_MS = 4_000  # ... and after many tries
# errors of one replica, not of the partition
_OWN = (StoreError, CorruptBatch, ReplicaNotAvailable)
# tries before the reader gets the error, since a follower may not have the records yet
OWN_TRIES = 8
LEADERLESS_TRIES = 2  # tries without a leader; an election rarely takes longer
# answers of the leader after which a silent follower may be chosen again
LEADERS_TURNS = 100
CONFIRMED = 3  # how many times a leader must say that the log ends before the reader's position


@define
class PartitionRoute:
    """The broker from which a reader fetches one partition."""

    topic: str
    partition: str
    asked: str = ""  # the broker that got the last request
    others: list[str] = Factory(list)  # brokers to ask in place of the leader
    tries: int = 0  # tries since the last answer with records
    trouble: str | None = None  # the reason why no records arrive, as text for users
    preference: Preference = LEADER
    is_behind: bool = False  # the reader's position is far from the end
    is_chosen: bool = False  # whether this route chose *others*; the leader did not name them
    is_substitute: bool = False  # whether it chose them because the leader fails or there is none
    is_leaders_turn: bool = False  # a follower had no records, so the leader is asked next
    # answers of the leader before a follower may be chosen again, after a follower was silent
    leaders_turns: int = 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether the next request goes to a broker other than the leader."""
        return bool(self.others)

    @property
    def is_near(self) -> bool:
        """Whether the follower was chosen for its rack, so that fetches may wait there."""
        return self.is_chosen and self.preference.rack is not None and not self.is_behind

    @property
    def patience_ms(self) -> int:
        """The timeout of an answer, in addition to the wait that the fetch allows."""
        return min(ANSWER_MS << min(self.tries, 10), ANSWER_MAX_MS)

    def find(self, router: Router, *, of_leader: bool = False) -> str | None:
        """Return the broker to send the request to; None while the metadata is refreshed.

        If *of_leader* is set, only the leader knows the answer.
        """
        if of_leader:
            self.forget()
        if not self.others:
            found = router.leader(self.topic, self.partition)
            leader = found.leader if found is not None else None
            if of_leader or (leader is not None and not router.is_lost(leader)):
                self._choose(router, leader)
            else:
                # The replica that got the last request comes last.
                names = live(router, self.topic, self.partition, leader or "")
                self._stand_in(sorted(names, key=lambda name: name == self.asked))
            if not self.others:
                self.asked = leader or self.asked
                return leader
        self.asked = self.others[0]
        return self.asked

    def _choose(self, router: Router, leader: str | None) -> None:
        """Choose a follower if it serves this reader better than the leader."""
        is_choosing = self.preference.name and not (self.is_leaders_turn or self.leaders_turns)
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
        """Use the replicas *names* in place of a failing leader, while they have records."""
        self._turn_to(names)
        self.is_substitute = self.is_chosen

    def leave(self) -> None:
        """Return to the leader, because the others have no more records."""
        self.forget()
        self.is_leaders_turn = True

    def forget(self) -> None:
        """Forget the brokers that hold the records."""
        self._turn_to([])

    def has_moved(self, router: Router) -> bool:
        """Whether the broker that got the last request no longer leads or is unreachable.

        If that broker replaces a failing leader, the result is true when the zkserver no longer
        names it as a replica.
        """
        if self.others:
            known = router.metadata.replicas(self.topic, self.partition)
            if not self.is_substitute or not known or self.asked in known:
                return False
            mark("route.substitute_gone")
            self.forget()
            return True
        leader = router.leader(self.topic, self.partition)
        name = leader.leader if leader is not None else None
        if name is None or router.is_lost(name):
            return bool(live(router, self.topic, self.partition, self.asked))
        return name != self.asked

    def came(self) -> None:
        """Note an answer with records; the next fetch chooses its broker anew."""
        self.tries = 0
        self.is_leaders_turn = False
        self.leaders_turns = max(0, self.leaders_turns - 1)
        if self.is_substitute:
            return
        self.trouble = None
        if self.is_chosen:
            self.forget()

    def silent(self, router: Router) -> None:
        """Note that a broker has not answered in time."""
        self.tries += 1
        if not self.is_chosen:
            self.trouble = f"{self.asked} did not answer"
        if self.others:
            if self.is_substitute:
                # The substitute may be dead, too. The zkserver may know the live replicas.
                router.distrust(self.topic, self.partition)
            elif self.is_chosen:
                # Otherwise the route would choose the same follower again, and each fetch would
                # wait for it.
                self.leaders_turns = LEADERS_TURNS
                router.refresh(self.topic)
            self._next()
        else:
            router.distrust(self.topic, self.partition)
            self._stand_in(live(router, self.topic, self.partition, self.asked))

    def _next(self) -> None:
        """Remove the broker that got the last request from the list of other brokers."""
        self.others.pop(0)
        if not self.others:
            self.leave()

    def refused(self, router: Router, error: PymqError) -> int | None:
        """Handle an error; returns the milliseconds until the retry, or None if it is final."""
        before = self.trouble
        self.tries += 1
        # the leader's error explains the trouble, not the error of a replica chosen here
        if not self.is_chosen:
            self.trouble = f"{self.asked}: {error}"
        # Retry at once the first time, and later after a pause, since brokers may name each other
        # in a circle.
        pause = 0
        if self.tries > 1:
            pause = min(RETRY_MS << min(self.tries - 2, 10), RETRY_MAX_MS)
        if isinstance(error, QuotaExceeded):
            # The client has reached its quota, which is the same at each broker, so wait.
            return max(pause, error.retry_ms)
        if self.others:
            is_final = not (
                error.retriable or self.is_chosen or isinstance(error, OffsetOutOfRange)
            )
            self._next()
            if self.others:
                return 0
            return None if is_final else pause  # The leader knows the offset at which to continue.
        if isinstance(error, ReplicaNotAvailable):
            names = error.details.get("brokers")
            found = (
                [n for n in names if n != self.asked] if isinstance(names, (list, tuple)) else []
            )
            if found:
                # The broker has named other brokers, so its answer does not count as an error yet.
                self.trouble = before
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
                # Without a leader all replicas are equal, and there may be no other replica.
                names = live(router, self.topic, self.partition)
                self._stand_in(sorted(names, key=lambda name: name == self.asked))
            return pause if is_known else max(pause, RETRY_MS)
        if error.retriable:
            router.refresh(self.topic)
            return max(pause, RETRY_MS)
        return None

    def why(self, router: Router) -> str | None:
        """Return the reason why no records arrive, if known."""
        is_usual = self.is_chosen or not self.others
        if is_usual and router.metadata.find(self.topic, self.partition) is None:
            reason = router.why_no_leader(self.topic)
            return f"the leader of {self.topic}/{self.partition} is unknown: {reason}"
        return self.trouble
