"""The division of long reads into tasks, by blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

import itertools

from pymq.spark import backfill
from pymq.spark.backfill import TASK_BYTES, BlockSpan, divide, is_long, stretches
from pymq.spark.planning import TASK_ROWS, Place, Range

T0, MIB = ("t", "0"), 1 << 20


def spans(*blocks: tuple[int, int]) -> list[BlockSpan]:
    """Return blocks behind one another, each given by its offsets and bytes."""
    found, start = [], 0
    for offsets, size in blocks:
        found.append(BlockSpan(start, start + offsets, size))
        start += offsets
    return found


@st.composite
def reads(draw: st.DrawFn) -> tuple[list[Range], dict[Place, list[BlockSpan]]]:
    """Return ranges of several partitions, and blocks that may cover them in part."""
    ranges, blocks = [], {}
    for number in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, 3_000_000))
        size = draw(st.sampled_from([1, 7, 50_000, 3_000_000, 20_000_000]))
        ranges.append(Range("t", str(number), start, start + size, "id"))
        sizes = st.tuples(st.integers(1, 4_000_000), st.integers(0, 300 * MIB))
        blocks["t", str(number)] = spans(*draw(st.lists(sizes, max_size=12)))
    return ranges, blocks


@given(reads(), st.integers(1, 60), st.integers(1, 16))
def test_a_division_has_each_offset_once_and_in_order(
    read: tuple[list[Range], dict[Place, list[BlockSpan]]], count: int, slots: int
) -> None:
    ranges, blocks = read
    tasks = divide(stretches(ranges, blocks), count, slots)
    assert len(tasks) <= count
    joined: list[Range] = []
    for part in (part for task in tasks for part in task):
        assert part.size > 0
        if joined and joined[-1].partition == part.partition:
            assert joined[-1].end == part.start
            joined[-1] = joined[-1]._replace(end=part.end)
        else:
            joined.append(part)
    assert joined == ranges
    for task in tasks:  # A task reads neighbouring parts as one range.
        assert not any(a.is_before(b) for a, b in itertools.pairwise(task))


@given(reads(), st.integers(1, 60), st.integers(1, 16))
def test_tasks_are_about_equally_heavy(
    read: tuple[list[Range], dict[Place, list[BlockSpan]]], count: int, slots: int
) -> None:
    ranges, blocks = read
    found = stretches(ranges, blocks)
    tasks = divide(found, count, slots)
    weights = [sum(weight for _, weight in stretches(task, blocks)) for task in tasks]
    longest_offset = max(weight / part.size for part, weight in found)
    target = sum(weights) / count
    # half a task more at most, and an offset cannot be divided
    assert max(weights) <= 2 * target + 2 * longest_offset + 1e-9


def test_tasks_read_whole_blocks() -> None:
    """With many tasks for each slot, a block that is smaller than a task is never cut."""
    blocks = spans(*[(500_000, 60 * MIB), (300_000, 30 * MIB)] * 20)
    whole = Range("t", "0", 0, 16_000_000)
    tasks = divide(stretches([whole], {T0: blocks}), 16, 2)
    edges = {span.start for span in blocks} | {whole.end}
    assert {edge for (part,) in tasks for edge in (part.start, part.end)} <= edges
    assert len(tasks) in (15, 16)


def test_a_block_larger_than_a_task_is_cut_inside() -> None:
    blocks = spans((10_000, 5 * TASK_BYTES))
    found = stretches([Range("t", "0", 0, 10_000)], {T0: blocks})
    assert is_long(found)
    tasks = divide(found, 5, 2)
    assert [(part.start, part.end) for (part,) in tasks] == [
        (start, start + 2_000) for start in range(0, 10_000, 2_000)
    ]


def test_few_tasks_are_level_rather_than_at_borders() -> None:
    """With one task for each slot, three blocks are halved, so that no slot waits for the other."""
    blocks = spans(*[(1_000_000, 100 * MIB)] * 3)
    tasks = divide(stretches([Range("t", "0", 0, 3_000_000)], {T0: blocks}), 2, 2)
    assert [[(part.start, part.end) for part in task] for task in tasks] == [
        [(0, 1_500_000)],
        [(1_500_000, 3_000_000)],
    ]


@pytest.mark.parametrize(
    ("rows", "size", "expected"),
    [
        (TASK_ROWS, 0, False),
        (TASK_ROWS + 1, 0, True),
        (10_000, TASK_BYTES, False),
        (10_000, TASK_BYTES + 100, True),  # few records, but large ones
    ],
)
def test_a_partition_is_cut_if_it_holds_more_than_a_task(
    rows: int, size: int, *, expected: bool
) -> None:
    found = stretches([Range("t", "0", 0, rows)], {T0: [BlockSpan(0, rows, size)]})
    assert is_long(found) is expected


def test_a_block_counts_by_the_part_that_is_read() -> None:
    """A part of a block weighs its share of the block's bytes; other offsets have no known size."""
    found = stretches([Range("t", "0", 50, 200)], {T0: [BlockSpan(0, 100, TASK_BYTES)]})
    assert [(part.start, part.end) for part, _ in found] == [(50, 100), (100, 200)]
    assert [weight for _, weight in found] == [0.5, 100 / TASK_ROWS]
    assert backfill.CONSIDERED < TASK_ROWS
