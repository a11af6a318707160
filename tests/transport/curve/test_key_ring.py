"""Connections with CurveZMQ: identity, admission and revocation."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils import z85

from pymq.core.message import Message, Produced
from pymq.errors import ConfigError
from pymq.testing import check_transport
from pymq.transport import wire
from pymq.transport.base import Arrival, Tuning
from pymq.transport.curve.key_files import Public, make_pair, revoke, write_pair
from pymq.transport.curve.key_ring import KeyRing
from pymq.transport.zeromq import zap
from pymq.transport.zeromq.connection_watch import ConnectionWatch
from pymq.transport.zeromq.connections import address_of
from pymq.transport.zeromq.transport import ZmqTransport
from tests.transport.keys import make_keys

WAIT_S = 20.0


class Seen:
    """A gate that admits every client, and records the admitted and the refused ones."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, Message]] = []
        self.refused: list[tuple[str, str]] = []

    def __call__(self, principal: str, source: str, message: Message) -> None:
        self.messages.append((principal, source, message))

    def refuse(self, principal: str, source: str) -> None:
        self.refused.append((principal, source))


@contextmanager
def server(folder: Path, seen: Seen, **options: Any) -> Iterator[ZmqTransport]:
    keys = KeyRing(folder, "server")
    listen = options.pop("listen", "tcp://127.0.0.1:0")
    transport = ZmqTransport(
        "server", listen=listen, keys=keys, gate=seen, on_refused=seen.refuse, **options
    )
    try:
        yield transport
    finally:
        transport.close()


@contextmanager
def client(
    folder: Path | None, principal: str | None, to: ZmqTransport, node: str = "client-1"
) -> Iterator[ZmqTransport]:
    keys = None if folder is None else KeyRing(folder, principal)
    transport = ZmqTransport(node, keys=keys)
    transport.learn("server", to.endpoint)
    try:
        yield transport
    finally:
        transport.close()


def turn(*transports: ZmqTransport, until: Callable[[], object]) -> list[Arrival]:
    """Run transports until a condition is true; returns the messages that arrived."""
    arrivals: list[Arrival] = []
    deadline = time.monotonic() + WAIT_S
    while not until():
        assert time.monotonic() < deadline, [each.problem for each in transports]
        for transport in transports:
            arrivals += transport.poll()
        zmq.select([each.fileno() for each in transports], [], [], timeout=0.01)
    return arrivals


def say(transport: ZmqTransport, number: int = 1) -> None:
    transport.send("server", transport.node, Produced(number))
    transport.flush()


def until_heard(transport: ZmqTransport, to: ZmqTransport, seen: Seen) -> None:
    """Send a message repeatedly until it arrives."""
    before = len(seen.messages)

    def is_heard() -> bool:
        say(transport)
        return len(seen.messages) > before

    turn(transport, to, until=is_heard)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_contract(tmp_path: Path) -> None:
    """A transport with keys keeps the contract, too."""
    made = 0

    def make(node: str) -> ZmqTransport:
        nonlocal made
        made += 1
        folder = tmp_path / "keys"
        if not (folder / f"{node}.pub").exists():
            make_keys(folder, node)
        for each in rings:
            # The key ring reads new names at once, without the wait of a second.
            each._looked_at = 0.0
        rings.append(KeyRing(folder, node))
        return ZmqTransport(node, listen="tcp://127.0.0.1:0", keys=rings[-1])

    rings: list[KeyRing] = []
    check_transport(make)


def test_the_principal_of_a_message_is_whose_key_the_connection_has(tmp_path: Path) -> None:
    make_keys(tmp_path, "server", "alice")
    seen = Seen()
    with server(tmp_path, seen) as there, client(tmp_path, "alice", there) as alice:
        until_heard(alice, there, seen)
        assert set(seen.messages) == {("alice", "client-1", Produced(1))}
        # The answer comes from the expected node.
        there.send("client-1", "server", Produced(2))
        there.flush()
        arrivals: list[Arrival] = []
        deadline = time.monotonic() + WAIT_S
        while not arrivals and time.monotonic() < deadline:
            arrivals = alice.poll()
            there.poll()
        assert arrivals == [("client-1", "server", Produced(2))]


