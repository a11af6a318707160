"""A client without pymq: docs/protocol.md, a socket, and a second reader and writer of CBOR.

The test shares no code with the nodes whose messages it decodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

import pymq
from pymq.core.batch.record import EncodedBatch
from tests.transport import cbor

WAIT_S = 20.0
BODY = b"x" * 5_000


class Foreign:
    """One raw connection to a node."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.ROUTING_ID, b"client-foreign/00112233445566ff")
        self.socket.connect(endpoint)
        self.number = 0
        hello = self.exchange([1, "", "", 1, 1, 1 << 20, "foreign"])
        assert hello[0][:3] == [1, "", ""], hello
        assert hello[0][3:5] == [1, 1]

    def exchange(self, row: list[Any], *payload: bytes) -> tuple[list[Any], list[bytes]]:
        """Send a message; returns the first answer and its payload frames."""
        self.socket.send_multipart([cbor.write([1, row]), *payload])
        assert self.socket.poll(int(WAIT_S * 1000)), f"no answer to {row!r:.100}"
        header, *frames = self.socket.recv_multipart()
        rows, end = cbor.read(header)
        assert (end, rows[0]) == (len(header), 1)
        return rows[1], frames

    def ask(self, kind: int, *fields: Any, payload: tuple[bytes, ...] = ()) -> Any:
        """Send a request, and repeat it while its error is retriable."""
        until = time.monotonic() + WAIT_S
        while True:
            self.number += 1
            row, frames = self.exchange([kind, "", "", self.number, *fields], *payload)
            number, to, source, request, *found = row
            assert (to, source, request) == ("", "", self.number)
            # position of the error: last field but one of an Answer or a Fetched, otherwise the
            # last field
            error = found[{75: 1, 15: 6}.get(number, -1)]
            if error is None:
                return found, frames
            assert error[0] in ("NOT_CONTROLLER", "NOT_LEADER", "NO_BROKERS"), error
            assert time.monotonic() < until, error
            time.sleep(0.05)  # the client has to wait, because a retriable error contains no time


@pytest.fixture
def cluster() -> Iterator[str]:
    with (
        pymq.ZkServer().start() as zkserver,
        pymq.Broker("broker-0", zkservers=[zkserver.endpoint]).start(),
    ):
        yield zkserver.endpoint


def test_a_client_from_the_documentation(cluster: str) -> None:
    """The client creates a topic, finds the leader, sends a batch twice, reads it and gets its
    offsets.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        zkserver = Foreign(context, cluster)
        (result, _), _ = zkserver.ask(60, "t", ["0"], 1, 1, {"fsync": "os"}, False)
        assert result == [0, True]
        (result, _), _ = zkserver.ask(70, "t")
        kind, (topic, topic_id, config, partitions, *_) = result  # later versions add fields
        assert (kind, topic, len(topic_id), config["fsync"]) == (1, "t", 32, "os")
        ((name, index, acks, _, leader, endpoint, *_),) = partitions
        assert (name, index, acks, leader) == ("0", 0, 1, "broker-0")

        broker = Foreign(context, endpoint)
        batch = EncodedBatch.encode(
            [b"small", BODY], timestamp_ms=7, producer_id=5, base_sequence=0
        )
        fields = ("t", "0", 1, [bytes(batch.head), len(batch.body)], False)
        (offset, _, is_repeat, _), _ = broker.ask(10, *fields, payload=(bytes(batch.body),))
        assert (offset, is_repeat) == (0, False)
        (offset, _, is_repeat, _), _ = broker.ask(10, *fields, payload=(bytes(batch.body),))
        assert (offset, is_repeat) == (0, True)

        found, frames = broker.ask(14, "t", "0", -2, 1 << 20, 0, None)
        topic, partition, offset, start, high, size, error, *_ = found
        assert (topic, partition, offset, start, high, error) == ("t", "0", 0, 0, 2, None)
        assert [len(frame) for frame in frames] == [size]
        assert frames[0][96:] == bytes(batch.body)
        assert [bytes(value) for value in EncodedBatch.parse(frames[0]).verify().values] == [
            b"small",
            BODY,
        ]
        (offset, _), _ = broker.ask(16, "t", "0", 8)
        assert offset == 2
    finally:
        context.destroy(linger=0)


def test_errors_are_codes(cluster: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        zkserver = Foreign(context, cluster)
        row, _ = zkserver.exchange([67, "", "", 9, "nothing"])
        number, _, _, request, result, (code, text, details) = row
        assert (number, request, result, code, details) == (75, 9, [0, None], "UNKNOWN_TOPIC", {})
        assert "nothing" in text
    finally:
        context.destroy(linger=0)
