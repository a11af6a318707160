"""The loop: how it merges work, the order of its actions, and its handling of failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import pymq
from pymq.core.message import Fetched, ListTopics, Message
from pymq.core.ready import (
    Append,
    Compact,
    Compacted,
    CreateBlock,
    Read,
    Recover,
    Recovered,
    RecoverFailed,
    Truncate,
    Write,
    WriteFailed,
)
from pymq.core.types import NEVER, BlockId
from pymq.errors import InvalidRequest, StoreFull
from pymq.runtime.loop import RECOVER_MS, Loop
from pymq.runtime.node_thread import RUN_MS
from tests.controller.machines import CountingStore, Scripted, append, block


class Clock:
    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Loop:
    return Loop(clock)


def test_messages_go_to_whom_they_are_for(loop: Loop) -> None:
    """The receiver gets the sender's name; messages to unknown receivers are dropped."""
    a, b = Scripted(), Scripted()
    loop.add("a", a)
    loop.add("b", b)
    a.out.send = [("b", ListTopics(1)), ("nobody", ListTopics(2)), ("a", ListTopics(3))]
    loop.run()
    assert b.heard == [("a", ListTopics(1))]
    assert a.heard == [("a", ListTopics(3))]
    loop.remove("b")
    a.out.send = [("b", ListTopics(4))]
    loop.touch("a")
    loop.run()
    assert len(b.heard) == 1
    assert not loop.has_work


def test_what_was_promised_leaves_before_anything_is_made_of_the_write() -> None:
    """A follower's answer leaves before its own next step, since a leader waits for it."""
    said: list[str] = []
    advanced: list[int] = []
    store, broker = CountingStore(), Scripted()

    def far(peer: str, source: str, message: Message) -> None:
        said.append(peer)

    def flush() -> None:
        if said:
            advanced.append(broker.advanced)
            said.clear()

    loop = Loop(lambda: 0, far, flush)
    loop.add_broker("broker", broker, store)
    broker.out.write = [CreateBlock(block(0), 0, "t", "0")]
    broker.out.after = [("leader", ListTopics(1))]
    loop.run()
    assert advanced == [0]
    assert broker.advanced == 1
    assert len(store.calls) == 1


def test_writes_of_one_turn_are_one_call(loop: Loop) -> None:
    """One call writes for all machines and partitions; the answers leave after it."""
    store, broker, other = CountingStore(), Scripted(), Scripted()
    loop.add_broker("broker", broker, store)
    loop.add("other", other)
    broker.out.write = [CreateBlock(block(n), 0, "t", str(n)) for n in range(3)]
    loop.run()
    order: list[str] = []
    other.on_step = lambda source, message: order.append(f"heard after {len(store.calls)} writes")
    broker.out.write = [append(0), append(1)]
    broker.out.after = [("other", ListTopics(1))]
    other.out.write = [append(2)]
    loop.touch("broker")
    loop.touch("other")
    loop.run()
    assert [len(call) for call in store.calls] == [3, 3]
    assert order == ["heard after 2 writes"]


def fetch(number: int, end: int = 1, peer: str = "other") -> Read:
    """Return a read of the block of partition *number*, for the fetch with that id."""
    answer = Fetched(number, "t", str(number), 0, 0, end)
    return Read(peer, answer, block(number), 0, end, 1 << 20)


def test_a_fetch_of_committed_records_does_not_wait_for_the_write(loop: Loop) -> None:
    """The answer leaves before the write of the turn, also if that appends to the same block."""
    store, broker, other = CountingStore(), Scripted(), Scripted()
    loop.add_broker("broker", broker, store)
    loop.add("other", other)
    broker.out.write = [*(CreateBlock(block(n), 0, "t", str(n)) for n in range(3)), append(0)]
    broker.out.write += [append(1), append(2)]
    loop.run()
    order: list[tuple[str, int]] = []
    write = store.write

    def note(writes: Sequence[Write]) -> list[WriteFailed]:
        # A message within the process is in the inbox, and other processes get it at the flush.
        order.extend(("read", m.id) for *_, m in loop.inbox if isinstance(m, Fetched))
        order.append(("write", len(writes)))
        return write(writes)

    store.write = note  # type: ignore[method-assign] # to see what has left before
    broker.out.write = [append(0, 1), Truncate(block(1), 1)]
    broker.out.read = [fetch(0), fetch(1), fetch(2), fetch(9)]
    loop.touch("broker")
    loop.run()
    assert order == [("read", 0), ("read", 2), ("write", 2)]
    found = [m for _, m in other.heard if isinstance(m, Fetched)]
    assert sorted(m.id for m in found) == [0, 1, 2, 9], "each is answered once"
    assert all(bool(m.data) == (m.id != 9) and (m.error is None) == (m.id != 9) for m in found)


