"""A broker that takes over many group coordinators reads their state in parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pymq.broker.group_coordinators import FIRST_EPOCH, GroupCoordinators
from pymq.core import cbor
from pymq.core.batch.record import EncodedBatch
from pymq.core.group.offset_log import OFFSET_KEY
from pymq.core.message import Fetch, Fetched, ListGroups, Message, Produce
from pymq.core.partition.partition import Partition
from pymq.core.types import NEVER, OFFSETS_TOPIC
from pymq.errors import ReplicaNotAvailable
from pymq.hash.assign import assignor

COUNT = 8  # partitions of the offsets topic
PARTS = 5  # parts of each partition
OTHER = cbor.dumps([OFFSET_KEY + 1, "", "", ""])  # the key of a record without content


class Host:
    """Partitions of the offsets topic that answer each fetch at once with one batch."""

    def __init__(self) -> None:
        self.coordinators = GroupCoordinators("b", self, assignor)
        self.now = 0
        self.taken: list[int] = []  # the requested offsets of all partitions

    def reply(self, source: str, message: Message, now: int) -> None:
        raise AssertionError("nobody has asked")

    def wall_ms(self, now: int) -> int:
        return now

    def offsets_step(
        self, index: int, message: Produce | Fetch, now: int, holder: str | None = None
    ) -> None:
        assert isinstance(message, Fetch)
        offset = max(0, message.offset)
        self.taken.append(offset)
        batch = EncodedBatch.encode([b""], timestamp_ms=0, keys=[OTHER]).stamp(offset, 0, 0)
        data = bytes(batch.head) + bytes(batch.body)
        part = Fetched(message.id, OFFSETS_TOPIC, str(index), offset, 0, PARTS, data)
        self.coordinators.answered(index, part, now)

    def offsets_end(self, index: int) -> int:
        return PARTS

    def offsets_since(self, index: int, offset: int) -> None:
        raise AssertionError("all of it is here")

    def take_over(self) -> None:
        for index in range(COUNT):
            state = SimpleNamespace(index=index, siblings=COUNT, blocks=[None])
            partition: Any = SimpleNamespace(state=state, leads=True, leads_at=FIRST_EPOCH)
            self.coordinators.leadership_changed(cast("Partition", partition), self.now)

    def turn(self) -> int:
        """Let time pass until the next part is due; returns how many parts were handled."""
        assert self.now < self.coordinators.deadline < NEVER
        self.now = self.coordinators.deadline
        before = len(self.taken)
        self.coordinators.tick(self.now)
        return len(self.taken) - before


def test_a_turn_takes_in_one_part_of_what_all_coordinators_read() -> None:
    """A broker handles one part in each turn.

    Otherwise the broker's pings would be late, and the others would elect another leader.
    """
    host = Host()
    host.take_over()
    asked = len(host.taken)
    assert asked == COUNT + 1, "the first part that came was taken in, and the next one asked for"
    turns = 0
    while host.coordinators.deadline < NEVER:
        assert host.turn() <= 1
        turns += 1
    assert turns == COUNT * PARTS - 1
    assert sorted(host.taken) == sorted(list(range(PARTS)) * COUNT)
    assert all(coordinator.offsets.is_loaded for coordinator in host.coordinators.values())
    assert host.coordinators.list(ListGroups(1)).error is None


def test_coordinators_are_asked_in_turn_and_none_waits_for_another_to_end() -> None:
    host = Host()
    host.take_over()
    for _ in range(COUNT):
        host.turn()
    assert min(host.taken.count(offset) for offset in (0, 1)) == COUNT
    assert isinstance(host.coordinators.list(ListGroups(1)).error, ReplicaNotAvailable)


def test_a_part_for_a_coordinator_that_has_moved_away_is_dropped() -> None:
    host = Host()
    host.take_over()
    for index in range(COUNT):
        state = SimpleNamespace(index=index, siblings=COUNT)
        opened = SimpleNamespace(leader="another")
        partition: Any = SimpleNamespace(state=state, leads=False, opened=opened)
        host.coordinators.leadership_changed(cast("Partition", partition), host.now)
    asked = len(host.taken)
    while host.coordinators.deadline < NEVER:
        host.turn()
    assert len(host.taken) == asked
