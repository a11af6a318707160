"""How many connections an address has, whatever libzmq tells of them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from pymq.transport.connections import Connections, address_of
from pymq.transport.sockets import Tuning, make_context, make_router
from tests.transport.zmtp import frame, shake_hands

HERE = "127.0.0.1"
WAIT_S = 20.0


class Node:
    """A ROUTER without keys, and who has connected to it."""

    def __init__(self) -> None:
        self.context = make_context()
        self.router, self.bound = make_router(self.context, "tcp://127.0.0.1:0", Tuning())
        self.connections = Connections(self.router)

    def until(self, count: int) -> None:
        """Wait until there are so many connections from here."""
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
    """The other one has its descriptor until it ends, and none must be had for nothing."""
    for number in range(4):
        peer = stack.enter_context(socket.socket())
        shake_hands(peer, node.bound, b"client-1/0123456789abcdef")
        peer.sendall(frame(b"here"))
        assert node.router.poll(20_000)
        node.router.recv_multipart()
        node.until(number + 1)


def test_a_descriptor_is_one_connections(node: Node, stack: ExitStack) -> None:
    """Should it be told of twice, for the end of the one before was not told."""
    peer = stack.enter_context(socket.create_connection((HERE, int(node.bound.split(":")[2]))))
    for _ in range(3):
        node.connections.heard(zmq.EVENT_ACCEPTED, peer.fileno())
    node.until(2)  # that of libzmq, and this one
    node.connections.heard(zmq.EVENT_DISCONNECTED, peer.fileno())
    node.connections.heard(zmq.EVENT_DISCONNECTED, peer.fileno())
    node.until(1)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_a_descriptor_that_is_a_files_by_now_is_let_go_of(tmp_path: Path) -> None:
    """Each such connection, which had gone before it was looked up, cost a descriptor for ever."""
    with (tmp_path / "block").open("wb") as file:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            assert address_of(file.fileno()) == ""
        assert len(os.listdir("/proc/self/fd")) == before
