"""CurveZMQ on sockets: each client proves its key, and the handler admits only known keys.

libzmq asks a handler inside the process about each handshake (ZAP, ZeroMQ RFC 27). If there is no
handler, a CURVE server admits every key. So the node takes three steps:

1. it binds the handler before any other socket,
2. it enforces domains,
3. it checks at its start that an unknown key is refused.

The handler is a socket that the node's loop reads like its others. pyzmq's own handler has a
thread, and if it is started twice, closing the context hangs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

from pymq.errors import ConfigError
from pymq.transport.base import OnRefused, Tuning
from pymq.transport.curve import key_files
from pymq.transport.curve.key_ring import KeyRing
from pymq.transport.zeromq.connection_watch import ConnectionWatch
from pymq.transport.zeromq.connections import Connections

if TYPE_CHECKING:
    from pymq.transport.zeromq.sockets import Context, Socket

# earlier versions have CVE-2020-15166, a heap overflow and other bugs, all before the key check
LIBZMQ_MIN = (4, 3, 5)
DOMAIN = b"pymq"
SELF_TEST_S = 10.0
USER_ID = "User-Id"


class Authenticator:
    """Answers the ZAP requests of the sockets of one context."""

    def __init__(
        self,
        context: Context,
        keys: KeyRing,
        on_refused: OnRefused | None,
        tuning: Tuning,
    ) -> None:
        check_library()
        self.refused = 0
        self.connections: Connections | None = None  # the connections that are counted
        self._tuning = tuning
        self._keys = keys
        self._on_refused = on_refused
        self.socket = context.socket(zmq.ROUTER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Answer all pending requests, without waiting."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # (routing id, empty, version, request id, domain, address, identity, mechanism, key)
            asker, request_id = frames[0], frames[3]
            domain, address, mechanism = frames[4], frames[5], frames[7]
            key = z85.encode(frames[8]).decode() if len(frames) == 9 else ""
            where = address.decode("ascii", "replace")
            principal = self._principal(key) if (domain, mechanism) == (DOMAIN, b"CURVE") else None
            is_crowded = principal is not None and self._is_crowded(principal, where)
            status = (b"200", b"OK")
            if not principal or is_crowded:
                self.refused += 1
                if self._on_refused is not None:
                    self._on_refused(principal or "", where)
                # After status 300 a client retries; after 400 it does not.
                status = (b"300", b"too many") if is_crowded else (b"400", b"this key is not known")
            # libzmq keeps the key with the connection, not the principal, because the key may be
            # revoked later.
            user = key.encode() if status[0] == b"200" else b""
            self.socket.send_multipart([asker, b"", b"1.0", request_id, *status, user, b""])

    def _is_crowded(self, principal: str, address: str) -> bool:
        if self.connections is None or not address:
            return False
        # The count includes this connection.
        if self.connections.count(address) > self._tuning.per_address:
            return True
        most = self.connections.share(self._tuning.per_principal)
        return self.connections.of(principal) >= most

    def _principal(self, key: str) -> str | None:
        self._keys.refresh(time.monotonic())
        return self._keys.principal(key)


def check_library() -> None:
    """Check that libzmq has CURVE and no bug that clients without a key can use.

    Raises:
        ConfigError: it is unsuitable; the message says why.
    """
    if not zmq.has("curve"):
        raise ConfigError("this libzmq was built without CURVE; install pyzmq from a wheel")
    if zmq.zmq_version_info() < LIBZMQ_MIN:
        least = ".".join(map(str, LIBZMQ_MIN))
        raise ConfigError(
            f"libzmq {zmq.zmq_version()} has holes that are open to the network: "
            f"{least} or later is needed; install pyzmq from a wheel"
        )


def secure_server(socket: Socket, keys: KeyRing) -> None:
    """Make a socket, before it is bound, admit only known keys."""
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, keys.own.secret.encode())
    socket.set(zmq.ZAP_DOMAIN, DOMAIN)
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


def secure_client(socket: Socket, public: str, secret: str, server: str) -> None:
    """Make a socket, before it connects, accept only a server with the key *server*."""
    socket.set(zmq.CURVE_PUBLICKEY, public.encode())
    socket.set(zmq.CURVE_SECRETKEY, secret.encode())
    socket.set(zmq.CURVE_SERVERKEY, server.encode())


def user_id(frame: zmq.Frame) -> str:
    """Return the key that a frame's connection has proved; empty if it has proved none."""
    try:
        found = frame.get(USER_ID)
    except zmq.ZMQError:
        return ""
    return found if isinstance(found, str) else ""


def self_test(context: Context, authenticator: Authenticator, keys: KeyRing, bound: str) -> None:
    """Check that *bound* refuses an unknown key, by trying to connect with one.

    Raises:
        ConfigError: the key was admitted, or not refused in time.
    """
    for everywhere, here in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
        bound = bound.replace(everywhere, here)
    stranger = key_files.make_pair("stranger")
    refused, on_refused = authenticator.refused, authenticator._on_refused
    authenticator._on_refused = None  # do not report this failed connection as an event
    socket = context.socket(zmq.DEALER)
    watch: ConnectionWatch | None = None
    try:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPV6, int("[" in bound))
        secure_client(socket, stranger.public, stranger.secret, keys.own.public)
        watch = ConnectionWatch(socket, bound)
        socket.connect(bound)
        until = time.monotonic() + SELF_TEST_S
        problem: str | None = None
        while problem is None and time.monotonic() < until:
            zmq.select([authenticator.socket, watch.socket], [], [], timeout=0.1)
            authenticator.answer()
            problem = watch.problem()
    finally:
        if watch is not None:
            watch.close()
        socket.close(0)
        authenticator._on_refused = on_refused
    if not problem or authenticator.refused == refused:
        raise ConfigError(
            f"an unknown key was {'not refused in time' if problem is None else 'accepted'} "
            f"at {bound}: this node does not start"
        )
    authenticator.refused = refused
