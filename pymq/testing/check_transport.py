"""Checks that a transport keeps the contract of :mod:`pymq.transport.base`.

A transport's own test is one call::

    def test_contract():
        network = MemoryNetwork()
        check_transport(network.join)

Transports may be slow, and may drop messages that are sent before a connection exists: the checks
repeat messages that must arrive, and wait for them, but never wait to see whether no message comes.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Fetched, Message, Produce, Produced
from pymq.core.types import AckMode
from pymq.errors import Closed, ForkedError
from pymq.transport.base import Arrival, Transport

__all__ = ["check_transport"]

Make = Callable[[str], Transport]
AGAIN_S = 0.05
LARGE, SMALL = 300, 150_000  # messages of a flood: 300 MiB, more than any transport must keep


def check_transport(make: Make, *, messages: int = 2_000, timeout_s: float = 20.0) -> None:
    """Raise :class:`AssertionError` with the broken rule if the transport breaks a rule.

    *make(node)* opens the transport of a node; all transports can reach each other once they know
    each other's endpoints. This function closes the transports.
    """
    for check in (
        _check_names,
        _check_order,
        _check_payload,
        _check_waiting,
        _check_nobody_there,
        _check_replaced,
        _check_flood,
        _check_hand_over,
        _check_close,
        _check_fork,
    ):
        suite = _Suite(make, messages, timeout_s)
        try:
            with _named(check.__name__):
                check(suite)
        finally:
            suite.close()


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(f"in check_transport: {name.removeprefix('_check_')}")
        raise


class _Suite:
    """The transports of one check, and their arrivals."""

    def __init__(self, make: Make, messages: int, timeout_s: float) -> None:
        self.make = make
        self.messages = messages
        self.timeout_s = timeout_s
        self._open: list[Transport] = []
        # arrivals at other nodes while the suite waited for one node
        self._kept: dict[str, list[Arrival]] = {}
        self.in_use: list[Transport] = []  # transports that other threads will close
        self._greetings: list[Message] = []

    def join(self, *nodes: str, knows_only: bool = False) -> list[Transport]:
        """Open a transport for each node.

        All transports know each other; with *knows_only*, only the first knows the others.
        """
        made = [self.make(node) for node in nodes]
        self._open += made
        for one in self._open:
            for other in self._open:
                is_known = other not in made or not knows_only
                if one is not other and other.endpoint and is_known:
                    one.learn(other.node, other.endpoint)
        return made

    def close(self) -> None:
        for transport in self._open:
            transport.close()

    def forget(self, transport: Transport) -> None:
        transport.close()
        self._open.remove(transport)
        self._kept.pop(transport.node, None)

    def meet(self, a: Transport, b: Transport) -> None:
        """Exchange messages until both directions are connected and no message is in flight."""
        token = time.monotonic_ns() % 1_000_000_007
        self._greetings += [Produced(token), Produced(token + 1)]
        until = time.monotonic() + self.timeout_s
        heard: set[str] = set()
        while heard != {a.node, b.node}:
            assert time.monotonic() < until, f"{a.node} and {b.node} do not reach each other"
            for one, other in ((a, b), (b, a)):
                one.send(other.node, one.node, Produced(token))
                one.flush()
            for one in (a, b):
                for _, source, message in self.some(one):
                    if message == Produced(token):
                        heard.add(source)
        # A message after the last of these greetings arrives after all of them.
        for one, other in ((a, b), (b, a)):
            one.send(other.node, one.node, Produced(token + 1))
            one.flush()
            self.until(other, Produced(token + 1))

    def until(self, transport: Transport, last: Message) -> list[Arrival]:
        """Return all arrivals before *last*."""
        found: list[Arrival] = []
        until = time.monotonic() + self.timeout_s
        while time.monotonic() < until:
            for arrival in self.some(transport):
                if arrival[2] == last:
                    return found
                if not self.is_greeting(arrival[2]):
                    found.append(arrival)
        raise AssertionError(f"{last!r} did not arrive, only {found[-3:]!r}")

    def take(self, transport: Transport, count: int) -> list[Arrival]:
        """Return the next *count* arrivals."""
        found: list[Arrival] = []
        until = time.monotonic() + self.timeout_s
        while len(found) < count:
            assert time.monotonic() < until, f"only {len(found)} of {count} have arrived"
            # Two nodes may connect to each other at the same time, and then keep one of the two
            # connections: a greeting over the closed connection comes late.
            arrivals = self.some(transport)
            found += [arrival for arrival in arrivals if not self.is_greeting(arrival[2])]
        return found

    def is_greeting(self, message: Message) -> bool:
        """Whether :meth:`meet` has sent the message."""
        return message in self._greetings

    def some(self, transport: Transport, timeout_s: float = AGAIN_S) -> list[Arrival]:
        """Return the arrivals of a node; poll all other nodes, too."""
        for other in self._open:
            if other is not transport and other not in self.in_use:
                self._kept.setdefault(other.node, []).extend(other.poll())
        found = self._kept.pop(transport.node, []) + transport.poll()
        if not found:
            transport.flush()
            wait_readable(transport, timeout_s)
            found = transport.poll()
        return found


def wait_readable(transport: Transport, timeout_s: float) -> bool:
    """Wait for the transport's descriptor."""
    return bool(select.select([transport.fileno()], [], [], timeout_s)[0])


