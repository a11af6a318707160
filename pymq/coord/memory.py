"""A coordinator backend in memory: several zkservers of one process on one tree, nothing kept.

Everything happens at once and in the order of the calls, so that the same calls always give the
same events. A test takes the connection away with :meth:`MemoryCoordinator.suspend`, gives it back
with :meth:`~MemoryCoordinator.resume` and ends a session with :meth:`MemoryTree.expire`.
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
    """The tree that the :class:`MemoryCoordinator` of a process share; any thread may use it.

    Changes are reported to the sessions in the order in which they joined.
    """

    _prefix = "session-"

    def __init__(self) -> None:
        self.request_bytes = REQUEST_BYTES  # that a commit may have
        self._tree = Tree()
        self._watches = TreeWatches()
        self._clients: dict[str, MemoryCoordinator] = {}
        self._named = 0  # sessions that were named here; a name is never given twice
        self._lock = RLock()
        _trees.add(self)

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions that are alive, in the order in which they began."""
        return tuple(self._clients)

    def entries(self, root: str = "/") -> tuple[Entry, ...]:
        """What is at and below *root* now, for tests and tools."""
        with self._lock:
            return self._tree.load(root)

    def expire(self, session: str) -> None:
        """End *session* against its client's will, as a server does that has not heard from it.

        Its ephemeral nodes and its watches go at once. The client hears of it at once, or when it
        is resumed, and has a new session then. A crashed zkserver is one that was suspended and is
        never resumed. Raises :class:`InvalidRequest` if there is no such session.
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
        """Make *plan* durable before it is adopted; if this raises, nothing has happened."""

    def _announce(self, plan: CommitPlan) -> None:
        changes = [Changed(path) for path in plan.changes]
        for session, client in self._clients.items():
            for change in self._watches.match(session, changes):
                client._deliver(change)


class MemoryCoordinator:
    """One session on a :class:`MemoryTree`; without *hub* on a tree of its own.

    *session* names it; without one the hub counts. :class:`InvalidRequest` if the name is in use.

    While it is suspended, requests wait and are carried out after :class:`Resumed`. When the
    session has expired meanwhile, :class:`SessionExpired` comes instead of it: waiting commits are
    :class:`Uncertain`, waiting loads are carried out, earlier watches are gone.
    """

    def __init__(self, hub: MemoryTree | None = None, *, session: str | None = None) -> None:
        self._hub = MemoryTree() if hub is None else hub
        # Other threads append while the owner's polls; a deque is safe for that without a lock.
        self._events: deque[CoordEvent] = deque()
        self._held: deque[CoordRequest] = deque()  # asked while suspended
        self._is_suspended = False
        self._is_expired = False  # only ever true while suspended
        self._is_closed = False
        self._session = self._hub._join(self, session)

    @property
    def session(self) -> str:
        """The session's name; a new one once :class:`SessionExpired` is under way."""
        return self._session

    def submit(self, request: CoordRequest) -> None:
        """Carry out *request* at once, or after :meth:`resume`.

        Raises :class:`InvalidRequest` for what can never be done, :class:`Closed` after the end.
        """
        validate(request)
        if self._is_closed:
            raise Closed(f"the coordinator of session {self._session} was closed")
        if self._is_suspended:
            self._held.append(request)
        else:
            self._hub._carry_out(self, request)

    def poll(self) -> Sequence[CoordEvent]:
        """What happened since the last call; nothing any more once closed."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def close(self) -> None:
        """End the session; its ephemeral nodes go at once. Closing twice is allowed."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._is_expired:
            self._hub._end(self._session)
        self._events.clear()

    # --- for tests ------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Lose the connection: answers to commits that were not polled yet become uncertain."""
        with self._hub._lock:
            if self._is_suspended or self._is_closed:
                return
            lost = (Committed, Conflicted)
            events = [Uncertain(e.tag) if isinstance(e, lost) else e for e in self._events]
            self._events = deque([*events, Suspended()])
            self._is_suspended = True

    def resume(self) -> None:
        """Have the connection back, in the old session or, if that expired, in a new one."""
        with self._hub._lock:
            if not self._is_suspended or self._is_closed:
                return
            self._is_suspended = False
            if self._is_expired:
                self._is_expired = False
                commits = [held for held in self._held if isinstance(held, Commit)]
                self._events += [Uncertain(commit.tag) for commit in commits]
                self._held = deque(held for held in self._held if isinstance(held, Load))
                self._renew()
            else:
                # As from afar: what has happened meanwhile, nobody knows.
                roots = self._hub._watches.roots(self._session)
                self._events += [Resumed(), *map(Changed, roots)]
            while self._held:
                self._hub._carry_out(self, self._held.popleft())

    def _deliver(self, event: CoordEvent) -> None:
        if not self._is_suspended:
            self._events.append(event)

    def _expired(self) -> None:
        if self._is_suspended:
            self._is_expired = True
        else:
            self._renew()

    def _renew(self) -> None:
        self._session = self._hub._join(self, None)
        self._events.append(SessionExpired(self._session))


_trees: WeakSet[MemoryTree] = WeakSet()


def _unlock() -> None:
    """Free the trees of a forked child of locks that threads of its parent were holding."""
    for tree in list(_trees):
        tree._lock = RLock()


os.register_at_fork(after_in_child=_unlock)
