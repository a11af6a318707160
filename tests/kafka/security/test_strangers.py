"""Clients that prove nothing: they are refused, and keep nobody out."""

from __future__ import annotations

import random
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from pymq.core.batch.columns import Buffer
from pymq.kafka import door
from pymq.kafka.codes import Code
from pymq.kafka.connection import UNKNOWN_OUT_BYTES_MAX, KafkaConnection
from pymq.kafka.endpoint import make_gate
from pymq.kafka.security.caller import KafkaCaller
from pymq.kafka.security.sasl import Sasl
from pymq.kafka.security.users import UsersFile, new_user, write_users
from pymq.kafka.wire import codec
from pymq.kafka.wire import messages as m
from pymq.runtime.loop import Loop
from tests.kafka.security.test_clients import Secured
from tests.transport.tcp.authority import Authority

API_VERSIONS, METADATA, HANDSHAKE, AUTHENTICATE = 18, 3, 17, 36


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    root: Path = tmp_path_factory.mktemp("secured")
    write_users(root / "users.toml", {"alice": new_user("wonder")})
    folder = Authority(root / "other").folder("kafka.example")
    with ExitStack() as stack:
        found = Secured(stack, root, kafka_tls_dir=folder, kafka_users=root / "users.toml")
        found.ca = folder / "ca.pem"
        yield found


def plain(secured: Secured) -> socket.socket:
    host, _, port = secured.broker.kafka.rpartition(":")
    return socket.create_connection((host, int(port)), 20)


def encrypted(secured: Secured) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=secured.ca)
    return context.wrap_socket(plain(secured), server_hostname="127.0.0.1")


def request(key: int, version: int, body: bytes, *, is_flexible: bool = False) -> bytes:
    head = struct.pack(">hhih", key, version, 7, 1) + b"x" + b"\0" * is_flexible
    return struct.pack(">i", len(head) + len(body)) + head + body


def written(name: str, version: int, message: object) -> bytes:
    parts: list[Buffer] = []
    codec.writer(name, version)(message, parts.append)
    return b"".join(parts)


def answer(client: socket.socket) -> bytes:
    """Return the next answer after its header, or nothing if the connection was closed."""
    data = b""
    size = 4
    while len(data) < size:
        part = client.recv(size - len(data))
        if not part:
            return b""
        data += part
        if len(data) == 4:
            size = 4 + struct.unpack(">i", data)[0]
    return data[8:]


def is_closed(client: socket.socket) -> bool:
    with suppress(ConnectionError, ssl.SSLError):
        return client.recv(1) == b""
    return True


def handshake(client: socket.socket, mechanism: str) -> m.SaslHandshakeResponse:
    body = written("SaslHandshakeRequest", 1, m.SaslHandshakeRequest(mechanism))
    client.sendall(request(HANDSHAKE, 1, body))
    found = codec.reader("SaslHandshakeResponse", 1)(answer(client), 0)[0]
    assert isinstance(found, m.SaslHandshakeResponse)
    return found


def authenticate(client: socket.socket, token: bytes) -> m.SaslAuthenticateResponse:
    body = written("SaslAuthenticateRequest", 1, m.SaslAuthenticateRequest(token))
    client.sendall(request(AUTHENTICATE, 1, body))
    found = codec.reader("SaslAuthenticateResponse", 1)(answer(client), 0)[0]
    assert isinstance(found, m.SaslAuthenticateResponse)
    return found


def check_service(secured: Secured) -> None:
    """Check that a client with a password is served."""
    with encrypted(secured) as client:
        assert handshake(client, "PLAIN").error_code == 0
        assert authenticate(client, b"\0alice\0wonder").error_code == 0
        client.sendall(request(METADATA, 1, struct.pack(">i", -1)))
        assert answer(client)


def test_only_these_requests_come_before_authentication(secured: Secured) -> None:
    with encrypted(secured) as client:
        client.sendall(request(API_VERSIONS, 0, b""))
        assert answer(client)
        client.sendall(request(METADATA, 1, struct.pack(">i", -1)))
        assert is_closed(client)
    check_service(secured)


def test_a_large_frame_before_authentication_is_refused(secured: Secured) -> None:
    with encrypted(secured) as client:
        client.sendall(struct.pack(">i", door.UNKNOWN_BYTES_MAX + 1))
        assert is_closed(client)
    with encrypted(secured) as client:
        assert handshake(client, "PLAIN").error_code == 0
        assert authenticate(client, b"\0alice\0wonder").error_code == 0
        client.sendall(request(METADATA, 1, struct.pack(">i", 9_000) + b"\0\7x.x.x.x" * 9_000))
        assert len(answer(client)) > 9_000


