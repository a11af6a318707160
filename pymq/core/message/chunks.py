"""Splits partition states that are too large for one message, and joins them again.

A partition may have any number of blocks, but the size of a message is bounded. So the controller
sends a large state in several messages, each with some of the blocks:

1. The first messages hold the older blocks, which are sealed. The last message holds the open
   block.
2. The broker confirms only the last message, and only if it has all messages before it.
3. Without a confirmation the controller sends all messages again.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.types import TopicPartition


def size(state: PartitionState) -> int:
    """Return roughly how many bytes a state takes in a message."""
    return 500 + sum(map(_block_size, state.blocks))


def _block_size(block: BlockNode) -> int:
    return 100 + 60 * len(block.replicas) + 12 * len(block.epochs) + len(block.past)


def split(state: PartitionState, most: int) -> Iterator[PartitionState]:
    """Split the state into parts of about *most* bytes, with at least one block each."""
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
    """Collects the parts of states until they are complete."""

    def __init__(self) -> None:
        # For each partition: (topic id, epoch, version), and the received blocks, by their place in
        # the list of blocks.
        self._held: dict[TopicPartition, tuple[object, dict[int, tuple[BlockNode, ...]]]] = {}

    def is_part(self, state: PartitionState) -> bool:
        """Return whether more parts follow; if so, keep this part for :meth:`whole`."""
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
        """Join the last part with the earlier parts; None if a part is missing."""
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
        """Drop all incomplete states, because another controller has replaced their sender."""
        self._held.clear()


def _which(state: PartitionState) -> object:
    return state.topic_id, state.epoch, state.version