def test_a_key_that_is_not_known_is_refused_and_let_in_once_it_is(tmp_path: Path) -> None:
    """A principal can be added without a restart of the node or of the refused client."""
    pairs = make_keys(tmp_path / "server", "server")
    make_keys(tmp_path / "client", "alice")
    public = Public("server", pairs["server"].public)
    write_pair(tmp_path / "client", pairs["server"], public)
    seen = Seen()
    with (
        server(tmp_path / "server", seen) as there,
        client(tmp_path / "client", "alice", there) as alice,
    ):
        say(alice)
        turn(alice, there, until=lambda: "does not know our key" in alice.problem)
        assert seen.refused == [("", "127.0.0.1")]
        assert not seen.messages
        (tmp_path / "server" / "alice.pub").write_bytes(
            (tmp_path / "client" / "alice.pub").read_bytes()
        )
        until_heard(alice, there, seen)


def test_a_revoked_key_is_not_heard_any_more_and_is_told_nothing(tmp_path: Path) -> None:
    """A revoked key is refused, also on an open connection: the key of each packet is checked."""
    make_keys(tmp_path, "server", "alice", "bob")
    seen = Seen()
    with (
        server(tmp_path, seen) as there,
        client(tmp_path, "alice", there) as alice,
        client(tmp_path, "bob", there, "client-2") as bob,
    ):
        until_heard(alice, there, seen)
        until_heard(bob, there, seen)
        began = time.monotonic()
        revoke(tmp_path, "alice")
        turn(there, until=lambda: "client-1" not in there._peers.by_name)
        assert time.monotonic() - began < 5
        dropped, heard = there.dropped, len(seen.messages)
        there.send("client-1", "server", Produced(2))  # the client cannot be reached any more
        there.flush()

        def is_dropped() -> bool:
            say(alice)
            return there.dropped > dropped + 3

        arrivals = turn(there, alice, until=is_dropped)
        assert arrivals == []
        assert len(seen.messages) == heard
        assert {principal for principal, _ in seen.refused} == {""}
        until_heard(bob, there, seen)
        # A new connection with the key is refused.
        with client(tmp_path, "bob", there, "client-3") as again:
            until_heard(again, there, seen)


def test_keys_that_are_gone_for_a_moment_do_no_lasting_harm(tmp_path: Path) -> None:
    """A key file that is missing for a moment, as while a folder is copied, does no
    lasting harm.
    """
    make_keys(tmp_path, "server", "alice")
    seen = Seen()
    with server(tmp_path, seen) as there, client(tmp_path, "alice", there) as alice:
        until_heard(alice, there, seen)
        (tmp_path / "alice.pub").rename(tmp_path / "elsewhere")
        turn(there, until=lambda: "client-1" not in there._peers.by_name)
        (tmp_path / "elsewhere").rename(tmp_path / "alice.pub")
        until_heard(alice, there, seen)


def test_a_server_with_another_key_than_expected_is_told_nothing(tmp_path: Path) -> None:
    make_keys(tmp_path / "server", "server", "alice")
    make_keys(tmp_path / "client", "server", "alice")
    seen = Seen()
    with (
        server(tmp_path / "server", seen) as there,
        client(tmp_path / "client", "alice", there) as alice,
    ):
        say(alice)
        turn(alice, there, until=lambda: "has another key" in alice.problem)
        assert not seen.messages


def test_a_server_of_which_no_key_is_known_is_not_connected_to(tmp_path: Path) -> None:
    make_keys(tmp_path / "server", "server")
    make_keys(tmp_path / "client", "alice")
    with (
        server(tmp_path / "server", Seen()) as there,
        client(tmp_path / "client", "alice", there) as alice,
    ):
        say(alice)
        assert alice.problem.endswith(f"has no key for server at {there.endpoint}")


def test_a_client_without_keys_is_not_let_in(tmp_path: Path) -> None:
    make_keys(tmp_path, "server")
    seen = Seen()
    with server(tmp_path, seen) as there, client(None, None, there) as plain:
        say(plain)
        deadline = time.monotonic() + 1.0
        turn(plain, there, until=lambda: time.monotonic() > deadline)
        assert not seen.messages
        assert plain.dropped == 0 or plain.poll() == []


