"""Leases, compared with a simple model that has one entry for each offset."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from pymq.core.group.leases import LEASED_MAX, SPANS_OPEN, Leases
from pymq.core.group.spans import Span
from pymq.core.types import NEVER

AVAILABLE, LEASED, DONE = range(3)


class Twin:
    """The same rules as simply as possible, with [state, owner, count, due, dead] for each
    offset.
    """

    def __init__(self) -> None:
        self.offsets: dict[int, list[object]] = {}

    def acquire(
        self, member: str, end: int, limit: int, now: int
    ) -> list[tuple[int, object, bool]]:
        found: list[tuple[int, object, bool]] = []
        for offset, entry in sorted(self.offsets.items()):
            if len(found) < limit and entry[0] == AVAILABLE and int(str(entry[3])) <= now:
                dead = int(str(entry[2])) >= 3
                count = int(str(entry[2])) + (not dead)
                entry[:] = [LEASED, member, count, now + 5, dead]
                found.append((offset, count, dead))
        while len(found) < limit and len(self.offsets) < end:
            offset = len(self.offsets)
            self.offsets[offset] = [LEASED, member, 1, now + 5, False]
            found.append((offset, 1, False))
        return found

    def held(self, member: str, start: int, end: int) -> list[list[object]]:
        return [
            entry
            for offset, entry in self.offsets.items()
            if start <= offset < end and entry[:2] == [LEASED, member]
        ]

    @property
    def committed(self) -> int:
        offset = 0
        while offset in self.offsets and self.offsets[offset][0] == DONE:
            offset += 1
        return offset


@pytest.mark.parametrize("seed", range(300))
def test_leases_do_what_their_twin_does(seed: int) -> None:
    """Two members acquire, settle, return and let expire at random, compared with a simple
    model.
    """
    dice, leases, twin, end, now = random.Random(seed), Leases(0), Twin(), 0, 0
    for _ in range(80):
        now += dice.randrange(3)
        end += dice.randrange(6)
        member = dice.choice("ab")
        match dice.randrange(7):
            case 0 | 1:
                limit = dice.randrange(1, 6)
                got = leases.acquire(member, end, limit, now + 5, now, 3)
                assert all(x.start < x.end for x in got)
                flat = [(o, x.delivery_count, x.dead) for x in got for o in range(x.start, x.end)]
                assert flat == twin.acquire(member, end, limit, now)
            case 6:
                leases.expire(now)
                for entry in twin.offsets.values():
                    if entry[0] == LEASED and int(str(entry[3])) <= now:
                        entry[:2] = [AVAILABLE, None]
            case verb:
                start = dice.randrange(leases.next + 2)
                stop = start + dice.randrange(6)
                held = twin.held(member, start, stop)
                if verb in (2, 3):
                    refused = leases.acknowledge(member, [(start, stop)])
                    assert refused == stop - start - len(held)
                elif verb == 4:
                    leases.reject(member, [(start, stop)], now + 2)
                else:
                    leases.give_back(member, [(start, stop)], now)
                for entry in held:
                    count, dead = int(str(entry[2])), bool(entry[4])
                    if verb in (2, 3):
                        entry[:] = [DONE, None, count, NEVER]
                    elif verb == 4:
                        entry[:] = [AVAILABLE, None, count, now + 2]
                    else:
                        entry[:] = [AVAILABLE, None, max(0, count - (not dead)), now]
        assert leases.committed == twin.committed
        assert leases.next == len(twin.offsets)
        assert leases.spans.in_flight == sum(e[0] == LEASED for e in twin.offsets.values())
        assert leases.spans.waiting == sum(e[0] == AVAILABLE for e in twin.offsets.values())


def test_done_ranges_outlive_a_restart() -> None:
    """A record acknowledged above the committed offset is not delivered again."""
    first = Leases(0)
    first.acquire("a", 10, 10, 100, 0, 0)
    first.acknowledge("a", [(2, 5), (7, 8)])
    again = Leases(first.committed, first.spans.done_ranges())
    assert again.committed == 0
    got = again.acquire("b", 10, 10, 100, 0, 0)
    assert [(lease.start, lease.end) for lease in got] == [(0, 2), (5, 7), (8, 10)]


def test_counts_outlive_a_restart() -> None:
    """A new coordinator keeps the delivery counts, so max_deliver also limits poison records."""
    first = Leases(0)
    first.acquire("a", 10, 10, 100, 0, 3)
    first.acknowledge("a", [(6, 8)])
    first.reject("a", [(2, 4)], 0)
    first.acquire("a", 10, 1, 100, 0, 3)  # offset 2 is leased for the second time
    assert first.has_counted
    assert first.spans.counts() == ((2, 3, 1), (3, 4, 1))
    again = Leases(first.committed, first.spans.done_ranges(), first.spans.counts())
    got = again.acquire("b", 10, 10, 100, 0, 2)
    assert [(lease.start, lease.end, lease.delivery_count) for lease in got] == [
        (0, 2, 1),
        (2, 3, 2),
        (3, 4, 2),
        (4, 6, 1),
        (8, 10, 1),
    ]
    again.expire(100)
    third = Leases(again.committed, again.spans.done_ranges(), again.spans.counts())
    dead = {lease.start for lease in third.acquire("c", 10, 10, 200, 100, 2) if lease.dead}
    assert dead == {2, 3}


@pytest.mark.parametrize("how", ["another coordinator", "given back", "in parts"])
def test_what_was_delivered_often_enough_stays_dead(how: str) -> None:
    """A lease of dead records is no delivery, so the count does not change when it expires."""
    leases = Leases(0)
    for now in (0, 10):
        assert [x.dead for x in leases.acquire("a", 4, 4, now + 10, now, 2)] == [False]
        leases.expire(now + 10)
    assert [x.dead for x in leases.acquire("a", 4, 4, 30, 20, 2)] == [True]
    if how == "given back":
        leases.give_back("a", [(0, 4)], 20)
    else:
        if how == "in parts":
            leases.renew("a", [(1, 2)], 40)
        leases = Leases(leases.committed, leases.spans.done_ranges(), leases.spans.counts())
    assert all(x.dead for x in leases.acquire("b", 4, 4, 100, 50, 2))


def test_new_records_are_not_dead_with_those_before_them() -> None:
    leases = Leases(0)
    leases.acquire("a", 1, 1, 10, 0, 1)
    leases.expire(10)
    assert [x.dead for x in leases.acquire("a", 2, 2, 20, 10, 1)] == [True, False]
    leases.give_back("a", [(0, 2)], 10)
    assert [x.dead for x in leases.acquire("a", 2, 2, 30, 20, 1)] == [True, False]


def test_retention_moves_the_start() -> None:
    """The start moves past removed records, and the group does not wait for them."""
    leases = Leases(0)
    leases.acquire("a", 4, 4, 100, 0, 0)
    leases.begin_at(6)
    assert leases.committed == 6
    assert leases.next == 6


def test_gaps_are_bounded() -> None:
    """Acknowledging every second record of a long log creates a bounded number of spans."""
    leases = Leases(0)
    for at in range(0, SPANS_OPEN + 100, 2):
        leases.acquire("a", at + 2, 2, 100, 0, 0)
        leases.acknowledge("a", [(at + 1, at + 2)])
    assert leases.next == SPANS_OPEN
    assert len(leases.describe(0, 1 << 20, 0)) == SPANS_OPEN
    assert not leases.has_available(20_000, 0)
    assert leases.expire(200) == SPANS_OPEN // 2
    assert leases.has_available(20_000, 200)
    (again,) = leases.acquire("b", 20_000, 1, 300, 200, 0)
    assert (again.start, again.end) == (0, 1)
    leases.acknowledge("b", [(0, 1)])
    assert not leases.is_full
    got = leases.acquire("b", 20_000, SPANS_OPEN // 2 + 1, 300, 200, 0)
    assert (got[-1].start, got[-1].end) == (SPANS_OPEN, SPANS_OPEN + 2)


def test_what_is_leased_is_bounded() -> None:
    """The number of leased spans is bounded: each record of a lease may become a span."""
    leases = Leases(0)
    (one,) = leases.acquire("a", 1 << 40, 1 << 30, 100, 0, 0)
    assert (one.start, one.end) == (0, LEASED_MAX)
    assert not leases.acquire("b", 1 << 40, 1, 100, 0, 0)
    leases.acknowledge("a", [(0, 10)])
    (two,) = leases.acquire("b", 1 << 40, 1 << 30, 100, 0, 0)
    assert (two.start, two.end) == (LEASED_MAX, LEASED_MAX + 10)


class Watched(list[Span]):
    """Spans that count how many of them were visited."""

    looks = 0

    def __iter__(self) -> Iterator[Span]:
        for span in super().__iter__():
            self.looks += 1
            yield span

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)


def test_what_came_too_late_is_told_without_a_look_at_all_the_rest() -> None:
    """A late settlement does not visit all spans, because there may be thousands of them."""
    leases = Leases(0)
    for at in range(0, SPANS_OPEN, 2):
        leases.acquire("a", at + 2, 2, 100, 0, 0)
        leases.acknowledge("a", [(at + 1, at + 2)])
    leases.spans._found = watched = Watched(leases.spans)
    late = [(at, at + 1) for at in range(500, 1_500)]
    assert leases.open_in(late) == 500
    assert watched.looks < 20 * len(late)
    assert leases.open_in([(0, SPANS_OPEN)]) == SPANS_OPEN // 2
    assert leases.open_in([(3, 3), (9, 7), (SPANS_OPEN + 5, SPANS_OPEN + 7)]) == 2
