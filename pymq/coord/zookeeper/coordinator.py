"""A coordinator backend in ZooKeeper: zkservers on several machines share one tree.

The thread of the loop makes all decisions, in ``submit`` and ``poll``, and never waits for an
answer. :class:`pymq.coord.zookeeper.session.ZookeeperLink` stores the answers and events that
kazoo's thread has read until the loop's thread takes them. Without a connection, requests are kept
and sent later.

A commit is one multi-op transaction, conditional on versions, so it is atomic. If the connection is
lost before the answer, the commit is ``Uncertain``. The outcome of such a commit does not change
later, because ZooKeeper refuses requests of a session from an old connection.
:mod:`pymq.coord.zookeeper.tree_loader` carries out loads.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, assert_never

from pymq.coord.address import ZookeeperAddress, read_credentials
from pymq.coord.event_queue import News
from pymq.coord.tree import validate
from pymq.coord.zookeeper.dialect import REFUSED, Dialect, NoNodeError
from pymq.coord.zookeeper.pending_requests import PendingRequests
from pymq.coord.zookeeper.session import (
    Connected,
    Ended,
    Event,
    Lost,
    Reply,
    ZookeeperLink,
)
from pymq.coord.zookeeper.tree_loader import TreeLoader
from pymq.core.metadata.coordination import (
    Changed,
    Commit,
    CoordEvent,
    CoordRequest,
    Failed,
    Load,
    Resumed,
    SessionExpired,
    Suspended,
    Uncertain,
)
from pymq.errors import (
    AuthenticationFailed,
    Closed,
    Disconnected,
    ForkedError,
    PymqError,
    StoreError,
)

__all__ = ["ZookeeperCoordinator"]

COMMITS_OUT = 64  # most commits in flight; kazoo blocks its caller when about 250 are unsent


class ZookeeperCoordinator:
    """Successive sessions on the ensemble at *address*; only the loop's thread may use it.

    *wake*, *timeout_s* and the errors are those of :func:`pymq.coord.open`.
    """

    def __init__(
        self,
        address: ZookeeperAddress,
        *,
        wake: Callable[[], None] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._address = address
        self._pid = os.getpid()
        credentials = read_credentials(address.auth_file) if address.auth_file else None
        self._dialect = Dialect(
            address.root,
            is_owned=credentials is not None,
            max_request_bytes=address.max_request_bytes,
        )
        # Never empty, because each poll also checks the connection.
        self.arrivals = (None,)
        self._news = News()
        self._queue: deque[CoordRequest] = deque()  # submitted requests that have not started
        self._commits = 0  # number of sent commits without an answer
        self._is_up = False  # whether there is a connection, by the last event of the link
        # whether the node above the tree exists; None while a request for it is in flight
        self._has_root: bool | None = False
        # the error with which ZooKeeper has refused to create that node
        self._denial: Exception | None = None
        # the error that explains why that node is missing, or why the link has ended
        self._problem: PymqError | None = None
        self._is_broken = self._is_closed = False
        self._link = ZookeeperLink(address.hosts, address.session_ms, credentials, wake)
        self._requests = PendingRequests(self._link)
        # While a load is in progress, no other request starts.
        self._loader = TreeLoader(self._dialect, self._requests, self._news, self._queue)
        if timeout_s > 0:
            self._wait(timeout_s)
        else:
            self._news.tell(Suspended())

    def _wait(self, timeout_s: float) -> None:
        """Wait until the tree can be used."""
        end = time.monotonic() + timeout_s
        while True:
            self._take()
            if self._is_up and self._has_root:
                break
            if self._is_up and self._problem is None:
                self._prepare()
            left = end - time.monotonic()
            if self._problem is not None or left <= 0:
                self.close()
                hosts = ",".join(self._address.hosts)
                raise self._problem or Disconnected(
                    f"no answer from ZooKeeper at {hosts} within {timeout_s:g} s"
                )
            self._link.wait(left)
        self._news.take()  # drop the events of the opening, which the owner must not get

    # --- the contract ---------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """The session's name, as in ``Entry.owner``; empty before the first connection."""
        return self._requests.session

    def submit(self, request: CoordRequest) -> None:
        """Start *request*, or keep the request until there is a connection.

        Raises the errors of the contract, and :class:`InvalidRequest` for a commit above
        ZooKeeper's size limit.
        """
        validate(request)
        self._check()
        if isinstance(request, Commit):
            self._dialect.check_size(request)
        self._queue.append(request)
        self._pump()

    def poll(self) -> Sequence[CoordEvent]:
        """Return the events since the last call; none after :meth:`close`.

        Raises :class:`StoreError` or :class:`AuthenticationFailed` if the session can never be
        restored; the backend must then be opened again.
        """
        if self._is_closed:
            return ()
        self._check()
        self._take()
        if self._is_up and self._link.is_silent():
            # After such a silence another zkserver may be the controller, so this zkserver stops
            # being active.
            self._suspend()
            self._link.drop()
        self._pump()
        return self._news.take()

    def close(self) -> None:
        """End the session, which removes its ephemeral nodes; in a forked child do nothing."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        self._link.close()
        self._news.take()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(
                f"the session {self.session} belongs to process {self._pid}; open another here"
            )
        if self._is_closed:
            raise Closed(f"the coordinator of session {self.session} was closed")
        if self._is_broken and self._problem is not None:
            raise self._problem

    # --- arrivals -------------------------------------------------------------------------------

    def _take(self) -> None:
        for arrival in self._link.take():
            match arrival:
                case Reply():
                    self._requests.answered(arrival)
                case Event(path):
                    self._changed(path)
                case Connected(session):
                    self._connected(session)
                case Lost():
                    self._suspend()
                case Ended():
                    self._ended(arrival)
                case _:
                    assert_never(arrival)

    def _connected(self, session: str) -> None:
        is_first, is_same = not self.session, session == self.session
        self._is_up, self._requests.session = True, session
        if is_first:
            self._news.tell(Resumed())
        elif is_same:
            self._news.tell(Resumed())
            self._loader.watch_again()
        else:
            # Commits kept for the old session may depend on its ephemeral nodes.
            for held in self._queue:
                if isinstance(held, Commit):
                    self._news.tell(Uncertain(held.tag))
            loads = [held for held in self._queue if isinstance(held, Load)]
            self._queue.clear()
            self._queue.extend(loads)
            self._loader.forget()
            self._has_root = False
            self._news.tell(SessionExpired(session))

    def _suspend(self) -> None:
        if not self._is_up:
            return
        self._is_up = False
        self._loader.suspend()
        if self._has_root is None:
            self._has_root = False
        self._news.release()
        self._news.tell(Suspended())

    def _ended(self, ended: Ended) -> None:
        self._suspend()
        hosts = ",".join(self._address.hosts)
        self._is_broken = True
        self._problem = (
            AuthenticationFailed(f"ZooKeeper at {hosts} does not accept the credentials")
            if ended.is_denied
            else StoreError(f"the connection to ZooKeeper at {hosts} broke; open it again")
        )

    def _changed(self, full: str) -> None:
        path = self._dialect.path(full)
        if path is None or not self._loader.changed(path):
            return
        if self._commits:
            # A commit of this session may have made the change, and its answer must be reported
            # before the change.
            self._news.hold(Changed(path))
        else:
            self._news.tell(Changed(path))

    # --- requests -------------------------------------------------------------------------------

    def _pump(self) -> None:
        while self._is_up and self._queue and not self._loader.is_busy:
            if not self._has_root:
                self._prepare()
                return
            request = self._queue[0]
            if isinstance(request, Load):
                self._queue.popleft()
                self._loader.begin(request)
            elif self._commits < COMMITS_OUT:
                self._queue.popleft()
                self._begin_commit(request)
            else:
                return

    def _prepare(self) -> None:
        """Create the node above the tree, unless it exists."""
        if self._has_root is not False:
            return
        self._has_root, self._problem, self._denial = None, None, None
        for request in self._dialect.ancestors():
            self._requests.send(request, self._prepared)
        self._requests.send(self._dialect.enter(), self._entered)

    def _prepared(self, _: Any, error: Exception | None) -> None:
        if isinstance(error, REFUSED):
            self._denial = error  # the error does not matter if the node already exists

    def _entered(self, _: Any, error: Exception | None) -> None:
        if error is None:
            self._has_root = True
        elif self._has_root is None:
            self._has_root = False
            if isinstance(error, (*REFUSED, NoNodeError)):
                self._problem = self._dialect.error(self._denial or error, "/")
                while self._queue:
                    self._news.tell(Failed(self._queue.popleft().tag, self._problem))

    # --- commits --------------------------------------------------------------------------------

    def _begin_commit(self, commit: Commit) -> None:
        on_reply = partial(self._committed, commit)
        self._commits += 1
        self._requests.send(self._dialect.transaction(commit), on_reply)

    def _committed(self, commit: Commit, result: Any, error: Exception | None) -> None:
        self._commits -= 1
        self._news.tell(self._dialect.outcome(commit, result, error))
        self._news.release()
