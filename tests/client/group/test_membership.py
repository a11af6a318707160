"""The messages that a member of a group sends to its coordinator."""

from __future__ import annotations

from pymq.client.base import Outbox
from pymq.client.group.membership import Key, Membership, WorkerConfig
from pymq.client.router import Router
from pymq.core.message import BEGIN, Answer, Assigned, GetMetadata, Heartbeat, Join
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import OFFSETS_TOPIC, AckMode


class Bench:
    """A member with a router; a test supplies the router's topics."""

    def __init__(self) -> None:
        self.router = Router("client", ["zk"], lambda: None)
        self.learn(OFFSETS_TOPIC, 1)
        self.learn("t", 2)
        config = WorkerConfig("g", "sticky", 30_000, 5, BEGIN)
        self.outbox = Outbox()
        timers: TimerHeap[Key] = TimerHeap()
        names = iter(["m1", "m2"])
        self.member = Membership(
            "t",
            config,
            self.router,
            self.outbox,
            timers,
            lambda: next(names),
            lambda topic_id, now: None,
        )

    def learn(self, topic: str, partitions: int) -> None:
        self.router.refresh(topic)
        ready = self.router.ready(0)
        found = tuple(
            PartitionLeader(str(i), i, AckMode.LEADER, 1, "b0", None) for i in range(partitions)
        )
        for _, asked in ready.send if ready is not None else ():
            if isinstance(asked, GetMetadata) and asked.topic == topic:
                metadata = TopicMetadata(topic, "a1", TopicConfig(), found)
                self.router.step("zk", Answer(asked.id, metadata), 0)

    def said(self) -> Join | Heartbeat:
        ready = self.outbox.ready(0)
        assert ready is not None
        ((_, message),) = ready.send
        assert isinstance(message, Join | Heartbeat)
        return message

    def answer(self, request: int) -> None:
        answer = Assigned(request, 1, ("0",))
        self.member.answered(answer, 0)
        self.member.assign(answer, 0)

    def join(self) -> tuple[str, ...]:
        self.member.join(0)
        join = self.said()
        self.answer(join.id)
        return join.partitions

    def beat(self, *, is_answered: bool = True) -> tuple[str, ...]:
        self.member.heartbeat(0)
        beat = self.said()
        if is_answered:
            self.answer(beat.id)
        return beat.partitions


def test_partitions_are_named_until_the_coordinator_has_answered_and_then_no_more() -> None:
    bench = Bench()
    assert bench.join() == ("0", "1")
    assert bench.beat() == ()
    bench.learn("t", 3)
    assert bench.beat(is_answered=False) == ("0", "1", "2")
    assert bench.beat(is_answered=False) == ("0", "1", "2"), "that may have been lost"
    assert bench.beat() == ("0", "1", "2")
    assert bench.beat() == ()


def test_who_comes_as_another_member_names_all_of_them() -> None:
    bench = Bench()
    bench.join()
    bench.member.fenced()
    assert bench.join() == ("0", "1")
    assert bench.beat() == ()
