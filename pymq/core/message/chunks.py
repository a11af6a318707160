"""States of partitions that are too large for one message: taken apart, and put together again.

A partition has as many blocks as it has rolled and not retired. A message takes only so much, so
what is too much is told in several, each with some of the blocks: first the older ones, all of
them sealed, at last those with the open one. Only the last one is confirmed, and only if the ones
before have come; else all of them are sent again.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.types import TopicPartition


def size(state: PartitionState) -> int:
    """How many bytes of a message a state takes, at least about."""
    return 500 + sum(map(_block_size, state.blocks))


def _block_size(block: BlockNode) -> int:
    return 100 + 60 * len(block.replicas) + 12 * len(block.epochs) + len(block.past)


def split(state: PartitionState, most: int) -> Iterator[PartitionState]:
    """The state in parts of about *most* bytes, which have at least one block each."""
    if size(state) <= most:
        yield state
        return
    earlier, blocks, taken = 0, list[BlockNode](), 500
    for block in state.blocks:
        if blocks and taken + _block_size(block) > most:
            yield attrs.evolve(state, blocks=tuple(blocks), earlier=earlier)
            earlier, blocks, taken = earlier + len(blocks), [], 500
        blocks.append(block)
        taken += _block_size(block)
    yield attrs.evolve(state, blocks=tuple(blocks), earlier=earlier)


class MessageChunks:
    """What a broker has been told of states that are not complete yet."""

    def __init__(self) -> None:
        # By partition: topic id, epoch and version, and the blocks by how many lie before them.
        self._held: dict[TopicPartition, tuple[object, dict[int, tuple[BlockNode, ...]]]] = {}

    def is_part(self, state: PartitionState) -> bool:
        """Whether more follows; if so, it is kept for :meth:`whole`."""
        if not state.blocks or state.blocks[-1].end is None:
            return False
        mark("parts.kept")
        name, which = TopicPartition(state.topic, state.partition), _which(state)
        held = self._held.get(name)
        if held is None or held[0] != which:
            held = self._held[name] = which, {}
        held[1][state.earlier] = state.blocks
        return True

    def whole(self, state: PartitionState) -> PartitionState | None:
        """The state with what was told of it before; None if something of that has not come."""
        which, found = self._held.pop(TopicPartition(state.topic, state.partition), (None, {}))
        if not state.earlier:
            return state
        blocks: list[BlockNode] = []
        while len(blocks) < state.earlier:
            part = found.get(len(blocks)) if which == _which(state) else None
            if part is None:
                mark("parts.missing")
                return None
            blocks += part
        return attrs.evolve(state, blocks=(*blocks, *state.blocks), earlier=0)

    def forget(self) -> None:
        """Nobody goes on with what was begun."""
        self._held.clear()


def _which(state: PartitionState) -> object:
    return state.topic_id, state.epoch, state.version
