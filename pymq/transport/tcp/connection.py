"""Connections over TCP or TLS: their states, the bytes that arrive and leave, and the peers."""

from __future__ import annotations

import selectors
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from typing import Any

from pymq.core.values import Factory, define
from pymq.transport.peers import BasePeer
from pymq.transport.shapes import Buffer
from pymq.transport.tcp.certificates import Certificate
from pymq.transport.tcp.endpoints import TcpEndpoint
from pymq.transport.tcp.stream import PacketReader, head

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
PARTS = 64  # most buffers of one system call
TLS_BYTES = 64 << 10  # most bytes given to TLS at once; small parts are joined


class State(Enum):
    """The state of a connection; it only moves down this list."""

    CONNECTING = "the system connects"
    SHAKING = "TLS shakes hands"
    GREETING = "the peer's greeting has not arrived"
    OPEN = "packets arrive"
    CLOSING = "the peer was refused, and gets the reason"
    CLOSED = "closed"


class PeerGone(OSError):
    """The peer has closed the connection."""


@define
class Connection:
    """A connection, made by this node or by its peer."""

    socket: socket.socket
    state: State
    since: float  # when the connection, or its state CLOSING, began
    origin: str  # the peer's IP address
    endpoint: TcpEndpoint | None = None  # the peer's endpoint, if this node has made the connection
    peer: TcpPeer | None = None
    identity: bytes = b""  # the identity of the peer's process
    certificate: Certificate | None = None
    is_new: bool = False  # the peer has made the connection, and no packet was taken from it yet
    reader: PacketReader = Factory(PacketReader)
    events: int = 0  # events that the selector waits for
    moved_at: float = 0.0  # when bytes last left, or when none were waiting
    sending_bytes: int = 0
    _sending: deque[Buffer] = Factory(deque)
    _chunk: Buffer | None = None  # bytes that TLS has not taken completely

    @property
    def may_send(self) -> bool:
        """Whether packets may be sent; they follow the greeting without waiting for the peer's."""
        return self.state in (State.GREETING, State.OPEN)

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed."""
        return self.state is State.CLOSED

    @property
    def is_sending(self) -> bool:
        """Whether some bytes still wait for the system to take them."""
        return self.sending_bytes > 0

    def put(self, data: Buffer) -> None:
        """Append bytes to be sent."""
        self._sending.append(data)
        self.sending_bytes += len(data)

    def put_packet(self, frames: Sequence[Buffer], now: float) -> None:
        """Append a packet to be sent."""
        if not self.sending_bytes:
            self.moved_at = now
        self.put(head(frames))
        for frame in frames:
            if len(frame):
                self.put(frame)

    def wrap(self, context: ssl.SSLContext, host: str | None) -> None:
        """Begin TLS; *host* is the name that the server has to prove; None: this is the server."""
        self.socket = context.wrap_socket(
            self.socket,
            server_side=host is None,
            server_hostname=host,
            do_handshake_on_connect=False,
        )
        self.state = State.SHAKING

    def shake(self) -> int:
        """Continue the TLS handshake; returns the events to wait for, or 0 if it is complete.

        Raises:
            OSError: the peer refuses, or this side refuses the peer's certificate.
        """
        assert isinstance(self.socket, ssl.SSLSocket)
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            return READ
        except ssl.SSLWantWriteError:
            return WRITE
        return 0

    def peer_certificate(self) -> dict[str, Any] | None:
        """Return the verified certificate of the peer, as :mod:`ssl` gives it."""
        assert isinstance(self.socket, ssl.SSLSocket)
        return self.socket.getpeercert()

    def write(self, now: float) -> None:
        """Send as many bytes as the system takes. Never waits.

        Raises:
            OSError: the connection is broken.
        """
        send = self._write_tls if isinstance(self.socket, ssl.SSLSocket) else self._write_plain
        while self.sending_bytes:
            try:
                sent = send()
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            self.sending_bytes -= sent
            self.moved_at = now

    def _write_plain(self) -> int:
        sending = self._sending
        if len(sending) == 1:
            sent = self.socket.send(sending[0])
        else:
            sent = self.socket.sendmsg(list(islice(sending, PARTS)))
        left = sent
        while left:
            size = len(sending[0])
            if size > left:
                sending[0] = memoryview(sending[0])[left:]
                break
            sending.popleft()
            left -= size
        return sent

    def _write_tls(self) -> int:
        # After an incomplete send TLS has to get the same bytes again.
        chunk = self._chunk
        if chunk is None:
            chunk = self._sending.popleft()
            if len(chunk) < TLS_BYTES and self._sending:
                parts, size = [chunk], len(chunk)
                while self._sending and size + len(self._sending[0]) <= TLS_BYTES:
                    parts.append(self._sending.popleft())
                    size += len(parts[-1])
                chunk = b"".join(parts)
            self._chunk = chunk
        sent = self.socket.send(chunk)
        self._chunk = memoryview(chunk)[sent:] if sent < len(chunk) else None
        return sent

    def read(self, scratch: memoryview) -> bool:
        """Receive some bytes; returns whether more may have arrived. Never waits.

        Raises:
            PeerGone: the peer has closed the connection.
            OSError: the connection is broken.
        """
        buffer = self.reader.buffer(scratch)
        try:
            count = self.socket.recv_into(buffer)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        if not count:
            raise PeerGone("the peer has closed the connection")
        size = len(buffer)
        del buffer  # the reader's buffer may grow
        self.reader.received(count, scratch)
        # TLS returns one record at a time; the selector does not signal the ones it still holds.
        return count == size or isinstance(self.socket, ssl.SSLSocket)

    def finish(self) -> None:
        """Announce that no more bytes follow."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The peer is gone already.

    def skip(self, scratch: memoryview) -> None:
        """Drop some bytes that have arrived.

        Raises:
            PeerGone: the peer has closed the connection.
            OSError: the connection is broken.
        """
        try:
            if not self.socket.recv_into(scratch):
                raise PeerGone("the peer has closed the connection")
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass

    def drain(self, scratch: memoryview) -> None:
        """Drop all bytes that have arrived, so that closing does not reset the connection."""
        try:
            while self.socket.recv_into(scratch):
                pass
        except OSError:
            pass


@define
class TcpPeer(BasePeer):
    """Another node: its connections and its waiting packets."""

    link: Connection | None = None  # the connection that this node has made
    route: Connection | None = None  # the connection that the peer has made
    pause_s: float = 0.0  # before the next try to connect

    @property
    def is_connected(self) -> bool:
        """See :class:`BasePeer`."""
        return self.link is not None or self.route is not None

    @property
    def has_come(self) -> bool:
        """See :class:`BasePeer`."""
        return self.route is not None

    @property
    def moved_at(self) -> float:
        """See :class:`BasePeer`."""
        found = self.route or self.link
        return found.moved_at if found is not None else 0.0

    def in_flight(self, now: float) -> int:
        """See :class:`BasePeer`."""
        found = self.route or self.link
        return found.sending_bytes if found is not None else 0
