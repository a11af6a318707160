"""Redis Streams with redis-py, and with hand-packed commands, which show the server's limit."""

from __future__ import annotations

import socket
import time
from collections.abc import Generator, Sequence
from typing import Any

from benchmarks.model import batches, random_values
from benchmarks.network.roles import paced
from benchmarks.network.servers import HOST

STREAM = "records"
BATCH = 1000
WINDOW = 2  # batches in flight with hand-packed commands


def produce(port: int, count: int, size: int) -> Generator[None, None, None]:
    """A pipeline of 1,000 XADD."""
    import redis

    groups = batches(random_values(count, size), BATCH)
    db = redis.Redis(host=HOST, port=port)
    _add(db, groups[0], "warm")
    yield
    for group in groups:
        _add(db, group, STREAM)


def _add(db: Any, group: Sequence[bytes], stream: str) -> None:
    pipe = db.pipeline(transaction=False)
    for value in group:
        pipe.xadd(stream, {b"v": value})
    pipe.execute()


def consume(port: int, count: int) -> Generator[None, None, int]:
    """XREAD, up to 1,000 at a time."""
    import redis

    db = redis.Redis(host=HOST, port=port)
    db.ping()
    yield
    seen, total, last = 0, 0, b"0"
    while seen < count:
        found = db.xread({STREAM: last}, count=BATCH, block=1000)
        for _, entries in found or ():
            seen += len(entries)
            total += sum([len(fields[b"v"]) for _, fields in entries])
            last = entries[-1][0]
    return total


def produce_packed(port: int, count: int, size: int) -> Generator[None, None, None]:
    """XADD packed by hiredis, two batches of 1,000 in flight."""
    import hiredis

    groups = batches(random_values(count, size), BATCH)
    line = socket.create_connection((HOST, port))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = hiredis.Reader()
    waiting = 0
    yield
    for group in groups:
        line.sendall(
            b"".join([hiredis.pack_command(("XADD", STREAM, "*", "v", value)) for value in group])
        )
        waiting += len(group)
        while waiting > (WINDOW - 1) * BATCH:
            waiting -= _read(line, reader)
    while waiting:
        waiting -= _read(line, reader)


def _read(line: socket.socket, reader: Any) -> int:
    reader.feed(line.recv(1 << 18))
    seen = 0
    while reader.gets() is not False:
        seen += 1
    return seen


def consume_packed(port: int, count: int) -> Generator[None, None, int]:
    """XREAD of 1,000 at a time, parsed by hiredis, without redis-py's objects."""
    import hiredis

    line = socket.create_connection((HOST, port))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = hiredis.Reader()
    yield
    seen, total, last = 0, 0, b"0"
    while seen < count:
        ask = ("XREAD", "COUNT", str(BATCH), "BLOCK", "1000", "STREAMS", STREAM, last)
        line.sendall(hiredis.pack_command(ask))
        while (answer := reader.gets()) is False:
            reader.feed(line.recv(1 << 18))
        for _, entries in answer or ():
            seen += len(entries)
            total += sum([len(fields[1]) for _, fields in entries])
            last = entries[-1][0]
    return total


def produce_paced(port: int, count: int, pause_s: float) -> Generator[None, None, list[int]]:
    """Send one XADD at a time, each with its send time; return the time of each answer."""
    import redis

    db = redis.Redis(host=HOST, port=port)
    db.xadd("warm", {b"v": b""})
    yield
    return paced(count, pause_s, lambda value: db.xadd(STREAM, {b"v": value}))


def consume_paced(port: int, count: int) -> Generator[None, None, list[int]]:
    """Return the age of each record at its arrival, by a blocking XREAD."""
    import redis

    db = redis.Redis(host=HOST, port=port)
    db.ping()
    yield
    found: list[int] = []
    last = b"0"
    while len(found) < count:
        for _, entries in db.xread({STREAM: last}, count=BATCH, block=1000) or ():
            now = time.monotonic_ns()
            found += [now - int.from_bytes(fields[b"v"][:8], "big") for _, fields in entries]
            last = entries[-1][0]
    return found
