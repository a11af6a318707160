"""Threads share a client over a network: no thread sleeps while an answer for it is there."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pymq.client.base import Outbox, Waitable
from pymq.core.message import Message, Produced
from pymq.errors import Closed
from pymq.runtime.loop import Loop
from pymq.runtime.network_driver import NetworkDriver
from pymq.runtime.node_thread import NodeThread
from pymq.transport.base import Transport
from pymq.transport.memory import MemoryNetwork
from pymq.transport.tcp.transport import TcpTransport
from pymq.transport.zeromq.transport import ZmqTransport

WAIT_S = 20.0


def clock() -> int:
    return time.monotonic_ns() // 1_000_000


class Echo(Outbox):
    """A machine that sends each message back."""

    def step(self, source: str, message: Message, now: int) -> None:
        self.out.send.append((source, message))

    def tick(self, now: int) -> None:
        pass


class Asker(Outbox):
    """A machine that sends a single request, so that a missed answer stays missed."""

    def __init__(self, name: str, driver: NetworkDriver) -> None:
        super().__init__()
        self.name = name
        self.driver = driver
        self._asked: dict[int, Waitable] = {}
        self._ids = 0
        with driver as loop:
            loop.add(name, self)

    def ask(self) -> Waitable:
        with self.driver as loop:
            self._ids += 1
            what = self._asked[self._ids] = Waitable()
            self.out.send.append(("server", Produced(self._ids)))
            loop.touch(self.name)
        return what

    def step(self, source: str, message: Message, now: int) -> None:
        assert isinstance(message, Produced)
        self._asked.pop(message.id).finish()

    def tick(self, now: int) -> None:
        pass


@contextmanager
def client(kind: str) -> Iterator[NetworkDriver]:
    """Open a driver whose loop reaches an echoing machine in another thread."""
    server: Transport
    ours: Transport
    if kind == "memory":
        network = MemoryNetwork()
        server, ours = network.join("server"), network.join("client")
    else:
        if kind == "zmq":
            server = ZmqTransport("server", listen="tcp://127.0.0.1:0")
            ours = ZmqTransport("client")
        else:
            server = TcpTransport("server", listen="pymq://127.0.0.1:0")
            ours = TcpTransport("client")
        ours.learn("server", server.endpoint)
    loop = Loop(clock, server.send, server.flush)
    loop.add("server", Echo())
    runner = NodeThread(loop, server)
    thread = threading.Thread(target=runner.run)
    thread.start()
    driver = NetworkDriver(Loop(clock, ours.send, ours.flush), ours, lambda arrivals: None)
    try:
        yield driver
    finally:
        if driver.problem is None:
            driver.close(lambda loop: None)
        runner.stop()
        thread.join()
        ours.close()
        server.close()


@pytest.mark.parametrize("kind", ["memory", "zmq", "tcp"])
def test_every_answer_is_noticed(kind: str) -> None:
    """Threads notice answers while they wait for one or several, or when they wait again later."""
    with client(kind) as driver:
        late: list[str] = []

        def work(number: int) -> None:
            rng = random.Random(number)
            asker = Asker(f"client.a{number}", driver)
            for turn in range(150):
                asked = [asker.ask() for _ in range(rng.randrange(1, 4))]
                if not rng.randrange(10):
                    # The thread does something else, and no other thread waits for its answer.
                    time.sleep(rng.random() / 50)
                for what in asked:
                    if not driver.wait(what, WAIT_S):
                        late.append(f"{number}: turn {turn}")
                        return

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not late


@pytest.mark.parametrize("kind", ["memory", "zmq", "tcp"])
def test_an_answer_that_nobody_waits_for_is_noticed(kind: str) -> None:
    """The background thread soon receives an answer that no other thread waits for."""
    with client(kind) as driver:
        asker = Asker("client.a", driver)
        for _ in range(20):
            done = threading.Event()
            asker.ask().then(done.set)
            assert done.wait(WAIT_S)


def test_waiting_ends_when_its_time_is_over() -> None:
    with client("zmq") as driver:
        began = time.monotonic()
        assert not driver.wait(Waitable(), 0.2)
        assert 0.2 <= time.monotonic() - began < WAIT_S


def test_closing_wakes_who_waits() -> None:
    with client("zmq") as driver:
        raised = threading.Event()
        together = threading.Barrier(4)

        def work() -> None:
            together.wait(WAIT_S)
            with pytest.raises(Closed):
                driver.wait(Waitable(), None)
            raised.set()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        # a thread that has not begun to wait when the driver is closed raises at once
        together.wait(WAIT_S)
        driver.close(lambda loop: None)
        for thread in threads:
            thread.join(WAIT_S)
        assert raised.is_set()


def test_an_idle_client_sleeps() -> None:
    """An idle client uses no CPU, with and without a waiting thread."""
    with client("zmq") as driver:
        driver.wait(Asker("client.a", driver).ask(), WAIT_S)
        driver.wait(Waitable(), 1.5)  # wait until all threads are idle
        began = time.process_time()
        driver.wait(Waitable(), 1.0)
        assert time.process_time() - began < 0.1
