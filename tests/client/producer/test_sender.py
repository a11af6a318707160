"""When a producer's machine seals and sends batches, tested by its messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pymq.client.base import Waitable
from pymq.client.producer.delivery import ColumnBuffer, Deliveries, DeliveryPart
from pymq.client.producer.partition_queue import PartitionQueue
from pymq.client.producer.queue_schedule import PROBE_MS
from pymq.client.producer.sender import Sender, SenderConfig
from pymq.client.router import Router
from pymq.core.message import Answer, GetMetadata, Produce, Produced
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode
from pymq.errors import NotLeader


class Driver:
    """A driver whose lock is always free, and whose loop is idle."""

    def __init__(self) -> None:
        self.loop = SimpleNamespace(touch=lambda name: None, clock=lambda: 0)

    def __enter__(self) -> Any:
        return self.loop

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, what: Waitable, timeout: float | None) -> bool:
        return what.is_done


class Bench:
    """A sender with at most two batches in flight, and the queue of one partition."""

    def __init__(self) -> None:
        self.router = router = Router("client", ["zk"], lambda: None)
        self.learn("id")
        config = SenderConfig(None, 0, 1 << 20, 1 << 20, 0, 7, 0, 120_000, 2)
        driver: Any = Driver()
        self.sender = Sender("client.p", router, driver, config, lambda: 0)
        self.queue = PartitionQueue(self.sender, "t", "0")
        self.queue.is_sure = True  # The queue need not wait for its first answer.

    def learn(self, topic_id: str) -> None:
        """Give the sender the topic's metadata, as a zkserver would."""
        self.router.refresh("t")
        ready = self.router.ready(0)
        assert ready is not None
        ((_, asked),) = ready.send
        assert isinstance(asked, GetMetadata)
        leader = PartitionLeader("0", 0, AckMode.LEADER, 1, "broker", None)
        found = TopicMetadata("t", topic_id, TopicConfig(), (leader,))
        self.router.step("zk", Answer(asked.id, found), 0)

    def send(self, value: bytes, now: int) -> list[Produce]:
        """Send a record without linger, as a producer's thread does.

        Returns the messages of this turn.
        """
        self.queue.add((value,))
        if not self.queue.is_armed and self.queue.held_at != now:
            self.queue.is_armed = True
            self.sender.backlog.armed.append((now, self.queue))
        return self.left(now)

    def send_many(self, values: list[bytes], now: int) -> DeliveryPart:
        """Send records with one call, as a producer's thread does."""
        part = DeliveryPart(ColumnBuffer(values), None)
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
        """Answer a batch; returns the messages of this turn."""
        self.sender.step("broker", Produced(produce.id, base_offset=0), now)
        return self.left(now)


def values(produced: list[Produce]) -> list[list[bytes]]:
    return [list(produce.batch.values) for produce in produced]


def test_what_cannot_leave_gathers() -> None:
    """Without linger, records that are sent while answers are pending share a batch."""
    bench = Bench()
    first, second = bench.send(b"1", 0), bench.send(b"2", 0)
    assert values(first + second) == [[b"1"], [b"2"]]
    assert bench.send(b"3", 0) == bench.send(b"4", 0) == bench.send(b"5", 1) == []
    assert values(bench.answer(first[0], 2)) == [[b"3", b"4", b"5"]]
    assert bench.answer(second[0], 3) == []
    assert values(bench.send(b"6", 3)) == [[b"6"]]


def test_what_gathers_is_sealed_when_nobody_answers() -> None:
    """Sealing starts the timeout of these records, so they fail no later than records that were
    sent.
    """
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
    """flush also waits for batches that have not been sent yet."""
    bench = Bench()
    first, second = bench.send(b"1", 0), bench.send(b"2", 0)
    assert bench.send(b"3", 0) == []
    assert [batch.count for batch in bench.sender.flush()] == [1, 1, 1]
    assert values(bench.answer(first[0], 1)) == [[b"3"]]
    assert bench.answer(second[0], 1) == []


def test_bulk_sends_that_cannot_leave_share_a_batch() -> None:
    """Bulk sends that share a batch each get the offsets and the errors of their own records."""
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
    parts = [
        DeliveryPart(ColumnBuffer([b"1"]), None),
        DeliveryPart(ColumnBuffer([b"2"], [b"k"]), None),
    ]
    large = DeliveryPart(ColumnBuffer([bytes(1 << 20)] * 2), None)
    bench.queue.has_parts = True
    for part in (*parts, *parts, large):
        bench.queue.add(part)
    bench.queue.seal(0, 0)
    assert [batch.count for batch in bench.queue.sealed] == [1, 1, 1, 1, 1, 1]


def test_what_comes_into_a_topic_that_was_made_again_is_no_repeat() -> None:
    """The new topic's first batch gets new sequences, so a late duplicate for the old topic cannot
    be accepted.
    """
    bench = Bench()
    (old,) = bench.send(b"1", 0)
    assert bench.answer(old, 1) == []
    bench.learn("later")
    (new,) = bench.send(b"2", 2)
    assert (old.topic_id, new.topic_id) == ("id", "later")
    assert old.batch.header.base_sequence == new.batch.header.base_sequence == 0
    assert old.batch.header.producer_epoch < new.batch.header.producer_epoch


def test_what_is_in_flight_is_numbered_anew_for_a_topic_that_was_made_again() -> None:
    """Batches in flight get new sequences for the new topic, which would refuse the old ones."""
    bench = Bench()
    (first,) = bench.send(b"1", 0)
    bench.answer(first, 1)
    sent = bench.send(b"2", 2) + bench.send(b"3", 2)
    assert [produce.batch.header.base_sequence for produce in sent] == [1, 2]
    bench.learn("later")
    assert bench.send(b"4", 3) == []
    refusal = NotLeader("it was created again", leader=None, topic_id="later")
    bench.sender.step("broker", Produced(sent[0].id, error=refusal), 4)
    again: list[Produce] = []
    for now in (4, 1_000, 1_001, 1_002):
        left = bench.left(now)
        again += left
        for produce in left:
            again += bench.answer(produce, now)
    headers = [produce.batch.header for produce in again]
    assert [header.base_sequence for header in headers] == [0, 1, 2]
    assert len({header.producer_epoch for header in headers}) == 1
    assert {produce.topic_id for produce in again} == {"later"}
    assert values(again) == [[b"2"], [b"3"], [b"4"]]


def test_who_wants_to_know_the_next_number_waits_when_it_is_asked_for_again() -> None:
    """A caller waits for the new answer and does not get -1, although an earlier one was known."""
    bench = Bench()
    bench.queue.known.finish()
    bench.send(b"1", 0)
    bench.sender.tick(120_000)
    assert bench.queue.next_sequence == -1
    assert not bench.queue.known.is_done
