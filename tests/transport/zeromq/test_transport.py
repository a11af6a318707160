"""Nodes over ZeroMQ: the contract, and failures that only sockets can have."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from pymq.core.message import Fetched, Message, Produced
from pymq.errors import AuthorizationFailed, ConfigError
from pymq.testing import check_transport
from pymq.transport import packets, peers, wire
from pymq.transport.base import Arrival, Tuning
from pymq.transport.zeromq import peers as zmq_peers
from pymq.transport.zeromq.transport import ZmqTransport
from tests.simulator.namespaces import HOST, Namespaces
from tests.transport import cbor

WAIT_S = 20.0
HEARTBEAT_S = 2.5  # longer than two intervals of ZMTP's former heartbeats


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_the_contract(scheme: str, tmp_path: Path) -> None:
    made = 0

    def make(node: str) -> ZmqTransport:
        nonlocal made
        made += 1
        where = "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://@pymq-{tmp_path.name}-{made}"
        return ZmqTransport(node, listen=where)

    check_transport(make)


def test_a_connection_that_is_lost_is_told_at_once_and_when_it_is_back() -> None:
    """The kernel reports a lost connection at once, without a missed heartbeat, and also its
    return.
    """
    told: list[tuple[str, bool]] = []
    client = ZmqTransport("client-1")
    client.on_lost = lambda node, is_lost: told.append((node, is_lost))

    def until(expected: list[tuple[str, bool]], *transports: ZmqTransport) -> None:
        deadline = time.monotonic() + WAIT_S
        while told != expected:
            assert time.monotonic() < deadline, told
            for transport in (client, *transports):
                transport.poll()
            zmq.select([each.fileno() for each in (client, *transports)], [], [], timeout=0.05)

    try:
        with server() as first:
            endpoint = first.endpoint
            client.learn("server", endpoint)
            client.send("server", "client-1", Produced(1))
            client.flush()
            until([("server", False)], first)
        until([("server", False), ("server", True)])
        second = ZmqTransport("server", listen=endpoint)
        try:
            until([("server", False), ("server", True), ("server", False)], second)
        finally:
            second.close()
    finally:
        client.close()


@pytest.mark.skipif(Namespaces.why_not() is not None, reason=str(Namespaces.why_not()))
def test_a_machine_that_cannot_be_reached_is_told_of() -> None:
    """TCP's keepalive probes detect an unreachable machine, even without a message in flight."""
    told: list[bool] = []
    client = ZmqTransport("client-1")
    client.on_lost = lambda _, is_lost: told.append(is_lost)

    def until(expected: list[bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while told != expected:
            assert time.monotonic() < deadline, told
            client.poll()
            zmq.select([client.fileno()], [], [], timeout=0.05)

    with Namespaces() as wires:
        where = f"tcp://{wires.add('far')}:0"
        command = [sys.executable, "-m", "tests.transport.stalled", where]
        child = subprocess.Popen(
            wires.command("far", command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            client.learn("stalled", child.stdout.readline().strip())
            client.send("stalled", "client-1", Produced(1))
            client.flush()
            until([False], WAIT_S)
            assert child.stdout.readline() == "stalls\n"
            wires.cut(HOST, "far")
            until([False, True], 3 * Tuning().silence_ms / 1000)
        finally:
            client.close()
            child.communicate(timeout=WAIT_S)


@pytest.mark.parametrize("listens", [True, False])
def test_a_peer_that_dies_while_much_of_it_is_not_taken_in_takes_nobody_with_it(
    listens: bool,
) -> None:
    """ZMTP's heartbeats are off: with them libzmq ended the process (`Assertion failed:
    !_io_error`).
    """
    other = ZmqTransport("other", listen="tcp://127.0.0.1:0")
    command = [sys.executable, "-m", "tests.transport.stalled"]
    child = subprocess.Popen(
        command if listens else [*command, other.endpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        if listens:
            other.learn("stalled", child.stdout.readline().strip())
        until = time.monotonic() + WAIT_S
        while not (select.select([child.stdout], [], [], 0)[0]) and time.monotonic() < until:
            push(other, 1)
        assert child.stdout.readline() == "stalls\n"
        for _ in range(50):
            push(other, 20)  # far more than the four packets that libzmq holds
        other.close()
        time.sleep(HEARTBEAT_S)  # the duration of a fault, not a wait
        out, _ = child.communicate(timeout=WAIT_S)
        assert (out, child.returncode) == ("lives\n", 0)


def push(transport: ZmqTransport, count: int) -> None:
    for number in range(count):
        transport.send("stalled", "other", Produced(number))
    transport.flush()
    transport.poll()
    time.sleep(0.005)  # wait, so that not all messages are in one packet


# --- what strangers send ------------------------------------------------------------------------


@contextmanager
def server(**options: Any) -> Iterator[ZmqTransport]:
    transport = ZmqTransport("server", listen="tcp://127.0.0.1:0", **options)
    try:
        yield transport
    finally:
        transport.close()


class Raw:
    """A socket that sends any bytes."""

    def __init__(self, transport: ZmqTransport, identity: bytes | None) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        if identity is not None:
            self.socket.set(zmq.ROUTING_ID, identity)
        self.socket.connect(transport.endpoint)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def ask(self, transport: ZmqTransport, *parts: bytes) -> list[Any]:
        """Send a packet and return the header of the answer, while the server has its turns."""
        self.socket.send_multipart(parts)
        return self.take(transport)

    def take(self, transport: ZmqTransport) -> list[Any]:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            assert transport.poll() == []
            if self.socket.poll(20):
                header, *_ = self.socket.recv_multipart()
                rows, end = cbor.read(header)
                assert end == len(header)
                return list(rows)
        raise AssertionError("nothing came back")


GOOD = b"client-1/0123456789abcdef"


@pytest.mark.parametrize(
    "identity",
    [
        None,
        b"client-1",
        b"client-1/xyz",
        b"#3/0123456789abcdef",
        b"a b/0123456789abcdef",
        b"/0123456789abcdef",
        b"server/0123456789abcdef",
        b"\xff/0123456789abcdef",
    ],
)
def test_whoever_does_not_say_who_he_is_is_refused(identity: bytes | None) -> None:
    with server() as transport, Raw(transport, identity) as raw:
        version, (number, _, _, (code, _, _)) = raw.ask(transport, cbor.write([1, [3, "", ""]]))
        assert (version, number, code) == (1, 2, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"\xff"],
        [b"\x9f"],
        [b"\xc0\x00"],
        [cbor.write([1]) + b"\0"],
        [cbor.write([1, [11, "", "", "x"]])],
        [cbor.write([1, [11, "", "", 1]]), b"payload that nobody announced"],
        [cbor.write([1])] + [b""] * 500,
        [cbor.write([1, *[[15, "", "", 1, "t", "0", 0, 0, 0, 3_000]] * 64])] + [bytes(3_000)] * 70,
        [b"\x9b" + b"\xff" * 8],
        [b"\x81" * 10_000],
    ],
)
def test_what_is_no_packet_is_refused_and_harms_nobody(parts: list[bytes]) -> None:
    with server() as transport, Raw(transport, GOOD) as raw:
        rows = raw.ask(transport, *parts)
        assert [row[0] for row in rows[1:]] == [2]  # the message number of Refused
        assert raw.ask(transport, cbor.write([1, [1, "", "", 1, 1, 100, "x"]]))[1][0] == 1


def test_a_version_that_is_not_spoken_is_refused_with_those_that_are() -> None:
    with server() as transport, Raw(transport, GOOD) as raw:
        _, (number, _, _, (_, _, details)), *_ = raw.ask(transport, cbor.write([7, [3, "", ""]]))
        assert (number, details) == (2, {"first": 1, "last": 1})


def test_bytes_that_are_not_zeromq_at_all() -> None:
    """A client of another protocol, such as a browser, is disconnected.

    Other clients are served.
    """
    with server() as transport:
        host, _, port = transport.endpoint.removeprefix("tcp://").rpartition(":")
        strangers = [socket.create_connection((host, int(port))) for _ in range(20)]
        for number, stranger in enumerate(strangers):
            stranger.sendall([b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5_000, b"\0", b""][number % 4])
        with Raw(transport, GOOD) as raw:
            assert raw.ask(transport, cbor.write([1, [3, "", ""]]))[1][0] == 1
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize("name", [b"tcp://nowhere", b"tcp://a:b:c", b"tcp://:"])
def test_whoever_calls_himself_an_endpoint_that_is_none_harms_nobody(name: bytes) -> None:
    """The node drops such a peer and does not dial it back."""
    with server() as transport:
        with Raw(transport, name + b"/0123456789abcdef") as raw:
            raw.ask(transport, cbor.write([1, [3, "", ""]]))
        until = time.monotonic() + WAIT_S
        while name.decode() not in transport.problem:
            assert time.monotonic() < until
            transport.send(name.decode(), "server", Produced(1))
            transport.flush()
            assert transport.poll() == []
        with Raw(transport, GOOD) as raw:
            raw.ask(transport, cbor.write([1, [3, "", ""]]))


def test_a_node_that_says_it_is_at_no_endpoint_ends_nobody_who_learns_of_it() -> None:
    client = ZmqTransport("client-1")
    try:
        client.learn("broker-1", "tcp://no-port")
        client.send("broker-1", "client-1", Produced(1))
        client.flush()
        assert client.poll() == []
        assert "broker-1: 'tcp://no-port' is no endpoint" in client.problem
    finally:
        client.close()


@pytest.mark.parametrize(
    "endpoint", ["tcp://", "tcp://host", "tcp://host:", "tcp://:1", "tcp://a b:1", "ipc://", "x:1"]
)
def test_what_is_no_endpoint_is_refused_where_it_is_said(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="is no endpoint"):
        ZmqTransport("broker-1", listen="tcp://127.0.0.1:0", advertise=endpoint)
    with pytest.raises(ConfigError, match="is no endpoint"):
        ZmqTransport("broker-1", listen=endpoint, insecure=True)


def test_nobody_writes_in_the_name_of_another() -> None:
    """Under any name, a peer's messages come from its own node."""
    with server() as transport, Raw(transport, GOOD) as raw:
        raw.socket.send(cbor.write([1, [11, "", "3", 5], [11, "x", "broker-1", 6]]))
        assert polled(transport, 2) == [
            ("server", "client-1.3", Produced(5)),
            ("server.x", "client-1.broker-1", Produced(6)),
        ]
        assert raw.take(transport)[1][0] == 1  # the message number of Hello
        rows = raw.ask(transport, cbor.write([1, [11, "", "#3", 5]]))
        # the message number of Refused
        assert rows[1][0] == 2, "a broker asks itself under such a name"


def polled(transport: ZmqTransport, count: int) -> list[Arrival]:
    """Poll until there are *count* messages."""
    found: list[Arrival] = []
    until = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < until, found
        found += transport.poll()
        transport.flush()
        select.select([transport.fileno()], [], [], 0.01)
    return found


# --- peers that come, go and are slow -----------------------------------------------------------


def test_a_later_process_of_a_name_takes_the_place_of_the_one_before() -> None:
    with server() as transport:
        first, second = ZmqTransport("broker-1"), ZmqTransport("broker-1")
        for number, each in enumerate((first, second)):
            each.learn("server", transport.endpoint)
            each.send("server", "broker-1", Produced(number))
            each.flush()
            each_polled = polled_of(transport, each, 1)
            assert each_polled == [("server", "broker-1", Produced(number))]
        transport.send("broker-1", "server", Produced(7))
        transport.flush()
        assert polled(second, 1) == [("broker-1", "server", Produced(7))]
        first.send("server", "broker-1", Produced(8))
        first.flush()
        until = time.monotonic() + WAIT_S
        while "another process has connected under the name" not in first.problem:
            assert time.monotonic() < until
            assert transport.poll() == first.poll() == []
        first.close()
        second.close()


def polled_of(transport: ZmqTransport, other: ZmqTransport, count: int) -> list[Arrival]:
    """Poll *transport*, while *other* has its turns too."""
    found: list[Arrival] = []
    until = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < until, found
        other.poll()
        found += transport.poll()
    return found


def test_what_is_for_a_stranger_waits_until_it_is_known_where_he_is() -> None:
    strangers: list[str] = []
    with server() as transport:
        client = ZmqTransport("client-1", on_stranger=strangers.append)
        client.send("server", "client-1", Produced(1))
        client.flush()
        assert set(strangers) == {"server"}
        client.learn("server", transport.endpoint)
        assert polled_of(transport, client, 1) == [("server", "client-1", Produced(1))]
        client.close()


def test_what_nobody_takes_is_forgotten_after_a_while() -> None:
    client = ZmqTransport("client-1", tuning=Tuning(waiting_ms=50))
    try:
        client.learn("server", "tcp://127.0.0.1:1")
        for number in range(1_000):
            client.send("server", "client-1", Produced(number))
            client.flush()
        until = time.monotonic() + WAIT_S
        while client.dropped < 1_000:
            assert time.monotonic() < until, client.dropped
            assert client.poll() == []
    finally:
        client.close()


def test_who_went_before_he_was_answered_is_forgotten() -> None:
    """Clients that leave before their answer leave no entry behind."""
    with server(tuning=Tuning(waiting_ms=50)) as transport:
        for number in range(100):
            transport.send(f"client-{number}.consumer1", "server", Produced(number))
        transport.flush()
        assert transport.waiting()[1] == 100
        until = time.monotonic() + WAIT_S
        while transport.dropped < 100:
            assert time.monotonic() < until, transport.dropped
            assert transport.poll() == []
        transport._swept_at = 0.0  # The next search is due.
        assert transport.poll() == []
        assert not transport._peers.by_name


@pytest.mark.parametrize(
    ("name", "most"),
    [
        (b"client-1", wire.CLIENT_HEADER_BYTES_MAX),
        (b"broker-1", wire.HEADER_BYTES_MAX),
    ],
)
def test_clients_are_given_less_room_than_brokers(name: bytes, most: int) -> None:
    """The limit of headers is lower for clients, because headers take up to 64 times their size in
    memory.
    """
    with server() as transport, Raw(transport, name + b"/0123456789abcdef") as raw:
        for size, why in ((most, "not a list"), (most + 1, f"the most is {most}")):
            # a single byte string
            header = b"\x5a" + (size - 5).to_bytes(4, "big") + bytes(size - 5)
            refused = raw.ask(transport, header)
            assert why in str(refused[-1][3][1])


def test_one_poll_takes_no_more_of_headers_than_it_soon_has_decoded() -> None:
    """Headers count as bytes, so a client can keep a node busy only for a bounded time."""
    names = cbor.write([""] * 200_000)
    heartbeat = cbor.write([1, [31, "", "", 1, "g", "m", []]])
    assert heartbeat.endswith(b"\x80")
    packet = heartbeat[:-1] + names
    with server() as transport, Raw(transport, GOOD) as raw:
        for _ in range(40):
            raw.socket.send(packet)
        taken: list[int] = []
        until = time.monotonic() + WAIT_S + 40
        while sum(taken) < 40:
            assert time.monotonic() < until, taken
            taken.append(len(transport.poll()))
        assert (max(taken) - 1) * len(packet) <= packets.SHARE_HEADER_BYTES


def test_what_is_remembered_of_others_is_bounded() -> None:
    known = zmq_peers.Peers()
    for number in range(peers.FENCED_KEPT + 100):
        known.admit(known.get("broker-1"), b"%d" % number)
    assert len(known.fenced) == peers.FENCED_KEPT
    assert len(known.by_route) == 1
    for number in range(peers.NAMES_KEPT + 100):
        known.find(f"client-1.consumer{number}")
    assert len(known._machines) <= peers.NAMES_KEPT


def test_who_does_not_take_his_answers_is_not_heard_until_he_has() -> None:
    """The node drops the requests of a client that does not read, instead of queueing its
    answers.
    """
    tuning = Tuning(waiting_bytes=1 << 20, packets=4)
    with server(tuning=tuning) as transport, Raw(transport, GOOD) as raw:
        raw.socket.set(zmq.RCVHWM, 4)
        data = bytes(1 << 20)
        asked = 0
        until = time.monotonic() + WAIT_S
        while not transport.dropped:
            assert time.monotonic() < until, "everything was taken"
            if asked < 300:
                raw.socket.send(cbor.write([1, [11, "", "", asked]]))
                asked += 1
            for _, source, _ in transport.poll():
                transport.send(source, "server", Fetched(1, "t", "0", 0, 0, 0, data))
                transport.flush()
        # Once the client reads them, its requests are accepted again.
        heard = False
        while not heard:
            assert time.monotonic() < until + WAIT_S
            while raw.socket.poll(5):
                raw.socket.recv_multipart()
            raw.socket.send(cbor.write([1, [11, "", "", 10_000]]))
            heard = any(message == Produced(10_000) for _, _, message in transport.poll())


def test_what_waits_for_one_who_takes_nothing_is_bounded() -> None:
    """Answers to a client that reads none of them are bounded; further ones are lost."""
    tuning = Tuning(waiting_bytes=2 << 20, packets=4)
    with server(tuning=tuning) as transport, Raw(transport, GOOD) as raw:
        raw.socket.set(zmq.RCVHWM, 4)
        raw.socket.send(cbor.write([1, *[[11, "", "", number] for number in range(100)]]))
        polled(transport, 100)
        data = bytes(1 << 20)
        for _ in range(100):
            transport.send("client-1", "server", Fetched(1, "t", "0", 0, 0, 0, data))
            transport.flush()
            assert transport.waiting()[2] < tuning.waiting_bytes + (2 << 20)
        assert transport.dropped > 10


def test_what_was_flushed_leaves_before_a_transport_is_closed() -> None:
    """Flushed messages leave before a transport closes, also more than the network takes
    at once.
    """
    with server() as transport:
        client = ZmqTransport("client-1", tuning=Tuning(linger_ms=round(WAIT_S * 1000)))
        client.learn("server", transport.endpoint)
        client.send("server", "client-1", Produced(0))
        client.flush()
        assert len(polled_of(transport, client, 1)) == 1
        data = bytes(1 << 20)
        for number in range(30):
            client.send("server", "client-1", Fetched(number, "t", "0", 0, 0, 0, data))
            client.flush()
        client.close()
        found = [message for _, _, message in polled(transport, 30)]
        assert [each.id for each in found if isinstance(each, Fetched)] == list(range(30))


def test_a_gate_sees_every_message_and_answers_for_the_machine() -> None:
    seen: list[tuple[str, str, Message]] = []

    def gate(principal: str, source: str, message: Message) -> list[Message] | None:
        seen.append((principal, source, message))
        return [Produced(1, error=AuthorizationFailed("no"))] if source == "client-1.bad" else None

    with server(gate=gate) as transport, Raw(transport, GOOD) as raw:
        raw.socket.send(cbor.write([1, [11, "m", "bad", 1], [11, "", "", 2]]))
        assert polled(transport, 1) == [("server", "client-1", Produced(2))]
        assert [source for _, source, _ in seen] == ["client-1.bad", "client-1"]
        rows = raw.take(transport)
        number, to, source, *_, error = rows[1]
        assert (number, to, source, error[0]) == (11, "bad", "m", "AUTHORIZATION_FAILED")


def test_a_greeting_that_answers_one_is_not_answered() -> None:
    """Two nodes that have both connected do not greet each other forever."""
    with server() as transport, Raw(transport, GOOD) as raw:
        hello = cbor.write([1, [1, "", "", 1, 1, 1_048_576, "other"]])
        assert raw.ask(transport, hello)[1][0] == 1  # a new connection gets a greeting in return
        for _ in range(100):
            raw.socket.send_multipart([hello])
        kinds = [found[0] for found in raw.ask(transport, b"nonsense")[1:]]
        while 2 not in kinds:  # the refusal comes after all greetings
            kinds += [found[0] for found in raw.take(transport)[1:]]
        assert kinds.count(1) < 10


def test_what_a_client_has_not_taken_is_counted_until_it_has_left() -> None:
    """Bytes in libzmq's buffers count as not received.

    Otherwise a broker would read ahead for a slow client.
    """
    with server(tuning=Tuning(packets=64)) as transport, Raw(transport, GOOD) as raw:
        raw.socket.set(zmq.RCVHWM, 1)
        raw.socket.send(cbor.write([1, [11, "", "", 1]]))
        polled(transport, 1)
        assert transport.outbox.owner("client-1.consumer1") == ("client-1", "client-1")
        data = bytes(200 << 10)
        for number in range(150):
            transport.send("client-1", "server", Fetched(number, "t", "0", 0, 0, 0, data))
            transport.flush()
        loads = transport.outbox.loads()
        assert loads.node == loads.accounts["client-1"] == loads.connections["client-1"]
        assert loads.node > 10 << 20, "kernels take some of it, and not all"
        until = time.monotonic() + WAIT_S
        taken = 0
        while transport.outbox.loads().node:
            assert time.monotonic() < until, f"{transport.outbox.loads()} after {taken}"
            while raw.socket.poll(5):
                raw.socket.recv_multipart()
                taken += 1
            transport.poll()
        while taken < 150 and raw.socket.poll(5_000):
            raw.socket.recv_multipart()
            taken += 1
        assert taken >= 150
        assert (transport.outbox.loads().node, transport.outbox.loads().connections) == (0, {})


def test_a_client_that_takes_nothing_is_let_go_of_and_what_is_for_it_too() -> None:
    tuning = Tuning(stalled_ms=300)
    with (
        server(tuning=tuning) as transport,
        Raw(transport, GOOD) as raw,
        Raw(transport, b"client-2/0123456789abcdef") as other,
    ):
        raw.socket.set(zmq.RCVHWM, 1)
        raw.socket.set(zmq.RECONNECT_IVL, -1)
        for each in (raw, other):
            each.socket.send(cbor.write([1, [11, "", "", 1]]))
        polled(transport, 2)
        assert transport.outbox.is_there("client-1")
        data = bytes(1 << 20)
        for number in range(60):
            transport.send("client-1", "server", Fetched(number, "t", "0", 0, 0, 0, data))
        transport.flush()
        until = time.monotonic() + WAIT_S
        while transport.outbox.is_there("client-1") or transport.outbox.loads().node:
            assert time.monotonic() < until, transport.outbox.loads()
            transport.poll()
            time.sleep(0.02)
        assert transport.cut == 1
        transport.send("client-2", "server", Produced(1))
        transport.flush()
        assert other.take(transport)


def test_one_who_is_gone_does_not_make_a_node_deaf_to_the_others() -> None:
    """A failed send may reset the signal for unread packets, just like a successful send.

    A zkserver that answers a client that has left must still read from its brokers, or it would
    declare them dead.
    """
    with server() as transport, Raw(transport, GOOD) as raw:
        for number in range(1, 100):
            with Raw(transport, b"client-2/%016x" % number) as other:
                other.socket.send(cbor.write([1, [11, "", "", 0]]))
                ((_, source, _),) = polled(transport, 1)
            while transport.poll():
                pass
            raw.socket.send(cbor.write([1, [11, "", "", number]]))
            assert select.select([transport], [], [], WAIT_S)[0]
            transport.send(source, "server", Produced(number))
            transport.flush()
            while not (found := transport.poll()):
                # Wait as a node does.
                assert select.select([transport], [], [], WAIT_S)[0], f"deaf in round {number}"
            assert [message for _, _, message in found] == [Produced(number)]
