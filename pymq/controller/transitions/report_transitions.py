"""Drafts the consequences of reports of leaders and replicas.

Pure functions over the image, as in :mod:`~pymq.controller.transitions.blocks`.
"""

from __future__ import annotations

import attrs

from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Draft, Image, PartitionImage
from pymq.controller.transitions import replica_moves
from pymq.controller.transitions.blocks import change, leavers, note_replica, remove, without
from pymq.controller.transitions.placement import has_storage
from pymq.coord import paths
from pymq.core.message import AlterIsr, BecomeLeader, BlockSizes, Progress, RetireBlocks
from pymq.core.metadata.nodes import BlockNode
from pymq.core.observe.coverage import mark
from pymq.core.types import AckMode, TopicPartition


def is_of_another(image: Image, topic: str, topic_id: str) -> bool:
    """Whether a report concerns a deleted topic of the same name.

    Blocks and epochs of both topics have the same numbers, so only the id distinguishes the topics.
    """
    found = image.topics.get(topic)
    return found is not None and topic_id not in ("", found.node.id)


def alter_isr(draft: Draft, m: AlterIsr, members: BrokerLiveness) -> None:
    """Change the in-sync set at the request of the block's leader (KIP-497).

    Requests of other brokers are ignored.

    Brokers that may not join are left out. A refusal also raises the version, which invalidates the
    leader's earlier requests, so that the leader can forget these requests. The version also rises
    if the leader requests the present set, which withdraws its earlier requests.
    """
    name = TopicPartition(m.topic, m.partition)
    topic, image = draft.image.topic(m.topic), draft.image.partition(*name)
    block = image.open_block
    state_version = topic.node.version + image.node.version
    joining = [broker for broker in m.in_sync if broker not in block.in_sync]
    if (
        (block.number, block.epoch, block.leader) != (m.block, m.epoch, m.broker)
        or block.acks not in (AckMode.NONE, AckMode.LEADER)
        or m.version not in (0, state_version)
        or m.broker not in m.in_sync
        or (m.incarnation and not members.is_of(m.broker, m.incarnation))
        or not set(m.in_sync) <= set(block.replicas)
    ):
        return
    # A late request must not add a broker that has a new disk, is dead, or has restarted meanwhile
    # (KIP-903).
    known = dict(zip(m.in_sync, m.incarnations, strict=False))
    refused = [b for b in joining if not _may_join(draft, name, block, members, b, known.get(b, 0))]
    wanted = [broker for broker in m.in_sync if broker not in refused]
    in_sync = tuple(broker for broker in block.replicas if broker in wanted)
    if in_sync != block.in_sync or refused:
        change(draft, name)
        interrupted = tuple(entry for entry in block.interrupted if entry.broker not in in_sync)
        node = attrs.evolve(block, in_sync=in_sync, interrupted=interrupted)
        draft.put(paths.block(*name, block.number), node)
    elif m.version:
        mark("reported.wish_withdrawn")
        change(draft, name)


def _may_join(
    draft: Draft,
    name: TopicPartition,
    block: BlockNode,
    members: BrokerLiveness,
    broker: str,
    incarnation: int,
) -> bool:
    is_here = members.is_of(broker, incarnation) and broker not in members.leaving
    if members.offline.has(broker, name):
        return False
    return is_here and has_storage(draft.image, block, broker)


def become_leader(draft: Draft, m: BecomeLeader) -> None:
    """Note the elected leader of a Raft block, unless its epoch is known or older."""
    name = TopicPartition(m.topic, m.partition)
    image = draft.image.partition(*name)
    block = image.open_block
    if (
        block.number != m.block
        or block.acks is not AckMode.RAFT
        or m.broker not in block.replicas
        or m.epoch <= image.node.epoch
    ):
        return
    change(draft, name, epoch=m.epoch)
    node = attrs.evolve(block, epoch=m.epoch, leader=m.broker)
    draft.put(paths.block(*name, block.number), node)


def progress(draft: Draft, m: Progress, changed: list[TopicPartition]) -> bool:
    """Note which copies of sealed blocks on a broker are complete, or missing; extends *changed*.

    Returns whether all changes fitted into this commit.
    """
    found: dict[TopicPartition, dict[int, int]] = {}
    ids = m.topic_ids or ("",) * len(m.ends)
    for (topic, partition, number, end), topic_id in zip(m.ends, ids, strict=False):
        if not is_of_another(draft.image, topic, topic_id):
            found.setdefault(TopicPartition(topic, partition), {})[number] = end
    is_whole = True
    for name, ends in found.items():
        image = draft.image.find(name)
        if image is None:
            continue
        blocks = {}
        for number, end in ends.items():
            if draft.is_full:
                is_whole = False  # the next part skips the partitions of this part
                break
            block = _note_end(draft, name, image, m.broker, number, end)
            if block is not None:
                blocks[number] = block
        if any(len(b.replicas) < len(image.blocks[n].replicas) for n, b in blocks.items()):
            left = (image.blocks | blocks).values()
            change(draft, name, leaving=leavers(image, left))
            changed.append(name)
        elif blocks:
            change(draft, name)
            changed.append(name)
    return is_whole


def _note_end(
    draft: Draft, name: TopicPartition, image: PartitionImage, broker: str, number: int, end: int
) -> BlockNode | None:
    """Note the end of a copy; returns the block if the block changes."""
    block = image.blocks.get(number)
    if block is None or block.end is None or broker not in block.replicas:
        return None
    is_whole = end >= block.end
    if is_whole == (broker in block.in_sync):
        return None
    in_sync = _with(block, broker) if is_whole else without(block, broker)
    after = attrs.evolve(block, in_sync=in_sync)
    if is_whole:
        after = replica_moves.finished(after, broker)
    draft.put(paths.block(*name, number), after)
    note_replica(draft, name, image, number, broker, block.end if is_whole else None)
    for gone in block.replicas:
        if gone not in after.replicas:
            draft.delete(paths.replica(*name, number, gone))
    return after


def _with(block: BlockNode, broker: str) -> tuple[str, ...]:
    return tuple(b for b in block.replicas if b == broker or b in block.in_sync)


def retire(draft: Draft, m: RetireBlocks) -> bool:
    """Remove the blocks that retention has retired; brokers delete the files after the commit.

    Returns whether all changes fitted into this commit.
    """
    name = TopicPartition(m.topic, m.partition)
    image = draft.image.find(name)
    if image is None or image.node.epoch != m.epoch:
        return True
    before = min(m.before, image.open_block.number)
    left = dict(image.blocks)
    for number in image.blocks:
        if number >= before or draft.is_full:
            break
        remove(draft, name, image, number)
        del left[number]
    if len(left) < len(image.blocks):
        change(draft, name, leaving=leavers(image, left.values()))
    return next(iter(left)) >= before


def resize(draft: Draft, m: BlockSizes) -> bool:
    """Store the sizes of compacted blocks; returns whether everything fitted into this commit."""
    name = TopicPartition(m.topic, m.partition)
    image = draft.image.find(name)
    is_whole = True
    for number, size in m.sizes:
        if draft.is_full:
            is_whole = False
            break
        block = image.blocks.get(number) if image else None
        if block is not None and block.size != size:
            draft.put(paths.block(*name, number), attrs.evolve(block, size=size))
    if draft.ops:
        change(draft, name)
    return is_whole
