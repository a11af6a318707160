"""A peer that speaks ZMTP 3.0 without libzmq, to send bytes that libzmq would not send."""

from __future__ import annotations

import socket
import struct

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)


def frame(body: bytes, *, command: bool = False) -> bytes:
    """Return the last frame of a message, or a command."""
    flags = 4 * command
    if len(body) > 255:
        return bytes([flags | 2]) + struct.pack(">Q", len(body)) + body
    return bytes([flags, len(body)]) + body


def shake_hands(peer: socket.socket, endpoint: str, identity: bytes) -> None:
    """Connect to a ROUTER without keys, as a DEALER of that routing id."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    peer.connect((host, int(port)))
    peer.sendall(GREETING)
    _take(peer, len(GREETING))
    ready = b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", identity)
    peer.sendall(frame(ready, command=True))
    _, size = _take(peer, 2)
    assert _take(peer, size).startswith(b"\x05READY")


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value


def _take(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = peer.recv(size - len(found))
        assert part, "the connection has ended"
        found += part
    return found
