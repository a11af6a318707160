"""A coordinator backend in memory: the zkservers of one process share a tree that is not stored.

Each call takes effect at once, so the same calls always produce the same events. A test cuts the
connection with :meth:`MemoryCoordinator.suspend`, restores it with
:meth:`~MemoryCoordinator.resume` and ends a session with :meth:`MemoryTree.expire`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from threading import RLock
from weakref import WeakSet

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
from pymq.errors import Closed, InvalidRequest

__all__ = ["MemoryCoordinator", "MemoryTree"]


class MemoryTree:
    """The tree that the :class:`MemoryCoordinator` objects of a process share; thread-safe.

    The tree reports a change to the sessions in the order in which they began.
    """

    _prefix = "session-"

    def __init__(self) -> None:
        self.request_bytes = REQUEST_BYTES  # the limit of a commit
        self._tree = Tree()
        self._watches = TreeWatches()
        self._clients: dict[str, MemoryCoordinator] = {}
        self._named = 0  # number of assigned session names; no name is used twice
        self._lock = RLock()
        _trees.add(self)

    @property
    def sessions(self) -> tuple[str, ...]:
        """The living sessions, in the order in which they began."""
        return tuple(self._clients)

    def entries(self, root: str = "/") -> tuple[Entry, ...]:
        """Return the entries at and below *root*, for tests and tools."""
        with self._lock:
            return self._tree.load(root)

    def expire(self, session: str) -> None:
        """End *session* as a server does after the session timeout.

        The session's ephemeral nodes and its watches are removed at once. The session's client gets
        :class:`SessionExpired` and a new session, at once or when it is resumed. To simulate a
        crashed zkserver, suspend it and never resume it. Raises :class:`InvalidRequest` if there is
        no such session.
        """
        with self._lock:
            client = self._clients.get(session)
            if client is None:
                raise InvalidRequest(f"no session {session!r}; alive are {self.sessions}")
            self._end(session)
            client._expired()

    # --- for coordinators -----------------------------------------------------------------------

    def _join(self, client: MemoryCoordinator, session: str | None) -> str:
        with self._lock:
            if session is None:
                self._named += 1
                session = f"{self._prefix}{self._named}"
            if session in self._clients:
                raise InvalidRequest(f"session {session!r} is in use; sessions need distinct names")
            self._clients[session] = client
            return session

    def _end(self, session: str) -> None:
        with self._lock:
            if self._clients.pop(session, None) is None:
                return
            self._watches.drop(session)
            plan = self._tree.plan_expiry(session)
            self._tree.adopt(plan)
            self._announce(plan)

    def _carry_out(self, client: MemoryCoordinator, request: CoordRequest) -> None:
        with self._lock:
            if isinstance(request, Load):
                self._watches.add(client.session, request.root)
                client._deliver(Loaded(request.tag, self._tree.load(request.root)))
                return
            if (refused := refusal(request, self.request_bytes)) is not None:
                client._deliver(Failed(request.tag, refused))
                return
            plan = self._tree.plan(request, client.session)
            if isinstance(plan, Conflicted):
                client._deliver(plan)
                return
            self._keep(plan)
            self._tree.adopt(plan)
            client._deliver(Committed(request.tag, plan.versions))
            self._announce(plan)

    def _keep(self, plan: CommitPlan) -> None:
        """Make *plan* durable before the tree adopts it; after an error nothing has changed."""

    def _announce(self, plan: CommitPlan) -> None:
        changes = [Changed(path) for path in plan.changes]
        for session, client in self._clients.items():
            for change in self._watches.match(session, changes):
                client._deliver(change)


class MemoryCoordinator:
    """One session on a :class:`MemoryTree`; without *hub*, on a new tree.

    *session* is the name of the session; by default the hub numbers its sessions. Raises
    :class:`InvalidRequest` if the name is in use.

    While a session is suspended, requests wait; :meth:`resume` carries them out after
    :class:`Resumed`. If the session has expired meanwhile, the event is :class:`SessionExpired`
    instead. In this case waiting commits are :class:`Uncertain`, waiting loads are carried out, and
    earlier watches have ended.
    """

    def __init__(self, hub: MemoryTree | None = None, *, session: str | None = None) -> None:
        self._hub = MemoryTree() if hub is None else hub
        # Other threads append while the owner's thread polls; a deque needs no lock for this.
        self.arrivals: deque[CoordEvent] = deque()
        self._held: deque[CoordRequest] = deque()  # requests submitted while suspended
        self._is_suspended = False
        self._is_expired = False  # true only while suspended
        self._is_closed = False
        self._session = self._hub._join(self, session)

    @property
    def session(self) -> str:
        """The session's name, which changes as soon as :class:`SessionExpired` is queued."""
        return self._session

    def submit(self, request: CoordRequest) -> None:
        """Carry out *request* at once, or after :meth:`resume`.

        Raises :class:`InvalidRequest` for requests that no backend can carry out, and
        :class:`Closed` after :meth:`close`.
        """
        validate(request)
        if self._is_closed:
            raise Closed(f"the coordinator of session {self._session} was closed")
        if self._is_suspended:
            self._held.append(request)
        else:
            self._hub._carry_out(self, request)

    def poll(self) -> Sequence[CoordEvent]:
        """Return the events since the last call; none after :meth:`close`."""
        events = []
        while self.arrivals:
            events.append(self.arrivals.popleft())
        return events

    def close(self) -> None:
        """End the session; its ephemeral nodes are removed at once. Closing twice is allowed."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._is_expired:
            self._hub._end(self._session)
        self.arrivals.clear()

    # --- for tests ------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Cut the connection; answers to commits that were not polled yet become uncertain."""
        with self._hub._lock:
            if self._is_suspended or self._is_closed:
                return
            lost = (Committed, Conflicted)
            events = [Uncertain(e.tag) if isinstance(e, lost) else e for e in self.arrivals]
            self.arrivals = deque([*events, Suspended()])
            self._is_suspended = True

    def resume(self) -> None:
        """Restore the connection, in the old session or, if that expired, in a new one."""
        with self._hub._lock:
            if not self._is_suspended or self._is_closed:
                return
            self._is_suspended = False
            if self._is_expired:
                self._is_expired = False
                commits = [held for held in self._held if isinstance(held, Commit)]
                self.arrivals += [Uncertain(commit.tag) for commit in commits]
                self._held = deque(held for held in self._held if isinstance(held, Load))
                self._renew()
            else:
                # Like a remote backend, report each root as changed, because changes may have been
                # missed.
                roots = self._hub._watches.roots(self._session)
                self.arrivals += [Resumed(), *map(Changed, roots)]
            while self._held:
                self._hub._carry_out(self, self._held.popleft())

    def _deliver(self, event: CoordEvent) -> None:
        if not self._is_suspended:
            self.arrivals.append(event)

    def _expired(self) -> None:
        if self._is_suspended:
            self._is_expired = True
        else:
            self._renew()

    def _renew(self) -> None:
        self._session = self._hub._join(self, None)
        self.arrivals.append(SessionExpired(self._session))


_trees: WeakSet[MemoryTree] = WeakSet()


def _unlock() -> None:
    """Replace the locks in a forked child, because threads of its parent may have held them."""
    for tree in list(_trees):
        tree._lock = RLock()


os.register_at_fork(after_in_child=_unlock)
