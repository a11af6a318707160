"""The sockets of a node: connections begin, are admitted or refused, and end here."""

from __future__ import annotations

import errno
import os
import select
import selectors
import socket
import ssl
import time
from collections.abc import Callable

from pymq.core.types import CLIENT_PREFIX
from pymq.descriptors import lent
from pymq.errors import ConfigError, InvalidRequest, PymqError
from pymq.transport import wire
from pymq.transport.base import Tuning
from pymq.transport.bell import Bell
from pymq.transport.packets import HELLO
from pymq.transport.peers import PeerTable, node_of_identity
from pymq.transport.tcp.certificates import Certificates, read_certificate, reason
from pymq.transport.tcp.connection import READ, WRITE, Connection, PeerGone, State, TcpPeer
from pymq.transport.tcp.endpoints import TcpEndpoint, parse_endpoint
from pymq.transport.tcp.listener import TcpListener
from pymq.transport.tcp.long_packets import LongPackets
from pymq.transport.tcp.resolver import Resolver
from pymq.transport.tcp.stream import greeting

SCRATCH_BYTES = 256 << 10
SWEEP_S = 0.5  # interval of searches for connections that take too long
SHAKES = 8  # most TLS handshakes that continue in one poll, since a step may take a millisecond
SETTLED_S = 1.0  # if a connection has lasted this long, the next one is made soon
REFUSED_S = 1.0  # pause after a refusal or an invalid endpoint, before the next try


