"""A connection of a simulated Kafka client: requests in order, as bytes, and their answers."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from pymq.core.batch.columns import Buffer
from pymq.core.types import NEVER
from pymq.core.values import define
from pymq.kafka.wire import codec
from pymq.kafka.wire.schema import schemas
from pymq.testing.simulation.kafka.streams import StreamEnd, StreamNetwork
from pymq.testing.simulation.world import World

_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">hhih")
_API_VERSIONS = "ApiVersions"
READ_BYTES = 64 << 10  # at a time
PROGRESS_US = 2_000_000  # an answer of which no byte arrives for so long is not arriving

Then = Callable[[Any], None]
Fail = Callable[[str, str], None]


def encode_request(name: str, version: int, correlation: int, client: str, body: object) -> bytes:
    """Return the frame of a request."""
    api = schemas()[f"{name}Request"]
    raw = client.encode()
    parts: list[Buffer] = [_HEAD.pack(api.key, version, correlation, len(raw)), raw]
    if api.is_flexible(version):
        parts.append(b"\0")
    codec.writer(f"{name}Request", version)(body, parts.append)
    data = b"".join(parts)
    return _LENGTH.pack(len(data)) + data


def decode_answer(name: str, version: int, frame: bytes) -> tuple[int, Any]:
    """Return the correlation id of an answer, and its body.

    Raises:
        ValueError, IndexError, struct.error: the frame is no such answer.
    """
    (correlation,) = _LENGTH.unpack_from(frame)
    position = _LENGTH.size
    if name != _API_VERSIONS and schemas()[f"{name}Response"].is_flexible(version):
        position = codec.skip_tags(frame, position)
    body, end = codec.reader(f"{name}Response", version)(frame, position)
    if end != len(frame):
        raise ValueError(f"{len(frame) - end} bytes follow the answer")
    return correlation, body


@define
class WaitingRequest:
    """A request without an answer so far."""

    correlation: int
    name: str
    version: int
    then: Then
    asked: int
    due: int  # when the client gives the connection up


class KafkaWire:
    """A connection to one broker; answers must come in the order of the requests.

    If the connection breaks, each request that waits gets None instead of an answer.

    Args:
        slow: bytes that the client reads at a time, with pauses; 0: all at once.
    """

    def __init__(
        self,
        world: World,
        streams: StreamNetwork,
        owner: str,
        address: str,
        fail: Fail,
        *,
        slow: int = 0,
    ) -> None:
        self._world = world
        self._owner = owner
        self.address = address
        self._fail = fail
        self.slow = slow
        self._waiting: deque[WaitingRequest] = deque()
        self._received = bytearray()
        self._heard_at = 0  # when bytes have arrived last
        self._sending = bytearray()
        self._last = 0
        self._is_reading = False
        self.calm_at = NEVER  # from when on each request must be answered in time
        self.is_over = False
        self._end: StreamEnd = streams.connect(owner, address, self._notified)

    def ask(self, name: str, version: int, body: object, then: Then, wait_us: int) -> None:
        """Send a request, and call *then* with the answer, or with None."""
        if self.is_over:
            self._world.after(0, lambda a, b: then(None))
            return
        self._last += 1
        now = self._world.now
        due = now + wait_us
        self._waiting.append(WaitingRequest(self._last, name, version, then, now, due))
        self._sending += encode_request(name, version, self._last, self._owner, body)
        self._send()
        self._world.at(due, self._look)

    def close(self) -> None:
        """Close the connection."""
        if not self.is_over:
            self.is_over = True
            self._end.close()
            waiting, self._waiting = self._waiting, deque()
            for each in waiting:
                each.then(None)

    def abandon(self) -> None:
        """Forget all requests: the client's process has died."""
        self.is_over = True
        self._waiting.clear()

    # --- bytes ----------------------------------------------------------------------------------

    def _notified(self) -> None:
        if self.is_over:
            return
        self._send()
        if not self._is_reading and not self.is_over:
            self._is_reading = True
            # An application reads a little later than its kernel.
            self._world.after(50_000 if self.slow else 20, self._read)

    def _send(self) -> None:
        try:
            while self._sending:
                count = self._end.write(bytes(self._sending))
                if not count:
                    return
                del self._sending[:count]
        except ConnectionResetError:
            self.close()

    def _read(self, _: object, __: object) -> None:
        self._is_reading = False
        if self.is_over:
            return
        try:
            data = self._end.read(self.slow or READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            self.close()
            return
        if not data:
            self.close()
            return
        self._received += data
        self._heard_at = self._world.now
        self._take()
        if self._end.is_readable:
            self._notified()

    def _take(self) -> None:
        """Handle the answers that are complete."""
        received = self._received
        while len(received) >= _LENGTH.size and not self.is_over:
            (size,) = _LENGTH.unpack_from(received)
            if size < _LENGTH.size or not self._waiting:
                self._fail("answers-in-order", f"{self.address} sends what nobody asked for")
                return
            if len(received) < _LENGTH.size + size:
                return
            frame = bytes(received[_LENGTH.size : _LENGTH.size + size])
            del received[: _LENGTH.size + size]
            self._answered(frame)

    def _answered(self, frame: bytes) -> None:
        asked = self._waiting.popleft()
        (correlation,) = _LENGTH.unpack_from(frame)
        if correlation != asked.correlation:
            what = f"{self.address} answers request {correlation} before {asked.correlation}"
            self._fail("answers-in-order", what)
            return
        try:
            _, body = decode_answer(asked.name, asked.version, frame)
        except codec.MALFORMED as error:
            self._fail("answers-can-be-read", f"{asked.name} version {asked.version}: {error}")
            return
        asked.then(body)

    def _look(self, _: object, __: object) -> None:
        """Give the connection up if its oldest request waits too long."""
        if self.is_over or not self._waiting or self._waiting[0].due > self._world.now:
            return
        if self._heard_at > self._world.now - PROGRESS_US:
            # A large answer arrives, in small pieces.
            self._world.at(self._world.now + PROGRESS_US, self._look)
            return
        first = self._waiting[0]
        if first.asked >= self.calm_at:
            self._fail(
                "answers-come", f"{self.address} does not answer {first.name} of {self._owner}"
            )
        self.close()
