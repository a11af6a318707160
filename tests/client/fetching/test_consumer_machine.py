"""What is at hand is taken by one thread, while whoever turns the loop may take it away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.client.consumer.reader import Reader
from pymq.client.fetching.consumer_machine import ConsumerMachine
from pymq.client.group.group_member import GroupConsumer
from pymq.client.group.membership import WorkerConfig
from pymq.client.group.poll_timer import LOOKS
from pymq.client.router import Router
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch

MAX_POLL_MS = 1_000
BARRED_S = 0.2  # how long the other thread gets to come in between, if it can


class Interrupted(RecordBatch):
    """Ten records; while they are cut another thread does something."""

    def __init__(self, do: Callable[[], None]) -> None:
        batch = EncodedBatch.encode([b"x"] * 10, timestamp_ms=0)
        super().__init__(batch.stamp(0, 1, 0).at("t", "0"))
        self.other = threading.Thread(target=do)

    def cut(self, count: int) -> tuple[RecordBatch, RecordBatch]:
        self.other.start()
        self.other.join(BARRED_S)
        return super().cut(count)


def take_one(intake: ConsumerMachine, meanwhile: Callable[[], None]) -> None:
    """Take the first of ten records; *meanwhile* all is taken away."""
    view = Interrupted(meanwhile)
    intake.chunks.append(view)
    assert [len(taken) for taken in intake.take(1, 1 << 20)] == [1]
    view.other.join()


def machines() -> tuple[Router, Any]:
    driver = SimpleNamespace(loop=SimpleNamespace(clock=lambda: 0, touch=lambda name: None))
    return Router("client", ["zk"], lambda: None), driver


def worker() -> GroupConsumer:
    config = WorkerConfig("g", "sticky", 30_000, 0, 0, MAX_POLL_MS)
    return GroupConsumer("client.w", "t", *machines(), config, lambda: "member")


def lapse(member: GroupConsumer) -> None:
    """Let time pass in which the application does not ask for anything."""
    member.membership.is_joined = True
    for look in range(LOOKS + 1):
        member.poll_timer.is_used = False
        member.tick(look * MAX_POLL_MS)


@pytest.mark.parametrize(
    "do",
    [lapse, lambda member: member.pause(["0"], [], 0), lambda member: member.close([])],
    ids=["lapse", "pause", "close"],
)
def test_what_a_member_lost_while_it_was_taken_is_not_put_back(
    do: Callable[[GroupConsumer], None],
) -> None:
    member = worker()
    take_one(member, lambda: do(member))
    assert not member.chunks


def test_what_was_taken_when_all_was_lost_is_not_held_for_handed_out() -> None:
    """Its acknowledgement would be one of what is leased next, and not handed out yet."""
    member = worker()
    take_one(member, lambda: lapse(member))
    assert member.poll_timer.has_lapsed
    assert member.standing.drops == 1
    assert member.settler.handed.take("0", (0, 10)) == []


def test_a_reader_stands_where_it_was_sent_while_records_were_taken() -> None:
    reader = Reader("client.r", "t", *machines(), ["0"], 0)
    take_one(reader, lambda: reader.seek("0", 5))
    assert not reader.chunks
    assert reader.cursors["0"].handed == 5


def test_more_may_come_while_the_next_view_is_looked_for() -> None:
    """The loop appends what it has fetched, whatever the application's thread is at."""
    intake = worker()

    class Watched(str):
        """The partition of a view that comes in; to compare it takes so long that another comes."""

        __slots__ = ()

        def __hash__(self) -> int:
            intake.chunks.append(view("1"))
            return super().__hash__()

    def view(partition: str) -> RecordBatch:
        batch = EncodedBatch.encode([b"x"], timestamp_ms=0)
        return RecordBatch(batch.stamp(0, 1, 0).at("t", partition))

    damaged = view(Watched("0"))
    intake._told.append(damaged)
    intake.chunks.extend([damaged, view("1")])
    assert [taken.partition for taken in intake.take(1, 1 << 20)] == ["1"]