def test_a_server_without_keys_is_told_nothing(tmp_path: Path) -> None:
    make_keys(tmp_path, "server", "alice")
    there = ZmqTransport("server", listen="tcp://127.0.0.1:0")
    try:
        with client(tmp_path, "alice", there) as alice:
            say(alice)
            turn(alice, there, until=lambda: "does not speak CURVE" in alice.problem)
            assert not there._peers.by_route
    finally:
        there.close()


def test_nobody_goes_by_the_name_of_another(tmp_path: Path) -> None:
    """A client cannot use a broker's name, under which it would get the broker's messages."""
    make_keys(tmp_path, "server", "alice", nodes=("broker-0", "zkserver"))
    for node in ("broker-0", "broker-1", "tcp://127.0.0.1:7878", "zkserver", "bob"):
        seen = Seen()
        with server(tmp_path, seen) as there, client(tmp_path, "alice", there, node) as alice:
            say(alice)
            turn(alice, there, until=lambda seen=seen: seen.refused)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            assert seen.refused[0][0] == "alice"
            assert seen.refused[0][1].startswith(f"{node}/")
            assert not seen.messages
    for principal, node in (("broker-0", "broker-0"), ("zkserver", "tcp://127.0.0.1:7878")):
        seen = Seen()
        with server(tmp_path, seen) as there, client(tmp_path, principal, there, node) as good:
            until_heard(good, there, seen)


@pytest.mark.parametrize(
    ("principal", "most"),
    [("alice", wire.CLIENT_HEADER_BYTES_MAX), ("broker-0", wire.HEADER_BYTES_MAX)],
)
def test_a_client_is_given_no_more_room_for_calling_itself_by_its_own_name(
    principal: str, most: int, tmp_path: Path
) -> None:
    """The size of a client's headers is limited under any name: 16 MiB would be 1 GiB in memory."""
    make_keys(tmp_path, "server", "alice", nodes=("broker-0",))
    seen = Seen()
    with (
        server(tmp_path, seen) as there,
        client(tmp_path, principal, there, principal) as made,
    ):
        until_heard(made, there, seen)
        link = made._peers.by_name["server"].link
        assert link is not None
        # the frame is one byte too long
        link.socket.send(b"\x5a" + (most - 4).to_bytes(4, "big") + bytes(most - 4))
        turn(made, there, until=lambda: "header" in there.problem)
        assert f"the most is {most}" in there.problem


def test_nobody_takes_over_the_connection_of_another_principal(tmp_path: Path) -> None:
    make_keys(tmp_path, "server", "alice", "mallory")
    seen = Seen()
    with server(tmp_path, seen) as there, client(tmp_path, "alice", there) as alice:
        until_heard(alice, there, seen)
        with client(tmp_path, "mallory", there) as mallory:
            say(mallory)
            turn(mallory, there, until=lambda: seen.refused)
        assert seen.refused[0][0] == "mallory"
        assert {principal for principal, *_ in seen.messages} == {"alice"}
        until_heard(alice, there, seen)


# --- before anybody is let in -------------------------------------------------------------------


def test_an_address_has_so_many_connections_and_then_waits_for_one_to_end(tmp_path: Path) -> None:
    make_keys(tmp_path, "server", "alice")
    seen = Seen()
    tuning = Tuning(per_address=2)
    with (
        server(tmp_path, seen, tuning=tuning) as there,
        client(tmp_path, "alice", there, "client-2") as second,
    ):
        with client(tmp_path, "alice", there, "client-1") as first:
            until_heard(first, there, seen)
            until_heard(second, there, seen)
            with client(tmp_path, "alice", there, "client-3") as third:
                say(third)
                turn(third, there, until=lambda: seen.refused)
                assert seen.refused[0] == ("alice", "127.0.0.1")
                until_heard(first, there, seen)  # admitted clients stay
        # The first client has left, and the third one with it.
        with client(tmp_path, "alice", there, "client-4") as fourth:
            until_heard(fourth, there, seen)
            until_heard(second, there, seen)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_whose_a_descriptor_is(family: int, tmp_path: Path) -> None:
    with socket.socket(family) as listening:
        listening.bind(("127.0.0.1", 0) if family == socket.AF_INET else str(tmp_path / "socket"))
        listening.listen()
        with socket.socket(family) as made:
            made.connect(listening.getsockname())
            accepted, _ = listening.accept()
            with accepted:
                expected = "127.0.0.1" if family == socket.AF_INET else ""
                assert address_of(accepted.fileno()) == expected
                gone = accepted.fileno()
            assert address_of(gone) == ""


