"""A coordinator backend in ZooKeeper: several zkservers on several machines, on one tree.

All is decided in the thread of the loop, by ``submit`` and ``poll``; what kazoo's thread reads is
kept by :class:`pymq.coord.zookeeper.session.ZookeeperLink` until then. Nothing waits for an
answer. While there is no connection, requests are kept, and sent when there is one.

A commit is one multi-op transaction, conditional on versions, so it is done whole or not at all by
whoever still may. When the connection goes before its answer, it is ``Uncertain``, and it stays
settled: a request that a session has sent over one connection is refused once the session has moved
to another. A load begins with a ``sync``, so it knows what became of every commit before it, also
when it asks another server than the one that the commit was sent to.
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
from pymq.coord.zookeeper.dialect import LOST, REFUSED, Dialect, NoNodeError
from pymq.coord.zookeeper.session import (
    Connected,
    Ended,
    Event,
    Lost,
    Reply,
    ZookeeperLink,
    ZookeeperRequest,
)
from pymq.coord.zookeeper.tree_reading import GetNode, ListNode, TreeReading
from pymq.core.metadata.coordination import (
    Changed,
    Commit,
    CoordEvent,
    CoordRequest,
    Failed,
    Load,
    Loaded,
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

COMMITS_OUT = 64  # commits under way at once; kazoo blocks its caller when some 250 are unsent
READS_OUT = 128  # questions of a load
_OnReply = Callable[[Any, Exception | None], None]  # (result, error), one of which is None


class ZookeeperCoordinator:
    """One session after the other on the ensemble at *address*; it belongs to its loop's thread.

    *wake* and *timeout_s* are as in :func:`pymq.coord.open`, and so is what this raises.
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
        self._session = ""
        self._news = News()
        self._queue: deque[CoordRequest] = deque()  # asked for, and not begun
        self._waiting: dict[int, _OnReply] = {}  # by number of request
        self._numbers = 0
        self._commits = 0  # sent and not answered
        self._load: tuple[Load, TreeReading] | None = (
            None  # nothing else begins while it is under way
        )
        self._roots: dict[str, None] = {}  # that were loaded in this session
        self._is_up = False  # there is a connection, as far as was heard
        self._has_root: bool | None = False  # the node above the tree is there; None: being asked
        self._denial: Exception | None = None  # of making it
        self._problem: PymqError | None = None  # why there is none, or nothing goes any more
        self._is_broken = self._is_closed = False
        self._link = ZookeeperLink(address.hosts, address.session_ms, credentials, wake)
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
        self._news.take()  # Whatever happened before, nobody was there to miss it.

    # --- the contract ---------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """The session's name, as in ``Entry.owner``; empty until there was a first connection."""
        return self._session

    def submit(self, request: CoordRequest) -> None:
        """Start *request*, or keep it until there is a connection.

        Raises as the contract says; :class:`InvalidRequest` also for a commit that is larger than
        ZooKeeper takes.
        """
        validate(request)
        self._check()
        if isinstance(request, Commit):
            self._dialect.check_size(request)
        self._queue.append(request)
        self._pump()

    def poll(self) -> Sequence[CoordEvent]:
        """What happened since the last call; nothing any more once closed.

        Raises :class:`StoreError` or :class:`AuthenticationFailed` when the session can never come
        back, and the backend must be opened again.
        """
        if self._is_closed:
            return ()
        self._check()
        self._take()
        if self._is_up and self._link.is_silent():
            # Nobody may lead who has not heard for so long that others may have taken over.
            self._suspend()
            self._link.drop()
        self._pump()
        return self._news.take()

    def close(self) -> None:
        """End the session; its ephemeral nodes go at once. In a forked child this does nothing."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        self._link.close()
        self._news.take()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(
                f"the session {self._session} belongs to process {self._pid}; open another here"
            )
        if self._is_closed:
            raise Closed(f"the coordinator of session {self._session} was closed")
        if self._is_broken and self._problem is not None:
            raise self._problem

    # --- what arrives ---------------------------------------------------------------------------

    def _take(self) -> None:
        for arrival in self._link.take():
            match arrival:
                case Reply(number, result, error):
                    on_reply = self._waiting.pop(number, None)
                    if on_reply is not None:
                        on_reply(result, error)
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
        is_first, is_same = not self._session, session == self._session
        self._is_up, self._session = True, session
        if is_first:
            self._news.tell(Resumed())
        elif is_same:
            self._news.tell(Resumed())
            self._watch_again()
        else:
            # What was kept for the old session may rely on it.
            for held in self._queue:
                if isinstance(held, Commit):
                    self._news.tell(Uncertain(held.tag))
            self._queue = deque(held for held in self._queue if isinstance(held, Load))
            self._roots.clear()
            self._has_root = False
            self._news.tell(SessionExpired(session))

    def _watch_again(self) -> None:
        """Watches end with the connection; what happened without them, nobody knows."""
        for root in self._roots:
            self._send(self._dialect.watch(root), partial(self._watched_again, root))

    def _watched_again(self, root: str, _: Any, error: Exception | None) -> None:
        if isinstance(error, LOST):
            return  # It is done again with the next connection.
        if error is not None:
            self._roots.pop(root, None)  # Whoever loads it again hears why.
        self._news.tell(Changed(root))

    def _suspend(self) -> None:
        if not self._is_up:
            return
        self._is_up = False
        if self._load is not None:
            self._queue.appendleft(self._load[0])
            self._load = None
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
        if path is None:
            return
        if self._load is not None:
            self._load[1].changed(path)
        if not any(path == root or path.startswith(root.rstrip("/") + "/") for root in self._roots):
            return
        if self._commits:
            # It may be a commit of ours that did it, and its answer is right behind.
            self._news.hold(Changed(path))
        else:
            self._news.tell(Changed(path))

    # --- what is sent ---------------------------------------------------------------------------

    def _send(self, request: ZookeeperRequest, on_reply: _OnReply) -> None:
        self._numbers += 1
        self._waiting[self._numbers] = on_reply
        self._link.send(self._numbers, request, self._session)

    def _pump(self) -> None:
        while self._is_up and self._queue and self._load is None:
            if not self._has_root:
                self._prepare()
                return
            request = self._queue[0]
            if isinstance(request, Load):
                self._queue.popleft()
                self._begin_load(request)
            elif self._commits < COMMITS_OUT:
                self._queue.popleft()
                self._begin_commit(request)
            else:
                return

    def _prepare(self) -> None:
        """Make the node above the tree, unless it is there."""
        if self._has_root is not False:
            return
        self._has_root, self._problem, self._denial = None, None, None
        for request in self._dialect.ancestors():
            self._send(request, self._prepared)
        self._send(self._dialect.enter(), self._entered)

    def _prepared(self, _: Any, error: Exception | None) -> None:
        if isinstance(error, REFUSED):
            self._denial = error  # No matter if it is there already.

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
        self._send(self._dialect.transaction(commit), on_reply)

    def _committed(self, commit: Commit, result: Any, error: Exception | None) -> None:
        self._commits -= 1
        self._news.tell(self._dialect.outcome(commit, result, error))
        self._news.release()

    # --- loads ----------------------------------------------------------------------------------

    def _begin_load(self, load: Load) -> None:
        reading = TreeReading(load.root)
        self._load = load, reading
        if load.root not in self._roots:
            self._roots[load.root] = None
            self._send(self._dialect.watch(load.root), partial(self._readied, reading))
        self._send(self._dialect.sync(load.root), partial(self._readied, reading))
        self._read(reading)

    def _readied(self, reading: TreeReading, _: Any, error: Exception | None) -> None:
        if error is not None:
            self._failed(reading, error)

    def _read(self, reading: TreeReading) -> None:
        for question in reading.ask(READS_OUT):
            request = self._dialect.read(question)
            if isinstance(question, GetNode):
                self._send(request, partial(self._got, reading, question))
            else:
                self._send(request, partial(self._listed, reading, question))

    def _got(
        self, reading: TreeReading, asked: GetNode, result: Any, error: Exception | None
    ) -> None:
        if not self._is_read(reading, error):
            return
        if error is not None:
            reading.got(asked.path, None, False)
        else:
            reading.got(asked.path, *self._dialect.entry(asked.path, result))
        self._go_on(reading)

    def _listed(
        self, reading: TreeReading, asked: ListNode, result: Any, error: Exception | None
    ) -> None:
        if not self._is_read(reading, error):
            return
        names = None if error is not None else self._dialect.names(asked.path, result)
        reading.listed(asked.path, names)
        self._go_on(reading)

    def _is_read(self, reading: TreeReading, error: Exception | None) -> bool:
        """Whether this answer is one: a node that is not there is a fact as well."""
        if error is not None and not isinstance(error, NoNodeError):
            # What is lost with the connection comes before word of that, and says nothing.
            self._failed(reading, error)
            return False
        return self._load is not None and self._load[1] is reading

    def _go_on(self, reading: TreeReading) -> None:
        self._read(reading)
        if reading.is_done and self._load is not None:
            load, self._load = self._load[0], None
            self._news.tell(Loaded(load.tag, reading.entries()))

    def _failed(self, reading: TreeReading, error: Exception) -> None:
        if self._load is None or self._load[1] is not reading or isinstance(error, LOST):
            return
        load, self._load = self._load[0], None
        if isinstance(error, REFUSED):
            self._news.tell(Failed(load.tag, self._dialect.error(error, load.root)))
        else:
            self._queue.appendleft(load)  # The server had no time, or the like: once more.
