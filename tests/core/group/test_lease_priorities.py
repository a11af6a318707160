"""Leases by priority, compared with a model that stores each record separately."""

from __future__ import annotations

from random import Random

import pytest

from pymq.core.batch.offset_ranges import Ranges
from pymq.core.batch.priority import RUNS_MAX, PriorityRuns
from pymq.core.group.leases import RUNS_AT_ONCE, Leases
from pymq.core.message import Acquire, Acquired
from pymq.core.types import NEVER
from tests.core.group.test_coordinator import Host


class Model:
    """Each record's priority and state, in a list."""

    def __init__(self, levels: list[int]) -> None:
        self.levels = levels
        self.free = set(range(len(levels)))
        self.held = set[int]()

    def take(self, limit: int, least: int, end: int, among: set[int]) -> list[int]:
        free = [n for n in self.free & among if n < end and self.levels[n] >= least]
        taken = sorted(free, key=lambda n: (-self.levels[n], n))[:limit]
        self.free -= set(taken)
        self.held |= set(taken)
        return taken

    def put_back(self, offsets: list[int]) -> None:
        self.held -= set(offsets)
        self.free |= set(offsets)

    def hold(self, offsets: list[int]) -> None:
        assert self.free.issuperset(offsets)
        self.free -= set(offsets)
        self.held |= set(offsets)


def runs_of(levels: list[int], start: int, end: int) -> list[tuple[int, int, int]]:
    return list(
        PriorityRuns([(n, n + 1, levels[n]) for n in range(start, end) if levels[n]]).between(
            0, end
        )
    )


@pytest.mark.parametrize("seed", range(200))
def test_the_most_urgent_are_leased_first(seed: int) -> None:
    dice = Random(seed)
    weights = dice.choice([[0, 0, 0, 0, 9], [0, 1, 2, 3], [5, 5, 5, 0]])
    levels = [dice.choice(weights) for _ in range(60)]
    leases, model, end = Leases(0), Model(levels), 0
    for now in range(1, 150):
        match dice.choice(["grow", "lease", "lease", "ack", "nack", "unread", "expire"]):
            case "grow":
                grown = min(60, end + dice.randrange(12))
                leases.prioritize(runs_of(levels, end, grown))
                end = grown
            case "lease":
                limit, least = dice.randrange(1, 8), dice.choice([0, 0, 0, 2, 5])
                loose = Ranges(100, [(n, n + 1) for n in range(60) if n % 3 or dice.random() < 0.5])
                among = {n for start, stop in loose for n in range(start, stop)}
                found = leases.acquire("m", end, limit, NEVER, now, 0, loose, least)
                offsets = [n for lease in found for n in range(lease.start, lease.end)]
                expected = model.take(limit, least, end, among)
                urgent = [n for n in expected if levels[n]]
                assert offsets[: len(urgent)] == urgent
                rest = offsets[len(urgent) :]
                assert bool(rest) == (len(urgent) < len(expected))
                assert {*rest} <= {n for n in model.free | model.held if not levels[n]} & among
                model.put_back(expected)
                model.hold(offsets)
            case "ack" if model.held:
                offset = dice.choice(sorted(model.held))
                assert leases.acknowledge("m", [(offset, offset + 1)]) == 0
                model.held.remove(offset)
            case "nack" | "unread" as how if model.held:
                offset = dice.choice(sorted(model.held))
                if how == "nack":
                    leases.reject("m", [(offset, offset + 1)], now)
                else:
                    leases.give_back("m", [(offset, offset + 1)], now)
                model.held.remove(offset)
                model.free.add(offset)
            case "expire" if dice.random() < 0.2:
                leases.release("m", now)
                model.free |= model.held
                model.held.clear()
            case _:
                pass
    while found := leases.acquire("m", 60, 7, NEVER, 1_000, 0):
        assert leases.acknowledge("m", [(lease.start, lease.end) for lease in found]) == 0
    assert leases.spans.in_flight == len(model.held)


def test_many_runs_are_leased_in_parts() -> None:
    leases = Leases(0)
    leases.prioritize([(n, n + 1, 5) for n in range(0, 400, 2)])
    found = leases.acquire("m", 400, 1_000, NEVER, 1, 0)
    assert [lease.start for lease in found[:RUNS_AT_ONCE]] == list(range(0, 2 * RUNS_AT_ONCE, 2))


def test_urgent_records_of_other_partitions_come_before_less_urgent_ones_of_the_own() -> None:
    """One member works on its partitions, and the other one has an urgent record of its own."""
    host = Host()
    names = ("0", "1", "2")
    for member in ("busy", "free", "busy"):
        host.join(member, names)
    own = host.beat("free", names)
    held = [name for name in names if name not in own]

    def lease(member: str, runs: dict[str, tuple[int, int]], limit: int) -> list[tuple[str, int]]:
        """Lease; of ten records in each partition *runs* have priority 9, and none has a key."""
        known, unkeyed = tuple((n, 0, 10) for n in runs), tuple((n, 0, 10) for n in runs)
        urgent = tuple((n, *run, 9) for n, run in runs.items())
        ask = Acquire(host.id(), "g", member, known, limit, 0, unkeyed, True, urgent)
        (answer,) = host.send(member, ask)
        assert isinstance(answer, Acquired)
        return [
            (lease.partition, n) for lease in answer.leases for n in range(lease.start, lease.end)
        ]

    assert len(lease("busy", dict.fromkeys(held, (3, 6)), 1)) == 1
    found = lease("free", dict.fromkeys(own, (3, 4)), 10)
    urgent = {(name, n) for name in held for n in (3, 4, 5)} | {(name, 3) for name in own}
    assert len(found) == 10
    assert len(set(found[: len(urgent) - 1]) & urgent) == len(urgent) - 1


# --- runs ---------------------------------------------------------------------------------------


def test_runs_are_joined_cut_and_bounded() -> None:
    runs = PriorityRuns([(0, 2, 5), (2, 4, 5), (4, 5, 1), (9, 12, 1)])
    assert runs.between(0, 100) == ((0, 4, 5), (4, 5, 1), (9, 12, 1))
    assert runs.between(3, 10) == ((3, 4, 5), (4, 5, 1), (9, 10, 1))
    runs.put(0, 12, 7)  # these priorities are known already
    runs.put(11, 14, 2)
    assert runs.between(5, 100) == ((9, 12, 1), (12, 14, 2))
    runs.cut(10)
    assert runs.between(5, 100) == ((9, 10, 1),)
    runs.forget(5)
    assert len(runs) == 1
    for n in range(20, 20 + 4 * RUNS_MAX, 2):
        runs.put(n, n + 1, 3)
    assert len(runs) <= RUNS_MAX
    assert runs.between(0, 1 << 62)[-1] == (18 + 4 * RUNS_MAX, 19 + 4 * RUNS_MAX, 3)
