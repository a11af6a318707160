"""Fetches of a partition: reads, and redirections to other brokers."""

from __future__ import annotations

import pytest

from pymq.core.block.block_offsets import BlockOffsets
from pymq.core.message import END, Fetch, Fetched, Message
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.partition.context import PartitionContext
from pymq.core.partition.fetch import FetchHandler
from pymq.core.pending.pending_fetches import WAITS_MAX, PendingFetches, WaitingRoom
from pymq.core.repair.partition_repairs import PartitionRepairs
from pymq.core.types import NEVER, AckMode
from pymq.errors import CorruptBlock, PymqError, QuotaExceeded, ReplicaNotAvailable
from pymq.replication.factory import replicator
from tests.core.partition import test_maintenance

DAMAGE = CorruptBlock("bad", file="f")


class Host(test_maintenance.Host):
    """A broker that keeps its answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Message] = []

    def reply(self, source: str, message: Message, now: int) -> None:
        self.answers.append(message)


class DamagedRepairs(PartitionRepairs):
    """Repairs that found the first block damaged."""

    def problem(self, number: int) -> PymqError | None:
        return DAMAGE if number == 0 else None


class Damaged(PartitionContext):
    """A partition whose first block is damaged on this broker; *others* have copies."""

    def __init__(self, host: Host, *others: str) -> None:
        holders = ("me", *others)
        first = BlockNode(0, 0, 10, 1, AckMode.RAFT, None, holders, holders)
        last = BlockNode(1, 10, None, 2, AckMode.RAFT, "me", holders, holders)
        state = PartitionState(
            "t", "ef" * 16, "0", 0, AckMode.RAFT, 2, "me", TopicConfig(), (first, last)
        )
        local = test_maintenance.Blocks(host, replicator)
        local.here = {1}
        local.repairs = DamagedRepairs(local.host)
        super().__init__(state, host, local, local.open(state, 12))
        self.leads_at = 2


@pytest.mark.parametrize("others", [(), ("b", "c")])
def test_readers_of_a_damaged_block_go_to_who_holds_it_or_are_told(others: tuple[str, ...]) -> None:
    host = Host()
    serving = FetchHandler(Damaged(host, *others))
    serving.adopt(serving._partition.state)
    serving.fetch("x", Fetch(1, "t", "0", 3, 1 << 20, 0), 0)
    serving.fetch("x", Fetch(2, "t", "0", 11, 1 << 20, 0), 0)
    (answer,) = host.answers
    assert isinstance(answer, Fetched)
    if others:
        assert isinstance(answer.error, ReplicaNotAvailable)
        assert answer.error.details["brokers"] == list(others)
    else:
        assert answer.error is DAMAGE
    (read,) = host.out.read
    assert (read.block.number, read.offset, read.end) == (1, 11, 12)


def test_of_a_connection_so_many_fetches_wait_and_the_oldest_is_answered() -> None:
    host = Host()
    serving = FetchHandler(Damaged(host))
    serving.adopt(serving._partition.state)
    for number in range(WAITS_MAX + 3):
        serving.fetch(f"greedy/{number % 2}", Fetch(number, "t", "0", 12, 1, 60_000), 0)
    serving.fetch("other/0", Fetch(5, "t", "0", 12, 1, 60_000), 0)
    assert [answer.id for answer in host.answers if isinstance(answer, Fetched)] == [0, 1, 2]
    assert len(serving.waits) == WAITS_MAX + 1
    serving.tick(60_000)
    assert len(host.answers) == WAITS_MAX + 4
    assert not serving.waits.waiting
    assert not serving.waits._lines
    assert serving.waits.deadline == NEVER


def test_a_wake_that_brings_nothing_looks_at_no_waiting_fetch() -> None:
    host = Host()
    serving = FetchHandler(Damaged(host))
    serving.adopt(serving._partition.state)
    for number in range(100):
        serving.fetch("x/0", Fetch(number, "t", "0", 12, 1, 60_000), 0)
    looks = 0
    tried = serving._is_answered

    def is_answered(source: str, m: Fetch, offset: int, now: int) -> bool:
        nonlocal looks
        looks += 1
        return tried(source, m, offset, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FetchHandler, "_is_answered", lambda self, *args: is_answered(*args))
        serving.wake(1)
        assert (looks, host.answers) == (0, [])
        serving._partition.problem = DAMAGE
        serving.wake(1)
    assert looks == len(host.answers) == 100


def test_fetches_that_come_and_are_answered_leave_nothing_behind() -> None:
    room = WaitingRoom()
    waits = PendingFetches(room)
    for number in range(10_000):
        waits.add("x", "x", "x", Fetch(number, "t", "0", 12, 1, 60_000), 0)
        waits.serve(lambda source, m: True)
    assert not waits
    assert len(waits._due) < 100
    assert (room.count, room._held) == (0, {})


def test_over_all_partitions_a_principal_has_as_many_waiting_as_it_leaves_for_others() -> None:
    """The limit holds over all connections and partitions.

    A further fetch is refused and may be retried.
    """
    host = Host()
    host.waiting = WaitingRoom(100)
    servings = [FetchHandler(Damaged(host)) for _ in range(10)]
    for serving in servings:
        serving.adopt(serving._partition.state)
    for number in range(200):
        serving = servings[number % 10]
        serving.fetch(f"greedy.{number % 7}/0", Fetch(number, "t", "0", 12, 1, 60_000), 0)
    assert host.waiting.count == 50
    refused = [answer.error for answer in host.answers if isinstance(answer, Fetched)]
    assert len(refused) == 150
    assert all(isinstance(error, QuotaExceeded) and error.retry_ms for error in refused)
    host.answers.clear()
    for serving in servings:
        serving.fetch("good.1/0", Fetch(1, "t", "0", 12, 1, 60_000), 0)
    assert (host.waiting.count, host.answers) == (60, []), "others wait beside it"
    servings[0].close()
    for serving in servings[1:]:
        serving.tick(60_000)
    assert (host.waiting.count, host.waiting._held) == (0, {})


def test_a_new_leader_refuses_to_tell_the_end_before_it_knows_it() -> None:
    class Young(BlockOffsets):
        knows_end = False

    host = Host()
    partition = Damaged(host)
    partition.opened.offsets = Young(10, 12)
    serving = FetchHandler(partition)
    serving.adopt(partition.state)
    serving.fetch("x", Fetch(1, "t", "0", END, 0, 0), 0)
    serving.wake(0)
    assert host.answers == []
    serving.tick(0)
    (refused,) = host.answers
    assert isinstance(refused, Fetched)
    assert refused.id == 1
    assert isinstance(refused.error, ReplicaNotAvailable)
    assert refused.error.retriable
    Young.knows_end = True
    serving.fetch("x", Fetch(2, "t", "0", END, 0, 0), 1)
    _, answer = host.answers
    assert isinstance(answer, Fetched)
    assert (answer.id, answer.error, answer.high_watermark) == (2, None, 12)
