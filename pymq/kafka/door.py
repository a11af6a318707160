"""The door: TCP connections of Kafka's clients, for the gates of one process.

The thread that runs the loop of a broker calls the door between two turns
(:mod:`pymq.runtime.node_thread`). An embedded queue has a thread for it
(:mod:`pymq.kafka.door_thread`). Either calls, again and again,

1. :meth:`KafkaDoor.collect`, which receives what has arrived,
2. :meth:`KafkaDoor.hand_over`, which gives the gates the received frames in one turn of the loop,
3. :meth:`KafkaDoor.flush`, which sends the answers.

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
from typing import Protocol

from pymq.core.batch.columns import Buffer
from pymq.core.message import Message
from pymq.core.ready import Ready
from pymq.core.values import Factory, define
from pymq.kafka.connection import REQUESTS_MAX, KafkaConnection
from pymq.kafka.frames import FRAME_BYTES_MAX, BadFrame, FrameReader, RequestHead
from pymq.kafka.gate import KafkaGate
from pymq.kafka.security.tls import DoorTls, TlsSocket

CONNECTIONS_MAX = 1_000
UNKNOWN_MAX = 250  # connections of clients that have yet to prove who they are
UNKNOWN_S = 30.0  # time to prove it
HANDSHAKES_MAX = 200  # of TLS a second: each takes the broker's thread about a millisecond
UNKNOWN_BYTES_MAX = 64 << 10  # of a frame before that
RECEIVING_MAX = 512 << 20  # bytes of frames that are being received, of all connections
READ_BYTES = 4 << 20  # of one connection in a round
ROUND_BYTES = 16 << 20  # of all connections in a round; the others are read in the next one
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


@define
class KafkaListener:
    """A socket that listens for the clients of one gate."""

    name: str  # of the gate in the loop
    gate: KafkaGate
    socket: socket.socket
    tls: DoorTls | None = None


@define
class _Client:
    """A connection as the door sees it."""

    socket: socket.socket | TlsSocket
    listener: KafkaListener
    connection: KafkaConnection
    is_known: bool  # whether it has nothing to prove, or has proved it
    since: float
    reader: FrameReader
    sending: deque[Buffer] = Factory(deque)  # parts that the door has taken from the gate
    events: int = _READ
    heard_at: float = 0.0
    is_gone: bool = False


class KafkaDoor:
    """The sockets; one thread at a time calls it, and *ring* makes that thread call it again."""

    def __init__(
        self,
        listeners: Sequence[KafkaListener],
        ring: Callable[[], None],
        *,
        selector: selectors.DefaultSelector | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.listeners = listeners
        self._ring = ring
        self._clock = clock  # in seconds
        self._selector = selector if selector is not None else selectors.DefaultSelector()
        self._clients: dict[KafkaConnection, _Client] = {}
        self._news: deque[KafkaConnection] = deque()  # connections that a gate has something for
        self._arrived: list[tuple[_Client, memoryview]] = []
        self._accepted: list[tuple[socket.socket | TlsSocket, str, KafkaListener]] = []
        self._unknown: dict[KafkaConnection, _Client] = {}  # the oldest first
        self._gone: list[_Client] = []
        self._thread = 0  # the thread that calls this object
        self._rests_until = 0.0
        self._handshakes = 0  # in the second that ends at ...
        self._handshakes_until = 0.0
        self._looks_at = 0.0
        self.turned_away = 0  # connections beyond the limit
        self.timed_out = 0  # connections closed because their clients have not proved who they are
        self.received_bytes = 0
        self.sent_bytes = 0
        for listener in listeners:
            listener.socket.setblocking(False)
            self._selector.register(listener.socket, _READ, listener)
            listener.gate.wake = self._told
            listener.gate.failed = _log

    def __len__(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to collect."""
        found = self._selector.fileno()
        assert isinstance(found, int)
        return found

    def also(self, descriptor: int) -> None:
        """End the wait of :meth:`collect` also when *descriptor* is readable."""
        self._selector.register(descriptor, _READ)

    def take(self, loop: DoorLoop) -> bool:
        """Hand over what has arrived, without waiting; returns whether there was anything."""
        self.collect(0)
        self.flush()
        if not self.has_input:
            return False
        self.hand_over(loop)
        return True

    def collect(self, wait_s: float) -> bool:
        """Wait for sockets, and receive what has arrived.

        Returns whether the descriptor of :meth:`also` is readable.
        """
        self._thread = threading.get_ident()
        left, is_rung = ROUND_BYTES, False
        for key, events in self._selector.select(wait_s):
            if key.data is None:
                is_rung = True
            elif isinstance(key.data, KafkaListener):
                self._accept(key.data)
            elif not key.data.is_gone:
                if events & _READ and left > 0:
                    frames = self._receive(key.data)
                    left -= sum(map(len, frames))
                    self._arrived += [(key.data, frame) for frame in frames]
                if events & _WRITE:
                    self._news.append(key.data.connection)
        return is_rung

    @property
    def has_input(self) -> bool:
        """Whether there is something for the gates."""
        return bool(self._arrived or self._gone or self._accepted)

    def hand_over(self, loop: DoorLoop) -> None:
        """Give the gates what was collected; they act in the next turn of the loop."""
        now = loop.clock()
        arrived, self._arrived = self._arrived, []
        gone, self._gone = self._gone, []
        accepted, self._accepted = self._accepted, []
        for client in gone:
            client.listener.gate.disconnected(client.connection)
        for found, host, listener in accepted:
            connection, at = listener.gate.connected(host), self._clock()
            is_known = listener.tls is None and connection.caller.is_known
            reader = FrameReader(FRAME_BYTES_MAX if is_known else UNKNOWN_BYTES_MAX)
            client = _Client(found, listener, connection, is_known, at, reader, heard_at=at)
            self._clients[connection] = client
            if not is_known:
                self._unknown[connection] = client
            self._selector.register(found, _READ, client)
        for client, frame in arrived:
            client.listener.gate.received(client.connection, frame, now)
        for listener in self.listeners:
            loop.touch(listener.name)
        # A connection with too many unanswered requests is not read until some are answered.
        self._news.extend(client.connection for client, _ in arrived if client.connection.is_full)

    def flush(self) -> None:
        """Send the answers that the gates have made."""
        while self._news:
            client = self._clients.get(self._news.popleft())
            if client is not None and not client.is_gone:
                self._send(client)
        self._look(self._clock())

    def shut(self) -> None:
        """Close all sockets."""
        for listener in self.listeners:
            listener.socket.close()
        for found, _, _ in self._accepted:
            found.close()
        for client in self._clients.values():
            client.socket.close()
        self._selector.close()

    def disconnect(self, loop: DoorLoop) -> None:
        """Tell the gates that all clients are gone, after :meth:`shut`.

        The members of groups that the gates have joined for them leave in the next turn of the
        loop.
        """
        for client in self._clients.values():
            client.listener.gate.disconnected(client.connection)
        self._clients.clear()
        for listener in self.listeners:
            loop.touch(listener.name)

    def leave(self, loop: DoorLoop) -> None:
        """Remove the gates from the loop, after :meth:`disconnect`."""
        for listener in self.listeners:
            loop.remove(listener.name)

    def _told(self, connection: KafkaConnection) -> None:
        """Note that a gate has something for a connection; the thread may be any."""
        self._news.append(connection)
        if threading.get_ident() != self._thread:
            self._ring()

    # --- sockets --------------------------------------------------------------------------------

    def _accept(self, listener: KafkaListener) -> None:
        try:
            found, (host, *_) = listener.socket.accept()
        except BlockingIOError:
            return
        except OSError:
            # The process has no descriptors left: accept no connections for a while.
            self._rests_until = self._clock() + REST_S
            self._selector.unregister(listener.socket)
            return
        if len(self._clients) + len(self._accepted) >= CONNECTIONS_MAX:
            self.turned_away += 1
            found.close()
            return
        if len(self._unknown) >= UNKNOWN_MAX:
            # Whoever connects and proves nothing must not keep others out.
            self.timed_out += 1
            self._leave(next(iter(self._unknown.values())))
        found.setblocking(False)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if listener.tls is not None:
            self._count_handshake(listener)
        try:
            wrapped = found if listener.tls is None else listener.tls.wrap(found)
        except OSError:
            found.close()  # The client is gone already.
            return
        self._accepted.append((wrapped, str(host), listener))

    def _count_handshake(self, listener: KafkaListener) -> None:
        """Rest for a while after many handshakes, so that strangers do not keep the broker busy."""
        now = self._clock()
        if now >= self._handshakes_until:
            self._handshakes, self._handshakes_until = 0, now + 1.0
        self._handshakes += 1
        if self._handshakes >= HANDSHAKES_MAX:
            self._rests_until = now + REST_S
            self._selector.unregister(listener.socket)

    def _receive(self, client: _Client) -> list[memoryview]:
        """Receive the bytes that have arrived, up to a limit; returns the complete frames."""
        frames: list[memoryview] = []
        left = READ_BYTES
        client.heard_at = self._clock()
        try:
            while left > 0 and len(frames) < REQUESTS_MAX:
                buffer = client.reader.buffer()
                count = client.socket.recv_into(buffer)
                if count == 0:
                    self._leave(client)
                    break
                left -= count
                self.received_bytes += count
                if not client.is_known:
                    self._identify(client)
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

    def _identify(self, client: _Client) -> None:
        """Note what a client has proved by TLS or, to the gate, by SASL."""
        caller = client.connection.caller
        if isinstance(client.socket, TlsSocket) and not caller.must_prove:
            caller.principal = client.socket.principal
        if caller.is_known:
            client.is_known, client.reader.most = True, FRAME_BYTES_MAX
            del self._unknown[client.connection]

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
                self.sent_bytes += sent
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
        self._unknown.pop(client.connection, None)
        self._gone.append(client)
        self._ring()

    def _look(self, now: float) -> None:
        """Close idle connections, and accept new ones again."""
        if self._rests_until and now >= self._rests_until:
            self._rests_until = 0.0
            known = self._selector.get_map()
            for listener in self.listeners:
                if listener.socket.fileno() not in known:
                    self._selector.register(listener.socket, _READ, listener)
        if now < self._looks_at:
            return
        # Time in which this process was suspended is no silence of the clients: what they have sent
        # meanwhile has not been received yet.
        suspended_s = now - self._looks_at if self._looks_at else 0.0
        self._looks_at = now + LOOK_S
        for client in list(self._clients.values()):
            if suspended_s > LOOK_S:
                client.heard_at += suspended_s
            elif now - client.heard_at > IDLE_S and not client.connection.slots:
                self._leave(client)
            elif not client.is_known and now - client.since > UNKNOWN_S:
                self.timed_out += 1
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
