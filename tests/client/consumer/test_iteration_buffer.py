"""An iteration shows each fetched record once.

A reader's position is before the records that were not shown.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from pymq.client.consumer.iteration_buffer import IterationBuffer
from pymq.client.consumer.reader import Reader
from pymq.client.router import Router
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch


def reader(*partitions: str) -> Reader:
    driver: Any = SimpleNamespace()
    router = Router("client", ["zk"], lambda: None)
    made = Reader("client.r", "t", router, driver, list(partitions), 0)
    for cursor in made.cursors.values():
        cursor.handed = 0  # the reader knows where to begin
    return made


def view(partition: str, start: int, count: int) -> RecordBatch:
    batch = EncodedBatch.encode([b"x"] * count, timestamp_ms=0)
    return RecordBatch(batch.stamp(start, 1, 0).at("t", partition))


def standing(intake: Reader) -> dict[str, int]:
    return {partition: cursor.handed for partition, cursor in intake.cursors.items()}


def test_all_is_shown_once_and_in_order_and_the_reader_stands_before_the_rest() -> None:
    """This also holds for records that iterations up to an end have set aside."""
    dice = random.Random(1)
    intake = reader("a", "b")
    unread, ends = IterationBuffer(intake), {"a": 0, "b": 0}
    seen: dict[str, list[int]] = {"a": [], "b": []}
    for _ in range(500):
        if not unread.records:
            views = []
            for partition in dice.choices("ab", k=3):
                views.append(view(partition, ends[partition], dice.randrange(1, 5)))
                ends[partition] = views[-1].end_offset
            unread.take(views)
        until = {partition: end - dice.randrange(5) for partition, end in ends.items()}
        for _ in range(dice.randrange(len(unread.records) + 1)):
            record = unread.show()
            if record.offset < until[record.partition]:
                seen[record.partition].append(record.offset)
            else:
                unread.set_aside(record)
        unread.bring_back()
        first = {partition: start for partition, (start, _) in reversed(unread.spans())}
        assert unread.partitions() == set(first)
        assert standing(intake) == {**ends, **first}
    while unread.records:
        record = unread.show()
        seen[record.partition].append(record.offset)
    assert seen == {partition: list(range(end)) for partition, end in ends.items()}


def test_one_partition_is_dropped_and_the_others_stay() -> None:
    unread = IterationBuffer(reader("a", "b"))
    unread.take([view("a", 0, 2), view("b", 0, 3)])
    unread.set_aside(unread.show())
    assert sorted(unread.drop({"a"})) == [("a", (0, 1)), ("a", (1, 2))]
    unread.bring_back()
    assert unread.spans() == [("b", (offset, offset + 1)) for offset in range(3)]
    unread.clear()
    assert not unread.records
    assert unread.spans() == []


def test_a_reader_stands_before_what_is_set_aside_whatever_comes_after_it() -> None:
    """The reader continues at that position when the partition is paused."""
    intake = reader("a", "b")
    unread = IterationBuffer(intake)
    unread.take([view("a", 0, 3), view("b", 0, 1)])
    unread.show()
    unread.set_aside(unread.show())
    unread.set_aside(unread.show())
    unread.take([view("a", 3, 1)])
    assert standing(intake) == {"a": 1, "b": 0}
    unread.show()
    assert standing(intake) == {"a": 1, "b": 1}
    unread.drop({"a"})
    unread.take([view("a", 1, 3)])
    assert unread.show().offset == 1
    assert standing(intake) == {"a": 2, "b": 1}