def test_a_node_that_lets_in_anybody_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node refuses to start with each CURVE setup that fails open."""
    make_keys(tmp_path, "server")

    def anybody(self: Any, key: str) -> str:
        return "anybody"

    with monkeypatch.context() as patch:
        patch.setattr(zap.Authenticator, "_principal", anybody)
        with pytest.raises(ConfigError, match="was accepted at tcp://127"):
            ZmqTransport("server", listen="tcp://127.0.0.1:0", keys=KeyRing(tmp_path, "server"))
    with monkeypatch.context() as patch:
        patch.setattr("pymq.transport.zeromq.listener.secure_server", lambda socket, keys: None)
        with pytest.raises(ConfigError, match="this node does not start"):
            ZmqTransport("server", listen="tcp://127.0.0.1:0", keys=KeyRing(tmp_path, "server"))


@pytest.mark.parametrize(
    ("domain", "mechanism", "whose", "status"),
    [
        (zap.DOMAIN, b"CURVE", "alice", b"200"),
        (b"another", b"CURVE", "alice", b"400"),
        (b"", b"CURVE", "alice", b"400"),
        (zap.DOMAIN, b"PLAIN", "alice", b"400"),
        (zap.DOMAIN, b"NULL", None, b"400"),
        (zap.DOMAIN, b"CURVE", "nobody", b"400"),
    ],
)
def test_only_keys_for_our_own_sockets_are_let_in(
    domain: bytes, mechanism: bytes, whose: str | None, status: bytes, tmp_path: Path
) -> None:
    """The ZAP handler admits keys only for the node's own sockets, although it gets all requests of
    the process.
    """
    keys = {**make_keys(tmp_path, "alice"), "nobody": make_pair("nobody")}
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        doorman = zap.Authenticator(context, KeyRing(tmp_path), None, Tuning())
        asker = context.socket(zmq.REQ)
        asker.connect("inproc://zeromq.zap.01")
        shown = [] if whose is None else [z85.decode(keys[whose].public)]
        asker.send_multipart([b"1.0", b"7", domain, b"127.0.0.1", b"", mechanism, *shown])
        assert doorman.socket.poll(round(WAIT_S * 1000))
        doorman.answer()
        version, number, found, _, user, _ = asker.recv_multipart()
        assert (version, number, found) == (b"1.0", b"7", status)
        assert user == (keys["alice"].public.encode() if status == b"200" else b"")
    finally:
        context.destroy(linger=0)


def test_without_a_handler_nobody_is_let_in(tmp_path: Path) -> None:
    """Without an authentication handler, libzmq admits every client with any key."""
    alice = make_keys(tmp_path, "alice")["alice"]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        zap.secure_server(router, KeyRing(tmp_path))
        router.bind("tcp://127.0.0.1:*")
        endpoint = router.get(zmq.LAST_ENDPOINT).decode().rstrip("\0")  # type: ignore[union-attr] # it is bytes
        zap.secure_client(dealer, alice.public, alice.secret, alice.public)
        watch = ConnectionWatch(dealer, endpoint)
        dealer.connect(endpoint)
        until = time.monotonic() + WAIT_S
        while (problem := watch.problem()) is None:
            assert time.monotonic() < until
            watch.socket.poll(100)
        assert problem  # the self-test reports the problem instead of a connection
        watch.close()
    finally:
        context.destroy(linger=0)


def test_an_old_libzmq_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path, "server")
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 3, 4))
    with pytest.raises(ConfigError, match=r"4\.3\.5 or later is needed"):
        ZmqTransport("server", listen="tcp://127.0.0.1:0", keys=KeyRing(tmp_path, "server"))


def test_the_network_is_not_listened_to_without_keys_unawares(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="open to the network, and there are no keys"):
        ZmqTransport("server", listen="tcp://0.0.0.0:0")
    ZmqTransport("server", listen="tcp://0.0.0.0:0", insecure=True).close()
    make_keys(tmp_path, "server")
    keys = KeyRing(tmp_path, "server")
    ZmqTransport("server", listen="tcp://0.0.0.0:0", keys=keys).close()


def test_a_node_whose_key_nobody_would_expect_does_not_start(tmp_path: Path) -> None:
    make_keys(tmp_path, "server", "other")
    keys = KeyRing(tmp_path, "other")
    with pytest.raises(ConfigError, match="expected to have the key of server"):
        ZmqTransport("server", listen="tcp://127.0.0.1:0", keys=keys)
    with pytest.raises(ConfigError, match="a key that is missing"):
        ZmqTransport("third", listen="tcp://127.0.0.1:0", keys=keys)


# --- whose key is ours --------------------------------------------------------------------------


def test_the_own_key_is_found(tmp_path: Path) -> None:
    make_keys(tmp_path, "alice")
    assert KeyRing(tmp_path).own.name == "alice"
    make_keys(tmp_path, "bob")
    with pytest.raises(ConfigError, match="there are those of alice, bob"):
        KeyRing(tmp_path)
    assert KeyRing(tmp_path, "bob").own.name == "bob"
    assert KeyRing(tmp_path, default="alice").own.name == "alice"
    pair = make_pair("zk-1")
    write_pair(tmp_path, pair, Public("zk-1", pair.public, True, ("tcp://10.0.0.1:7878",)))
    assert KeyRing(tmp_path, endpoint="tcp://10.0.0.1:7878", default="bob").own.name == "zk-1"
    with pytest.raises(ConfigError, match="cannot be read"):
        KeyRing(tmp_path, "carol")
    with pytest.raises(ConfigError, match="no keys can be read"):
        KeyRing(tmp_path / "nowhere")


def test_where_a_zkserver_is_says_whose_key_it_has(tmp_path: Path) -> None:
    make_keys(tmp_path, nodes=("zkserver",))
    pair = make_pair("zk-1")
    where = "tcp://10.0.0.1:7878"
    write_pair(tmp_path, pair, Public("zk-1", pair.public, True, (where,)))
    keys = KeyRing(tmp_path, "zk-1")
    assert [getattr(keys.at(node, node), "name", None) for node in (where, "tcp://h:1", "x")] == [
        "zk-1",
        "zkserver",
        None,
    ]
    assert keys.may_be("zk-1", where)
    assert not keys.may_be("zkserver", where)


def test_a_file_that_is_damaged_later_changes_nothing(tmp_path: Path) -> None:
    pairs = make_keys(tmp_path, "alice", "bob")
    keys = KeyRing(tmp_path, "alice")
    (tmp_path / "bob.pub").write_text("public = 'short'\n")
    keys.refresh(time.monotonic() + 10)
    assert keys.principal(pairs["bob"].public) == "bob"
    with pytest.raises(ConfigError, match="40 characters"):
        KeyRing(tmp_path, "alice")
    (tmp_path / "bob.pub").write_text(f"public = '{pairs['alice'].public}'\n")
    with pytest.raises(ConfigError, match="have the same key"):
        KeyRing(tmp_path, "alice")


def test_keys_that_could_not_be_read_once_are_read_again(tmp_path: Path) -> None:
    """A revocation counts as soon as it can be read, after a half-written file or without a free
    descriptor.

    The folder's times may be unchanged once the file is complete.
    """
    pairs = make_keys(tmp_path, "alice", "bob")
    keys = KeyRing(tmp_path, "alice")
    whole = f"public = ['{pairs['bob'].public}']\n"
    revoked = tmp_path / "bob.revoked"
    revoked.write_text("?" * len(whole))
    times = revoked.stat().st_atime_ns, revoked.stat().st_mtime_ns
    now = time.monotonic()
    keys.refresh(now + 10)
    assert keys.principal(pairs["bob"].public) == "bob"
    revoked.write_text(whole)
    os.utime(revoked, ns=times)
    keys.refresh(now + 20)
    assert keys.principal(pairs["bob"].public) is None


@pytest.mark.parametrize("nonsense", ["\0", "a = " + "[" * 20_000, "a = 1\na = 1\n"])
def test_nothing_that_a_key_file_holds_ends_a_node(tmp_path: Path, nonsense: str) -> None:
    pairs = make_keys(tmp_path, "alice", "bob")
    keys = KeyRing(tmp_path, "alice")
    for name in ("bob.pub", "carol.pub", "bob.revoked"):
        (tmp_path / name).write_text(nonsense)
    keys.refresh(time.monotonic() + 10)
    assert keys.principal(pairs["bob"].public) == "bob"
    with pytest.raises(ConfigError, match="is no key file"):
        KeyRing(tmp_path, "alice")


def test_half_of_another_pair_is_no_pair(tmp_path: Path) -> None:
    """A key file of another pair is refused: a node with it could not talk to any other."""
    make_keys(tmp_path, "alice")
    path = tmp_path / "alice.secret"
    other = make_pair("alice")
    lines = path.read_text().replace(KeyRing(tmp_path).own.public, other.public)
    path.write_text(lines)
    with pytest.raises(ConfigError, match="does not belong to the secret one"):
        KeyRing(tmp_path)


@pytest.mark.parametrize("ending", ["", "\x00", "= ="])
def test_a_secret_that_is_damaged_is_not_shown(tmp_path: Path, ending: str) -> None:
    secret = make_keys(tmp_path, "alice")["alice"].secret
    path = tmp_path / "alice.secret"
    path.write_text(f"secret = '{secret}{ending}\n")
    with pytest.raises(ConfigError, match=r"is no key file$") as found:
        KeyRing(tmp_path)
    assert secret not in repr(found.value) + str(found.value.__cause__)
    assert found.value.__suppress_context__  # hides the parser's error, which quotes the line


def test_what_is_wrong_with_keys_is_complained_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_keys(tmp_path, "alice", "bob")
    keys = KeyRing(tmp_path, "alice")
    (tmp_path / "bob.pub").write_text("public = 'short'\n")
    now = time.monotonic()
    for seconds in (10, 20, 30):
        keys.refresh(now + seconds)
    assert len(caplog.records) == 1


# --- messages of strangers and other clients -------------------------------------------------


def test_who_connects_and_says_nothing_is_let_go(tmp_path: Path) -> None:
    """Silent connections are closed, since each of them occupies a descriptor."""
    import socket

    make_keys(tmp_path, "server", "alice")
    seen = Seen()

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with server(tmp_path, seen, tuning=Tuning(handshake_ms=500)) as there:
        host, _, port = there.endpoint.removeprefix("tcp://").rpartition(":")
        before = open_files()
        silent = [socket.create_connection((host, int(port))) for _ in range(200)]
        try:
            # both ends of the connections are in this process
            turn(there, until=lambda: open_files() >= before + 390)
            with client(tmp_path, "alice", there) as alice:
                # The silent connections do not delay other clients.
                until_heard(alice, there, seen)
                turn(there, until=lambda: open_files() < before + 220)
        finally:
            for each in silent:
                each.close()


def test_a_stranger_cannot_send_parts_without_end(tmp_path: Path) -> None:
    """Only a client with a proved key may send many parts, since libzmq limits the size of a frame
    but not the number.
    """
    make_keys(tmp_path, "server")
    seen = Seen()
    with server(tmp_path, seen) as there, client(None, None, there) as plain:
        say(plain)
        link = plain._peers.by_name["server"].link
        assert link is not None
        deadline = time.monotonic() + 1.0
        sent = 0
        while time.monotonic() < deadline:
            there.poll()
            try:
                link.socket.send(bytes(1 << 20), zmq.SNDMORE | zmq.NOBLOCK)
                sent += 1
            except zmq.Again:
                pass
        assert sent == 0  # the client is not connected, so its socket takes no messages
        assert there.poll() == []
