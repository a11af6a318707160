"""The number of connections of an address, independent of libzmq's events."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from pymq.transport.base import FILES, LEAST, Tuning
from pymq.transport.zeromq.connections import Connections, address_of, source_of
from pymq.transport.zeromq.sockets import make_context, make_router
from tests.transport.zmtp import frame, shake_hands

HERE = "127.0.0.1"
WAIT_S = 20.0


class Node:
    """A ROUTER without keys, and its connected peers."""

    def __init__(self, limit: int = 20_000) -> None:
        self.now = 0.0
        self.told: list[int] = []
        self.context = make_context()
        self.router, self.bound = make_router(self.context, "tcp://127.0.0.1:0", Tuning())
        self.connections = Connections(self.router, limit=lambda: limit, clock=lambda: self.now)
        self.connections.on_crowded = self.told.append

    def hear(self, principal: str = "", most: int = 1_000) -> bytes:
        """Handle a packet."""
        assert self.router.poll(20_000)
        frames = self.router.recv_multipart(copy=False)
        self.connections.speaks(source_of(frames[-1]), principal, most)
        return frames[-1].bytes

    def until(self, count: int) -> None:
        """Wait until there are so many connections from this address."""
        deadline = time.monotonic() + WAIT_S
        while self.connections.count(HERE) != count:
            assert time.monotonic() < deadline, self.connections.count(HERE)
            self.router.poll(10)

    def close(self) -> None:
        self.connections.close()
        self.context.destroy(linger=0)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def node(stack: ExitStack) -> Node:
    found = Node()
    stack.callback(found.close)
    return found


def test_each_counts_as_long_as_it_is_there(node: Node, stack: ExitStack) -> None:
    peers = [stack.enter_context(socket.socket()) for _ in range(4)]
    for number, peer in enumerate(peers):
        shake_hands(peer, node.bound, b"client-%d/0123456789abcdef" % number)
        node.until(number + 1)
    assert node.connections.count("127.0.0.2") == 0
    for number, peer in enumerate(peers):
        peer.close()
        node.until(3 - number)


def test_whoever_takes_anothers_place_counts_as_well(node: Node, stack: ExitStack) -> None:
    """A replaced connection keeps its descriptor until it ends, so it still counts."""
    for number in range(4):
        peer = stack.enter_context(socket.socket())
        shake_hands(peer, node.bound, b"client-1/0123456789abcdef")
        peer.sendall(frame(b"here"))
        assert node.router.poll(20_000)
        node.router.recv_multipart()
        node.until(number + 1)


def test_a_descriptor_is_one_connections(node: Node, stack: ExitStack) -> None:
    """A descriptor counts once, although libzmq may report it again before it reports the end."""
    peer = stack.enter_context(socket.create_connection((HERE, int(node.bound.split(":")[2]))))
    for _ in range(3):
        node.connections.heard(zmq.EVENT_ACCEPTED, peer.fileno())
    node.until(2)  # libzmq's own descriptor, and this one
    node.connections.heard(zmq.EVENT_DISCONNECTED, peer.fileno())
    node.connections.heard(zmq.EVENT_DISCONNECTED, peer.fileno())
    node.until(1)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_a_descriptor_that_is_a_files_by_now_is_let_go_of(tmp_path: Path) -> None:
    """A connection that was closed before its descriptor was looked up costs no descriptor."""
    with (tmp_path / "block").open("wb") as file:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            assert address_of(file.fileno()) == ""
        assert len(os.listdir("/proc/self/fd")) == before


def test_of_silent_connections_the_oldest_go_when_there_are_too_many(stack: ExitStack) -> None:
    """Closing the oldest silent connections leaves descriptors for files, and gives new clients
    some time to send.
    """
    node = Node(limit=FILES + LEAST)
    stack.callback(node.close)
    good = stack.enter_context(socket.socket())
    shake_hands(good, node.bound, b"client-good/0123456789abcdef")
    good.sendall(frame(b"here"))
    node.hear()
    port = int(node.bound.split(":")[2])
    silent = []
    for _ in range(4 * LEAST):
        silent.append(stack.enter_context(socket.create_connection((HERE, port))))
        node.connections.note()
    until = time.monotonic() + WAIT_S
    while node.connections.count(HERE) > LEAST // 2 + 1 or node.connections.turned_away < 3 * LEAST:
        assert time.monotonic() < until, node.connections.count(HERE)
        node.router.poll(10)
    assert node.told == [1], "and then no more for a while"
    good.sendall(frame(b"still here"))
    assert node.hear() == b"still here"
    late = stack.enter_context(socket.socket())
    shake_hands(late, node.bound, b"client-late/0123456789abcdef")
    late.sendall(frame(b"a newcomer"))
    assert node.hear() == b"a newcomer"


def test_who_has_shaken_hands_and_says_nothing_stays_where_there_is_room(stack: ExitStack) -> None:
    """A silent connection with a proved key stays, since it may belong to an idle consumer."""
    node = Node(limit=FILES + LEAST)
    stack.callback(node.close)
    for number in range(LEAST // 2):
        peer = stack.enter_context(socket.socket())
        shake_hands(peer, node.bound, b"client-%d/0123456789abcdef" % number)
        node.until(number + 1)
    node.now += 10.0
    port = int(node.bound.split(":")[2])
    for _ in range(LEAST // 4):
        stack.enter_context(socket.create_connection((HERE, port)))
    node.until(LEAST // 2 + LEAST // 4)
    assert node.connections.turned_away == 0


def test_one_connection_too_many_costs_only_the_oldest_new_one(stack: ExitStack) -> None:
    """At a full node only the oldest new connection is cut, not all that connect."""
    node = Node(limit=FILES + LEAST)
    stack.callback(node.close)
    for number in range(LEAST - 10):
        peer = stack.enter_context(socket.socket())
        shake_hands(peer, node.bound, b"client-%d/0123456789abcdef" % number)
        peer.sendall(frame(b"hello"))
        node.hear()
    port = int(node.bound.rpartition(":")[2])
    silent = [stack.enter_context(socket.create_connection((HERE, port))) for _ in range(10)]
    node.until(LEAST)
    assert node.connections.turned_away == 0
    silent.append(stack.enter_context(socket.create_connection((HERE, port))))
    deadline = time.monotonic() + WAIT_S
    while node.connections.turned_away < 1:
        assert time.monotonic() < deadline
        node.connections.note()
    node.until(LEAST)
    assert node.connections.turned_away == 1


def test_silent_connections_leave_half_of_the_room_for_those_that_speak(stack: ExitStack) -> None:
    """Silent connections get half of the room, since libzmq does not report their principals."""
    node = Node(limit=FILES + LEAST)
    stack.callback(node.close)
    for number in range(LEAST):
        if number == LEAST // 2:
            node.until(number)
            node.now += 10.0
        peer = stack.enter_context(socket.socket())
        shake_hands(peer, node.bound, b"client-%d/0123456789abcdef" % number)
    node.until(LEAST)
    node.now += 10.0  # the connections have completed the handshake, and are no longer new
    for number in range(LEAST // 2):
        good = stack.enter_context(socket.socket())
        shake_hands(good, node.bound, b"client-good-%d/0123456789abcdef" % number)
        good.sendall(frame(b"here"))
        assert node.hear(principal=f"good-{number % 2}") == b"here"
        assert node.connections.of(f"good-{number % 2}") == number // 2 + 1
    assert node.connections.turned_away == LEAST // 2
    node.until(LEAST)


def test_a_principal_has_half_of_the_room_where_descriptors_are_few(stack: ExitStack) -> None:
    node = Node(limit=FILES + LEAST)
    stack.callback(node.close)
    for number in range(LEAST // 2 + 3):
        peer = stack.enter_context(socket.socket())
        shake_hands(peer, node.bound, b"client-%d/0123456789abcdef" % number)
        peer.sendall(frame(b"here"))
        node.hear(principal="alice", most=500)
    assert node.connections.of("alice") == LEAST // 2
    assert node.connections.share(500) == LEAST // 2
    assert node.connections.turned_away == 3


def test_a_principal_has_so_many_connections_and_no_more(node: Node, stack: ExitStack) -> None:
    """A principal's connections are limited; others at its address still have room."""
    for number in range(5):
        peer = stack.enter_context(socket.socket())
        shake_hands(peer, node.bound, b"client-%d/0123456789abcdef" % number)
        peer.sendall(frame(b"here"))
        node.hear(principal="alice" if number < 4 else "bob", most=3)
        assert node.connections.of("alice") == min(number + 1, 3)
    assert (node.connections.of("bob"), node.connections.turned_away) == (1, 1)
    node.until(4)


def test_connections_that_have_ended_count_for_nobody(node: Node) -> None:
    for number in range(4):
        with socket.socket() as peer:
            shake_hands(peer, node.bound, b"client-%d/0123456789abcdef" % number)
            peer.sendall(frame(b"here"))
            node.hear(principal="alice", most=1)
            assert (node.connections.of("alice"), node.connections.turned_away) == (1, 0)
        node.until(0)
        assert node.connections.of("alice") == 0
