"""A hostile client with a key, in a separate process so that its work does not delay the others."""

from __future__ import annotations

import sys
import time
from random import Random
from typing import Any

import zmq

from pymq.core import message as msg
from pymq.core.batch.record import EncodedBatch
from pymq.core.types import AckMode
from pymq.transport import wire
from pymq.transport.curve.key_files import Pair
from tests.transport import cbor

SEED = 7


def connect(
    context: zmq.Context[Any], endpoint: str, mallory: Pair, broker: str
) -> zmq.Socket[Any]:
    """Open a connection of mallory that reads only one answer."""
    socket: zmq.Socket[Any] = context.socket(zmq.DEALER)
    socket.set(zmq.ROUTING_ID, b"client-evil/0123456789abcdef")
    socket.set(zmq.CURVE_PUBLICKEY, mallory.public.encode())
    socket.set(zmq.CURVE_SECRETKEY, mallory.secret.encode())
    socket.set(zmq.CURVE_SERVERKEY, broker.encode())
    socket.set(zmq.RCVHWM, 1)
    socket.set(zmq.SNDHWM, 100)
    socket.set(zmq.SNDTIMEO, 2_000)
    socket.connect(endpoint)
    return socket


def packet(rng: Random, number: int) -> list[bytes]:
    """Return a damaged packet, or one that requests much data whose answer is never read."""
    kind = rng.randrange(4)
    if kind == 0:
        return [rng.randbytes(rng.randrange(1, 200))]
    if kind == 1:
        return [cbor.write([1, [rng.randrange(200), "", "", rng.randrange(1 << 40)]])]
    ask = msg.Fetch(number, "big", "0", 0, 1 << 30, rng.choice((0, 60_000)))
    if kind == 2:
        parts = [bytes(part) for part in wire.encode([("", "", ask)])]
        damaged = bytearray(parts[0])
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        return [bytes(damaged), *parts[1:]]
    return [bytes(part) for part in wire.encode([("", "", ask)] * rng.randrange(1, 20))]


def main(endpoint: str, public: str, secret: str, broker: str, count: str) -> None:
    """Send one sound batch, then *count* packets; prints how often the connection was cut."""
    context, cuts = zmq.Context(), 0
    mallory, rng = Pair("mallory", public, secret), Random(SEED)
    socket = connect(context, endpoint, mallory, broker)
    batch = EncodedBatch.encode([b"its own"], timestamp_ms=time.time_ns() // 1_000_000)
    own = msg.Produce(0, "big", "0", AckMode.LEADER, batch)
    socket.send_multipart([bytes(part) for part in wire.encode([("", "", own)])])
    for number in range(int(count)):
        try:
            socket.send_multipart(packet(rng, number))
        except zmq.Again:  # A client that reads nothing for 10 s is disconnected, and reconnects.
            socket.close(0)
            socket = connect(context, endpoint, mallory, broker)
            cuts += 1
    time.sleep(1.0)  # wait until the messages in flight have arrived
    context.destroy(linger=0)
    sys.stdout.write(f"{cuts}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
