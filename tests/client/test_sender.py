"""When a producer's machine seals and sends, by the messages that it wants sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pymq.client.base import Waitable
from pymq.client.delivery import Columns, Deliveries, Part
from pymq.client.queue import Queue
from pymq.client.router import Router
from pymq.client.sender import PROBE_MS, Sender, SenderConfig
from pymq.core.config import TopicConfig
from pymq.core.message import Answer, GetMetadata, Produce, Produced
from pymq.core.metadata import PartitionLeader, TopicMetadata
from pymq.core.types import AckMode


class Driver:
    """A driver whose lock is always free, and whose loop has nothing else to do."""

    def __init__(self) -> None:
        self.loop = SimpleNamespace(touch=lambda name: None, clock=lambda: 0)

    def __enter__(self) -> Any:
        return self.loop

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, what: Waitable, timeout: float | None) -> bool:
        return what.is_done


class Bench:
    """A sender that may have two batches in flight, and the queue of one partition."""

    def __init__(self) -> None:
        router = Router("client", ["zk"], lambda: None)
        router.refresh("t")
        ready = router.ready(0)
        assert ready is not None
        ((_, asked),) = ready.send
        assert isinstance(asked, GetMetadata)
        leader = PartitionLeader("0", 0, AckMode.LEADER, 1, "broker", None)
        found = TopicMetadata("t", "id", TopicConfig(), (leader,))
        router.step("zk", Answer(asked.id, found), 0)
        config = SenderConfig(None, 0, 1 << 20, 1 << 20, 0, 7, 0, 120_000, 2)
        driver: Any = Driver()
        self.sender = Sender("client.p", router, driver, config, lambda: 0)
        self.queue = Queue(self.sender, "t", "0")
        self.queue.is_sure = True  # It need not wait for its first answer.

    def send(self, value: bytes, now: int) -> list[Produce]:
        """Send a record, as a producer's thread does that does not linger; what leaves at once."""
        self.queue.add((value,))
        if not self.queue.is_armed and self.queue.held_at != now:
            self.queue.is_armed = True
            self.sender.backlog.armed.append((now, self.queue))
        return self.left(now)

    def send_many(self, values: list[bytes], now: int) -> Part:
        """Send records with one call, as a producer's thread does."""
        part = Part(Columns(values), None)
        self.queue.has_parts = True
        self.queue.add(part)
        if self.queue.held_at < 0:
            self.queue.is_armed = True
            self.sender.backlog.armed.appendleft((now, self.queue))
        return part

    def left(self, now: int) -> list[Produce]:
        ready = self.sender.ready(now)
        return [m for _, m in ready.send if isinstance(m, Produce)] if ready is not None else []

    def answer(self, produce: Produce, now: int) -> list[Produce]:
        """Answer a batch; what leaves then."""
        self.sender.step("broker", Produced(produce.id, base_offset=0), now)
        return self.left(now)


def values(produced: list[Produce]) -> list[list[bytes]]:
    return [list(produce.batch.values) for produce in produced]


def test_what_cannot_leave_gathers() -> None:
    """Without lingering, a batch a record would be made of what waits for answers anyway."""
    bench = Bench()
    first, second = bench.send(b"1", 0), bench.send(b"2", 0)
    assert values(first + second) == [[b"1"], [b"2"]]
    assert bench.send(b"3", 0) == bench.send(b"4", 0) == bench.send(b"5", 1) == []
    assert values(bench.answer(first[0], 2)) == [[b"3", b"4", b"5"]]
    assert bench.answer(second[0], 3) == []
    assert values(bench.send(b"6", 3)) == [[b"6"]]


def test_what_gathers_is_sealed_when_nobody_answers() -> None:
    """So that its time runs, and it fails no later than what was sent."""
    bench = Bench()
    sent = bench.send(b"1", 0) + bench.send(b"2", 0)
    assert bench.send(b"3", 1) == []
    assert not bench.queue.sealed
    bench.sender.tick(PROBE_MS)
    assert bench.left(PROBE_MS) == []
    assert [batch.count for batch in bench.queue.sealed] == [1]
    assert bench.queue.held_at < 0
    assert values(bench.answer(sent[0], PROBE_MS)) == [[b"3"]]


def test_flush_waits_for_what_gathers() -> None:
    """It returned with the last batch that had left, and what came after it was still to leave."""
    bench = Bench()
    first, second = bench.send(b"1", 0), bench.send(b"2", 0)
    assert bench.send(b"3", 0) == []
    assert [batch.count for batch in bench.sender.flush()] == [1, 1, 1]
    assert values(bench.answer(first[0], 1)) == [[b"3"]]
    assert bench.answer(second[0], 1) == []


def test_bulk_sends_that_cannot_leave_share_a_batch() -> None:
    """Each still knows where its own records are, and which of them have failed."""
    bench = Bench()
    first, second = bench.send(b"1", 0), bench.send(b"2", 0)
    parts = [bench.send_many([b"3", b"4"], 0), bench.send_many([b"5"], 0)]
    assert bench.left(0) == []
    assert not any(part.pieces for part in parts)
    (produce,) = bench.answer(first[0], 1)
    assert values([produce]) == [[b"3", b"4", b"5"]]
    bench.answer(second[0], 2)
    bench.sender.step("broker", Produced(produce.id, base_offset=7), 3)
    driver: Any = Driver()
    deliveries = [Deliveries(driver, [part], bench.sender) for part in parts]
    assert [[row.offset for row in each.result()] for each in deliveries] == [[7, 8], [9]]


def test_a_bulk_send_that_is_waited_for_is_sealed_at_once() -> None:
    bench = Bench()
    bench.send(b"1", 0)
    bench.send(b"2", 0)
    part = bench.send_many([b"3"], 0)
    assert bench.left(0) == []
    bench.sender.seal()
    assert [batch.count for batch in bench.queue.sealed] == [1]
    assert part.pieces == [(bench.queue.sealed[0], 0, 1)]


def test_bulk_sends_with_and_without_keys_stay_apart() -> None:
    bench = Bench()
    parts = [Part(Columns([b"1"]), None), Part(Columns([b"2"], [b"k"]), None)]
    large = Part(Columns([bytes(1 << 20)] * 2), None)
    bench.queue.has_parts = True
    for part in (*parts, *parts, large):
        bench.queue.add(part)
    bench.queue.seal(0, 0)
    assert [batch.count for batch in bench.queue.sealed] == [1, 1, 1, 1, 1, 1]
