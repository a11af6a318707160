"""The retained blocks, compared with the rule in the documentation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pymq.core.block.retention import first_kept
from pymq.core.metadata.nodes import BlockNode
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode

Sealed = tuple[int, int]  # bytes, and the newest record's time


def kept(
    sealed: list[Sealed],
    open_bytes: int = 0,
    retention_bytes: int | None = None,
    retention_ms: int | None = None,
    now: int = 100,
) -> int:
    """Return the number of the first retained block; the blocks start at number 3."""
    blocks = [
        BlockNode(3 + at, at, at + 1, 1, AckMode.LEADER, "b", ("b",), ("b",), size=size)
        for at, (size, _) in enumerate(sealed)
    ]
    for block, (_, newest) in zip(blocks, sealed, strict=True):
        block.max_timestamp = newest  # type: ignore[misc] # nobody else has it yet
    end = len(sealed)
    blocks.append(BlockNode(3 + end, end, None, 1, AckMode.LEADER, "b", ("b",), ("b",)))
    config = TopicConfig(retention_bytes=retention_bytes, retention_ms=retention_ms)
    return first_kept(blocks, open_bytes, config, now)


def test_all_is_kept_unless_somebody_says_otherwise() -> None:
    assert kept([(1 << 40, 0), (1 << 40, 0)]) == 3


def test_by_size_a_block_goes_as_soon_as_the_rest_is_enough() -> None:
    sealed = [(10, 0), (10, 0)]
    assert [kept(sealed, 5, retention_bytes=most) for most in (16, 15, 6, 5, 0)] == [3, 4, 4, 5, 5]


def test_by_age_a_block_goes_once_its_newest_record_is_too_old() -> None:
    sealed = [(1, 10), (1, 50)]
    ages = (91, 90, 89, 50, 49)
    assert [kept(sealed, retention_ms=age) for age in ages] == [3, 3, 4, 4, 5]


def test_what_is_younger_keeps_what_comes_behind_it() -> None:
    """The offsets of the retained blocks have no gaps, whatever the times of the records are."""
    assert kept([(1, 99), (1, 0)], retention_ms=10) == 3


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 100)), max_size=6),
    st.integers(0, 20),
    st.none() | st.integers(0, 40),
    st.none() | st.integers(0, 100),
)
def test_it_is_the_least_that_the_rules_ask_for(
    sealed: list[Sealed], open_bytes: int, most: int | None, age: int | None
) -> None:
    ends = range(len(sealed) + 1)
    rests = [open_bytes + sum(size for size, _ in sealed[end:]) for end in ends]
    by_size = max(
        [end for end in ends if most is not None and end and rests[end] >= most], default=0
    )
    is_old = [age is not None and newest < 100 - age for _, newest in sealed]
    gone = max(end for end in ends if end >= by_size and all(is_old[by_size:end]))
    assert kept(sealed, open_bytes, most, age) == 3 + gone


def test_one_rule_goes_on_where_the_other_has_stopped() -> None:
    assert kept([(5, 99), (5, 0), (5, 99)], 0, retention_bytes=10, retention_ms=50) == 5


def blocks(*sealed: tuple[int, int]) -> list[BlockNode]:
    """Blocks given as (time of opening, time of the newest record)."""
    return [
        BlockNode(
            number,
            number,
            None if number == len(sealed) else number + 1,
            1,
            AckMode.LEADER,
            "b",
            ("b",),
            ("b",),
            max_timestamp=newest,
            opened_ms=opened,
        )
        for number, (opened, newest) in enumerate((*sealed, (sealed[-1][0] + 10, -1)))
    ]


def test_a_time_that_nobody_could_mean_does_not_keep_a_block_for_ever() -> None:
    """A block with an impossible time counts as old as the block behind it."""
    found = blocks((1_000, 1_005), (1_010, (1 << 63) - 1), (1_020, 1_025))
    config = TopicConfig(retention_ms=100, timestamp_after_max_ms=50)
    assert [first_kept(found, 0, config, now) for now in (1_100, 1_106, 1_120, 1_121)] == [
        0,
        1,
        1,
        2,
    ]
    assert first_kept(found, 0, config, 2_000) == 3


def test_a_time_within_the_limit_is_the_records_own() -> None:
    found = blocks((1_000, 1_050))
    config = TopicConfig(retention_ms=100, timestamp_after_max_ms=50)
    assert [first_kept(found, 0, config, now) for now in (1_150, 1_151)] == [0, 1]
    anything = TopicConfig(retention_ms=100, timestamp_after_max_ms=None)
    far = blocks((1_000, 1 << 60))
    assert first_kept(far, 0, anything, 1 << 50) == 0
    assert first_kept(far, 0, config, 1 << 50) == 1
