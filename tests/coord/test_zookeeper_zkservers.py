"""Two zkservers on a real ZooKeeper: one is active through any fault of sessions and servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pymq.controller.controller import Controller, ControllerConfig
from pymq.coord import paths
from pymq.core.message import Answer, CreateTopic, Message
from pymq.core.metadata.nodes import ControllerEpoch, decode_node
from pymq.core.types import AckMode
from pymq.errors import NotController
from pymq.runtime.loop import Loop
from pymq.testing.zookeeper import ZooKeeper
from tests.coord.sessions import WAIT_S, Session, expire, kazoo, session

pytestmark = pytest.mark.zookeeper


def clock() -> int:
    return time.monotonic_ns() // 1_000_000


class Zkserver:
    """A real zkserver on a real loop that keeps its outgoing messages."""

    def __init__(self, name: str, one: Session) -> None:
        self.one = one
        self.answers: dict[int, Answer] = {}
        self.ids = iter(range(1 << 32))
        self.machine = Controller(
            ControllerConfig(name, standby_ms=200), lambda: f"{name}{next(self.ids):028x}", clock()
        )
        self.loop = Loop(clock, self._far)
        self.loop.add_zkserver(name, self.machine, one.backend)
        self.name = name
        self.turns = True  # False: the loop of this zkserver stands still

    def _far(self, peer: str, source: str, message: Message) -> None:
        if isinstance(message, Answer):
            self.answers[message.id] = message

    def create(self, number: int) -> None:
        ask = CreateTopic(number, f"t{number}", ("0",), 1, AckMode.UNSET, {})
        self.loop.take([(self.name, "client", ask)])


class Pair:
    """Two zkservers on one tree."""

    def __init__(self, *zkservers: Zkserver) -> None:
        self.all = zkservers
        self.numbers = iter(range(1, 1 << 32))
        self.acknowledged: list[int] = []

    def until(self, enough: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not enough():
            assert time.monotonic() < end, f"no {what}"
            for zkserver in self.all:
                if zkserver.turns:
                    zkserver.loop.run()
            time.sleep(0.001)

    def active(self) -> Zkserver:
        def found() -> list[Zkserver]:
            return [zk for zk in self.all if zk.turns and zk.machine.is_active]

        self.until(lambda: bool(found()), "active zkserver")
        return found()[0]

    def answer(self, zkserver: Zkserver, number: int) -> Answer:
        self.until(lambda: number in zkserver.answers, f"answer to {number}")
        return zkserver.answers.pop(number)

    def resigned(self, zkserver: Zkserver) -> None:
        self.until(lambda: not zkserver.machine.is_active, "resignation")

    def create(self) -> None:
        """Create a topic by requests to the active zkserver, until it is done."""
        number = next(self.numbers)
        while True:
            zkserver = self.active()
            zkserver.create(number)
            answer = self.answer(zkserver, number)
            # A zkserver without its connection refuses the request; the topic may exist, and a
            # retry is safe.
            if answer.error is None or type(answer.error).__name__ == "TopicExists":
                self.acknowledged.append(number)
                return
            assert isinstance(answer.error, NotController), answer.error


@contextmanager
def pair(hosts: str, root: str) -> Iterator[Pair]:
    with session(hosts, root) as one, session(hosts, root) as two:
        yield Pair(Zkserver("zk-0", one), Zkserver("zk-1", two))


def topics(hosts: str, root: str) -> set[str]:
    with session(hosts, root) as reader:
        found = [paths.parse(path) for path in reader.paths("/")]
    return {path.topic for path in found if isinstance(path, paths.TopicPath)}


def epoch(hosts: str, root: str) -> int:
    with session(hosts, root) as reader:
        (entry,) = reader.load(paths.controller_epoch())
    return decode_node(ControllerEpoch, entry.data).epoch


def test_a_zkserver_whose_session_ends_is_followed_by_the_other(zookeeper: ZooKeeper) -> None:
    hosts, root = zookeeper.hosts, "/pair"
    with pair(hosts, root) as two:
        for rounds in range(3):
            for _ in range(5):
                two.create()
            assert epoch(hosts, root) == rounds + 1
            before = two.active()
            expire(before.one, hosts)
            two.resigned(before)
        two.create()
        assert epoch(hosts, root) == 4
        assert topics(hosts, root) == {f"t{number}" for number in two.acknowledged}


def test_a_zkserver_that_was_replaced_unawares_can_change_nothing(zookeeper: ZooKeeper) -> None:
    """The replaced zkserver's session is still alive, so only the version of the controller epoch
    refuses its commit.
    """
    hosts, root = zookeeper.hosts, "/fenced"
    with pair(hosts, root) as two, kazoo(hosts) as raw:
        two.create()
        old = two.active()
        old.turns = False
        raw.delete(root + paths.controller())
        new = two.active()
        assert new is not old
        two.create()
        # The new zkserver knows no metadata yet, and its first message is a request to create a
        # topic.
        old.machine.step("client", CreateTopic(999, "t999", ("0",), 1, AckMode.UNSET, {}), clock())
        old.turns = True
        answer = two.answer(old, 999)
        assert isinstance(answer.error, NotController), answer
        two.resigned(old)
        assert topics(hosts, root) == {"t1", "t2"}


def test_what_was_acknowledged_outlives_zookeepers_deaths(
    tmp_path: Path, needs_zookeeper: None
) -> None:
    """After ZooKeeper's restarts every acknowledged commit is in the tree.

    Uncertain commits are checked.
    """
    with ZooKeeper(tmp_path) as own, pair(own.hosts, "/killed") as two:
        two.create()
        for kill in range(3):
            active, number = two.active(), next(two.numbers)
            active.create(number)
            active.loop.run()  # the commit is in flight
            if kill == 2:
                own.servers[0].pause()  # the request arrives, but no answer comes
            own.servers[0].kill()
            own.servers[0].start()
            two.create()
            if two.answer(active, number).error is None:
                two.acknowledged.append(number)
        found = topics(own.hosts, "/killed")
        assert {f"t{number}" for number in two.acknowledged} <= found
