"""The transport over TCP and TLS."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from pymq.core.message import Fetched, Message, Produced
from pymq.errors import ConfigError
from pymq.testing import check_transport
from pymq.transport import wire
from pymq.transport.base import Arrival, Tuning
from pymq.transport.tcp import long_packets
from pymq.transport.tcp.certificates import CERT, KEY, Certificates
from pymq.transport.tcp.stream import PACKET_BYTES_MAX, greeting, head
from pymq.transport.tcp.transport import TcpTransport
from pymq.transport.zeromq.transport import ZmqTransport
from tests.transport.tcp.authority import Authority

WAIT_S = 20.0
LOCAL = "pymq://127.0.0.1:0"
IDENTITY = b"client-x/0123456789abcdef"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while Raw.made:
        Raw.made.pop().close()


@contextmanager
def opened(*transports: TcpTransport) -> Iterator[None]:
    try:
        yield
    finally:
        for each in transports:
            each.close()


def until(
    done: Callable[[], object], *transports: TcpTransport, found: list[Arrival] | None = None
) -> list[Arrival]:
    """Poll all transports until a condition is true; return the messages that the first one has
    received.
    """
    arrivals = [] if found is None else found
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end, [each.problem for each in transports]
        for number, each in enumerate(transports):
            got = each.poll()
            if not number:
                arrivals += got
        wait_readable(transports[0])
    return arrivals


def wait_readable(transport: TcpTransport) -> None:
    select.select([transport.fileno()], [], [], 0.01)


class Raw:
    """A peer that sends any bytes."""

    made: ClassVar[list[socket.socket]] = []  # closed at the end of each test

    def __init__(self, transport: TcpTransport, *data: bytes) -> None:
        host, _, port = transport.endpoint.partition("://")[2].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
        self.made.append(self.socket)
        for each in data:
            self.send(each)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def is_closed(self) -> bool:
        """Whether the transport has closed the connection."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(65536):
                pass
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True


def packet(*items: wire.Item) -> bytes:
    frames = wire.encode(items)
    return head(frames) + b"".join(bytes(frame) for frame in frames)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_contract() -> None:
    check_transport(lambda node: TcpTransport(node, listen=LOCAL))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_contract_with_tls(authority: Authority) -> None:
    folders: dict[str, Path] = {}

    def make(node: str) -> TcpTransport:
        if node not in folders:
            folders[node] = authority.folder(node, is_node=True)
        listen = None if node.startswith("client-") else "tls://127.0.0.1:0"
        return TcpTransport(node, listen=listen, certificates=Certificates(folders[node]))

    check_transport(make)


def test_bytes_that_are_no_packet_end_their_connection_and_harm_no_other() -> None:
    """Invalid bytes of any kind cost the stranger its connection, and affect no other client."""
    me = greeting(IDENTITY)
    good = packet(("", "", wire.Hello()))
    cases = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",  # TLS
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",  # ZMTP
        b"PYMQ\x02\x05abcde",  # a later version
        greeting(b"no identity"),
        me + (PACKET_BYTES_MAX + 1).to_bytes(4, "big") + b"\0",
        me + b"\0\0\0\0\0",
        me + b"\0\0\0\x05\xff",
        me + b"\0\0\0\x0a\x01\xff\xff\xff\xff\0\0\0\0\0",
    ]
    server = TcpTransport("broker-1", listen=LOCAL)
    client = TcpTransport("client-1")
    with opened(server, client):
        client.learn("broker-1", server.endpoint)
        for case in cases:
            stranger = Raw(server, case)
            until(stranger.is_closed, server)
            assert server.problem
        stranger = Raw(server, me + good)
        client.send("broker-1", "client-1", Produced(1))
        client.flush()
        found: list[Arrival] = []
        until(lambda: found, server, client, found=found)
        assert found == [("broker-1", "client-1", Produced(1))]


def test_a_packet_arrives_in_any_pieces() -> None:
    data = Fetched(1, "t", "0", 0, 0, 0, bytes(range(256)) * 2_000)
    whole = greeting(IDENTITY) + packet(("", "x", Produced(1)), ("", "y", data))
    server = TcpTransport("broker-1", listen=LOCAL)
    with opened(server):
        for size in (1, 7, 60_000):
            sender = Raw(server)
            found: list[Arrival] = []
            small = whole if size > 1 else whole[:200]
            for start in range(0, len(small), size):
                sender.send(small[start : start + size])
                if start % 97 == 0:
                    found += server.poll()
            if size > 1:
                until(lambda found=found: len(found) == 2, server, found=found)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                assert [(source, message) for _, source, message in found] == [
                    ("client-x.x", Produced(1)),
                    ("client-x.y", data),
                ]


def test_a_length_alone_takes_little_memory() -> None:
    """A packet that announces 80 MiB allocates 1 MiB at first, and more as its bytes arrive."""
    server = TcpTransport("broker-1", listen=LOCAL, tuning=Tuning(stalled_ms=200))
    with opened(server):
        stranger = Raw(server, greeting(IDENTITY) + (80 << 20).to_bytes(4, "big") + b"\0" * 70_000)
        arriving = server._connections._long._arriving
        until(lambda: arriving, server)
        (found,) = arriving
        assert found.reader.held <= 1 << 20
        stranger.send(bytes(3 << 20))
        until(lambda: found.reader.filled > 3 << 20, server)
        assert found.reader.held <= 8 << 20
        until(stranger.is_closed, server)  # the rest does not arrive
        assert "does not arrive" in server.problem