def test_a_failed_write_is_told_and_nothing_follows_it(loop: Loop) -> None:
    """The machine learns of the failure before ``advance``, and no message leaves after
    the write.
    """
    store, broker, other = CountingStore(), Scripted(), Scripted()
    loop.add_broker("broker", broker, store)
    loop.add("other", other)
    broker.out.write = [append(5)]  # a block that does not exist
    broker.out.after = [("other", ListTopics(1))]
    broker.out.send = [("other", ListTopics(2))]
    loop.run()
    (event,) = broker.events
    assert isinstance(event, WriteFailed)
    assert isinstance(event.error, InvalidRequest)
    assert broker.advanced == 1
    assert other.heard == [("broker", ListTopics(2))]


def test_nothing_follows_a_second_write_of_the_turn_that_fails(loop: Loop) -> None:
    """If the second write of a turn fails, no message that waits for it leaves."""
    store, broker, other = CountingStore(), Scripted(), Scripted()
    loop.add_broker("broker", broker, store)
    loop.add("other", other)

    def vote() -> None:
        if broker.advanced == 1:
            broker.out.write = [append(5)]  # a block that does not exist
            broker.out.after = [("other", ListTopics(1))]
            broker.out.send = [("other", ListTopics(2))]

    broker.on_advance = vote
    broker.out.write = [CreateBlock(block(0), 0, "t", "0")]
    loop.run()
    assert [len(call) for call in store.calls] == [1, 1]
    assert len(broker.events) == 1
    assert other.heard == [("broker", ListTopics(2))]


def test_ticks(loop: Loop, clock: Clock) -> None:
    """A machine ticks at its deadline, and not before."""
    machine = Scripted()
    loop.add("machine", machine)
    machine.deadline = 1_010
    loop.run()
    assert loop.deadline == 1_010
    assert machine.ticks == []
    clock.now = 1_011
    loop.run()
    loop.run()
    assert machine.ticks == [1_011]
    assert loop.deadline == NEVER
    assert not loop.has_work


def test_enough(loop: Loop) -> None:
    """A caller returns as soon as its result is there, and leaves the rest of the work."""
    a, b = Scripted(), Scripted()
    loop.add("a", a)
    loop.add("b", b)

    def echo(machine: Scripted, peer: str) -> None:
        machine.on_step = lambda source, message: machine.out.send.append((peer, message))

    echo(a, "b")
    echo(b, "a")
    a.out.send = [("b", ListTopics(1))]
    loop.run(lambda: len(a.heard) >= 5)
    assert len(a.heard) == 5
    assert loop.has_work


def test_a_run_ends_after_a_while_though_there_is_work(loop: Loop, clock: Clock) -> None:
    """The loop reads heartbeats between slices.

    A zkserver that creates 20,000 partitions reads none of them.
    """
    a, b = Scripted(), Scripted()
    loop.add("a", a)
    loop.add("b", b)

    def echo(machine: Scripted, peer: str) -> None:
        def answer(source: str, message: Message) -> None:
            clock.now += 7  # the time that a slice of a large change takes
            machine.out.send.append((peer, message))

        machine.on_step = answer

    echo(a, "b")
    echo(b, "a")
    a.out.send = [("b", ListTopics(1))]
    for _ in range(3):
        began = clock.now
        loop.run(within_ms=RUN_MS)
        assert loop.has_work
        assert RUN_MS <= clock.now - began <= RUN_MS + 2 * 7


