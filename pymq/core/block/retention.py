"""Which blocks of a partition are to be kept; a pure function of what they are."""

from __future__ import annotations

from collections.abc import Sequence

from pymq.core.metadata.nodes import BlockNode
from pymq.core.metadata.topic_config import TopicConfig


def first_kept(
    blocks: Sequence[BlockNode], open_bytes: int, config: TopicConfig, wall_ms: int
) -> int:
    """The number of the oldest block to keep.

    The open block, which is the last and has *open_bytes*, is always kept. By size, a block goes as
    soon as the rest still holds ``retention_bytes``; by age, when its newest record is older than
    ``retention_ms``.
    """
    first, last = 0, len(blocks) - 1
    if config.retention_bytes is not None:
        total = open_bytes + sum(block.size for block in blocks[:-1])
        while first < last and total - blocks[first].size >= config.retention_bytes:
            total -= blocks[first].size
            first += 1
    if config.retention_ms is not None:
        oldest = wall_ms - config.retention_ms
        while first < last and newest_ms(blocks[first], blocks[first + 1], config) < oldest:
            first += 1
    return blocks[first].number


def newest_ms(block: BlockNode, following: BlockNode, config: TopicConfig) -> int:
    """How new the newest record of a sealed block is taken to be.

    A time that no broker would take in today says nothing: it came before the topic had its limit,
    or by a clock that was wrong. Then it is when the *following* block was opened, since no record
    came after that. One such record must not keep a partition for ever.
    """
    after, opened = config.timestamp_after_max_ms, following.opened_ms
    if after is not None and opened and block.max_timestamp > opened + after:
        return opened
    return block.max_timestamp
