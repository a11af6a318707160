"""Several brokers in one loop: their disks work in parallel, and each fails alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from pymq.core.message import ListTopics, Message
from pymq.core.ready import Compact, Compacted, CreateBlock, Write, WriteFailed
from pymq.errors import InvalidRequest
from pymq.runtime.loop import HELD_MAX, Loop
from tests.controller.machines import CountingStore, Scripted, append, block

NAMES = ("a", "b", "c")


class Brokers:
    """Three machines with a store each, and a receiver of their answers."""

    def __init__(self) -> None:
        self.now = 1_000
        self.loop = Loop(lambda: self.now)
        self.machines = {name: Scripted() for name in NAMES}
        self.stores = {name: CountingStore() for name in NAMES}
        self.client = Scripted()
        for name in NAMES:
            self.loop.add_broker(name, self.machines[name], self.stores[name])
            self.machines[name].out.write = [CreateBlock(block(0), 0, "t", "0")]
        self.loop.add("client", self.client)
        self.loop.run()
        for store in self.stores.values():
            store.calls.clear()

    def follow(self, source: str, message: Message) -> None:
        """Act as a follower: write, then answer."""
        for name in ("b", "c"):
            out = self.machines[name].out
            out.write, out.after = [append(0)], [("client", ListTopics(2))]

    def lead(self) -> None:
        """Take the first write; until it is done, send messages to the other brokers."""
        for name in ("b", "c"):
            self.machines[name].on_step = self.follow
        out = self.machines["a"].out
        out.send = [("b", ListTopics(0)), ("c", ListTopics(0))]
        out.write, out.after = [append(0)], [("client", ListTopics(1))]
        self.loop.touch("a")


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    found = Brokers()
    yield found
    found.loop.disks.release()


def test_a_leaders_disk_works_while_its_followers_do(brokers: Brokers) -> None:
    """The disks of a leader and its followers work at the same time, with one write each."""
    meeting = threading.Barrier(3)

    class Meeting(CountingStore):
        def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
            meeting.wait(30)
            return super().write(writes)

    for name in NAMES:
        brokers.stores[name].__class__ = Meeting
    brokers.lead()
    brokers.loop.run()
    assert [len(brokers.stores[name].calls) for name in NAMES] == [1, 1, 1]
    assert sorted(source for source, _ in brokers.client.heard) == ["a", "b", "c"]


def test_a_disk_that_fails_is_its_own_brokers_affair(brokers: Brokers) -> None:
    """After a failed write the other brokers continue.

    No later message of the failed broker leaves.
    """
    brokers.lead()
    brokers.machines["a"].out.write = [append(7)]  # a block that does not exist
    brokers.loop.run()
    (event,) = brokers.machines["a"].events
    assert isinstance(event, WriteFailed)
    assert isinstance(event.error, InvalidRequest)
    assert brokers.machines["b"].events == []
    assert sorted(source for source, _ in brokers.client.heard) == ["b", "c"]


def test_who_writes_is_not_asked_for_more(brokers: Brokers) -> None:
    """A machine has one piece of work in progress at a time; later work follows it."""
    brokers.lead()
    turns = 0
    while brokers.loop.has_work:
        if not turns:
            brokers.loop.turn()
            brokers.machines["a"].out.send = [("client", ListTopics(9))]
            brokers.loop.touch("a")
        brokers.loop.turn()
        turns += 1
    heard = [message for source, message in brokers.client.heard if source == "a"]
    assert heard == [ListTopics(1), ListTopics(9)]


def test_who_writes_is_given_nothing(brokers: Brokers) -> None:
    """A machine gets no event between the start and the end of its write."""
    machine = brokers.machines["a"]
    at_write: list[tuple[int, int, int]] = []

    class Noting(CountingStore):
        def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
            at_write.append((len(machine.heard), len(machine.events), len(machine.ticks)))
            return super().write(writes)

    brokers.stores["a"].__class__ = Noting
    brokers.lead()
    before = len(machine.heard), len(machine.events), len(machine.ticks)
    brokers.loop.turn()  # the leader's write waits for the writes of the followers
    assert not at_write
    brokers.now += 1
    machine.deadline = brokers.now
    brokers.loop.jobs.add("a", [Compact("t", "0", (), 0)])
    brokers.loop.jobs.run_one()
    brokers.loop.take([("a", "client", ListTopics(5))])
    brokers.loop.take([("a", "client", ListTopics(6))])
    brokers.loop.run()
    brokers.now += 1
    brokers.loop.run()
    assert at_write == [before]
    assert [message for _, message in machine.heard[before[0] :]] == [ListTopics(5), ListTopics(6)]
    assert [type(event) for event in machine.events[before[1] :]] == [Compacted]
    assert len(machine.ticks) > before[2]


def test_a_write_does_not_wait_for_ever(brokers: Brokers) -> None:
    """A write waits a bounded number of turns while other machines exchange messages."""
    loop, first, second = brokers.loop, Scripted(), Scripted()
    loop.add("first", first)
    loop.add("second", second)
    first.on_step = lambda source, message: first.out.send.append(("second", message))
    second.on_step = lambda source, message: second.out.send.append(("first", message))
    first.out.send = [("second", ListTopics(1))]
    brokers.lead()
    for _ in range(2 * HELD_MAX + 2):
        loop.turn()
    assert sorted(source for source, _ in brokers.client.heard) == ["a", "b", "c"]
    assert loop.has_work


def test_a_store_that_breaks_breaks_the_loop(brokers: Brokers) -> None:
    """If a store breaks, the loop raises after the other machines' work of the turn."""

    class Broken(CountingStore):
        def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
            raise ZeroDivisionError("a bug")

    for name in ("a", "b"):
        brokers.stores[name].__class__ = Broken
        brokers.lead()
        with pytest.raises(ZeroDivisionError, match="a bug"):
            brokers.loop.run()
        brokers.stores[name].__class__ = CountingStore
    assert len(brokers.stores["c"].calls) == 2


def test_long_work_is_its_brokers(brokers: Brokers) -> None:
    """The answer of a background job goes to the broker that requested it."""
    brokers.machines["b"].out.jobs = [Compact("t", "0", (), 0)]
    brokers.loop.touch("b")
    brokers.loop.run()
    brokers.loop.jobs.run_one()
    brokers.loop.run()
    assert [type(event) for event in brokers.machines["b"].events] == [Compacted]
    assert brokers.machines["a"].events == brokers.machines["c"].events == []
