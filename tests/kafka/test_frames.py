"""Frames are put together from any pieces; too large and malformed ones are refused."""

from __future__ import annotations

import random
import struct

import pytest

from pymq.kafka.frames import (
    FRAME_BYTES_MAX,
    SCRATCH_BYTES,
    BadFrame,
    FrameReader,
    read_head,
    read_request,
)


def frame(size: int, rng: random.Random) -> bytes:
    return struct.pack(">i", size) + rng.randbytes(size)


def feed(reader: FrameReader, data: bytes, sizes: random.Random) -> list[bytes]:
    """Hand bytes over in pieces, as a socket would."""
    frames, position = list[bytes](), 0
    while position < len(data):
        buffer = reader.buffer()
        count = min(sizes.choice((1, 3, 100, 5_000, 1 << 20)), len(buffer), len(data) - position)
        buffer[:count] = data[position : position + count]
        position += count
        frames += [bytes(found) for found in reader.received(count)]
    return frames


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_cut_from_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    whole = [frame(rng.choice((10, 11, 500, SCRATCH_BYTES, 300_000)), rng) for _ in range(20)]
    assert feed(FrameReader(), b"".join(whole), rng) == [each[4:] for each in whole]


def test_a_large_frame_is_received_into_a_buffer_of_its_size() -> None:
    reader = FrameReader()
    reader.buffer()[:14] = struct.pack(">i", 1_000_000) + bytes(10)
    assert reader.received(14) == []
    assert (reader.size, len(reader.buffer())) == (1_000_000, 1_000_000 - 10)


@pytest.mark.parametrize("size", [-1, 0, 9, FRAME_BYTES_MAX + 1, (1 << 31) - 1])
def test_a_length_out_of_range_allocates_nothing(size: int) -> None:
    reader = FrameReader()
    reader.buffer()[:4] = struct.pack(">i", size)
    with pytest.raises(BadFrame):
        reader.received(4)
    assert reader.size == 0


def head(key: int, version: int, client: bytes | None, rest: bytes = b"") -> memoryview:
    name = struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    return memoryview(struct.pack(">hhi", key, version, 7) + name + rest)


def test_headers_of_both_kinds() -> None:
    plain = read_head(head(12, 3, None))
    assert (plain.key, plain.version, plain.correlation, plain.client) == (12, 3, 7, "")
    flexible = read_head(head(12, 4, b"me", b"\x01\x05\x02ab" + b"request"))
    assert (flexible.client, flexible.end) == ("me", 10 + 2 + 5)


@pytest.mark.parametrize(
    "data",
    [
        head(99, 0, b"x"),  # an unknown API
        head(3, 1, b"x")[:9],
        memoryview(struct.pack(">hhih", 3, 1, 7, 500)),  # a name that is cut short
        head(3, 9, b"x", b"\xff"),  # tags that are cut short
        head(3, 1, b"\xff\xfe"),  # a name that is no text
    ],
)
def test_malformed_headers_are_refused(data: memoryview) -> None:
    with pytest.raises(BadFrame):
        read_head(data)


@pytest.mark.parametrize("data", [head(3, 99, b"x"), head(3, 1, b"x", b"\0\0\0\x09")])
def test_malformed_requests_are_refused(data: memoryview) -> None:
    with pytest.raises(BadFrame):
        read_request(read_head(data), data)
