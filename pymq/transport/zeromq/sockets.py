"""The sockets of ZeroMQ as pymq wants them; each setting is here because its default does harm."""

from __future__ import annotations

import ipaddress
import platform
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pymq.core.values import value
from pymq.errors import ConfigError, MissingExtra
from pymq.transport.shapes import Buffer
from pymq.transport.wire import FRAME_BYTES_MAX

try:
    import zmq
except ImportError as error:
    raise MissingExtra("ZeroMQ is not installed: pip install 'pymq-log[zmq]'") from error

if TYPE_CHECKING:
    Socket = zmq.Socket[bytes]
    Context = zmq.Context[zmq.Socket[bytes]]
    Secure = Callable[[Socket], object]  # is called with a socket before anybody can reach it

SCHEMES = ("tcp://", "ipc://")
_ENDPOINT = re.compile(r"tcp://[A-Za-z0-9._*%\[\]:-]+:(?:[0-9]{1,5}|\*)|ipc://[^\x00-\x1f']+")
# Bytes of a frame up to which libzmq's copy costs less than sharing: for a shared frame another
# thread has to be woken, in Python, to let go of it.
COPY_MAX = 512 << 10
KEPT_BYTES = 4 << 20  # blocks up to this size are kept by malloc, and twice as much of what is free
SOCKETS_MAX = 65_535
MORE = int(zmq.SNDMORE | zmq.NOBLOCK)  # whole numbers: to join two flags takes a microsecond
LAST = int(zmq.NOBLOCK)
EVENTS, READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
BIND_S = 2.0  # a port that was just closed is free again after a moment


@value
class Tuning:
    """How connections are treated; times in milliseconds."""

    silence_ms: int = 3_000  # a machine that confirms nothing for so long cannot be reached
    handshake_ms: int = 3_000  # then whoever connects and says nothing is let go
    reconnect_ms: int = 20  # the first time, then twice as long, up to ...
    reconnect_max_ms: int = 1_000
    packets: int = 64  # that libzmq holds for a peer, each way; more wait with us, by bytes
    linger_ms: int = 500  # that what was flushed has to leave when a transport is closed
    per_address: int = 1_000  # connections that one address may have, where there are keys
    per_principal: int = 500  # and that one principal may have, from anywhere
    waiting_bytes: int = 64 << 20  # that wait for a peer; what is beyond is lost
    stalled_ms: int = 10_000  # a client that takes nothing of what is for it is let go after that
    waiting_ms: int = 1_000  # for how long something waits for a peer that cannot be reached


def make_context() -> Context:
    """A context of one's own: the shared one may be somebody else's to close."""
    _keep_memory()
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
    return context


def _keep_memory() -> None:
    """Have malloc keep what frames and batches take, not give it back when a few were let go of.

    To get it again costs a page fault for each 4 KiB. glibc goes by the largest block that was ever
    freed: smaller ones come out of its heap, of which it keeps twice as much. Who has another
    malloc, or has set its options, is left alone.
    """
    bytes(KEPT_BYTES)  # Nobody touches it, so it takes no memory.


def make_router(
    context: Context, endpoint: str, tuning: Tuning, secure: Secure | None = None
) -> tuple[Socket, str]:
    """A bound ROUTER, and where it is bound: port 0 takes a free one. *secure* it is before.

    Raises:
        ConfigError: nothing can be bound there.
    """
    check_endpoint(endpoint)
    socket = context.socket(zmq.ROUTER)
    _set(socket, endpoint, tuning)
    # What cannot be sent is an error and not silently lost. A peer that has lost its connection and
    # comes back takes the place of what is left of the old one; that nobody else can do so rests on
    # the random part of routing ids.
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.ROUTER_HANDOVER, 1)
    socket.set(zmq.BACKLOG, 1024)
    if secure is not None:
        secure(socket)
    if endpoint.endswith(":0"):
        endpoint = endpoint[:-1] + "*"
    until = time.monotonic() + BIND_S
    while True:
        try:
            socket.bind(endpoint)
            bound = socket.get(zmq.LAST_ENDPOINT)
            assert isinstance(bound, bytes)
            return socket, bound.decode().rstrip("\0")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > until:
                socket.close(0)
                raise ConfigError(f"cannot listen at {endpoint}: {error}") from error
            time.sleep(0.05)  # A socket that was closed just now lets go of its port unannounced.


def make_dealer(
    context: Context,
    endpoint: str,
    identity: bytes,
    tuning: Tuning,
    secure: Secure | None = None,
) -> Socket:
    """A DEALER on its way to *endpoint*. *secure* it is before.

    Raises:
        ConfigError: nobody can be at such an endpoint.
    """
    check_endpoint(endpoint)
    socket = context.socket(zmq.DEALER)
    try:
        _set(socket, endpoint, tuning)
        socket.set(zmq.ROUTING_ID, identity)
        socket.set(zmq.IMMEDIATE, 1)  # so that what is not connected takes nothing
        socket.set(zmq.RECONNECT_IVL, tuning.reconnect_ms)
        socket.set(zmq.RECONNECT_IVL_MAX, tuning.reconnect_max_ms)
        if secure is not None:
            secure(socket)
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConfigError(f"cannot connect to {endpoint}: {error}") from error
    return socket


def _set(socket: Socket, endpoint: str, tuning: Tuning) -> None:
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, tuning.packets)
    socket.set(zmq.RCVHWM, tuning.packets)
    socket.set(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
    # ZMTP's heartbeats abort the process (decision 77); the kernels can do without them.
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, 1)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, 1)
    socket.set(zmq.TCP_KEEPALIVE_CNT, max(1, tuning.silence_ms // 1_000))
    socket.set(zmq.TCP_MAXRT, tuning.silence_ms)
    socket.set(zmq.HANDSHAKE_IVL, tuning.handshake_ms)
    # Else addresses of version 4 look like those of version 6, in endpoints that people read.
    socket.set(zmq.IPV6, int("[" in endpoint))


def reachable(endpoint: str) -> str:
    """Where others reach what is bound at *endpoint*: all interfaces are this host's name."""
    for everywhere in ("tcp://0.0.0.0:", "tcp://[::]:"):
        if endpoint.startswith(everywhere):
            return f"tcp://{platform.node()}:{endpoint.removeprefix(everywhere)}"
    return endpoint


def check_endpoint(endpoint: str) -> str:
    """Return *endpoint* if it is one.

    Raises:
        ConfigError: it is not; the message says what one looks like.
    """
    if not _ENDPOINT.fullmatch(endpoint):
        raise ConfigError(f"{endpoint!r} is no endpoint; tcp://HOST:PORT and ipc://PATH are")
    return endpoint


def is_local(endpoint: str) -> bool:
    """Whether only this machine reaches what is bound at *endpoint*."""
    if not endpoint.startswith("tcp://"):
        return True
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def descriptor(socket: Socket) -> int:
    """What is readable when something has happened at a socket, until it is used next."""
    found = socket.get(zmq.FD)
    assert isinstance(found, int)
    return found


def send_frames(socket: Socket, frames: Sequence[Buffer]) -> None:
    """Send the parts of a packet; the first one may be refused, and those after it are not."""
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        socket.send(frame, LAST if index == last else MORE, copy=len(frame) <= COPY_MAX)
