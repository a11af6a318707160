"""Moves a replica of a sealed block to another broker, in two commits.

1. The first commit adds an empty replica. The broker of the new replica completes the copy, as
   after a roll or with a new disk (:mod:`~pymq.core.repair.block_repair`).
2. When the broker reports that its copy is complete and durable, the second commit counts the new
   replica and removes the old one.

So no crash reduces the number of complete copies. If the block is retired or its topic deleted, the
move ends. All functions are pure functions over the image, like those in
:mod:`~pymq.controller.transitions.blocks`.
"""

from __future__ import annotations

import attrs

from pymq.controller.state.image import Draft, PartitionImage
from pymq.controller.transitions.blocks import change, leavers, without
from pymq.coord import paths
from pymq.core.metadata.nodes import BlockNode, Move, ReplicaNode
from pymq.core.observe.coverage import mark
from pymq.core.types import TopicPartition


def begin(draft: Draft, name: TopicPartition, number: int, move: Move) -> None:
    """Begin a move: add an empty replica."""
    image = draft.image.partition(*name)
    block, brokers = image.blocks[number], draft.image.brokers
    mark("moves.begun")
    made_on = block.storages or tuple(brokers[name].storage_id for name in block.replicas)
    node = attrs.evolve(
        block,
        replicas=(*block.replicas, move.adding),
        storages=(*made_on, brokers[move.adding].storage_id),
        move=move,
    )
    _replace(draft, name, image, node)
    replica = ReplicaNode(move.adding, block.start, block.start, False)
    draft.create(paths.replica(*name, number, move.adding), replica)


def cancel(draft: Draft, name: TopicPartition, number: int) -> None:
    """Cancel a move; does nothing if the move is finished."""
    image = draft.image.find(name)
    block = image.blocks.get(number) if image is not None else None
    if image is None or block is None or block.move is None:
        return
    mark("moves.cancelled")
    node = attrs.evolve(_without(block, block.move.adding), move=None)
    _replace(draft, name, image, node)
    draft.delete(paths.replica(*name, number, block.move.adding))


def finished(block: BlockNode, broker: str) -> BlockNode:
    """Return the block with *broker*'s complete copy; at a move's end without the old replica."""
    move = block.move
    if move is None or move.adding != broker:
        return block
    mark("moves.finished")
    return attrs.evolve(_without(block, move.removing), move=None)


def _without(block: BlockNode, broker: str) -> BlockNode:
    """Return the block without one replica."""
    pairs = zip(block.replicas, block.storages, strict=True)
    left = [(name, storage) for name, storage in pairs if name != broker]
    return attrs.evolve(
        block,
        replicas=tuple(name for name, _ in left),
        storages=tuple(storage for _, storage in left),
        in_sync=without(block, broker),
    )


def _replace(draft: Draft, name: TopicPartition, image: PartitionImage, node: BlockNode) -> None:
    draft.put(paths.block(*name, node.number), node)
    blocks = [node if block.number == node.number else block for block in image.blocks.values()]
    change(draft, name, leaving=leavers(image, blocks))


def set_sealed_to(draft: Draft, name: TopicPartition, brokers: tuple[str, ...]) -> bool:
    """Store the brokers to which an administrator moves the sealed blocks; () at the end."""
    image = draft.image.find(name)
    if image is None or image.node.sealed_to == brokers:
        return False
    # Brokers need not know this field, so the version stays.
    draft.put(paths.partition(*name), attrs.evolve(image.node, sealed_to=brokers))
    return True