def _check_names(suite: _Suite) -> None:
    """A message arrives at its addressee, with the name of its sender."""
    a, b = suite.join("broker.of-a", "client-1")
    assert (a.node, b.node) == ("broker.of-a", "client-1")
    suite.meet(a, b)
    b.send("broker.of-a", "client-1.producer2", Produced(1))
    b.flush()
    assert suite.take(a, 1) == [("broker.of-a", "client-1.producer2", Produced(1))]
    a.send("client-1.producer2", "broker.of-a", Produced(2))
    a.send("client-1", "broker.of-a.part", Produced(3))
    a.flush()
    assert suite.take(b, 2) == [
        ("client-1.producer2", "broker.of-a", Produced(2)),
        ("client-1", "broker.of-a.part", Produced(3)),
    ]
    b.send("broker.of-a.part", "client-1", Produced(4))
    b.flush()
    assert suite.take(a, 1) == [("broker.of-a.part", "client-1", Produced(4))]


def _check_order(suite: _Suite) -> None:
    """Messages arrive in order and once, regardless of their sizes and flushes."""
    a, b = suite.join("a", "b")
    suite.meet(a, b)
    rng = random.Random(1)
    arrived: list[Arrival] = []
    for number in range(suite.messages):
        size = rng.choice([0, 1, 100, 5_000, 70_000])
        a.send("b", "a", Fetched(number, "t", "0", 0, 0, 0, bytes(size)))
        if not rng.randrange(5):
            a.flush()
            arrived += suite.some(b, 0)
    a.flush()
    arrived += suite.take(b, suite.messages - len(arrived))
    assert [message.id for _, _, message in arrived if isinstance(message, Fetched)] == list(
        range(suite.messages)
    )


def _check_payload(suite: _Suite) -> None:
    """Batches of any size arrive unchanged."""
    a, b = suite.join("a", "b")
    suite.meet(a, b)
    for size in (1, 1_000, 4_095, 4_097, 100_000, 3_000_000):
        values = [os.urandom(size)]
        batch = EncodedBatch.encode(values, timestamp_ms=1).stamp(7, 3, 0)
        a.send("b", "a", Produce(size, "t", "0", AckMode.LEADER, batch))
        a.flush()
        ((_, _, message),) = suite.take(b, 1)
        assert isinstance(message, Produce), message
        assert message.id == size
        assert message.acks is AckMode.LEADER
        got = message.batch.verify()
        assert bytes(got.head) == bytes(batch.head)
        assert bytes(got.body) == bytes(batch.body)
        assert got.header == batch.header
        assert [bytes(value) for value in got.values] == values


def _check_waiting(suite: _Suite) -> None:
    """The descriptor wakes a waiting thread for each message."""
    a, b = suite.join("a", "b")
    suite.meet(a, b)
    lock = threading.Lock()

    def answer() -> None:
        left = 200
        while left:
            with lock:
                found = b.poll()
                for _, source, message in found:
                    b.send(source, "b", message)
                    left -= not suite.is_greeting(message)  # a greeting may come late, see take()
                b.flush()
            woken = found or wait_readable(b, suite.timeout_s)
            assert woken, "a message did not wake its receiver"

    suite.in_use = [b]
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        for number in range(200):
            a.send("b", "a", Produced(number))
            a.flush()
            assert suite.take(a, 1) == [("a", "b", Produced(number))]
    finally:
        thread.join(suite.timeout_s)
    assert not thread.is_alive()