def test_incomplete_packets_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_packets, "RECEIVING_MAX", 3 << 20)
    server = TcpTransport("broker-1", listen=LOCAL)
    with opened(server):
        begin = (80 << 20).to_bytes(4, "big") + b"\0" * 70_000
        raws = [
            Raw(server, greeting(b"client-%d/0123456789abcdef" % number) + begin)
            for number in range(4)
        ]
        until(lambda: any(map(Raw.is_closed, raws)), server)
        assert sum(map(Raw.is_closed, raws)) == 1


def test_a_connection_without_a_greeting_is_closed() -> None:
    server = TcpTransport("broker-1", listen=LOCAL, tuning=Tuning(handshake_ms=100))
    with opened(server):
        silent, slow = Raw(server), Raw(server, b"PYMQ\x01")
        until(lambda: silent.is_closed() and slow.is_closed(), server)


def test_strangers_do_not_use_up_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    server = TcpTransport("broker-1", listen=LOCAL)
    client = TcpTransport("client-1")
    with opened(server, client):
        assert server._door is not None
        monkeypatch.setattr(server._door.crowd, "_limit", lambda: 0)  # 64 connections stay allowed
        raws = [Raw(server) for _ in range(100)]
        until(lambda: server.turned_away >= 68, server)
        assert raws[0].is_closed()
        client.learn("broker-1", server.endpoint)
        client.send("broker-1", "client-1", Produced(1))
        client.flush()
        until(lambda: client._peers.get("broker-1").greeted_at, server, client)
        found: list[Arrival] = []
        until(lambda: found, server, client, found=found)


def test_a_later_process_of_a_name_takes_the_place_of_the_one_before() -> None:
    server = TcpTransport("broker-1", listen=LOCAL)
    with opened(server):
        first = Raw(server, greeting(b"client-1/" + b"a" * 16) + packet(("", "", Produced(1))))
        found: list[Arrival] = []
        until(lambda: found, server, found=found)
        second = Raw(server, greeting(b"client-1/" + b"b" * 16) + packet(("", "", Produced(2))))
        until(lambda: len(found) == 2, server, found=found)
        assert first.is_closed()
        again = Raw(server, greeting(b"client-1/" + b"a" * 16) + packet(("", "", Produced(3))))
        again.socket.shutdown(socket.SHUT_WR)
        until(again.is_closed, server)
        assert "another process has connected" in server.problem
        assert not second.is_closed()
        assert len(found) == 2


def test_another_node_at_the_endpoint_gets_nothing() -> None:
    """Messages for a broker do not reach another one that listens at its old endpoint."""
    server, client = TcpTransport("broker-2", listen=LOCAL), TcpTransport("client-1")
    with opened(server, client):
        client.learn("broker-1", server.endpoint)
        client.send("broker-1", "client-1", Produced(1))
        client.flush()
        until(lambda: "broker-2 is there" in client.problem, server, client)


def test_a_client_of_the_other_transport_gets_the_reason() -> None:
    zeromq = ZmqTransport("broker-1", listen="tcp://127.0.0.1:0")
    client = TcpTransport("client-1")
    try:
        with opened(client):
            client.learn("broker-1", zeromq.endpoint.replace("tcp://", "pymq://"))
            client.send("broker-1", "client-1", Produced(1))
            client.flush()
            until(lambda: "its URL begins with zmq+tcp://" in client.problem, client)
            client.learn("broker-2", zeromq.endpoint)
            assert "use zmq+tcp://" in client.problem
    finally:
        zeromq.close()


def test_lost_and_restored_connections_are_reported() -> None:
    reported: list[tuple[str, bool]] = []
    server = TcpTransport("broker-1", listen=LOCAL)
    client = TcpTransport("client-1")
    client.on_lost = lambda name, is_lost: reported.append((name, is_lost))
    with opened(client):
        with opened(server):
            client.learn("broker-1", server.endpoint)
            client.send("broker-1", "client-1", Produced(1))
            client.flush()
            until(lambda: reported == [("broker-1", False)], server, client)
        until(lambda: reported == [("broker-1", False), ("broker-1", True)], client)
        again = TcpTransport("broker-1", listen=server.endpoint)
        with opened(again):

            def is_back() -> bool:
                client.send("broker-1", "client-1", Produced(2))
                client.flush()
                return reported[-1] == ("broker-1", False) and len(reported) == 3

            until(is_back, again, client)


@pytest.mark.parametrize("listen", ["pymq://0.0.0.0:0", "pymq://[::]:0"])
def test_the_network_needs_certificates(listen: str) -> None:
    with pytest.raises(ConfigError, match="open to the network"):
        TcpTransport("broker-1", listen=listen)
    TcpTransport("broker-1", listen=listen, insecure=True).close()


