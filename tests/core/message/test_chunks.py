"""Partition states sent in chunks."""

from __future__ import annotations

import attrs

from pymq.core.message.chunks import MessageChunks, size, split
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode

MOST = 2_000


def state(blocks: int, version: int = 1) -> PartitionState:
    names = ("a", "b", "c")
    nodes = [
        BlockNode(n, 10 * n, 10 * n + 10, n, AckMode.LEADER, "a", names, names)
        for n in range(3, 3 + blocks)
    ]
    nodes[-1] = attrs.evolve(nodes[-1], end=None)
    fields = ("t", "topic", "0", 0, AckMode.LEADER, 99, "a", TopicConfig(), tuple(nodes))
    return PartitionState(*fields, version=version)


def test_what_fits_is_one_part() -> None:
    assert list(split(state(3), MOST)) == [state(3)]


def test_a_state_is_put_together_again() -> None:
    """The earlier chunks of a state may arrive in any order, and more than once."""
    whole, parts = state(100), MessageChunks()
    told = list(split(whole, MOST))
    assert len(told) > 10
    assert max(map(size, told)) <= MOST
    for part in (*reversed(told[:-1]), told[0]):
        assert parts.is_part(part)
    assert not parts.is_part(told[-1])
    assert parts.whole(told[-1]) == whole
    assert parts.whole(state(3)) == state(3)


def test_what_has_not_come_is_missed() -> None:
    """A state is incomplete while a chunk is missing; chunks of another version do not count."""
    parts, before = MessageChunks(), list(split(state(30, version=1), MOST))
    *first, last = split(state(30, version=2), MOST)
    for part in (*before[:-1], *first[1:]):
        assert parts.is_part(part)
    assert parts.whole(last) is None
    for part in (*first, before[0]):
        assert parts.is_part(part)
    assert parts.whole(last) is None
    for part in first:
        assert parts.is_part(part)
    assert parts.whole(last) == state(30, version=2)
    assert parts.whole(last) is None  # The state was dropped in the meantime.


def test_a_block_that_is_too_large_by_itself_is_a_part() -> None:
    assert [len(part.blocks) for part in split(state(3), 1)] == [1, 1, 1]
