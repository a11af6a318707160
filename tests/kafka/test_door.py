"""The door, which owns the sockets of Kafka's clients: its one thread, and the data that it
refuses.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import pymq
from pymq.core.batch.columns import Buffer
from pymq.errors import ConfigError
from pymq.kafka import door
from pymq.kafka.connection import REQUESTS_MAX
from pymq.kafka.endpoint import KafkaEndpoint
from pymq.kafka.frames import SCRATCH_BYTES
from pymq.kafka.wire import codec
from pymq.kafka.wire import messages as m
from pymq.kafka.wire.schema import schemas

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


def exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        assert part, "the connection was closed"
        data += part
    return data


def answer(client: socket.socket) -> bytes:
    """Return the next frame, without its length."""
    return exactly(client, struct.unpack(">i", exactly(client, 4))[0])


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
        found = [struct.unpack_from(">i", answer(client))[0] for _ in requests]
        assert found == list(range(50))


def answer_of(endpoint: KafkaEndpoint) -> bytes:
    with connect(endpoint) as client:
        client.sendall(ASK)
        return answer(client)


def request(name: str, version: int, message: object) -> bytes:
    schema = schemas()[f"{name}Request"]
    parts: list[Buffer] = [struct.pack(">hhih", schema.key, version, 7, 1) + b"x"]
    codec.writer(schema.name, version)(message, parts.append)
    data = b"".join(parts)
    return struct.pack(">i", len(data)) + data


def test_a_client_is_not_read_while_many_of_its_requests_wait(
    mq: pymq.Client, endpoint: KafkaEndpoint
) -> None:
    """Further requests of the client stay in the sockets."""
    mq.create_topic("t")
    protocols = [m.JoinGroupRequestJoinGroupRequestProtocol("range", b"")]
    join = m.JoinGroupRequest("g", 60_000, 60_000, "", None, "consumer", protocols)
    with connect(endpoint) as first, connect(endpoint) as second:
        first.sendall(request("FindCoordinator", 0, m.FindCoordinatorRequest("g")))
        answer(first)
        first.sendall(request("JoinGroup", 0, join))
        answer(first)  # the member does not join again, so all later members wait for it
        second.setblocking(False)
        data, sent = request("JoinGroup", 0, join) * 20_000, 0
        with suppress(BlockingIOError):
            while sent < len(data):
                sent += second.send(data[sent : sent + (1 << 16)])
        second.settimeout(20)
        (gate,) = endpoint._gates
        assert answer_of(endpoint)  # the door has checked all sockets since then
        waiting = max(len(each.slots) for each in gate.connections.values())
        assert (
            REQUESTS_MAX
            <= waiting
            <= REQUESTS_MAX + SCRATCH_BYTES // len(request("JoinGroup", 0, join))
        )


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
    while True:  # The door notices the end only later.
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
