"""Simulated byte streams keep bytes and their order, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from pymq.testing.simulation.kafka.streams import StreamEnd, StreamNetwork
from pymq.testing.simulation.network import LinkFaults, Network
from pymq.testing.simulation.world import SECOND, World

ADDRESS = "server:9092"


class Pair:
    """A client's and a server's end, and what the server has read."""

    def __init__(self, seed: int = 1, capacity: int = 1_000, **faults: Any) -> None:
        self.world = World(seed)
        self.network = Network(self.world, attrs.evolve(LinkFaults(), **faults))
        self.streams = StreamNetwork(self.world, self.network, capacity)
        self.accepted: list[StreamEnd] = []
        self.got = bytearray()
        self.sizes: list[int] = []
        self.problem: str = ""
        self.streams.listen(ADDRESS, self.accept)
        self.client = self.streams.connect("client", ADDRESS, lambda: None)

    def accept(self, end: StreamEnd) -> None:
        self.accepted.append(end)
        end.notify = lambda: self.read(end)
        self.read(end)

    def read(self, end: StreamEnd, most: int = 1 << 20) -> None:
        try:
            while data := end.read(most):
                self.got += data
                self.sizes.append(len(data))
            self.problem = "end"
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.problem = "reset"

    def run(self, seconds: float = 5.0) -> None:
        self.world.run(self.world.now + round(seconds * SECOND))

    def send(self, data: bytes) -> None:
        """Send all of *data*, as far as there is room."""
        sent = 0
        while sent < len(data):
            sent += self.client.write(data[sent:])
            self.run(0.1)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_come_in_order_and_in_pieces_of_other_sizes(seed: int) -> None:
    pair = Pair(seed, tail=0.2, loss=0.2, jitter_us=5_000)
    data = bytes(range(256)) * 20
    pair.send(data)
    pair.run(30)
    assert bytes(pair.got) == data
    assert len(set(pair.sizes)) > 3


def test_a_cut_only_delays() -> None:
    pair = Pair()
    pair.run()
    cut = pair.network.cut(["client"], ["server"])
    pair.client.write(b"first ")
    pair.client.write(b"second")
    pair.run()
    assert not pair.got
    pair.network.mend(cut)
    pair.run()
    assert pair.got == b"first second"


def test_a_reset_in_the_middle_loses_what_was_not_read() -> None:
    pair = Pair()
    pair.run()
    pair.client.write(b"a frame")
    pair.network.reset("client", "server")
    pair.run()
    assert pair.problem == "reset"
    assert not pair.got
    with pytest.raises(ConnectionResetError):
        pair.client.write(b"more")


def test_who_writes_faster_than_the_other_reads_has_to_wait() -> None:
    pair = Pair(capacity=10)
    pair.run()
    (server,) = pair.accepted
    server.notify = lambda: None  # It reads nothing for now.
    assert pair.client.write(b"0123456789abc") == 10
    assert pair.client.write(b"abc") == 0
    pair.run()
    told: list[int] = []
    pair.client.notify = lambda: told.append(pair.client.room)
    pair.read(server, 4)
    pair.run()
    assert told
    assert pair.client.write(b"abc") == 3
    pair.run()
    pair.read(server)
    assert pair.got == b"0123456789abc"


def test_the_end_comes_after_all_bytes() -> None:
    pair = Pair()
    pair.client.write(b"all")
    pair.client.close()
    pair.run()
    assert bytes(pair.got) == b"all"
    assert pair.problem == "end"


def died(seed: int, act: Callable[[Pair], None]) -> bool:
    """Let the server die, do *act*, and return whether the client's end is broken."""
    pair = Pair(seed)
    pair.run()
    pair.streams.died("server")
    pair.run()
    act(pair)
    pair.run()
    return pair.client.is_reset


def test_a_peer_learns_of_a_death_at_once_or_when_it_sends() -> None:
    """Half of the ends stay half-open: until the client sends to the process that follows."""

    def send_to_the_next(pair: Pair) -> None:
        pair.streams.listen(ADDRESS, pair.accept)
        if not pair.client.is_reset:
            pair.client.write(b"hello?")

    at_once = [died(seed, lambda pair: None) for seed in range(20)]
    assert {True, False} == set(at_once)
    assert all(died(seed, send_to_the_next) for seed in range(20))


def test_nobody_listens() -> None:
    pair = Pair()
    other = pair.streams.connect("client", "nobody:1", lambda: None)
    pair.run()
    assert other.is_reset