def _check_nobody_there(suite: _Suite) -> None:
    """Messages for an absent node are lost, and other nodes are not affected."""
    a, b = suite.join("a", "b")
    suite.meet(a, b)
    for number in range(1_000):
        a.send("nobody", "a", Produced(number))
        a.send("nobody.x", "a.y", Fetched(number, "t", "0", 0, 0, 0, bytes(10_000)))
        a.flush()
    a.send("b", "a", Produced(5))
    a.flush()
    assert suite.take(b, 1) == [("b", "a", Produced(5))]


def _check_replaced(suite: _Suite) -> None:
    """Messages reach a node again after it restarts under its name, perhaps at another endpoint."""
    a, b = suite.join("a", "b")
    suite.meet(a, b)
    for _ in range(3):
        suite.forget(b)
        a.send("b", "a", Produced(1))
        a.flush()
        (b,) = suite.join("b")
        suite.meet(a, b)


def _check_flood(suite: _Suite) -> None:
    """A peer that receives nothing takes a bounded amount of memory, and affects no other peer."""
    a, slow, other = suite.join("a", "slow", "other")
    suite.meet(a, slow)
    suite.meet(a, other)
    data = bytes(1 << 20)
    for number in range(LARGE):
        a.send("slow", "a", Fetched(number, "t", "0", 0, 0, 0, data))
        a.flush()
    for number in range(LARGE, LARGE + SMALL):
        a.send("slow", "a", Fetched(number, "t", "0", 0, 0, 0))
    a.flush()
    a.send("other", "a", Produced(9))
    a.flush()
    assert suite.take(other, 1) == [("other", "a", Produced(9))]
    # The messages that the peer then receives are in order, and later messages arrive again.
    until = time.monotonic() + suite.timeout_s
    last, count = -1, 0
    while True:
        assert time.monotonic() < until, "the peer does not get anything any more"
        a.send("slow", "a", Produced(1_000))
        a.flush()
        for _, _, message in suite.some(slow):
            if isinstance(message, Produced):
                # A transport may limit the number or the bytes; either way, it has dropped messages
                # by then.
                assert count < LARGE + SMALL, "all of it was kept for a peer that took nothing"
                return
            assert isinstance(message, Fetched)
            assert message.id > last, f"{message.id} came after {last}"
            last, count = message.id, count + 1


def _check_hand_over(suite: _Suite) -> None:
    """Threads may use a transport one after the other, under a lock."""
    a, b = suite.join("a", "b")
    suite.meet(a, b)
    lock = threading.Lock()
    each = 200

    def send(thread: int) -> None:
        for number in range(each):
            with lock:
                a.send("b", f"a.t{thread}", Produced(number))
                a.flush()
                a.poll()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrived = suite.take(b, 4 * each)
    for number in range(4):
        found = [message for _, source, message in arrived if source == f"a.t{number}"]
        assert found == [Produced(i) for i in range(each)]


def _check_close(suite: _Suite) -> None:
    """Flushed messages to connected peers still arrive after a close; every later call raises
    Closed.
    """
    (b,) = suite.join("b")
    (a,) = suite.join("a", knows_only=True)
    suite.meet(a, b)
    for number in range(50):
        a.send("b", "a", Produced(number))
    a.flush()
    suite.forget(a)
    a.close()
    assert suite.take(b, 50) == [("b", "a", Produced(number)) for number in range(50)]
    for call in (a.poll, a.flush, lambda: a.send("b", "a", Produced(1))):
        try:
            call()
        except Closed:
            continue
        raise AssertionError("a closed transport still does something")


def _check_fork(suite: _Suite) -> None:
    """A forked child gets an error from the transport, and does not disturb the parent's
    transport.
    """
    a, b = suite.join("a", "b")
    suite.meet(a, b)
    child = os.fork()
    if not child:
        code = 2
        try:
            a.close()
            code = 1
            a.send("b", "a", Produced(1))
        except ForkedError:
            code -= 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code != 2, "close() did something in the child"
    assert code == 0, "the child got no ForkedError"
    suite.meet(a, b)
