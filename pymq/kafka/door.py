"""The door: TCP connections of Kafka's clients, in one thread.

The thread waits for all sockets. The thread hands all received frames to the gates in one turn of
the loop. For that turn it takes the driver's lock, like any thread of the application. The answers
are sent after the turn. When another thread runs a turn that makes answers, it wakes the door's
thread.

Everything is bounded: connections, bytes of a frame, bytes of all frames that are being received,
requests of a connection, and bytes that wait to be sent to one.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from types import TracebackType
from typing import Protocol

from pymq.core.batch.columns import Buffer
from pymq.core.message import Message
from pymq.core.ready import Ready
from pymq.core.types import NEVER
from pymq.core.values import Factory, define
from pymq.errors import PymqError
from pymq.kafka.connection import REQUESTS_MAX, KafkaConnection
from pymq.kafka.frames import BadFrame, FrameReader, RequestHead
from pymq.kafka.gate import KafkaGate
from pymq.transport.bell import Bell

CONNECTIONS_MAX = 1_000
RECEIVING_MAX = 512 << 20  # bytes of frames that are being received, of all connections
READ_BYTES = 4 << 20  # of one connection in a round
PARTS = 64  # of a system call
IDLE_S = 600.0  # after which a connection without a request is closed, as with Kafka
LOOK_S = 30.0  # between two looks for idle connections
REST_S = 1.0  # without new connections, after the process had no descriptors left

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class GateMachine(Protocol):
    """A state machine that the event loop runs."""

    @property
    def deadline(self) -> int: ...

    def step(self, source: str, message: Message, now: int) -> None: ...

    def tick(self, now: int) -> None: ...

    def ready(self, now: int) -> Ready | None: ...

    def advance(self, ready: Ready, now: int) -> None: ...


class DoorLoop(Protocol):
    """The part of the loop that the door uses; see :class:`pymq.runtime.loop.Loop`."""

    clock: Callable[[], int]

    def add(self, name: str, machine: GateMachine, *, tells: bool = False) -> None: ...

    def remove(self, name: str) -> None: ...

    def touch(self, name: str) -> None: ...


class DoorDriver(Protocol):
    """The driver of the loop; see :class:`pymq.runtime.driver.Driver`."""

    def __enter__(self) -> DoorLoop: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def arm(self, due: int, name: str | None = None) -> None: ...


@define
class KafkaListener:
    """A socket that listens for the clients of one gate."""

    name: str  # of the gate in the loop
    gate: KafkaGate
    socket: socket.socket


@define
class _Client:
    """A connection as the door sees it."""

    socket: socket.socket
    listener: KafkaListener
    connection: KafkaConnection
    reader: FrameReader = Factory(FrameReader)
    sending: deque[Buffer] = Factory(deque)  # parts that the door has taken from the gate
    events: int = _READ
    heard_at: float = 0.0
    is_gone: bool = False


class KafkaDoor:
    """The thread and its sockets."""

    def __init__(self, driver: DoorDriver, listeners: Sequence[KafkaListener]) -> None:
        self._driver = driver
        self._listeners = listeners
        self._bell = Bell()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell.fileno(), _READ)
        self._clients: dict[KafkaConnection, _Client] = {}
        self._news: deque[KafkaConnection] = deque()  # connections that a gate has something for
        self._gone: list[_Client] = []
        self._is_closed = False
        self._rests_until = 0.0
        self._looks_at = 0.0
        for listener in listeners:
            listener.socket.setblocking(False)
            self._selector.register(listener.socket, _READ, listener)
            listener.gate.wake = self._told
            listener.gate.failed = _log
        self._thread = threading.Thread(target=self._run, name="pymq-kafka", daemon=True)
        with driver as loop:
            for listener in listeners:
                loop.add(listener.name, listener.gate)
        driver.arm(NEVER)  # Starts the thread that keeps the loop's timers.
        self._thread.start()

    def close(self) -> None:
        """Close all connections, and stop listening."""
        self._is_closed = True
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _told(self, connection: KafkaConnection) -> None:
        """Note that a gate has something for a connection; the thread may be any."""
        self._news.append(connection)
        if threading.current_thread() is not self._thread:
            self._bell.ring()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._round()
        except PymqError:
            pass  # The queue was closed, or its loop has stopped.
        finally:
            self._shut()

    def _shut(self) -> None:
        for listener in self._listeners:
            listener.socket.close()
        for client in self._clients.values():
            client.socket.close()
        self._selector.close()
        try:
            with self._driver as loop:
                for client in self._clients.values():
                    client.listener.gate.disconnected(client.connection)
                for listener in self._listeners:
                    loop.remove(listener.name)
        except PymqError:
            pass  # The gates of a stopped loop cannot do anything any more.

    def _round(self) -> None:
        """Wait for sockets, hand the received frames to the gates, and send answers."""
        arrived: list[tuple[_Client, memoryview]] = []
        for key, events in self._selector.select(LOOK_S):
            if key.data is None:
                self._bell.clear()
            elif isinstance(key.data, KafkaListener):
                self._accept(key.data)
            elif not key.data.is_gone:
                if events & _READ:
                    arrived += [(key.data, frame) for frame in self._receive(key.data)]
                if events & _WRITE:
                    self._news.append(key.data.connection)
        if arrived or self._gone:
            self._hand_over(arrived)
        while self._news:
            client = self._clients.get(self._news.popleft())
            if client is not None and not client.is_gone:
                self._send(client)
        self._look(time.monotonic())

    def _hand_over(self, arrived: list[tuple[_Client, memoryview]]) -> None:
        """Hand all received frames to the gates, in one turn of the loop."""
        gone, self._gone = self._gone, []
        with self._driver as loop:
            now = loop.clock()
            for client in gone:
                client.listener.gate.disconnected(client.connection)
            for client, frame in arrived:
                client.listener.gate.received(client.connection, frame, now)
            for listener in self._listeners:
                loop.touch(listener.name)
        # A connection with too many unanswered requests is not read until some are answered.
        self._news.extend(client.connection for client, _ in arrived if client.connection.is_full)
        due = min(listener.gate.deadline for listener in self._listeners)
        if due < NEVER:
            self._driver.arm(due)

    # --- sockets --------------------------------------------------------------------------------

    def _accept(self, listener: KafkaListener) -> None:
        try:
            found, (host, *_) = listener.socket.accept()
        except BlockingIOError:
            return
        except OSError:
            # The process has no descriptors left: accept no connections for a while.
            self._rests_until = time.monotonic() + REST_S
            self._selector.unregister(listener.socket)
            return
        if len(self._clients) >= CONNECTIONS_MAX:
            found.close()
            return
        found.setblocking(False)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._driver:
            connection = listener.gate.connected(str(host))
        client = _Client(found, listener, connection, heard_at=time.monotonic())
        self._clients[connection] = client
        self._selector.register(found, _READ, client)

    def _receive(self, client: _Client) -> list[memoryview]:
        """Receive the bytes that have arrived, up to a limit; returns the complete frames."""
        frames: list[memoryview] = []
        left = READ_BYTES
        client.heard_at = time.monotonic()
        try:
            while left > 0 and len(frames) < REQUESTS_MAX:
                buffer = client.reader.buffer()
                count = client.socket.recv_into(buffer)
                if count == 0:
                    self._leave(client)
                    break
                left -= count
                found = client.reader.received(count)
                frames += found
                if count < len(buffer) and not client.reader.size:
                    break  # Most likely, no more bytes have arrived.
                if client.reader.size and self._receiving() > RECEIVING_MAX:
                    self._leave(client)
                    break
        except BlockingIOError:
            pass
        except (OSError, BadFrame):
            self._leave(client)
        return frames

    def _receiving(self) -> int:
        return sum(client.reader.size for client in self._clients.values())

    def _send(self, client: _Client) -> None:
        """Send the waiting answers; what does not fit into the socket's buffer is sent later."""
        connection = client.connection
        try:
            while True:
                while connection.out:
                    client.sending.append(connection.out.popleft())
                if not client.sending:
                    break
                sent = client.socket.sendmsg(list(islice(client.sending, PARTS)))
                connection.sent_bytes += sent
                _cut(client.sending, sent)
        except BlockingIOError:
            pass
        except OSError:
            self._leave(client)
            return
        if connection.is_closed and not client.sending:
            self._leave(client)
            return
        events = (0 if connection.is_full else _READ) | (_WRITE if client.sending else 0)
        if events != client.events:
            # A client with nothing to read or write is registered again when a gate has an answer
            # for it.
            if not events:
                self._selector.unregister(client.socket)
            elif not client.events:
                self._selector.register(client.socket, events, client)
            else:
                self._selector.modify(client.socket, events, client)
            client.events = events

    def _leave(self, client: _Client) -> None:
        """Close a connection; the gate is informed in the next turn of the loop."""
        if client.is_gone:
            return
        client.is_gone = True
        if client.events:
            self._selector.unregister(client.socket)
        client.socket.close()
        del self._clients[client.connection]
        self._gone.append(client)
        self._bell.ring()

    def _look(self, now: float) -> None:
        """Close idle connections, and accept new ones again."""
        if self._rests_until and now >= self._rests_until:
            self._rests_until = 0.0
            known = self._selector.get_map()
            for listener in self._listeners:
                if listener.socket.fileno() not in known:
                    self._selector.register(listener.socket, _READ, listener)
        if now < self._looks_at:
            return
        self._looks_at = now + LOOK_S
        for client in list(self._clients.values()):
            if now - client.heard_at > IDLE_S and not client.connection.slots:
                self._leave(client)


def _cut(parts: deque[Buffer], count: int) -> None:
    """Drop the first *count* bytes of *parts*."""
    while count:
        size = len(parts[0])
        if size > count:
            parts[0] = memoryview(parts[0])[count:]
            return
        parts.popleft()
        count -= size


def _log(head: RequestHead, error: Exception) -> None:
    """Log the error of a handler."""
    import logging  # on demand: logging takes long to import

    where = f"API {head.key}, version {head.version}, of the client {head.client!r}"
    logging.getLogger("pymq").error("a request to the Kafka gate failed: %s", where, exc_info=error)
