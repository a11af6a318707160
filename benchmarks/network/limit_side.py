"""The limit of the machine: only batches, a checksum, a socket and a file.

There is one client at a time of each kind, without failures or access control. The additional time
that pymq needs is the cost of its other functions.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.model import batches, random_values
from benchmarks.network.roles import paced
from benchmarks.network.servers import HOST, free_ports

BATCH = 1000
WINDOW = 5  # batches in flight
PUT, GET, COPY, STOP = b"put", b"get", b"copy", b"stop"


def _socket(kind: str, port: int, *, bind: bool = False) -> Any:
    import zmq

    socket: Any = zmq.Context.instance().socket(getattr(zmq, kind))
    socket.set_hwm(0)
    (socket.bind if bind else socket.connect)(f"tcp://{HOST}:{port}")
    return socket


class Log:
    """Batches in a file, with the position of each in memory."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._ends = [0]

    def append(self, body: memoryview, crc: bytes) -> int:
        """Check and write a batch; return the number of batches."""
        if zlib.crc32(body) != int.from_bytes(crc, "big"):
            raise ValueError("a batch was damaged")
        os.write(self._file, body)
        self._ends.append(self._ends[-1] + len(body))
        return len(self._ends) - 1

    def read(self, first: int) -> bytes | None:
        """Return up to 1 MiB of whole batches from batch *first* on."""
        last = first
        while last + 1 < len(self._ends) and self._ends[last + 1] - self._ends[first] <= 1 << 20:
            last += 1
        if last == first:
            return None
        return os.pread(self._file, self._ends[last] - self._ends[first], self._ends[first])

    def sync(self) -> None:
        """Sync the file."""
        os.fdatasync(self._file)


def broker(
    folder: str, port: int, followers: Sequence[int], *, is_durable: bool
) -> Generator[None, None, None]:
    """Serve puts and gets; with *followers*, answer when one of two followers also has the
    batch.
    """
    import zmq

    server = _socket("ROUTER", port, bind=True)
    copies = [_socket("DEALER", each) for each in followers]
    log = Log(Path(folder), f"log{port}")
    poller = zmq.Poller()
    for each in (server, *copies):
        poller.register(each, zmq.POLLIN)
    waiting: list[tuple[int, Sequence[Any]]] = []  # gets that wait for a batch
    puts: list[tuple[int, Any]] = []  # puts that no follower has confirmed yet
    yield
    while True:
        poller.poll()
        answers: list[Any] = []
        while server.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            frames = server.recv_multipart(copy=False)
            verb = frames[1].bytes
            if verb == STOP:
                return
            if verb == PUT:
                for copy in copies:
                    copy.send_multipart([PUT, frames[2], frames[3]], copy=False)
                number = log.append(frames[3].buffer, frames[2].bytes)
                (puts if copies else answers).append((number, frames[0]))
            else:
                waiting.append((int.from_bytes(frames[2].bytes, "big"), frames[0]))
        if (answers or puts) and is_durable:
            log.sync()
        reached = max((_drain(copy) for copy in copies), default=0)
        while puts and puts[0][0] <= reached:
            answers.append(puts.pop(0))
        for _, who in answers:
            server.send_multipart([who, b"ok"], copy=False)
        still = []
        for first, who in waiting:
            body = log.read(first)
            if body is None:
                still.append((first, who))
            else:
                server.send_multipart([who, body], copy=False)
        waiting = still


_reached: dict[int, int] = {}


def _drain(copy: Any) -> int:
    import zmq

    while copy.getsockopt(zmq.EVENTS) & zmq.POLLIN:
        _reached[id(copy)] = int.from_bytes(copy.recv(), "big")
    return _reached.get(id(copy), 0)


def follower(folder: str, port: int, *, is_durable: bool) -> Generator[None, None, None]:
    """Keep a copy; one sync and one answer cover all batches that arrived together."""
    import zmq

    socket = _socket("ROUTER", port, bind=True)
    log = Log(Path(folder), f"copy{port}")
    yield
    while True:
        socket.poll()
        number, who = 0, None
        while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            frames = socket.recv_multipart(copy=False)
            if frames[1].bytes == STOP:
                return
            number, who = log.append(frames[3].buffer, frames[2].bytes), frames[0]
        if is_durable:
            log.sync()
        socket.send_multipart([who, number.to_bytes(8, "big")], copy=False)


def stop(port: int) -> None:
    """End a broker or follower."""
    _socket("DEALER", port).send(STOP)


def produce(port: int, count: int, size: int) -> Generator[None, None, None]:
    """Send batches of 1,000, five in flight."""
    groups = batches(random_values(count, size), BATCH)
    socket = _socket("DEALER", port)
    yield
    waiting = 0
    for group in groups:
        body = b"".join(group)
        socket.send_multipart([PUT, zlib.crc32(body).to_bytes(4, "big"), body], copy=False)
        waiting += 1
        if waiting >= WINDOW:
            socket.recv()
            waiting -= 1
    for _ in range(waiting):
        socket.recv()


def consume(port: int, count: int, size: int) -> Generator[None, None, int]:
    """Get up to 1 MiB at a time, and cut the bytes into records."""
    socket = _socket("DEALER", port)
    yield
    seen = total = 0
    while seen < count:
        socket.send_multipart([GET, (seen // BATCH).to_bytes(8, "big")])
        body = socket.recv()
        values = [body[at : at + size] for at in range(0, len(body), size)]
        seen += len(values)
        total += len(body)
    return total


def produce_each(port: int, count: int, window: int) -> Generator[None, None, None]:
    """Send a request for each record of 100 B, *window* in flight."""
    values = random_values(count, 100)
    socket = _socket("DEALER", port)
    yield
    for number, value in enumerate(values):
        socket.send_multipart([PUT, zlib.crc32(value).to_bytes(4, "big"), value])
        if number >= window:
            socket.recv()
    for _ in range(min(window, count)):
        socket.recv()


def produce_paced(port: int, count: int, pause_s: float) -> Generator[None, None, list[int]]:
    """Send one record at a time; return the time of each answer."""
    socket = _socket("DEALER", port)
    yield

    def send(value: bytes) -> None:
        socket.send_multipart([PUT, zlib.crc32(value).to_bytes(4, "big"), value])
        socket.recv()

    return paced(count, pause_s, send)


def consume_paced(port: int, count: int) -> Generator[None, None, list[int]]:
    """Return the age of each record at its arrival."""
    socket = _socket("DEALER", port)
    found: list[int] = []
    socket.send_multipart([GET, bytes(8)])  # this get waits at the broker, like each get
    yield
    while len(found) < count:
        body = socket.recv()
        now = time.monotonic_ns()
        found += [now - int.from_bytes(body[at : at + 8], "big") for at in range(0, len(body), 100)]
        socket.send_multipart([GET, len(found).to_bytes(8, "big")])
    return found


def ports(count: int) -> list[int]:
    """Return free ports for brokers and followers."""
    return free_ports(count)
