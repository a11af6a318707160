"""How many bytes of sealed blocks a broker sends in each turn."""

from __future__ import annotations

from pymq.core.message import ReplicaFetched
from pymq.core.ready import Read, Ready
from pymq.core.repair.repair_throttle import RepairThrottle
from pymq.core.types import NEVER, BlockId


def read(number: int, max_bytes: int, request: int = 1) -> Read:
    block = BlockId("id", 0, number)
    return Read("peer", ReplicaFetched(request, block, 0, 0, 0), block, 0, 10, max_bytes)


def turn(lending: RepairThrottle, now: int) -> list[int]:
    """Return the blocks that are read in a turn, within so many bytes."""
    ready = Ready()
    lending.fill(ready, now)
    return [each.block.number for each in ready.read]


def test_what_is_beyond_the_bound_has_the_next_turns() -> None:
    lending = RepairThrottle(100)
    for number, size in enumerate([60, 40, 1, 99, 101, 100]):
        lending.add(read(number, size))
    assert [turn(lending, now) for now in (0, 0, 1, 2, 3, 4)] == [[0, 1], [], [2, 3], [4], [5], []]
    assert lending.deadline == NEVER
    lending.add(read(7, 60))
    lending.add(read(8, 60))
    assert turn(lending, 4) == [7]
    assert lending.deadline == 5
    lending.add(read(9, 10))
    # The request would fit, but it must not overtake earlier requests.
    assert turn(lending, 4) == []
    assert turn(lending, 5) == [8, 9]


def test_what_is_asked_again_is_read_once() -> None:
    lending = RepairThrottle(100)
    lending.add(read(0, 60))
    lending.add(read(1, 60))
    lending.add(read(0, 60, request=2))
    ready = Ready()
    lending.fill(ready, 0)
    lending.fill(ready, 1)
    asked = [(r.block.number, r.answer.id) for r in ready.read if type(r.answer) is ReplicaFetched]
    assert asked == [(0, 2), (1, 1)]
