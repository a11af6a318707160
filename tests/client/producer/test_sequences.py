"""A producer requests its next sequence: one request at a time, repeated to each new leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pymq.client.producer.partition_queue import PartitionQueue
from pymq.client.producer.sender import Sender, SenderConfig
from pymq.client.producer.sequences import ANSWER_MS
from pymq.core.message import GetSequence, Sequence
from pymq.errors import NotLeader
from tests.client.helpers import router_to


class Driver:
    """A driver whose lock is always free, and whose loop is idle."""

    def __init__(self) -> None:
        self.now = 0
        self.loop = SimpleNamespace(touch=lambda name: None, clock=lambda: self.now)

    def __enter__(self) -> Any:
        return self.loop

    def __exit__(self, *_: object) -> None:
        pass


class Bench:
    """A named producer that requests its next sequence in one partition."""

    def __init__(self) -> None:
        router = router_to("broker")
        config = SenderConfig(None, 0, 1 << 20, 1 << 20, 0, 7, 0, 120_000, 2, is_named=True)
        driver: Any = Driver()
        self.sender = Sender("client.p", router, driver, config, lambda: 0)
        self.queue = PartitionQueue(self.sender, "t", "0")

    def asked(self, now: int) -> list[GetSequence]:
        """Return the requests in flight."""
        self.sender.tick(now)
        ready = self.sender.ready(now)
        return [m for _, m in ready.send if isinstance(m, GetSequence)] if ready else []

    def answer(self, ask: GetSequence, now: int, **what: Any) -> None:
        self.sender.step("broker", Sequence(ask.id, **what), now)


def test_it_is_asked_once_and_again_when_nobody_answers() -> None:
    bench = Bench()
    bench.sender.ask_sequence(bench.queue)
    (first,) = bench.asked(0)
    assert (first.partition, first.producer_id, first.topic_id) == ("0", 7, "id")
    bench.sender.ask_sequence(bench.queue)
    assert bench.asked(ANSWER_MS - 1) == []
    (second,) = bench.asked(ANSWER_MS)
    bench.answer(first, ANSWER_MS, next_sequence=3)
    assert bench.queue.next_sequence == -1  # The sender ignores the answer of the former leader.
    bench.answer(second, ANSWER_MS, next_sequence=5)
    assert bench.queue.known.is_done
    assert bench.queue.next_sequence == 5
    assert bench.asked(2 * ANSWER_MS) == []


def test_it_is_asked_again_after_a_pause_when_it_is_refused() -> None:
    bench = Bench()
    bench.sender.ask_sequence(bench.queue)
    (first,) = bench.asked(0)
    bench.answer(first, 0, error=NotLeader("it leads no more", leader=None, epoch=2))
    assert bench.asked(0) == []
    (second,) = bench.asked(bench.queue.pause_ms)
    bench.answer(second, bench.queue.pause_ms, next_sequence=0)
    assert bench.queue.next_sequence == 0
