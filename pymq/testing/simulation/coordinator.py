"""A simulated coordinator backend over a network that delays messages and breaks connections.

An :class:`Ensemble` is the backend. The coordinator backend does not fail, but connections to it
do. Each zkserver has a :class:`CoordinatorSession` with the order that
:class:`pymq.coord.base.Coordinator` promises: requests arrive in order, and so do answers, with a
delay. If the connection breaks, the backend carries out a commit in progress at once, a little
later, or never; the client gets :class:`Uncertain`.

The simulated backend is as harsh as a real ZooKeeper (``tests/coord/test_zookeeper_faults.py``):

- A client notices a cut only after a silence. Until then the client sends requests that never
  arrive.
- Watches end with the connection. After :class:`Resumed`, the client reports each loaded root as
  changed once its watch is set again; it does not report the changes in between one by one.
- Before a session expires, its connection is lost.
- If a connection breaks, only the first of the commits in progress are done, because a connection
  keeps the order of commits.
- A commit may have at most 1 MiB.
- Some connections are slow, like those to a server that lags behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Sized

from pymq.coord.limits import REQUEST_BYTES, refusal
from pymq.coord.tree import CommitPlan, Tree, TreeWatches, validate
from pymq.core.metadata.coordination import (
    Changed,
    Commit,
    Committed,
    Conflicted,
    CoordEvent,
    CoordRequest,
    Entry,
    Failed,
    Load,
    Loaded,
    Resumed,
    SessionExpired,
    Suspended,
    Uncertain,
)
from pymq.errors import Closed
from pymq.testing.simulation.process import Process
from pymq.testing.simulation.world import World

COORDINATOR = "coordinator"  # name of the backend in cuts
LATENCY_US = 500
SLOW = 40  # factor between slow and usual connections
LATE_US = 50_000  # how long after the end of its connection a commit may still be done

OnSubmit = Callable[[str, Commit], None]  # (zkserver, commit)
OnCommit = Callable[[str, Commit, CommitPlan], None]  # (session, commit, its effect)


class Ensemble:
    """The backend: one tree, and the sessions on it."""

    def __init__(self, world: World, *, session_timeout_us: int = 2_000_000) -> None:
        self.world = world
        self.tree = Tree()
        self.session_timeout_us = session_timeout_us
        self.latency_us = LATENCY_US
        self.request_bytes = REQUEST_BYTES
        self.on_submit: list[OnSubmit] = []
        self.on_commit: list[OnCommit] = []
        self.uncertain = 0.0  # probability that an answer is lost together with its connection
        self.sessions: dict[str, CoordinatorSession] = {}  # live sessions, by name
        self.connections: list[
            CoordinatorSession
        ] = []  # sessions of running zkservers, including expired ones
        self._watches = TreeWatches()
        self._named = 0

    def connect(self, process: Process) -> CoordinatorSession:
        """Open a session for a zkserver."""
        session = CoordinatorSession(self, process)
        self.connections.append(session)
        process.on_death.append(session._lost)
        return session

    def entries(self) -> tuple[Entry, ...]:
        """All entries of the tree."""
        return self.tree.load("/")

    def session_of(self, process: str) -> CoordinatorSession | None:
        """The live session of the process *process*, or None."""
        found = [s for s in self.sessions.values() if s.process.name == process]
        return found[-1] if found else None

    def expire(self, name: str) -> None:
        """Expire a session."""
        session = self.sessions.get(name)
        if session is not None:
            self._end(name)
            session._expired()

    # --- for sessions ---------------------------------------------------------------------------

    def join(self, session: CoordinatorSession) -> str:
        """Begin a session under a new name."""
        self._named += 1
        name = f"session-{self._named}"
        self.sessions[name] = session
        return name

    def _end(self, name: str) -> None:
        if self.sessions.pop(name, None) is not None:
            self._watches.drop(name)
            plan = self.tree.plan_expiry(name)
            self.tree.adopt(plan)
            self._announce(plan)

    def carry_out(self, name: str, request: CoordRequest) -> tuple[CoordEvent, CommitPlan | None]:
        """Carry out a session's request; the caller announces the changes after the answer."""
        if isinstance(request, Load):
            self._watches.add(name, request.root)
            return Loaded(request.tag, self.tree.load(request.root)), None
        refused = refusal(request, self.request_bytes)
        if refused is not None:
            return Failed(request.tag, refused), None
        plan = self.tree.plan(request, name)
        if isinstance(plan, Conflicted):
            return plan, None
        for callback in self.on_commit:
            callback(name, request, plan)
        self.tree.adopt(plan)
        return Committed(request.tag, plan.versions), plan

    def _announce(self, plan: CommitPlan) -> None:
        changes = [Changed(path) for path in plan.changes]
        for name, session in list(self.sessions.items()):
            for change in self._watches.match(name, changes):
                session._answer(0, change)

    def watched(self, name: str) -> tuple[str, ...]:
        """The roots that a session watches."""
        return self._watches.roots(name)

    def announce(self, plan: CommitPlan | None) -> None:
        """Notify the sessions that watch the changed paths."""
        if plan is not None:
            self._announce(plan)


