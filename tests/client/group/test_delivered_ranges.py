"""Delivered records that are not settled are stored as ranges, which behave like a set of
offsets.
"""

from __future__ import annotations

import random

from pymq.client.group.delivered_ranges import DeliveredRanges
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Range


def view(start: int, count: int, partition: str = "0") -> RecordBatch:
    batch = EncodedBatch.encode([b"x"] * count, timestamp_ms=1)
    return RecordBatch(batch.stamp(start, 1, start).at("t", partition))


def test_ranges_do_what_a_set_would() -> None:
    dice = random.Random(1)
    handed, twin = DeliveredRanges(), set[int]()
    for _ in range(2_000):
        start = dice.randrange(200)
        span: Range = (start, start + dice.randrange(1, 20))
        match dice.randrange(3):
            case 0:
                handed.put("0", span)
                twin |= set(range(*span))
            case 1:
                taken = handed.take("0", span)
                assert [o for a, b in taken for o in range(a, b)] == sorted(twin & {*range(*span)})
                twin -= set(range(*span))
            case _:
                handed.out(view(*span))
                twin |= set(range(span[0], span[0] + span[1]))
    assert handed.take("0", (0, 1_000)) == runs(sorted(twin))


def runs(offsets: list[int]) -> list[Range]:
    found: list[Range] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


def test_partitions_are_kept_apart() -> None:
    handed = DeliveredRanges()
    handed.out(view(0, 5, "a"))
    assert handed.take("b", (0, 5)) == []
    assert handed.take("a", (3, 9)) == [(3, 5)]


def test_what_is_not_leased_any_more_was_not_handed_out() -> None:
    handed = DeliveredRanges()
    handed.put("0", (0, 3))
    handed.out(view(5, 2))
    handed.forget()
    assert handed.take("0", (0, 10)) == []
