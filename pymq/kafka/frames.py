"""Frames of Kafka's protocol: a length of four bytes, then a request or an answer.

The door receives each frame into a buffer of its own size, and decoding uses views of that buffer.
Only bytes that arrive together with an earlier frame are copied, once. The reader refuses a length
above the limit.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pymq.core.batch.columns import Buffer
from pymq.core.batch.header import BATCH_BYTES_MAX
from pymq.kafka.wire import codec
from pymq.kafka.wire.schema import MessageSchema, schemas

FRAME_BYTES_MAX = BATCH_BYTES_MAX + (1 << 20)  # the largest batch and the fields around it
SCRATCH_BYTES = 64 << 10

_LENGTH = struct.Struct(">i")
_HEAD = struct.Struct(">hhih")  # key, version, correlation id, length of the client's name
_API_VERSIONS = 18


class BadFrame(ValueError):
    """The bytes are not a request. The bytes after them cannot be decoded, so the connection is
    closed.
    """


class FrameReader:
    """Cuts the bytes of a connection into frames."""

    def __init__(self, most: int = FRAME_BYTES_MAX) -> None:
        self.most = most  # bytes of a frame
        self._scratch = bytearray(SCRATCH_BYTES)
        self._filled = 0  # bytes in the present buffer
        self._large: bytearray | None = None  # the buffer of one frame, once its length is known

    def buffer(self) -> memoryview:
        """Return where the next bytes of the connection belong."""
        return memoryview(self._large or self._scratch)[self._filled :]

    @property
    def size(self) -> int:
        """Bytes of the incomplete frame."""
        return len(self._large or b"")

    def received(self, count: int) -> list[memoryview]:
        """Note that *count* bytes were received into :meth:`buffer`; return the complete frames.

        Raises:
            BadFrame: a length is out of its range.
        """
        self._filled += count
        if self._large is not None:
            if self._filled < len(self._large):
                return []
            whole, self._large, self._filled = self._large, None, 0
            return [memoryview(whole)]
        frames, start, end = list[memoryview](), 0, self._filled
        while end - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._scratch, start)
            if not _HEAD.size <= size <= self.most:
                raise BadFrame(f"a frame of {size} bytes")
            start += _LENGTH.size
            if end - start < size:
                part = self._scratch[start:end]
                self._large, self._filled = bytearray(size), len(part)
                self._large[: len(part)] = part
                return frames
            frames.append(memoryview(bytes(self._scratch[start : start + size])))
            start += size
        self._scratch[: end - start] = self._scratch[start:end]
        self._filled = end - start
        return frames


class RequestHead(NamedTuple):
    """The header of a request."""

    key: int
    version: int
    correlation: int
    client: str
    end: int  # where the header ends and the request begins


def apis() -> dict[int, MessageSchema]:
    """The APIs whose requests can be decoded, by their keys."""
    return {each.key: each for name, each in schemas().items() if name.endswith("Request")}


_APIS = apis()


def read_head(frame: memoryview) -> RequestHead:
    """Read the header of a request.

    Raises:
        BadFrame: there is no header, or the API is unknown.
    """
    try:
        key, version, correlation, size = _HEAD.unpack_from(frame)
        end = _HEAD.size + max(size, 0)
        codec.check_left(max(size, 0), 1, frame, _HEAD.size)
        client = str(frame[_HEAD.size : end], "utf-8")
        api = _APIS.get(key)
        if api is None:
            raise BadFrame(f"there is no API {key}")
        if api.is_flexible(version) and api.versions[0] <= version <= api.versions[1]:
            end = codec.skip_tags(frame, end)
    except BadFrame:
        raise
    except codec.MALFORMED as error:
        raise BadFrame(f"a malformed header: {error}") from None
    return RequestHead(key, version, correlation, client, end)


def read_request(head: RequestHead, frame: memoryview) -> object:
    """Read a request, after its header.

    Raises:
        BadFrame: the version is unknown, or the request is malformed.
    """
    api = _APIS[head.key]
    if not api.versions[0] <= head.version <= api.versions[1]:
        raise BadFrame(f"{api.name} has no version {head.version}")
    try:
        return codec.reader(api.name, head.version)(frame, head.end)[0]
    except codec.MALFORMED as error:
        raise BadFrame(f"a malformed {api.name}: {error}") from None


def write_answer(head: RequestHead, answer: object, version: int | None = None) -> list[Buffer]:
    """Return the frame of an answer, as a list of consecutive parts."""
    version = head.version if version is None else version
    name = _APIS[head.key].name.removesuffix("Request") + "Response"
    parts: list[Buffer] = [_LENGTH.pack(head.correlation)]
    # A client must be able to read the answer to ApiVersions without knowing the versions.
    if head.key != _API_VERSIONS and _APIS[head.key].is_flexible(version):
        parts.append(b"\0")
    codec.writer(name, version)(answer, parts.append)
    return _joined([_LENGTH.pack(sum(map(len, parts))), *parts])


def _joined(parts: list[Buffer]) -> list[Buffer]:
    """Join small neighbours, so that few parts go to the socket."""
    found: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < 1024:
            small.append(part)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(part)
    if small:
        found.append(b"".join(small))
    return found