class CoordinatorSession:
    """The connection of one zkserver; a :class:`pymq.coord.base.Coordinator`."""

    def __init__(self, ensemble: Ensemble, process: Process) -> None:
        self.process = process
        self.is_suspended = False
        self._ensemble = ensemble
        self._world = ensemble.world
        self.rng = ensemble.world.rng("coordinator", process.name, process.incarnation)
        self._events: deque[CoordEvent] = deque()
        self._held: deque[CoordRequest] = deque()  # requests made while suspended
        self._under_way: dict[int, CoordRequest] = {}  # requests without an answer, by number
        self._done: set[int] = set()  # commits in progress that the backend has carried out
        self._unsent: set[int] = set()  # requests in progress that a cut has lost
        self._numbers = 0
        self._connection = 0
        self._slowness = 1
        self.link = SessionLink(self, ensemble)
        self._has_watches = True  # whether the present connection has watches
        self._up_at = self._down_at = 0  # when the last message arrives, in each direction
        self._is_expired = self._is_closed = self.is_dead = False
        self._session = ensemble.join(self)

    @property
    def session(self) -> str:
        """The session's name; a new name once SessionExpired is on its way."""
        return self._session

    # --- the contract ---------------------------------------------------------------------------

    def submit(self, request: CoordRequest) -> None:
        """Start *request*."""
        validate(request)
        if self._is_closed:
            raise Closed(f"the coordinator of session {self._session} was closed")
        if isinstance(request, Commit):
            self.process.boundary("commit")
            for callback in self._ensemble.on_submit:
                callback(self.process.name, request)
        if self.is_suspended or self._is_expired:
            self._held.append(request)
        else:
            self._send(request)

    @property
    def arrivals(self) -> Sized:
        """The events that :meth:`poll` would return."""
        return self._events

    def poll(self) -> Sequence[CoordEvent]:
        """Return the events since the last call."""
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        """End the session; closing twice is allowed."""
        if not self._is_closed:
            self._is_closed = True
            self._connection += 1
            self._ensemble._end(self._session)

    # --- messages in both directions --------------------------------------------------------------

    def _delay(self) -> int:
        latency = self._ensemble.latency_us
        if self._slowness > 1:  # a client leaves an even slower server
            bearable = self._ensemble.session_timeout_us // 8
            latency = max(latency, min(latency * self._slowness, bearable))
        return latency + (self.rng.getrandbits(16) * latency >> 16)

    def _send(self, request: CoordRequest) -> None:
        self._numbers += 1
        self._under_way[self._numbers] = request
        if self.link.is_cut:
            self._unsent.add(self._numbers)
            return
        self._up_at = max(self._up_at, self._world.now + self.process.lag + self._delay())
        self._world.at(self._up_at, self._arrive, self._connection, self._numbers)

    def _arrive(self, connection: int, number: int) -> None:
        if connection != self._connection:
            return
        request = self._under_way[number]
        answer, plan = self._ensemble.carry_out(self._session, request)
        self._done.add(number)
        if self._ensemble.uncertain and self.rng.random() < self._ensemble.uncertain:
            self._ensemble.announce(plan)
            self.suspend()
            self._world.after(self._delay() * 4, self._resume_later, self._connection)
            return
        self._answer(number, answer)
        self._ensemble.announce(plan)

    def _resume_later(self, connection: int, _: object) -> None:
        if connection == self._connection and not self.link.is_cut:
            self.resume()

    def _answer(self, number: int, event: CoordEvent) -> None:
        if self.is_suspended or self._is_expired or self.link.is_cut:
            return
        if isinstance(event, Changed) and not self._has_watches:
            return
        self._down_at = max(self._down_at, self._world.now + self._delay())
        self._world.at(self._down_at, self._got, self._connection, (number, event))

    def _got(self, connection: int, answer: tuple[int, CoordEvent]) -> None:
        number, event = answer
        if connection != self._connection or self.is_dead:
            return
        self._under_way.pop(number, None)
        self._done.discard(number)
        self._tell(event)

    def _tell(self, *events: CoordEvent) -> None:
        if self.is_dead or self._is_closed:
            return
        self._events.extend(events)
        loop = self.process.loop
        if loop is not None:
            for event in events:
                self._world.note(self.process.number << 8 | 250, "told", self.process.name, event)
            for name in loop.machines:
                loop.touch(name)
            self.process.wake()

    # --- faults ---------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Lose the connection; commits without an answer end as :class:`Uncertain`."""
        if self.is_suspended or self._is_closed or self.is_dead:
            return
        self.is_suspended = True
        events = self._break()
        self._tell(*events, Suspended())

    def _break(self) -> list[CoordEvent]:
        """End the connection, and decide the fate of the requests in progress."""
        self._connection += 1
        self._settle()
        events: list[CoordEvent] = []
        for request in self._under_way.values():
            if isinstance(request, Load):
                self._held.append(request)
            else:
                events.append(Uncertain(request.tag))
        self._under_way.clear()
        self._done.clear()
        self._unsent.clear()
        return events

    def _settle(self) -> None:
        """Let the first commits in progress arrive, now or a little later; lose the rest."""
        late = 0
        for commit in self.unanswered():
            if self.rng.getrandbits(1):
                return
            late += self.rng.getrandbits(16) * LATE_US >> 17
            self._world.after(late, self._arrive_late, self._connection, commit)

    def _arrive_late(self, connection: int, commit: Commit) -> None:
        if connection == self._connection:  # a new connection ends the old one
            self._carry_out(commit)

    def resume(self) -> None:
        """Restore the connection, in the old session or, if that has expired, in a new one."""
        if not self.is_suspended or self._is_closed or self.is_dead:
            return
        self.is_suspended = False
        self._connection += 1
        self._slowness = 1 if self.rng.getrandbits(3) else SLOW
        if self._is_expired:
            self._renew()
            return
        self._tell(Resumed())
        self._has_watches = False
        self._up_at = max(self._up_at, self._world.now + self._delay())
        self._world.at(self._up_at, self._watch_again, self._connection)
        while self._held:
            self._send(self._held.popleft())

    def _watch_again(self, connection: int, _: object) -> None:
        if connection == self._connection and not self.link.is_cut:
            self._has_watches = True
            for root in self._ensemble.watched(self._session):
                self._answer(0, Changed(root))

    def _expired(self) -> None:
        """End the session at the server; the client learns of this once it is connected."""
        if self.is_dead or self._is_closed:
            return
        self._is_expired = True
        if self.is_suspended or self.link.is_cut:
            return
        self._connection += 1
        self._world.after(self._delay(), self._hear_of_expiry, self._connection)

    def _hear_of_expiry(self, connection: int, _: object) -> None:
        if connection == self._connection and self._is_expired:
            self.suspend()
            self._world.after(self._delay() * 20, self._resume_later, self._connection)

    def _renew(self) -> None:
        self._is_expired = False
        self._has_watches = True
        held, self._held = self._held, deque()
        events = [Uncertain(request.tag) for request in held if isinstance(request, Commit)]
        loads = [request for request in held if isinstance(request, Load)]
        self._session = self._ensemble.join(self)
        self._tell(*events, SessionExpired(self._session))
        for load in loads:
            self._send(load)

    def _lost(self, process: Process) -> None:
        """Note that the client has died; its session remains until its timeout."""
        if self.is_dead:
            return
        self.is_dead = True
        process.on_death.remove(self._lost)
        self._ensemble.connections.remove(self)
        self._connection += 1
        word, _, number = process.keep.partition("-")
        if word == "state":
            for commit in self.unanswered()[: int(number)]:
                self._carry_out(commit)
        else:
            self._settle()
        end = self._ensemble._end
        self._world.after(self._ensemble.session_timeout_us, lambda *_: end(self._session))

    def unanswered(self) -> list[Commit]:
        """Return the commits in flight: when the client dies, the backend carries out any number of
        them, in order.
        """
        return [
            request
            for number, request in self._under_way.items()
            if isinstance(request, Commit)
            and number not in self._done
            and number not in self._unsent
        ]

    def _carry_out(self, commit: Commit) -> None:
        # The end of a session also ends its requests.
        if self._session in self._ensemble.sessions:
            _, plan = self._ensemble.carry_out(self._session, commit)
            self._ensemble.announce(plan)


