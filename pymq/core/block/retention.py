"""Retention: which blocks of a partition are kept, as a pure function."""

from __future__ import annotations

from collections.abc import Sequence

from pymq.core.metadata.nodes import BlockNode
from pymq.core.metadata.topic_config import TopicConfig


def first_kept(
    blocks: Sequence[BlockNode], open_bytes: int, config: TopicConfig, wall_ms: int
) -> int:
    """Return the number of the oldest block to keep.

    The open block, which is the last and has *open_bytes*, is always kept. Retention by size
    removes a block if the later blocks hold ``retention_bytes``. Retention by age removes a block
    if its newest record is older than ``retention_ms``.
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
    """Return the time of a sealed block's newest record, for retention by age.

    Usually the result is the newest timestamp. If that timestamp is more than
    ``timestamp_after_max_ms`` later than the opening of the *following* block, the result is the
    time of that opening: the block got no records afterwards. Such a timestamp comes from a wrong
    clock, or the topic had no limit then; it must not make retention keep the block forever.
    """
    after, opened = config.timestamp_after_max_ms, following.opened_ms
    if after is not None and opened and block.max_timestamp > opened + after:
        return opened
    return block.max_timestamp
