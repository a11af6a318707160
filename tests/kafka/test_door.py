"""The door: real sockets, one thread, and what it refuses."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import pymq
from pymq.errors import ConfigError
from pymq.kafka import door
from pymq.kafka.endpoint import KafkaEndpoint

pytest.importorskip("crc32c", reason="crc32c is not installed")
ASK = struct.pack(">ihhih", 11, 18, 0, 7, 1) + b"x"  # ApiVersions, version 0


@pytest.fixture
def mq() -> Iterator[pymq.Client]:
    with pymq.open("memory:") as found:
        yield found


@pytest.fixture
def endpoint(mq: pymq.Client) -> Iterator[KafkaEndpoint]:
    with mq.kafka() as found:
        yield found


def connect(endpoint: KafkaEndpoint) -> socket.socket:
    return socket.create_connection(endpoint.addresses[0], 20)


def answer(client: socket.socket) -> bytes:
    """Return the next frame, without its length."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        part = client.recv(1 << 16)
        assert part, "the connection was closed"
        data += part
    return data[4:]


def test_a_request_in_pieces_is_answered(endpoint: KafkaEndpoint) -> None:
    with connect(endpoint) as client:
        for at in range(len(ASK)):
            client.sendall(ASK[at : at + 1])
        correlation, code, count = struct.unpack_from(">ihi", answer(client))
        assert (correlation, code) == (7, 0)
        assert count > 20


def test_requests_at_once_are_answered_in_order(endpoint: KafkaEndpoint) -> None:
    with connect(endpoint) as client:
        requests = [struct.pack(">ihhih", 11, 18, 0, n, 1) + b"x" for n in range(50)]
        client.sendall(b"".join(requests))
        data = b""
        size = len(requests) * (len(answer_of(endpoint)) + 4)
        while len(data) < size:
            data += client.recv(1 << 16)
        found, position = [], 0
        while position < len(data):
            length, correlation = struct.unpack_from(">ii", data, position)
            found.append(correlation)
            position += 4 + length
        assert found == list(range(50))


def answer_of(endpoint: KafkaEndpoint) -> bytes:
    with connect(endpoint) as client:
        client.sendall(ASK)
        return answer(client)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, bytes(100)])
def test_what_is_no_frame_closes_the_connection(endpoint: KafkaEndpoint, data: bytes) -> None:
    with connect(endpoint) as client:
        client.sendall(data)
        assert client.recv(100) == b""
    assert answer_of(endpoint)


def test_so_many_connections_are_let_in(
    endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "CONNECTIONS_MAX", 2)
    clients = [connect(endpoint) for _ in range(2)]
    for client in clients:
        client.sendall(ASK)
        answer(client)
    with connect(endpoint) as third:
        assert third.recv(100) == b""
    clients[0].close()
    while True:  # The door learns of it in its own time.
        try:
            assert answer_of(endpoint)
            break
        except (AssertionError, ConnectionError):
            continue
    clients[1].close()


def test_closing_ends_connections_and_frees_the_port(mq: pymq.Client) -> None:
    endpoint = mq.kafka()
    port = endpoint.addresses[0][1]
    client = connect(endpoint)
    client.sendall(ASK)
    answer(client)
    endpoint.close()
    endpoint.close()
    assert client.recv(100) == b""
    client.close()
    with mq.kafka(port=port) as again:
        assert again.bootstrap == f"127.0.0.1:{port}"
        assert answer_of(again)


def test_the_queue_closes_its_endpoints() -> None:
    with pymq.open("memory:") as mq:
        client = connect(mq.kafka())
        client.sendall(ASK)
        answer(client)
    assert client.recv(100) == b""
    client.close()


def test_two_endpoints_of_one_queue(mq: pymq.Client) -> None:
    with mq.kafka() as one, mq.kafka() as other:
        assert one.bootstrap != other.bootstrap
        assert answer_of(one) == answer_of(other)


def test_each_broker_has_a_port(tmp_path: Path) -> None:
    with pymq.open(tmp_path, brokers=3) as mq, mq.kafka() as endpoint:
        assert len({port for _, port in endpoint.addresses}) == 3
        assert endpoint.bootstrap.count(",") == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.org", "::"])
def test_only_this_machine_is_let_in(mq: pymq.Client, host: str) -> None:
    with pytest.raises(ConfigError, match="this machine alone"):
        mq.kafka(host=host)
