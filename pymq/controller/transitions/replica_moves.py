"""One sealed block changes one of its replicas for another: what that means for the tree.

A move takes two commits. The first one adds a replica that has nothing yet: its broker is told, and
completes its copy as it does after a roll or with a new disk
(:mod:`~pymq.core.repair.block_repair`). The second one is made when that broker reports that its
copy is whole and durable: it counts from then on, and the other replica leaves in the same commit.
So there is always what there was, whatever crashes; and whoever retires the block or deletes the
topic meanwhile has ended the move.

Pure functions over the image, as in :mod:`~pymq.controller.transitions.blocks`.
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
    """Add a replica, which has nothing of the block yet."""
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
    """Take back a move that is not over; nothing happens to one that is."""
    image = draft.image.find(name)
    block = image.blocks.get(number) if image is not None else None
    if image is None or block is None or block.move is None:
        return
    mark("moves.cancelled")
    node = attrs.evolve(_without(block, block.move.adding), move=None)
    _replace(draft, name, image, node)
    draft.delete(paths.replica(*name, number, block.move.adding))


def finished(block: BlockNode, broker: str) -> BlockNode:
    """A block of which *broker* has a whole copy now; if that ends its move, without the other."""
    move = block.move
    if move is None or move.adding != broker:
        return block
    mark("moves.finished")
    return attrs.evolve(_without(block, move.removing), move=None)


def _without(block: BlockNode, broker: str) -> BlockNode:
    """A block that has one replica less."""
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
    """Note where an administrator wants the sealed blocks, or that he has them there: ()."""
    image = draft.image.find(name)
    if image is None or image.node.sealed_to == brokers:
        return False
    # Nothing that brokers are told has changed, so the version stays.
    draft.put(paths.partition(*name), attrs.evolve(image.node, sealed_to=brokers))
    return True
