"""Packets as bytes of a stream; docs/protocol.md describes the format for other languages.

Each side first sends a greeting::

    b"PYMQ"  version (1 byte)  length of the identity (1 byte)  identity

The identity is ``NODE/`` and 16 hex digits, different for each process of the node. Then packets
follow in both directions, with big-endian numbers::

    length of all that follows (4)  number of payload frames (1)  length of each frame (4)  ...
    header  payload frames

A packet of up to CHUNK_BYTES is cut out of the bytes that arrived together with it. A longer one is
received into a buffer of its own, which grows as its bytes arrive. So a peer that only announces a
large packet makes this node allocate little memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from pymq.errors import InvalidRequest
from pymq.transport.shapes import Buffer
from pymq.transport.wire import FRAME_BYTES_MAX, FRAMES_MAX, HEADER_BYTES_MAX, PACKET_BYTES

MAGIC = b"PYMQ"
VERSION = 1
GREETING_BYTES_MAX = len(MAGIC) + 2 + 255
CHUNK_BYTES = 64 << 10
FIRST_BYTES = 1 << 20  # first size of a long packet's buffer, which doubles as bytes arrive
# A packet is full with PACKET_BYTES of payload, and its last frame may have any size.
PACKET_BYTES_MAX = HEADER_BYTES_MAX + PACKET_BYTES + FRAME_BYTES_MAX + 1 + 4 * FRAMES_MAX
_HEAD = struct.Struct(">IB")
_SIZES = [struct.Struct(f">{number}I") for number in range(FRAMES_MAX + 1)]
ZMTP = b"\xff"  # the first byte of a ZeroMQ peer


class StreamPacket(NamedTuple):
    """A received packet."""

    header: Buffer
    frames: list[memoryview]
    size: int  # bytes of all frames


def greeting(identity: bytes) -> bytes:
    """Return the first bytes of a connection."""
    return MAGIC + bytes((VERSION, len(identity))) + identity


def head(frames: Sequence[Buffer]) -> bytes:
    """Return the bytes before the frames of a packet; the first frame is its header."""
    sizes = [len(frame) for frame in frames]
    count = len(sizes) - 1
    return _HEAD.pack(sum(sizes) + 1 + 4 * count, count) + _SIZES[count].pack(*sizes[1:])


class PacketReader:
    """Cuts the bytes of a connection into its greeting and its packets.

    The owner receives into :meth:`buffer`, reports the count to :meth:`received`, and then takes
    packets with :meth:`next` until there is none.
    """

    __slots__ = ("_at", "_filled", "_large", "_rest", "_wanted")

    def __init__(self) -> None:
        self._rest = b""  # received bytes; the bytes that were not taken begin ...
        self._at = 0  # ... at this position
        self._large: bytearray | None = None  # the buffer of a long packet, ...
        self._filled = 0  # ... its bytes so far ...
        self._wanted = 0  # ... and its length

    @property
    def held(self) -> int:
        """Bytes of memory that an incomplete packet takes."""
        return len(self._large) if self._large is not None else len(self._rest)

    @property
    def is_long(self) -> bool:
        """Whether a part of a long packet has arrived."""
        return self._large is not None

    @property
    def filled(self) -> int:
        """Bytes of a long packet that have arrived."""
        return self._filled if self._large is not None else 0

    def buffer(self, scratch: memoryview) -> memoryview:
        """Return the buffer for the next bytes; all connections of a thread share *scratch*."""
        large = self._large
        return scratch if large is None else memoryview(large)[self._filled :]

    def received(self, count: int, scratch: memoryview) -> None:
        """Note that *count* bytes have been received into :meth:`buffer`."""
        large = self._large
        if large is None:
            new = bytes(scratch[:count])
            self._rest = self._rest[self._at :] + new if self._at < len(self._rest) else new
            self._at = 0
            return
        self._filled += count
        if self._filled == len(large) < self._wanted:
            large.extend(bytes(min(len(large), self._wanted - len(large))))

    def next_greeting(self) -> bytes | None:
        """Return the identity in the greeting; None if it has not arrived completely.

        Raises:
            InvalidRequest: the bytes are not a greeting.
        """
        rest = self._rest
        if rest.startswith(ZMTP):
            raise InvalidRequest("the other side uses ZeroMQ; its URL begins with zmq+tcp://")
        if not rest.startswith(MAGIC[: len(rest)]):
            raise InvalidRequest("the other side does not speak pymq's protocol")
        before = len(MAGIC) + 2
        if len(rest) < before:
            return None
        if rest[len(MAGIC)] != VERSION:
            raise InvalidRequest(
                f"version {rest[len(MAGIC)]} of the stream is not supported; use {VERSION}",
                first=VERSION,
                last=VERSION,
            )
        end = before + rest[before - 1]
        if len(rest) < end:
            return None
        self._at = end
        return rest[before:end]

    def next(self) -> StreamPacket | None:
        """Return the next packet, if it has arrived completely.

        Raises:
            InvalidRequest: a length is out of its range; no later byte can be understood.
        """
        if self._large is not None:
            if self._filled < self._wanted:
                return None
            whole, self._large = memoryview(self._large), None
            return _cut(whole)
        rest, at = self._rest, self._at
        left = len(rest) - at
        if left < _HEAD.size:
            return None
        length, count = _HEAD.unpack_from(rest, at)
        if count > FRAMES_MAX or not 4 * count < length <= PACKET_BYTES_MAX:
            raise InvalidRequest(f"a packet of {length} bytes with {count} payload frames")
        whole_size = length + 4
        if left < whole_size:
            if whole_size > CHUNK_BYTES:
                self._begin(rest, at, whole_size)
            return None
        self._at = at + whole_size
        if 2 * whole_size >= len(rest):
            return _cut(memoryview(rest)[at : self._at])
        # A view would keep all the bytes alive that arrived together with a small packet.
        return _cut(memoryview(rest[at : self._at]))

    def _begin(self, rest: bytes, at: int, size: int) -> None:
        """Receive the next packet, of *size* bytes, into a buffer of its own."""
        count = len(rest) - at
        large = self._large = bytearray(min(size, max(FIRST_BYTES, 2 * count)))
        large[:count] = memoryview(rest)[at:]
        self._filled, self._wanted = count, size
        self._rest, self._at = b"", 0


def _cut(whole: memoryview) -> StreamPacket:
    """Return the parts of a packet."""
    count = whole[4]
    at = _HEAD.size + 4 * count
    sizes = _SIZES[count].unpack_from(whole, _HEAD.size)
    total = sum(sizes)
    start = len(whole) - total
    if start <= at or (sizes and max(sizes) > FRAME_BYTES_MAX):
        raise InvalidRequest(f"frames of {total} bytes in a packet of {len(whole)}")
    header, frames = whole[at:start], []
    for size in sizes:
        frames.append(whole[start : start + size])
        start += size
    return StreamPacket(header, frames, total)