class TcpConnections:
    """All connections of a node.

    *lose* is called with the number of lost packets and a reason, which may be empty.
    """

    def __init__(
        self,
        node: str,
        identity: bytes,
        peers: PeerTable[TcpPeer],
        tuning: Tuning,
        certificates: Certificates | None,
        door: TcpListener | None,
        lose: Callable[[int, str], None],
    ) -> None:
        self.on_lost: Callable[[str, bool], None] | None = None
        self.unread: dict[Connection, None] = {}  # connections that may have packets
        self.bell = Bell()  # rings while packets wait in this process
        self._node = node
        self._identity = identity
        self._peers = peers
        self._tuning = tuning
        self._certificates = certificates
        self._version = certificates.version if certificates is not None else 0
        self._door = door
        self._lose = lose
        self._resolver = Resolver(self.bell)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._open: dict[Connection, None] = {}
        self._long = LongPackets()
        self._swept_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.bell.fileno(), READ, self.bell.clear)
        if door is not None:
            self._selector.register(door.socket, READ, self._accept)

    def fileno(self) -> int:
        """Return a descriptor that is readable when any socket has news."""
        return self._selector.fileno()

    def look(self) -> None:
        """Handle the events of all sockets; add those with bytes to read to :attr:`unread`."""
        shakes = SHAKES
        for key, events in self._selector.select(0):
            found = key.data
            if type(found) is not Connection:
                found()
            elif found.state is State.CONNECTING:
                self._try(found, self._connected)
            elif found.state is State.SHAKING:
                if shakes:
                    shakes -= 1
                    self._try(found, self._shake)
            else:
                if events & WRITE:
                    self.write(found, time.monotonic())
                if events & READ and not found.is_closed:
                    self.unread[found] = None

    # --- connecting -----------------------------------------------------------------------------

    def connect(self, peer: TcpPeer, endpoint: str, now: float) -> Connection | None:
        """Begin to connect to a peer; returns None if that fails, or before the pause is over."""
        if now < peer.refused_until:
            return None
        try:
            return self._begin(peer, parse_endpoint(endpoint), now)
        except (PymqError, OSError) as error:
            # Endpoints come from other nodes, so an invalid endpoint must not stop this node.
            peer.refused_until = now + REFUSED_S
            self._lose(0, f"{peer.name} at {endpoint}: {error}")
            return None

    def _begin(self, peer: TcpPeer, endpoint: TcpEndpoint, now: float) -> Connection | None:
        if endpoint.is_tls and self._certificates is None:
            raise ConfigError("TLS needs certificates; give the folder tls_dir")
        if not endpoint.is_tls and self._certificates is not None:
            raise ConfigError("with certificates this node connects with TLS only")
        address = self._resolver.find(endpoint.host, endpoint.port)
        if address is None:
            return None
        with lent():
            made = socket.socket(address[0], socket.SOCK_STREAM)
        made.setblocking(False)
        keep_alive(made, self._tuning)
        error = made.connect_ex(address[1])
        if error not in _UNDER_WAY:
            made.close()
            raise OSError(error, os.strerror(error))
        found = Connection(made, State.CONNECTING, now, endpoint.host, endpoint, peer)
        peer.link = found
        self._open[found] = None
        self._watch(found, WRITE)
        return found

    def _connected(self, found: Connection) -> None:
        """Handle that the system has made the connection, or has failed to make it.

        Raises:
            OSError: the connection has failed.
        """
        assert found.endpoint is not None
        error = found.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._resolver.failed(found.endpoint.host)
            raise OSError(error, os.strerror(error))
        if not found.endpoint.is_tls:
            self._greet(found)
            return
        assert self._certificates is not None
        self._selector.unregister(found.socket)
        found.events = 0
        found.wrap(self._certificates.client, found.endpoint.host)
        self._shake(found)

    def _shake(self, found: Connection) -> None:
        """Continue the TLS handshake.

        Raises:
            OSError: the connection has failed.
            InvalidRequest: the certificate is not the expected one.
        """
        events = found.shake()
        if events:
            self._watch(found, events)
            return
        try:
            certificate = found.certificate = read_certificate(found.peer_certificate())
        except PymqError as error:
            raise InvalidRequest(str(error)) from error
        if found.endpoint is None:
            found.state = State.GREETING
            self._watch(found, READ)
            self.unread[found] = None  # TLS may have received the greeting, too
            return
        assert found.peer is not None
        if "://" not in found.peer.name and not certificate.may_be(found.peer.name):
            raise InvalidRequest(f"the certificate is that of {certificate.principal}")
        if not certificate.is_node:
            raise InvalidRequest(
                f"the certificate of {certificate.principal} is not that of a node: its "
                "organization is not pymq:nodes"
            )
        found.peer.principal = certificate.principal
        self._greet(found)

    def _greet(self, found: Connection) -> None:
        """Send the greeting and the waiting packets over a connection that this node has made."""
        assert found.peer is not None
        now = time.monotonic()
        found.state, found.since = State.GREETING, now
        found.put(greeting(self._identity))
        found.put_packet(wire.encode([("", "", HELLO)]), now)
        found.peer.greeted_at = now
        self.write(found, now)

    def _try(self, found: Connection, step: Callable[[Connection], None]) -> None:
        """Take a step of a connection; a failure closes it."""
        try:
            step(found)
        except (OSError, InvalidRequest) as error:
            self.fail(found, error)

    # --- reading and writing --------------------------------------------------------------------

    def read(self, found: Connection) -> bool:
        """Receive some bytes; returns whether more may have arrived.

        Raises:
            OSError: the connection is broken, or closed by the peer.
        """
        return found.read(self._scratch)

    def bound(self, found: Connection) -> None:
        """Check the memory of a long packet that has arrived incompletely.

        Raises:
            InvalidRequest: such packets take too much memory.
        """
        self._long.check(found, time.monotonic())

    def skip(self, found: Connection) -> None:
        """Drop the bytes that have arrived from a peer that was refused.

        Raises:
            OSError: the peer has closed the connection.
        """
        found.skip(self._scratch)

    def write(self, found: Connection, now: float) -> None:
        """Send as many bytes as the system takes."""
        try:
            found.write(now)
        except OSError as error:
            self.fail(found, error)
            return
        if found.state is State.CLOSING and not found.sending_bytes:
            found.finish()
        self._watch(found, READ | WRITE if found.sending_bytes else READ)

    # --- accepting ------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept the connections that wait."""
        door = self._door
        assert door is not None
        for found in door.accept():
            self._open[found] = None
            keep_alive(found.socket, self._tuning)
            self._watch(found, READ)
            for each in door.crowd.came(found):
                self.drop(each, f"there are too many connections; one of {each.origin} was closed")
        if door.is_resting:
            self._selector.unregister(door.socket)

    def greeted(self, found: Connection, identity: bytes) -> None:
        """Handle the greeting of a peer.

        Raises:
            InvalidRequest: the peer is refused.
        """
        node = node_of_identity(identity)
        if node is None:
            raise InvalidRequest("an identity is NODE/ and 16 hex digits")
        found.identity = identity
        if found.peer is None:
            self._admit(found, node)
            return
        peer = found.peer
        if "://" not in peer.name and node != peer.name:
            raise InvalidRequest(f"{node} is there")
        found.state = State.OPEN
        if self.on_lost is not None:
            self.on_lost(peer.name, False)

    def _admit(self, found: Connection, node: str) -> None:
        """Use a connection of *node* from now on, instead of an earlier connection of that name.

        Raises:
            InvalidRequest: the peer is refused.
        """
        door = self._door
        assert door is not None
        certificate = found.certificate
        principal = certificate.principal if certificate is not None else ""
        there = self._peers.by_name.get(node)
        route = there.route if there is not None else None
        if found.identity in self._peers.fenced:
            raise InvalidRequest("another process has connected under the name of this node")
        if node == self._node:
            raise InvalidRequest(f"{node} is here")
        is_taken = route is not None and there is not None and there.principal != principal
        if certificate is not None and (is_taken or not certificate.may_be(node)):
            raise InvalidRequest(f"{principal} may not use the name {node}")
        if not door.crowd.greeted(found, principal):
            raise InvalidRequest(f"{principal} has reached its limit of connections")
        peer = self._peers.get(node)
        if route is not None:
            if route.identity != found.identity:
                self._peers.fence(route.identity)
            peer.route = None
            route.peer = None
            self.drop(route, "")
        peer.route, found.peer = found, peer
        peer.principal = principal
        # A client may use its principal's name as its node name, but is still a client.
        is_node = certificate is None or certificate.is_node
        peer.is_client = node.startswith(CLIENT_PREFIX) or not is_node
        peer.header_max = wire.CLIENT_HEADER_BYTES_MAX if peer.is_client else wire.HEADER_BYTES_MAX
        found.state, found.is_new = State.OPEN, True
        found.put(greeting(self._identity))
        self.write(found, time.monotonic())

    # --- ending ---------------------------------------------------------------------------------

    def fail(self, found: Connection, error: OSError | InvalidRequest) -> None:
        """Handle a connection that is broken or refused."""
        peer, endpoint, state = found.peer, found.endpoint, found.state
        if state is State.CLOSED:
            return
        why = str(error) if isinstance(error, InvalidRequest) else reason(error)
        if endpoint is not None:
            assert peer is not None
            now = time.monotonic()
            if state is State.OPEN and now - found.since > SETTLED_S:
                peer.pause_s = 0.0  # the connection had been in use, so connecting was no failure
            peer.pause_s = min(
                max(2 * peer.pause_s, self._tuning.reconnect_ms / 1000),
                self._tuning.reconnect_max_ms / 1000,
            )
            is_refused = isinstance(error, (InvalidRequest, ssl.SSLError))
            peer.refused_until = now + (REFUSED_S if is_refused else peer.pause_s)
            # A peer that refuses this node sends its reason, then closes the connection.
            is_told = isinstance(error, PeerGone) and state is State.OPEN
            self.drop(found, "" if is_told else f"{endpoint}: {why}")
            if state is State.OPEN and self.on_lost is not None:
                self.on_lost(peer.name, True)
            return
        if state is State.CLOSING:
            self.drop(found, "")
            return
        if isinstance(error, OSError):
            if state is State.SHAKING:
                assert self._door is not None
                self._door.refused("", found.origin)
            self.drop(found, f"{peer.name if peer is not None else found.origin}: {why}")
            return
        self._refuse(found, error)

    def _refuse(self, found: Connection, error: InvalidRequest) -> None:
        """Send the reason for a refusal over a connection that the peer has made, then close it."""
        assert self._door is not None
        shown = repr(found.identity)[2:-1] if found.identity else found.origin
        principal = found.certificate.principal if found.certificate is not None else ""
        self._lose(1, f"{shown:.100}: {error}")
        self._door.refused(principal, shown)
        now = time.monotonic()
        if found.state is State.GREETING:
            found.put(greeting(self._identity))
        self._leave(found)
        found.state, found.since = State.CLOSING, now
        found.put_packet(wire.encode([("", "", wire.Refused(error))]), now)
        self.write(found, now)

    def _leave(self, found: Connection) -> None:
        """Remove a connection from its peer."""
        peer, found.peer = found.peer, None
        if self._door is not None:
            self._door.crowd.went(found)
        if peer is None:
            return
        if peer.link is found:
            peer.link = None
        if peer.route is found:
            peer.route = None
            self._lose(self._peers.forget(peer), "")

    def drop(self, found: Connection, why: str) -> None:
        """Close a connection; *why* is kept as the problem, if it is given."""
        if found.state is State.CLOSED:
            return
        found.state = State.CLOSED
        if why:
            self._lose(0, why)
        if found.events:
            self._selector.unregister(found.socket)
        found.socket.close()
        self._open.pop(found, None)
        self.unread.pop(found, None)
        self._long.forget(found)
        self._leave(found)

    def _watch(self, found: Connection, events: int) -> None:
        """Wait for events of a connection."""
        if events == found.events:
            return
        if found.events:
            self._selector.modify(found.socket, events, found)
        else:
            self._selector.register(found.socket, events, found)
        found.events = events

    def refresh(self, now: float) -> None:
        """Close all connections when the certificates have changed, because some may be revoked."""
        certificates = self._certificates
        if certificates is None:
            return
        certificates.refresh(now)
        if certificates.version == self._version:
            return
        self._version = certificates.version
        for found in list(self._open):
            self.drop(found, "the certificates have changed")

    def sweep(self, now: float) -> None:
        """Close connections that take too long, and accept connections again."""
        if now - self._swept_at < SWEEP_S:
            return
        self._swept_at = now
        before = now - self._tuning.handshake_ms / 1000
        for found in [each for each in self._open if each.since < before]:
            if found.state is State.CLOSING:
                self.drop(found, "")
            elif found.state is not State.OPEN:
                self.fail(found, TimeoutError(0, f"{found.state.value}, for too long"))
        for found in self._long.stalled(now, self._tuning.stalled_ms / 1000):
            self.fail(found, TimeoutError(0, "the rest of a packet does not arrive"))
        if self._door is not None and self._door.has_rested(now):
            self._selector.register(self._door.socket, READ, self._accept)

    def linger(self, until: float) -> bool:
        """Send waiting packets to connected peers; returns False if none waited or time is up."""
        waiting = [each for each in self._open if each.may_send and each.sending_bytes]
        left = until - time.monotonic()
        if left <= 0:
            return False
        if waiting:
            select.select([], [each.socket for each in waiting], [], left)
        now = time.monotonic()
        for found in waiting:
            if not found.is_closed:
                self.write(found, now)
        return bool(waiting)

    def close(self) -> None:
        """Close all sockets."""
        self._selector.close()
        for found in self._open:
            found.drain(self._scratch)  # otherwise closing would reset the connection
            found.socket.close()
        if self._door is not None:
            self._door.close()


def keep_alive(found: socket.socket, tuning: Tuning) -> None:
    """Set a socket to send without delay, and to end if the peer does not acknowledge."""
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, tuning.silence_ms // 1_000)
    for option, number in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", seconds),
        ("TCP_USER_TIMEOUT", tuning.silence_ms),
    ):
        if hasattr(socket, option):  # not all systems have all of them
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), number)


_UNDER_WAY = (0, errno.EINPROGRESS, errno.EAGAIN)
