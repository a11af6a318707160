"""Which brokers are alive, as far as the active zkserver knows.

A broker is alive from its registration until it has been silent for a session, as long as this
zkserver has listened (:mod:`~pymq.core.time.pausable_clock`). One that has just taken over knows
of none; it waits one session for them to register before it takes any for dead. Whoever stays dead
for a while, which is measured likewise, is given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from pymq.controller.state.offline_replicas import OfflineState
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.types import NEVER, TopicPartition
from pymq.core.values import define

LOOKS = 6  # how often a session one looks who is alive


@define
class Live:
    """A broker that is registered and alive."""

    incarnation: int
    heard: int  # when, for the last time
    until: int  # it is alive, by our attention
    is_over: bool = False  # it has started anew, and is about to register


class BrokerLiveness:
    """The brokers that are alive, and since when the others are dead.

    Who is dead for *replace_ms* is given up. With *session_ms* 0 the brokers live in this process:
    none of them ever dies.
    """

    def __init__(self, session_ms: int, replace_ms: int = 0) -> None:
        self.live: dict[str, Live] = {}
        self.dead_since: dict[str, int] = {}
        self.offline = OfflineState(replace_ms)  # replicas whose disk failed, of brokers that live
        self.leaving: dict[str, None] = {}  # alive, and about to stop: they are to lead nothing
        self._session_ms = session_ms
        self._replace_ms = replace_ms
        self._attention = PausableClock(session_ms // LOOKS)
        # In the time of our attention:
        self._settled_at = NEVER  # from when on silence means death
        self._due: list[tuple[int, str]] = []  # when to look at whom; once for each that is alive
        self._missed: dict[str, int] = {}  # the dead, and until when they are waited for
        self._give_up: list[tuple[int, str]] = []  # the same in order, perhaps out of date
        self._known: tuple[str, ...] = ()  # that were registered with the zkserver before

    def begin(self, known: Iterable[str], now: int) -> None:
        """This zkserver has taken over; *known* are the brokers of the tree."""
        self.live.clear()
        self.dead_since.clear()
        self.leaving.clear()
        self.offline.clear()
        self._due.clear()
        self._missed.clear()
        self._give_up.clear()
        self._known = tuple(known)
        listened = self._attention.look(now)
        self._settled_at = listened + self._session_ms if self._session_ms else NEVER

    @property
    def is_settled(self) -> bool:
        """Whether all brokers have had the time to register."""
        return not self._session_ms or self._settled_at == NEVER

    @property
    def settles_at(self) -> int:
        """When that is, by :meth:`listened`."""
        return 0 if self.is_settled else self._settled_at

    def listened(self, now: int) -> int:
        """For how long this zkserver has listened, since no matter when.

        By it everything is measured that others are given the time for.
        """
        return self._attention.look(now) if self._session_ms else now

    def earliest(self, due: int) -> int:
        """When that may be *due*, by the clock; by then it may have to be waited for again."""
        return self._attention.earliest(due) if self._session_ms else due

    def __contains__(self, broker: str | None) -> bool:
        return broker in self.live

    def may_live(self, broker: str) -> bool:
        """Whether a broker is alive or was not given the time to show it."""
        return broker in self.live or not self.is_settled

    def can_act(self, broker: str, name: TopicPartition) -> bool:
        """Whether a broker is alive and can act on the open block of a partition."""
        return broker in self.live and not self.offline.has(broker, name)

    def able(self, name: TopicPartition) -> list[str]:
        """The brokers that are alive and may be given the next block of a partition."""
        return [broker for broker in self.live if not self.offline.bars(broker, name)]

    def is_of(self, broker: str, incarnation: int) -> bool:
        """Whether a broker is alive as that incarnation; 0 stands for any."""
        live = self.live.get(broker)
        return live is not None and incarnation in (0, live.incarnation) and not live.is_over

    def heard_by(self, broker: str) -> int:
        """When a broker was heard of for the last time, at the latest; NEVER if nobody knows."""
        if not self._session_ms:
            return NEVER
        live = self.live.get(broker)
        if live is not None:
            return live.heard
        dead_since = self.dead_since.get(broker, NEVER)
        return dead_since - self._session_ms if dead_since != NEVER else NEVER

    def join(self, broker: str, incarnation: int, now: int) -> None:
        """A broker has registered."""
        known = self.live.get(broker)
        if known is None or known.incarnation != incarnation:
            self.leaving.pop(broker, None)
            self.offline.forget(broker)
        until = self._attention.look(now) + self._session_ms if self._session_ms else NEVER
        self.live[broker] = Live(incarnation, now, until)
        self.dead_since.pop(broker, None)
        self._missed.pop(broker, None)
        if known is None and self._session_ms:
            heappush(self._due, (until, broker))

    def end(self, broker: str, incarnation: int) -> None:
        """A broker has started anew as *incarnation*: nothing that it was before is heard any more.

        It counts as alive for as long as it would have, so that nobody takes its place meanwhile.
        """
        live = self.live.get(broker)
        if live is not None and live.incarnation != incarnation:
            live.is_over = True

    def leave(self, broker: str, incarnation: int) -> bool:
        """A broker is about to stop; returns whether it is known to be alive."""
        if not self.is_of(broker, incarnation):
            return False
        self.leaving[broker] = None
        return True

    def beat(self, broker: str, incarnation: int, now: int) -> bool:
        """A broker says that it is alive; returns whether it is known to be."""
        live = self.live.get(broker)
        if live is None or live.incarnation != incarnation or live.is_over:
            return False
        if self._session_ms:
            live.heard, live.until = now, self._attention.look(now) + self._session_ms
        return True

    def expire(self, now: int) -> list[str]:
        """The brokers that are dead from now on."""
        dead, listened = [], self._attention.look(now)
        while self._due and self._due[0][0] <= listened:
            _, broker = heappop(self._due)
            live = self.live[broker]
            if live.until > listened:
                heappush(self._due, (live.until, broker))
            else:
                del self.live[broker]
                self.leaving.pop(broker, None)
                self.offline.forget(broker)
                dead.append(broker)
        if self._settled_at <= listened:
            self._settled_at = NEVER
            dead += [broker for broker in self._known if broker not in self.live]
            self._known = ()
        for broker in dead:
            self.dead_since.setdefault(broker, now)
            until = self._missed.setdefault(broker, listened + self._replace_ms)
            heappush(self._give_up, (until, broker))
        return list(dict.fromkeys(dead))

    def may_return(self, broker: str) -> bool:
        """Whether a broker is dead, and not for so long that it is to be replaced."""
        return self._attention.ms < self._missed.get(broker, 0)

    def lost(self, now: int, after_ms: int) -> list[str]:
        """The brokers that have been dead for *after_ms*."""
        listened = self._attention.look(now)
        waited_ms = after_ms - self._replace_ms
        return [name for name, until in self._missed.items() if until + waited_ms <= listened]

    def given_up(self, now: int) -> list[str]:
        """The brokers that are to be replaced from now on."""
        found, listened = [], self._attention.look(now)
        while self._give_up and self._give_up[0][0] <= listened:
            until, broker = heappop(self._give_up)
            if self._missed.get(broker) == until:
                found.append(broker)
        return found

    @property
    def deadline(self) -> int:
        """When one is to look who is dead or given up, whether somebody is by then or not."""
        due = min((heap[0][0] for heap in (self._due, self._give_up) if heap), default=NEVER)
        due = min(due, self._settled_at)
        return self._attention.when(due)