def test_a_turn_recovers_few_blocks_if_they_are_large(loop: Loop, clock: Clock) -> None:
    """A turn recovers few large blocks, so a restarted broker answers other nodes meanwhile."""

    class Slow(CountingStore):
        def recover(self, block: BlockId, start: int, is_open: bool) -> Recovered | RecoverFailed:
            clock.now += 6  # the time that some hundred batches take
            return super().recover(block, start, is_open)

    broker = Scripted()
    loop.add_broker("broker", broker, Slow())
    asked = [block(number) for number in range(10)]
    broker.out.ask = [Recover(each, 0, True) for each in asked]
    counts = []
    while loop.has_work:
        loop.take([("broker", "a", ListTopics(1))])
        before, began = len(broker.events), clock.now
        loop.turn()
        counts.append(len(broker.events) - before)
        assert clock.now - began < 2 * RECOVER_MS
        assert len(broker.heard) == len(counts), "what came before the turn was taken in"
        if len(broker.events) == len(asked):
            break
    assert counts == [2] * 5
    found = [event.block for event in broker.events if isinstance(event, Recovered)]
    assert found == asked


def test_what_is_quickly_recovered_is_recovered_at_once(loop: Loop) -> None:
    broker = Scripted()
    loop.add_broker("broker", broker, CountingStore())
    broker.out.ask = [Recover(block(number), 0, True) for number in range(10)]
    loop.turn()
    assert len(broker.events) == 10


def test_long_work_is_left_to_others(loop: Loop) -> None:
    """A turn only queues long work; the answer comes in a later turn."""
    store, broker = CountingStore(), Scripted()
    loop.add_broker("broker", broker, store)
    broker.out.jobs = [Compact("t", "0", (), 0)]
    loop.run()
    assert len(loop.jobs.waiting) == 1
    assert broker.events == []
    loop.jobs.run_one()
    assert loop.has_work
    loop.run()
    assert [type(event) for event in broker.events] == [Compacted]


@pytest.mark.parametrize(
    "error",
    [
        StoreFull("full"),
        OSError("io"),
        ZeroDivisionError("bug"),
    ],
)
def test_long_work_that_fails(loop: Loop, error: Exception) -> None:
    """A machine gets any error of its long work, and the worker thread survives."""

    def fail() -> None:
        raise error

    store, broker = CountingStore(), Scripted()
    store.on_compact = fail
    loop.add_broker("broker", broker, store)
    broker.out.jobs = [Compact("t", "0", (), 0)]
    loop.run()
    loop.jobs.run_one()
    loop.run()
    (event,) = broker.events
    assert isinstance(event, Compacted)
    assert event.error is not None


def test_an_exception_is_not_swallowed(loop: Loop) -> None:
    """An exception of a machine propagates to the thread that runs the loop."""
    machine = Scripted()

    def fail(source: str, message: Message) -> None:
        raise ZeroDivisionError("a bug")

    machine.on_step = fail
    machine.out.send = [("machine", ListTopics(1))]
    loop.add("machine", machine)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        loop.run()


@pytest.mark.parametrize("partitions", [1, 7])
def test_a_flush_is_one_write(tmp_path: Path, partitions: int) -> None:
    """In a whole queue, records for several partitions of several topics share one write."""
    with pymq.open(tmp_path) as mq:
        for topic in ("a", "b"):
            mq.create_topic(topic, partitions=partitions, fsync="always")
        store = mq.driver.loop.disks.store("broker-0")  # type: ignore[attr-defined]  # the real store behind the driver
        calls: list[int] = []
        write = store.write

        def counted(writes: list[Append]) -> list[WriteFailed]:
            calls.append(len(writes))
            failed: list[WriteFailed] = write(writes)
            return failed

        store.write = counted
        with mq.producer(linger_ms=600_000) as producer:
            for number in range(100 * partitions):
                for topic in ("a", "b"):
                    producer.send(topic, b"", partition=number % partitions)
            producer.flush()
        assert calls == [2 * partitions]
