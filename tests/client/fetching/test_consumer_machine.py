"""One thread takes fetched records while the thread of the loop may remove them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.client.consumer.reader import Reader
from pymq.client.fetching.consumer_machine import ConsumerMachine
from pymq.client.group.group_member import GroupConsumer
from pymq.client.group.membership import MembershipState, WorkerConfig
from pymq.client.group.poll_timer import LOOKS
from pymq.client.router import Router
from pymq.core.batch.header import EXPIRES
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.core.delay.record_times import EXPIRES_AT

MAX_POLL_MS = 1_000
BARRED_S = 0.2  # how long the other thread may take to interrupt this one, if it can


class Interrupted(RecordBatch):
    """A batch of ten records; whenever the batch is cut, another thread runs."""

    def __init__(self, do: Callable[[], None]) -> None:
        batch = EncodedBatch.encode([b"x"] * 10, timestamp_ms=0)
        super().__init__(batch.stamp(0, 1, 0).at("t", "0"))
        self.other = threading.Thread(target=do)

    def cut(self, count: int) -> tuple[RecordBatch, RecordBatch]:
        self.other.start()
        self.other.join(BARRED_S)
        return super().cut(count)


def take_one(intake: ConsumerMachine, meanwhile: Callable[[], None]) -> None:
    """Take the first of ten records; *meanwhile* removes all of them."""
    view = Interrupted(meanwhile)
    intake.chunks.append(view)
    assert [len(taken) for taken in intake.take(1, 1 << 20)] == [1]
    view.other.join()


def machines() -> tuple[Router, Any]:
    driver = SimpleNamespace(loop=SimpleNamespace(clock=lambda: 0, touch=lambda name: None))
    return Router("client", ["zk"], lambda: None), driver


def worker(wall_ms: Callable[[], int] = lambda: 0) -> GroupConsumer:
    config = WorkerConfig("g", "sticky", 30_000, 0, 0, MAX_POLL_MS)
    return GroupConsumer("client.w", "t", *machines(), config, lambda: "member", wall_ms=wall_ms)


def lapse(member: GroupConsumer) -> None:
    """Let time pass without a poll by the application."""
    member.membership._move(MembershipState.JOINED)
    for look in range(LOOKS + 1):
        member.poll_timer.is_used = False
        member.tick(look * MAX_POLL_MS)


def take_three(member: GroupConsumer) -> list[bytes]:
    """Take three records, of which one expires at 100 ms, and one at 200."""
    headers = [((EXPIRES_AT, b"100"),), (), ((EXPIRES_AT, b"200"),)]
    batch = EncodedBatch.encode(
        [b"a", b"b", b"c"], timestamp_ms=0, headers=headers, attributes=EXPIRES
    )
    member.chunks.append(RecordBatch(batch.stamp(0, 1, 0).at("t", "0")))
    (view,) = member.take(3, 1 << 20)
    return list(view.values)


def test_what_expires_while_it_waits_is_acknowledged_and_not_delivered() -> None:
    times = iter([99, 100])
    member = worker(lambda: next(times))
    member.settler.due = 0  # A timer will send the acknowledgement later.
    assert take_three(member) == [b"a", b"b", b"c"]
    assert take_three(member) == [b"b", b"c"]
    assert list(member.settler.acks["0"]) == [(0, 1)]
    assert not member.dead


def test_what_expires_while_it_waits_is_not_acknowledged_with_its_batch() -> None:
    """An expired record will become a dead letter, and is acknowledged once that letter is
    written.
    """
    member = worker(lambda: 100)
    member.config.buries_expired = True
    assert take_three(member) == [b"b", b"c"]
    ((expired, why),) = member.dead
    assert (expired.values, why) == ([b"a"], b"the record expired before a consumer got it")
    assert not member.settler.acks
    assert member.settler.handed.take("0", (0, 3)) == [(1, 3)]


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
    """If taken records are lost, they do not count as handed out: otherwise an acknowledgement
    would cover a later lease.
    """
    member = worker()
    take_one(member, lambda: lapse(member))
    assert member.membership.state is MembershipState.LAPSED
    assert member.standing.drops == 1
    assert member.settler.handed.take("0", (0, 10)) == []


def test_a_reader_stands_where_it_was_sent_while_records_were_taken() -> None:
    reader = Reader("client.r", "t", *machines(), ["0"], 0)
    take_one(reader, lambda: reader.seek("0", 5))
    assert not reader.chunks
    assert reader.cursors["0"].handed == 5


def test_more_may_come_while_the_next_view_is_looked_for() -> None:
    """The loop may append fetched records at any step of the application's thread."""
    intake = worker()

    class Watched(str):
        """The partition of an arriving view; while it is compared, another view arrives."""

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
