"""Translated offsets are exact, or behind by less than the grain; never ahead."""

from __future__ import annotations

import random

import pytest

from pymq.mirror.offset_map import RUNS_MAX, OffsetMap


class Naive:
    """All records, one by one."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []

    def find(self, source: int) -> int:
        """The place after the last record before *source*."""
        before = [target for at, target in self.places if at < source]
        return before[-1] + 1 if before else self.places[0][1]


@pytest.mark.parametrize("seed", range(30))
def test_a_map_is_exact(seed: int) -> None:
    rng = random.Random(seed)
    found, naive = OffsetMap(), Naive()
    source, target = rng.randrange(5), rng.randrange(5)
    for _ in range(rng.randrange(1, 20)):
        count = rng.randrange(1, 6)
        found.add(source, target, count)
        naive.places += [(source + n, target + n) for n in range(count)]
        source += count + rng.choice((0, 0, 1, 3))
        target += count + rng.choice((0, 0, 0, 2))
    for offset in range(source + 3):
        exact = naive.find(offset)
        # Between two runs a target may have a gap: both its ends are the same place to a consumer.
        assert found.find(offset) in {exact, *after_gap(naive, offset, exact)}
    assert found.grain == 0


def after_gap(naive: Naive, offset: int, exact: int) -> set[int]:
    """The next record's place, if *offset* is that record."""
    return {target for at, target in naive.places if at == offset and target >= exact}


@pytest.mark.parametrize("seed", range(5))
def test_a_map_with_many_gaps_is_behind_by_less_than_its_grain(seed: int) -> None:
    rng = random.Random(seed)
    found = OffsetMap()
    exact: dict[int, int] = {}
    source = target = 0
    for _ in range(4 * RUNS_MAX):
        count = rng.randrange(1, 4)
        found.add(source, target, count)
        exact |= {source + n: target + n for n in range(count)}
        source, target = source + count + 1, target + count
    assert len(found.runs) <= RUNS_MAX
    assert found.grain > 0
    behind = [place - (found.find(at) or 0) for at, place in exact.items()]
    assert min(behind) >= 0
    assert max(behind) < found.grain
    assert behind[-1] == 0


def test_old_runs_are_forgotten() -> None:
    found = OffsetMap()
    for number in range(10):
        found.add(number * 10, number * 5, 5)
    found.forget(73)
    assert found.runs[0] == (70, 35, 5)
    found.forget(1000)
    assert found.runs == [(90, 45, 5)]
    assert found.find(3) == 45, "records before the source's start count as read"
    assert OffsetMap().find(3) is None
