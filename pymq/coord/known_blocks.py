"""Lists the blocks in a coordinator's tree."""

from __future__ import annotations

from collections.abc import Iterable

from pymq.coord import paths
from pymq.core.metadata.coordination import Entry
from pymq.core.metadata.nodes import PartitionNode, TopicNode, decode_node
from pymq.core.types import BlockId

__all__ = ["known_blocks"]


def known_blocks(entries: Iterable[Entry]) -> frozenset[BlockId]:
    """Return the blocks of all topics in *entries*, a whole tree.

    Brokers create a block's files after the commit that adds the block, and remove the files after
    the commit that removes the block. So files of a block that is not in the tree were left by a
    crash, and are never used.

    Raises:
        CorruptMetadata: an entry cannot be decoded.
    """
    topics: dict[str, str] = {}
    partitions: dict[tuple[str, str], int] = {}
    blocks: list[paths.BlockPath] = []
    for entry in entries:
        match paths.parse(entry.path):
            case paths.TopicPath(topic):
                topics[topic] = decode_node(TopicNode, entry.data).id
            case paths.PartitionPath(topic, partition):
                partitions[topic, partition] = decode_node(PartitionNode, entry.data).index
            case paths.BlockPath() as block:
                blocks.append(block)
            case _:
                pass
    return frozenset(
        BlockId(topics[b.topic], partitions[b.topic, b.partition], b.block) for b in blocks
    )
