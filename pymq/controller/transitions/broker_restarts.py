"""Drafts the consequences of a broker's restart, death, decommission or removal of files.

Pure functions over the image, as in :mod:`~pymq.controller.transitions.blocks`.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Draft
from pymq.controller.transitions.blocks import change, note_replica, without
from pymq.controller.transitions.partition_sweep import Sweep
from pymq.coord import paths
from pymq.core.metadata.nodes import BlockNode, BrokerNode, Interrupted
from pymq.core.types import AckMode, TopicPartition


def register(draft: Draft, node: BrokerNode, sweep: Sweep, heard_ms: int, wall_ms: int) -> bool:
    """Draft the next part of a broker's registration; returns whether it is the last one.

    After a restart the broker may have lost unsynced records; with a new disk it has lost all
    records. The broker sent its last message before the restart at *heard_ms* or earlier.

    The last part writes the broker's new node. If the zkserver stops before that, the broker
    registers again. The committed parts remain correct, because the broker has really lost its
    unsynced records.
    """
    path, known = paths.broker(node.name), draft.image.brokers.get(node.name)
    # Two registrations are never in the same commit, so no number is given twice.
    number = known.number if known is not None else -1
    if number < 0:
        number = max((each.number for each in draft.image.brokers.values()), default=-1) + 1
    node = attrs.evolve(node, number=number)
    if known is None:
        draft.create(path, node)
        return True
    node = attrs.evolve(node, is_draining=known.is_draining)
    if known == node:
        return True
    if (known.incarnation, known.storage_id) != (node.incarnation, node.storage_id):

        def restarted(draft: Draft, name: TopicPartition) -> bool:
            return _restarted(draft, name, node, heard_ms, wall_ms)

        if not sweep.plan(draft, restarted):
            return False
    draft.put(path, node)
    return True


def _restarted(
    draft: Draft, name: TopicPartition, broker: BrokerNode, heard_ms: int, wall_ms: int
) -> bool:
    """Draft the restart for one partition; returns whether the whole change fits in the draft."""
    image = draft.image.partition(*name)
    before = len(draft.ops)
    epoch = image.node.epoch
    is_whole = True
    for block in image.blocks.values():
        if broker.name not in block.replicas:
            continue
        if draft.is_full:
            # only a new disk causes so many changes; the next part skips the finished blocks
            is_whole = False
            break
        made_on = block.storages[block.replicas.index(broker.name)] if block.storages else ""
        is_wiped = bool(made_on) and made_on != broker.storage_id
        if block.end is not None:
            after = _lost(block, broker) if is_wiped else block
        else:
            after = _interrupted(
                block, broker.name, epoch + 1, heard_ms, wall_ms, is_wiped=is_wiped
            )
        if after != block:
            epoch = max(epoch, after.epoch)
            draft.put(paths.block(*name, block.number), after)
            if is_wiped and block.end is not None:
                note_replica(draft, name, image, block.number, broker.name, None)
    if len(draft.ops) > before:
        change(draft, name, epoch=epoch)
    return is_whole


def _lost(block: BlockNode, broker: BrokerNode) -> BlockNode:
    """Return a sealed block whose replica got a new disk and must fetch the block again."""
    storages = tuple(
        broker.storage_id if name == broker.name else storage
        for name, storage in zip(block.replicas, block.storages, strict=True)
    )
    return attrs.evolve(block, in_sync=without(block, broker.name), storages=storages)


def _interrupted(
    block: BlockNode, broker: str, epoch: int, heard_ms: int, wall_ms: int, *, is_wiped: bool
) -> BlockNode:
    """Return an open block whose replica may have lost its unsynced records, or all records.

    Raft tolerates the loss of unsynced records; after the loss of a disk, the next roll replaces
    the replica. If the broker led a block with fetch replication, the block loses its leader,
    because a restarted leader might assign offsets that other replicas already have.
    """
    is_voted = block.acks is AckMode.RAFT and len(block.replicas) > 1
    if is_voted or (len(block.replicas) == 1 and not is_wiped):
        return block
    in_sync = without(block, broker)
    if not in_sync and not is_wiped:
        # the broker's remaining records are still the best copy of the block
        in_sync = block.in_sync
    interrupted = block.interrupted
    # otherwise the entry stays valid, because records from before that restart were synced
    if is_wiped:
        interrupted = tuple(entry for entry in interrupted if entry.broker != broker)
    if block.leader == broker:
        # A leader continues without a replica only after the zkserver has confirmed that.
        interrupted = tuple(entry for entry in interrupted if entry.at_ms > heard_ms)
    if broker in block.in_sync and broker not in in_sync and not is_wiped:
        interrupted = (*interrupted, Interrupted(broker, wall_ms))
    after = attrs.evolve(block, in_sync=in_sync, interrupted=interrupted)
    return attrs.evolve(after, leader=None, epoch=epoch) if block.leader == broker else after


def died(draft: Draft, broker: str, sweep: Sweep, live: Collection[str]) -> bool:
    """Remove a dead broker from the in-sync sets of fetch blocks that other brokers lead.

    A leader would remove the broker itself after ``lag_max_ms``, but producers that wait for all
    in-sync replicas should not wait so long. The function drafts the next part; returns whether it
    is the last one.
    """

    def leave(draft: Draft, name: TopicPartition) -> bool:
        block = draft.image.partition(*name).open_block
        is_fetch = block.acks is not AckMode.RAFT and block.leader in live
        if is_fetch and block.leader != broker and broker in block.in_sync:
            change(draft, name)
            in_sync = without(block, broker)
            draft.put(paths.block(*name, block.number), attrs.evolve(block, in_sync=in_sync))
        return True

    return sweep.plan(draft, leave)


def offline(draft: Draft, members: BrokerLiveness, name: TopicPartition) -> bool:
    """Remove offline replicas from a partition's in-sync set (KIP-858).

    Returns whether the set changes. If the leader's own disk has failed, a roll replaces the
    leader.
    """
    image = draft.image.find(name)
    if image is None:
        return False
    block = image.open_block
    if block.acks is AckMode.RAFT or not members.can_act(block.leader or "", name):
        return False
    in_sync = tuple(b for b in block.in_sync if not members.offline.has(b, name))
    if in_sync == block.in_sync:
        return False
    change(draft, name)
    draft.put(paths.block(*name, block.number), attrs.evolve(block, in_sync=in_sync))
    return True


def drain(draft: Draft, broker: str, is_draining: bool) -> bool:
    """Mark a broker to get no new blocks, or unmark it; returns whether the mark changes."""
    node = draft.image.brokers[broker]
    if node.is_draining is is_draining:
        return False
    draft.put(paths.broker(broker), attrs.evolve(node, is_draining=is_draining))
    return True


def stopped(draft: Draft, name: TopicPartition, broker: str) -> None:
    """Note that a broker has removed its files of a partition."""
    image = draft.image.find(name)
    if image is not None and broker in image.node.leaving:
        # Brokers need not know this field, so the version stays.
        left = tuple(name for name in image.node.leaving if name != broker)
        draft.put(paths.partition(*name), attrs.evolve(image.node, leaving=left))


def topic_stopped(draft: Draft, topic_id: str, broker: str) -> None:
    """Note that a broker has removed its files of a deleted topic."""
    node = draft.image.deleted.get(topic_id)
    if node is None or broker not in node.brokers:
        return
    left = tuple(name for name in node.brokers if name != broker)
    if left:
        draft.put(paths.deleted_topic(topic_id), attrs.evolve(node, brokers=left))
    else:
        draft.delete(paths.deleted_topic(topic_id))
