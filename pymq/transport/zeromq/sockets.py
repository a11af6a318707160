"""Makes ZeroMQ sockets; each setting replaces a harmful default."""

from __future__ import annotations

import ipaddress
import platform
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pymq.errors import ConfigError, MissingExtra
from pymq.transport.base import Tuning
from pymq.transport.shapes import Buffer
from pymq.transport.wire import FRAME_BYTES_MAX, FRAMES_MAX

try:
    import zmq
except ImportError as error:
    raise MissingExtra.of("ZeroMQ is not installed", "zmq") from error

if TYPE_CHECKING:
    Socket = zmq.Socket[bytes]
    Context = zmq.Context[zmq.Socket[bytes]]
    # a function to call with a socket before it is bound or connected
    Secure = Callable[[Socket], object]

SCHEMES = ("tcp://", "ipc://")
_ENDPOINT = re.compile(r"tcp://[A-Za-z0-9._*%\[\]:-]+:(?:[0-9]{1,5}|\*)|ipc://[^\x00-\x1f']+")
# Frames up to this many bytes are copied by libzmq, because sharing would cost more: to release a
# shared frame, libzmq has to wake a Python thread.
COPY_MAX = 512 << 10
KEPT_BYTES = 4 << 20  # malloc keeps freed blocks up to this size, up to twice this size in total
SOCKETS_MAX = 65_535
# plain integers, because joining two enum flags takes a microsecond
MORE = int(zmq.SNDMORE | zmq.NOBLOCK)
LAST = int(zmq.NOBLOCK)
EVENTS, READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
BIND_S = 2.0  # seconds of retries, because a closed port becomes free only after a moment


def make_context() -> Context:
    """Make a new context, because other code may close the shared context."""
    _keep_memory()
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
    return context


def _keep_memory() -> None:
    """Make malloc keep the freed memory of frames and batches instead of returning it to the
    system.

    If the memory were returned, each new use of it would cost a page fault for each 4 KiB. glibc
    adapts to the largest block that was ever freed: it takes smaller blocks from its heap and keeps
    up to twice as much free memory in the heap. With another malloc, or with options set for
    malloc, this function has no effect.
    """
    bytes(KEPT_BYTES)  # this memory is never touched, so the system does not really allocate it


def make_router(
    context: Context, endpoint: str, tuning: Tuning, secure: Secure | None = None
) -> tuple[Socket, str]:
    """Make a ROUTER and bind it; return it and its endpoint. Port 0 means any free port.

    The function calls *secure* with the socket before binding it.

    Raises:
        ConfigError: the endpoint is invalid or cannot be bound.
    """
    check_endpoint(endpoint)
    socket = context.socket(zmq.ROUTER)
    _set(socket, endpoint, tuning)
    # MANDATORY: a packet that cannot be sent is an error, not a silent loss. HANDOVER: a peer that
    # reconnects replaces its old connection. Because routing ids are partly random, other peers
    # cannot replace the connection.
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
            time.sleep(0.05)  # libzmq does not report when a closed socket has released its port


def make_dealer(
    context: Context,
    endpoint: str,
    identity: bytes,
    tuning: Tuning,
    secure: Secure | None = None,
) -> Socket:
    """Make a DEALER that connects to *endpoint*; calls *secure* with the socket first.

    Raises:
        ConfigError: the endpoint is invalid.
    """
    check_endpoint(endpoint)
    socket = context.socket(zmq.DEALER)
    try:
        _set(socket, endpoint, tuning)
        socket.set(zmq.ROUTING_ID, identity)
        socket.set(zmq.IMMEDIATE, 1)  # accept no packets while not connected
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
    # ZMTP's heartbeats abort the process (decision 77); TCP keepalive replaces them.
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, 1)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, 1)
    socket.set(zmq.TCP_KEEPALIVE_CNT, max(1, tuning.silence_ms // 1_000))
    socket.set(zmq.TCP_MAXRT, tuning.silence_ms)
    socket.set(zmq.HANDSHAKE_IVL, tuning.handshake_ms)
    # Otherwise libzmq reports IPv4 addresses in the form of IPv6.
    socket.set(zmq.IPV6, int("[" in endpoint))


def reachable(endpoint: str) -> str:
    """Return *endpoint* in the form for peers, with this host's name for the wildcard address."""
    for everywhere in ("tcp://0.0.0.0:", "tcp://[::]:"):
        if endpoint.startswith(everywhere):
            return f"tcp://{platform.node()}:{endpoint.removeprefix(everywhere)}"
    return endpoint


def check_endpoint(endpoint: str) -> str:
    """Return *endpoint* if it is valid.

    Raises:
        ConfigError: the endpoint is not valid; the message shows the valid forms.
    """
    if not _ENDPOINT.fullmatch(endpoint):
        raise ConfigError(f"{endpoint!r} is no endpoint; use tcp://HOST:PORT or ipc://PATH")
    return endpoint


def is_local(endpoint: str) -> bool:
    """Whether only this machine can reach *endpoint*."""
    if not endpoint.startswith("tcp://"):
        return True
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def descriptor(socket: Socket) -> int:
    """Return the descriptor of a socket, which is readable from an event to the next use of the
    socket.
    """
    found = socket.get(zmq.FD)
    assert isinstance(found, int)
    return found


def send_frames(socket: Socket, frames: Sequence[Buffer]) -> None:
    """Send the parts of a packet; libzmq can refuse only the first part."""
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        socket.send(frame, LAST if index == last else MORE, copy=len(frame) <= COPY_MAX)


class ReceivedPacket(NamedTuple):
    """A received packet."""

    identity: bytes  # routing id of the connection, from a ROUTER
    header: Buffer
    frames: list[memoryview]  # at most one frame more than allowed
    size: int  # bytes of all frames
    last: zmq.Frame  # the last frame, which identifies the connection of the packet


def receive_packet(socket: Socket, *, from_router: bool) -> ReceivedPacket | None:
    """Receive all parts of the next packet, if there is one."""
    try:
        part = socket.recv(LAST, copy=False)
    except zmq.Again:
        return None
    identity = b""
    if from_router:
        identity = part.bytes
        part = socket.recv(copy=False)
    header = part.buffer
    frames: list[memoryview] = []
    size = 0
    while part.more:
        part = socket.recv(copy=False)
        size += len(part.buffer)
        # Read all parts, because otherwise the next packet would begin with the remaining parts.
        if len(frames) <= FRAMES_MAX:
            frames.append(part.buffer)
    return ReceivedPacket(identity, header, frames, size, part)
