"""A session with a ZooKeeper ensemble, through kazoo: events and answers as values, in wire order.

kazoo's connection thread makes no decisions here. The thread converts all answers and events to
:data:`Arrival` values, in the order in which ZooKeeper sent them, and the owner takes these values
later. Loads rely on this order: ZooKeeper sends the event of a change before any answer that
reflects the change.

This module adds to kazoo, by overriding some methods outside its public API:

- A recursive, persistent watch (ZooKeeper 3.6). One watch covers a whole tree, instead of two
  watches for each node that must be set again after each event.
- A lease: a connection that has received no byte for two thirds of the session timeout is dropped.
  kazoo counts sent bytes as a sign of life, so with requests in flight it does not notice that a
  server hangs, or that this process was stopped.
- A session boundary: a request of one session is never sent in the next session.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Watch, int_struct, write_string
from kazoo.protocol.states import KazooState, KeeperState

from pymq.core.values import value

__all__ = [
    "AddWatch",
    "Arrival",
    "Connected",
    "Ended",
    "Event",
    "Lost",
    "Reply",
    "ZookeeperLink",
    "ZookeeperRequest",
    "session_name",
]

CLOSE_S = 5.0  # how long close waits for the server to end the session
_SESSION = 0xFFFF_FFFF_FFFF_FFFF

SELDOM_S = 10.0  # how often kazoo may log the same message


class _Seldom(logging.Filter):
    """Drops a log message if the same text was logged within ``SELDOM_S``."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        now, text = time.monotonic(), record.getMessage()
        if now < self._logged.get(text, -SELDOM_S) + SELDOM_S:
            return False
        if len(self._logged) > 100:
            self._logged.clear()
        self._logged[text] = now
        return True


_log = logging.getLogger("pymq.zookeeper")
_log.addFilter(_Seldom())


@value
class Connected:
    """A connection was established, in this session, which may be the previous one or a new one."""

    session: str


@value
class Lost:
    """The connection is lost. Requests without an answer before this event get no answer."""


@value
class Reply:
    """The answer to a request."""

    number: int
    result: Any  # the decoded answer, as kazoo returns it for that kind of request
    error: Exception | None


@value
class Event:
    """A watched node, or one below it, was created, changed or deleted."""

    path: str


@value
class Ended:
    """kazoo's connection thread has ended, so this link can no longer be used."""

    is_denied: bool  # whether the server has refused our credentials


Arrival = Connected | Lost | Reply | Event | Ended


class ZookeeperRequest(Protocol):
    """A request in the form in which kazoo sends it."""

    @property
    def type(self) -> int:
        """ZooKeeper's number for this kind of request."""
        ...

    def serialize(self) -> bytes:
        """The body."""
        ...


class AddWatch:
    """A watch of a node and of all present and future nodes below it; ends with the connection."""

    type = 106

    def __init__(self, path: str) -> None:
        self.path = path

    def serialize(self) -> bytes:
        """The path and the mode."""
        return bytes(write_string(self.path) + int_struct.pack(1))  # 1: persistent and recursive

    @classmethod
    def deserialize(cls, _: bytes, __: int) -> bool:
        """The answer has no content."""
        return True


def session_name(session_id: int) -> str:
    """Return the name of a session: its number in the format of ZooKeeper's own tools."""
    return f"{session_id & _SESSION:#x}"