@pytest.mark.parametrize(
    "listen", ["tcp://h:1", "pymq://h", "pymq://h:99999", "tls://", "tls://h:1"]
)
def test_a_wrong_endpoint_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError):
        TcpTransport("broker-1", listen=listen)


# --- certificates ---------------------------------------------------------------------------------


def pair(
    authority: Authority, client: str = "alice", node: str = "client-1"
) -> tuple[TcpTransport, TcpTransport, list[tuple[str, str]]]:
    """A broker, a client that knows the broker, and the broker's refusals."""
    refused: list[tuple[str, str]] = []
    server = TcpTransport(
        "broker-1",
        listen="tls://127.0.0.1:0",
        certificates=Certificates(authority.folder("broker-1", is_node=True)),
        on_refused=lambda *found: refused.append(found),
    )
    other = TcpTransport(node, certificates=Certificates(authority.folder(client)))
    other.learn("broker-1", server.endpoint)
    other.send("broker-1", node, Produced(1))
    other.flush()
    return server, other, refused


def test_the_principal_is_that_of_the_certificate(authority: Authority) -> None:
    seen: list[tuple[str, str]] = []

    def gate(principal: str, source: str, message: Message) -> list[Message] | None:
        seen.append((principal, source))
        return None

    server, client, _ = pair(authority)
    server._gate = gate
    with opened(server, client):
        until(lambda: seen, server, client)
    assert seen == [("alice", "client-1")]


def test_a_client_may_not_go_by_the_name_of_a_node(authority: Authority) -> None:
    server, client, refused = pair(authority, "alice", "alice")
    with opened(server, client):
        until(lambda: "alice may not use the name alice" in client.problem, client, server)
        assert refused[0][0] == "alice"


def test_a_broker_may_not_go_by_the_name_of_another(authority: Authority) -> None:
    server = TcpTransport(
        "broker-1",
        listen="tls://127.0.0.1:0",
        certificates=Certificates(authority.folder("broker-1", is_node=True)),
    )
    other = TcpTransport(
        "broker-3", certificates=Certificates(authority.folder("broker-2", is_node=True))
    )
    with opened(server, other):
        other.learn("broker-1", server.endpoint)
        other.send("broker-1", "broker-3", Produced(1))
        other.flush()
        until(lambda: "may not use the name broker-3" in other.problem, other, server)


def test_a_server_has_to_be_the_expected_node(authority: Authority) -> None:
    server, client, _ = pair(authority)
    with opened(server, client):
        client.learn("broker-2", server.endpoint)
        client.send("broker-2", "client-1", Produced(1))
        client.flush()
        until(lambda: "the certificate is that of broker-1" in client.problem, client, server)


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    server, client, refused = pair(ours)
    stranger = TcpTransport("client-2", certificates=Certificates(theirs.folder("alice")))
    with opened(server, client, stranger):
        stranger.learn("broker-1", server.endpoint)
        stranger.send("broker-1", "client-2", Produced(1))
        stranger.flush()
        until(lambda: refused, server, client, stranger)
        until(lambda: "certificate" in stranger.problem, stranger, server)


def test_a_client_without_tls_gets_nowhere(authority: Authority) -> None:
    server, client, _ = pair(authority)
    with opened(server, client):
        plain = Raw(server, greeting(IDENTITY))
        until(plain.is_closed, server)


def test_a_revoked_certificate_ends_its_connections(authority: Authority, tmp_path: Path) -> None:
    server, client, refused = pair(authority)
    found: list[Arrival] = []
    with opened(server, client):
        until(lambda: found, server, client, found=found)
        assert not refused
        authority.revoke(tmp_path / "pki" / "alice", at=tmp_path / "pki" / "broker-1")

        def is_out() -> bool:
            client.send("broker-1", "client-1", Produced(2))
            client.flush()
            return "revoked" in client.problem

        until(is_out, server, client)
        assert refused


def test_files_that_cannot_be_used_are_named(authority: Authority) -> None:
    folder = authority.folder("broker-1", is_node=True)
    with pytest.raises(ConfigError, match=r"missing"):
        Certificates(folder / "none")
    other = authority.folder("broker-2", is_node=True)
    (folder / KEY).write_bytes((other / KEY).read_bytes())
    with pytest.raises(ConfigError, match=rf"{CERT} cannot be used: .*mismatch"):
        Certificates(folder)
    (folder / CERT).write_text("nothing")
    with pytest.raises(ConfigError, match=rf"{CERT} cannot be used"):
        Certificates(folder)


def test_a_certificate_that_others_would_refuse_is_refused_at_the_start(
    authority: Authority,
) -> None:
    for name, is_node, host, why in (
        ("broker-1", False, "127.0.0.1", "pymq:nodes"),
        ("broker-2", True, "127.0.0.1", "one of its own name"),
        ("broker-3", True, "127.0.0.9", "ip address mismatch"),
    ):
        node = "broker-1" if name == "broker-2" else name
        folder = authority.folder(name, is_node=is_node, host=host)
        with pytest.raises(ConfigError, match=f"(?i){why}"):
            TcpTransport(node, listen="tls://127.0.0.1:0", certificates=Certificates(folder))