class SessionLink:
    """The network between one zkserver and the backend, and the pauses of that zkserver."""

    def __init__(self, session: CoordinatorSession, ensemble: Ensemble) -> None:
        self.is_cut = False  # True as soon as the link is cut, before the client notices
        self._session = session
        self._ensemble = ensemble
        self._world = ensemble.world
        self._cuts = 0

    def check(self, is_cut: bool) -> None:
        """React to a cut or a heal of the network between the zkserver and the backend."""
        if is_cut == self.is_cut:
            if not is_cut:
                self._session.resume()
            return
        self.is_cut = is_cut
        if not is_cut:
            self._session.suspend()  # After so long a silence, the client replaces the connection.
            self._session.resume()
            return
        timeout = self._ensemble.session_timeout_us
        self._cuts += 1
        notice = (timeout + (self._session.rng.getrandbits(16) * timeout >> 16)) // 3
        self._world.after(notice, self._notice, self._cuts)
        self._world.after(timeout, self._expire_silent, self._cuts)

    def _notice(self, cuts: int, _: object) -> None:
        if cuts == self._cuts and self.is_cut:
            self._session.suspend()

    def _expire_silent(self, cuts: int, _: object) -> None:
        if cuts == self._cuts and self.is_cut and not self._session.is_dead:
            self._ensemble.expire(self._session.session)

    def check_pause(self) -> None:
        """React to a pause of the zkserver: its session expires if the pause is longer than the
        timeout.
        """
        self._world.after(
            self._ensemble.session_timeout_us, self._expire_paused, self._session.process.pauses
        )

    def _expire_paused(self, pauses: int, _: object) -> None:
        if (
            self._session.process.is_paused
            and self._session.process.pauses == pauses
            and not self._session.is_dead
        ):
            self._ensemble.expire(self._session.session)
