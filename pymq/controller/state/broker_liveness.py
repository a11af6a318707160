"""The active zkserver's knowledge of live and dead brokers.

- A broker is alive from its registration until it is silent for a session. Time during which this
  zkserver itself was paused does not count (:mod:`~pymq.core.time.pausable_clock`).
- A zkserver that takes over knows no live broker yet. The new zkserver waits for one session for
  brokers to register before it considers any of them dead.
- If a broker stays dead for *replace_ms*, measured in the same way, the zkserver gives the broker
  up and replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from pymq.controller.state.offline_replicas import OfflineState
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.types import NEVER, TopicPartition
from pymq.core.values import define

LOOKS = 6  # checks of liveness in a session


@define
class Live:
    """A broker that is registered and alive."""

    incarnation: int
    heard: int  # time of the last message
    until: int  # end of the broker's session on the pausable clock
    # whether the broker has restarted and its new registration is in progress
    is_over: bool = False


class BrokerLiveness:
    """The live brokers, and the times when dead brokers are given up.

    A broker that is dead for *replace_ms* is given up. If *session_ms* is 0, the brokers run in
    this process and never die.
    """

    def __init__(self, session_ms: int, replace_ms: int = 0) -> None:
        self.live: dict[str, Live] = {}
        self.dead_since: dict[str, int] = {}
        # replicas with a failed disk, on brokers that are alive
        self.offline = OfflineState(replace_ms)
        # live brokers in controlled shutdown, which must not lead
        self.leaving: dict[str, None] = {}
        self._session_ms = session_ms
        self._replace_ms = replace_ms
        self._attention = PausableClock(session_ms // LOOKS)
        # Times on the pausable clock:
        self._settled_at = NEVER  # when unregistered brokers count as dead
        self._due: list[tuple[int, str]] = []  # heap of checks, one for each live broker
        self._missed: dict[str, int] = {}  # dead brokers, with the time when each is given up
        # the same entries as a heap; some may be out of date
        self._give_up: list[tuple[int, str]] = []
        self._known: tuple[str, ...] = ()  # brokers in the tree at the take-over

    def begin(self, known: Iterable[str], now: int) -> None:
        """Begin after a take-over; *known* are the brokers in the tree."""
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
        """Whether all brokers have had time to register."""
        return not self._session_ms or self._settled_at == NEVER

    @property
    def settles_at(self) -> int:
        """When :attr:`is_settled` becomes true, on the clock of :meth:`listened`."""
        return 0 if self.is_settled else self._settled_at

    def listened(self, now: int) -> int:
        """Return the pausable clock: how long this zkserver has been listening.

        All timeouts of other nodes are measured with this clock.
        """
        return self._attention.look(now) if self._session_ms else now

    def earliest(self, due: int) -> int:
        """The earliest clock time at which :meth:`listened` may reach *due*."""
        return self._attention.earliest(due) if self._session_ms else due

    def __contains__(self, broker: str | None) -> bool:
        return broker in self.live

    def may_live(self, broker: str) -> bool:
        """Whether a broker is alive, or may still register."""
        return broker in self.live or not self.is_settled

    def can_act(self, broker: str, name: TopicPartition) -> bool:
        """Whether a broker is alive and can serve the open block of a partition."""
        return broker in self.live and not self.offline.has(broker, name)

    def able(self, name: TopicPartition) -> list[str]:
        """The live brokers that may be replicas of the next block of a partition."""
        return [broker for broker in self.live if not self.offline.bars(broker, name)]

    def is_of(self, broker: str, incarnation: int) -> bool:
        """Whether a broker is alive as the given incarnation; 0 means any."""
        live = self.live.get(broker)
        return live is not None and incarnation in (0, live.incarnation) and not live.is_over

    def heard_by(self, broker: str) -> int:
        """The latest possible time of a broker's last message; NEVER if unknown."""
        if not self._session_ms:
            return NEVER
        live = self.live.get(broker)
        if live is not None:
            return live.heard
        dead_since = self.dead_since.get(broker, NEVER)
        return dead_since - self._session_ms if dead_since != NEVER else NEVER

    def join(self, broker: str, incarnation: int, now: int) -> None:
        """Note that a broker has registered."""
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
        """Note that a broker restarts as *incarnation*, and drop messages of earlier incarnations.

        The broker counts as alive until its session ends, so that no other broker replaces it
        meanwhile.
        """
        live = self.live.get(broker)
        if live is not None and live.incarnation != incarnation:
            live.is_over = True

    def leave(self, broker: str, incarnation: int) -> bool:
        """Note that a broker is about to stop; returns whether it is known to be alive."""
        if not self.is_of(broker, incarnation):
            return False
        self.leaving[broker] = None
        return True

    def is_leaving(self, broker: str, incarnation: int) -> bool:
        """Whether a broker is alive as that incarnation and about to stop."""
        return broker in self.leaving and self.is_of(broker, incarnation)

    def beat(self, broker: str, incarnation: int, now: int) -> bool:
        """Handle a broker's heartbeat; returns whether the broker is registered and alive."""
        live = self.live.get(broker)
        if live is None or live.incarnation != incarnation or live.is_over:
            return False
        if self._session_ms:
            live.heard, live.until = now, self._attention.look(now) + self._session_ms
        return True

    def expire(self, now: int) -> list[str]:
        """Remove and return the brokers that are newly dead."""
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
        """Whether a broker is dead, but not yet given up."""
        return self._attention.ms < self._missed.get(broker, 0)

    def lost(self, now: int, after_ms: int) -> list[str]:
        """The brokers that have been dead for *after_ms*."""
        listened = self._attention.look(now)
        waited_ms = after_ms - self._replace_ms
        return [name for name, until in self._missed.items() if until + waited_ms <= listened]

    def given_up(self, now: int) -> list[str]:
        """Return the brokers that are newly given up."""
        found, listened = [], self._attention.look(now)
        while self._give_up and self._give_up[0][0] <= listened:
            until, broker = heappop(self._give_up)
            if self._missed.get(broker) == until:
                found.append(broker)
        return found

    @property
    def deadline(self) -> int:
        """The earliest time of the next check for dead and given-up brokers."""
        due = min((heap[0][0] for heap in (self._due, self._give_up) if heap), default=NEVER)
        due = min(due, self._settled_at)
        return self._attention.when(due)