class ZookeeperLink:
    """Successive sessions, each over one or more connections, until the link is closed."""

    def __init__(
        self,
        hosts: Sequence[str],
        session_ms: int,
        credentials: str | None,
        wake: Callable[[], None] | None,
    ) -> None:
        self._arrivals: deque[Arrival] = deque()
        self._wake = wake
        self._signal = threading.Event()
        self._handler = _Handler()
        self._client = KazooClient(
            hosts=",".join(hosts),
            timeout=session_ms / 1000,
            handler=self._handler,
            auth_data=[("digest", _Secret(credentials))] if credentials else None,
            # By default kazoo waits up to an hour between tries. Try more often: a restarted server
            # gives each session its full timeout again, so a client that reconnects within that
            # time keeps its session.
            connection_retry={
                "max_tries": -1,
                "delay": 0.05,
                "backoff": 1.5,
                "max_delay": min(1.0, session_ms / 5_000),
            },
            logger=_log,
        )
        self._is_denied = False
        self._client.add_listener(self._state_changed)
        self._client._connection = _Connection(self._client, self._arrived, self._ended)
        self._client.start_async()

    # --- for the owner --------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> None:
        """Wait until something arrives."""
        self._signal.wait(timeout_s)

    def take(self) -> list[Arrival]:
        """Remove and return the arrivals since the last call."""
        self._signal.clear()
        taken = []
        while self._arrivals:
            taken.append(self._arrivals.popleft())
        return taken

    def send(self, number: int, request: ZookeeperRequest, session: str) -> None:
        """Send *request*, but only in *session*; its :class:`Reply` has *number*."""
        result = self._handler.async_result()
        result.rawlink(partial(self._replied, number))
        self._client._call(_Bound(request, session, self._client), result)

    def is_silent(self) -> bool:
        """Whether the silence has lasted so long that the session may have ended."""
        return self._handler.is_silent(time.monotonic())

    def drop(self) -> None:
        """Drop the connection and open a new one."""
        self._handler.is_unwanted = True

    def close(self) -> None:
        """End the session; if the server does not answer, the session expires later."""
        # stop() may hang (kazoo's issue 582), so wait for it in a thread with a timeout.
        stopper = threading.Thread(target=self._stop, name="pymq-zookeeper-stop", daemon=True)
        stopper.start()
        stopper.join(CLOSE_S)
        self._arrivals.clear()

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception:
            _log.exception("the session could not be ended; it will expire")

    # --- for kazoo's thread ---------------------------------------------------------------------

    def _arrived(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        self._signal.set()
        if self._wake is not None:
            self._wake()

    def _replied(self, number: int, result: Any) -> None:
        self._arrived(Reply(number, result.value, result.exception))

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._arrived(Connected(session_name(self._client.client_id[0])))
        elif state == KazooState.SUSPENDED:
            self._arrived(Lost())
        elif self._client.client_state == KeeperState.AUTH_FAILED:
            self._is_denied = True
        # Otherwise the server has reported that the session has expired, and a new session follows.

    def _ended(self) -> None:
        self._arrived(Ended(self._is_denied))


class _Secret(str):
    """Credentials that stay hidden when kazoo logs its requests."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class _Bound:
    """A request that is sent only in its own session."""

    def __init__(self, request: ZookeeperRequest, session: str, client: KazooClient) -> None:
        self.type = request.type
        self._request = request
        self._session = session
        self._client = client

    def serialize(self) -> bytes:
        if session_name(self._client._session_id or 0) != self._session:
            # The request was submitted before the end of its session was known. kazoo answers a
            # request without sending it only if the connection is lost.
            raise ConnectionDropped("a request of an earlier session")
        return self._request.serialize()

    def deserialize(self, data: bytes, offset: int) -> Any:
        # kazoo calls this method for requests that define it.
        return self._request.deserialize(data, offset)  # type: ignore[attr-defined] # see above


class _Handler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    """Runs callbacks in the connection's own thread, so that arrivals keep their order."""

    def __init__(self) -> None:
        super().__init__()
        self.lease_s = 0.0  # the longest allowed silence; 0 until it is known
        self.is_unwanted = False
        self._heard = 0.0
        self._server: Any = None  # the socket

    def start(self) -> None:
        """Start no threads, because a handler that is not running calls callbacks directly."""

    def stop(self) -> None:
        """Do nothing, because there are no threads."""

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        self._server = super().create_connection(*args, **kwargs)
        self.is_unwanted = False
        self._heard = time.monotonic()
        return self._server

    def select(self, *args: Any, **kwargs: Any) -> Any:
        ready = super().select(*args, **kwargs)
        now = time.monotonic()
        # Late bytes prove nothing, because they may have arrived while this process was stopped.
        if self.is_unwanted or self.is_silent(now):
            raise self.timeout_exception("no bytes were received for too long")
        if self._server in ready[0]:
            self._heard = now
        return ready

    def is_silent(self, now: float) -> bool:
        return 0 < self.lease_s < now - self._heard


class _Connection(ConnectionHandler):  # type: ignore[misc] # kazoo has no types
    """kazoo's connection, with persistent watches."""

    def __init__(
        self,
        client: KazooClient,
        arrived: Callable[[Arrival], None],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=_log)
        self._arrived = arrived
        self._ended = ended

    def zk_loop(self) -> None:
        try:
            super().zk_loop()
        except Exception:
            _log.exception("kazoo's connection thread broke")
        self._ended()

    def _connect(self, *args: Any) -> Any:
        self.handler.lease_s = 0.0  # while connecting, kazoo's own timeouts are enough
        timeouts = super()._connect(*args)
        # two thirds of the session timeout that the server grants
        self.handler.lease_s = timeouts[0] / 1000
        return timeouts

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        watch, _ = Watch.deserialize(buffer, offset)
        self._arrived(Event(watch.path))