def test_plain_bytes_at_the_tls_port(secured: Secured) -> None:
    with plain(secured) as client:
        client.sendall(request(API_VERSIONS, 0, b""))
        client.settimeout(20)
        with suppress(ConnectionError):
            while client.recv(100):  # an alert of TLS may come first
                pass
    check_service(secured)


def test_states_and_mechanisms(secured: Secured) -> None:
    with encrypted(secured) as client:
        assert authenticate(client, b"x").error_code == Code.ILLEGAL_SASL_STATE
        assert is_closed(client)
    with encrypted(secured) as client:
        found = handshake(client, "GSSAPI")
        assert found.error_code == Code.UNSUPPORTED_SASL_MECHANISM
        assert found.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert handshake(client, "PLAIN").error_code == 0
        assert authenticate(client, b"\0alice\0wonder").error_code == 0
        assert handshake(client, "PLAIN").error_code == Code.ILLEGAL_SASL_STATE
    with encrypted(secured) as client:
        client.sendall(request(HANDSHAKE, 0, b"\0\5PLAIN"))
        assert answer(client)[:2] == struct.pack(">h", Code.UNSUPPORTED_VERSION)
        assert is_closed(client)


@pytest.mark.parametrize(
    "token",
    [b"", b"\0alice", b"\0alice\0wrong", b"bob\0alice\0wonder", b"\xff", b"\0\0", bytes(60_000)],
)
def test_a_wrong_token_ends_the_connection(secured: Secured, token: bytes) -> None:
    with encrypted(secured) as client:
        assert handshake(client, "PLAIN").error_code == 0
        found = authenticate(client, token)
        assert found.error_code == Code.SASL_AUTHENTICATION_FAILED
        assert is_closed(client)


def test_connections_that_prove_nothing_make_room(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "UNKNOWN_MAX", 5)
    with ExitStack() as stack:
        silent = [stack.enter_context(plain(secured)) for _ in range(5)]
        check_service(secured)
        assert is_closed(silent[0])
    assert secured.broker.metrics().value("pymq_kafka_connections_timed_out_total") >= 1


def test_random_bytes_do_no_harm(secured: Secured) -> None:
    rng = random.Random(1)
    for number in range(60):
        make = plain if number % 2 else encrypted
        with make(secured) as client, suppress(OSError):
            client.sendall(rng.randbytes(rng.choice((1, 10, 300, 3_000))))
    check_service(secured)


def test_there_is_little_time_to_prove_something(tmp_path: Path) -> None:
    write_users(tmp_path / "users.toml", {"alice": new_user("wonder")})
    sasl = Sasl(UsersFile(tmp_path / "users.toml", b"secret"))
    options: dict[str, Any] = {"partitions": 1, "auto_create": True, "records_max": 100}
    gate = make_gate("broker-0", ["zkserver"], {}, sasl=sasl, **options)
    now = [1_000.0]
    loop = Loop(lambda: int(now[0] * 1_000), lambda *_: None, lambda *_: None)
    loop.add("kafka", gate)
    with socket.create_server(("127.0.0.1", 0)) as server:
        opened = door.KafkaDoor(
            [door.KafkaListener("kafka", gate, server)], lambda: None, clock=lambda: now[0]
        )
        with socket.create_connection(server.getsockname()[:2], 20) as client:
            while not opened.has_input:
                opened.collect(20)
            opened.hand_over(loop)
            for second in (0, 10, 20, 29):
                now[0] = 1_000.0 + second
                opened.flush()
                assert len(opened) == 1
            for second in (40, 65):
                now[0] = 1_000.0 + second
                opened.flush()
            assert (len(opened), opened.timed_out) == (0, 1)
            assert is_closed(client)
        opened.shut()


def test_handshakes_are_limited_and_clients_still_come(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "HANDSHAKES_MAX", 3)
    for _ in range(8):
        check_service(secured)


def test_a_stranger_that_reads_no_answers_is_soon_not_read() -> None:
    connection = KafkaConnection(1, caller=KafkaCaller(must_prove=True))
    connection.queued_bytes = UNKNOWN_OUT_BYTES_MAX
    before, connection.caller.principal = connection.is_full, "alice"
    assert (before, connection.is_full) == (True, False)
