"""Drafts the changes of a partition and its blocks; pure functions over the image.

Each function writes into a :class:`~pymq.controller.state.image.Draft`. If a function raises an
error, the draft is dropped, and the error is the caller's answer. All changes that brokers must
know are made by :func:`change`, which raises the partition's version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import dropwhile
from typing import Any

import attrs

from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Draft, PartitionImage
from pymq.controller.transitions.placement import has_storage, succeed
from pymq.coord import paths
from pymq.core.message import Sealed
from pymq.core.metadata.nodes import BlockNode, Loss, PartitionNode, ReplicaNode, TopicNode, Wanted
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import ConfigError, NotEnoughBrokers, ReplicaNotAvailable, StaleEpoch

LOSSES_MAX = 16  # number of losses that a partition remembers


def change(draft: Draft, name: TopicPartition, **fields: Any) -> None:
    """Change *fields* of a partition and raise its version; without *fields*, only the version."""
    node = draft.image.partition(*name).node
    changed = attrs.evolve(node, version=node.version + 1, **fields)
    draft.put(paths.partition(*name), changed)


def add_partition(
    draft: Draft, topic: TopicNode, name: str, index: int, chosen: tuple[str, ...], wall_ms: int
) -> None:
    """Create a partition with an empty block; if the topic has no ack mode, without replicas."""
    epoch = 1 if chosen else 0
    draft.create(
        paths.partition(topic.name, name),
        PartitionNode(name, index, topic.acks, topic.replicas, 1, epoch),
    )
    block = BlockNode(0, 0, None, epoch, topic.acks, None, (), ())
    _open(draft, TopicPartition(topic.name, name), block, chosen, wall_ms)


def _open(
    draft: Draft,
    name: TopicPartition,
    block: BlockNode,
    replicas: tuple[str, ...],
    wall_ms: int,
    leader: str | None = None,
    leaving: Collection[str] = (),
) -> None:
    """Create the open block; without a *leader* the first replica leads.

    Brokers that are *leaving* do not count as in sync, unless all replicas are leaving.
    """
    brokers = draft.image.brokers
    node = attrs.evolve(
        block,
        leader=leader or next(iter(replicas), None),
        replicas=replicas,
        in_sync=tuple(name for name in replicas if name not in leaving) or replicas,
        storages=tuple(brokers[broker].storage_id for broker in replicas),
        opened_ms=wall_ms,
    )
    path = paths.block(*name, block.number)
    if path in draft.image.versions:
        draft.put(path, node)
    else:
        draft.create(path, node)
    for broker in replicas:
        replica = ReplicaNode(broker, block.start, block.start, True)
        draft.create(paths.replica(*name, block.number, broker), replica)


def remove(draft: Draft, name: TopicPartition, image: PartitionImage, number: int) -> None:
    """Brokers that are *leaving* do not count as in sync, unless all replicas are leaving."""
    for broker in image.blocks[number].replicas:
        draft.delete(paths.replica(*name, number, broker))
    draft.delete(paths.block(*name, number))


def leavers(image: PartitionImage, blocks: Iterable[BlockNode]) -> tuple[str, ...]:
    """Return the brokers that must remove their files if only *blocks* of the partition remain."""
    stay = {broker for block in blocks for broker in block.replicas}
    return tuple(sorted({*image.node.leaving, *image.hosts} - stay))


# --- ack modes and rolls ------------------------------------------------------------------------


def check_mode(acks: AckMode) -> None:
    """Check that a partition can change to an ack mode.

    Raises:
        ConfigError: the mode is UNSET, which only a new partition can have.
    """
    if acks is AckMode.UNSET:
        raise ConfigError("a partition cannot go back to 'unset'; use 'raft', 'leader' or 'none'")


def open_first(
    draft: Draft,
    name: TopicPartition,
    acks: AckMode,
    replicas: int,
    chosen: tuple[str, ...],
    wall_ms: int,
) -> None:
    """Change from UNSET to another mode: the empty open block gets replicas."""
    image = draft.image.partition(*name)
    epoch = image.node.epoch + 1
    change(draft, name, acks=acks, replicas=replicas, epoch=epoch)
    _open(draft, name, attrs.evolve(image.open_block, epoch=epoch, acks=acks), chosen, wall_ms)


def change_acks(draft: Draft, name: TopicPartition, acks: AckMode) -> None:
    """Change between ``none`` and ``leader``, without a roll."""
    image = draft.image.partition(*name)
    node, block = image.node, image.open_block
    wanted = node.wanted
    if wanted is not None:  # replace a requested mode; other requested changes stay
        wanted = _or_none(attrs.evolve(wanted, acks=None))
    change(draft, name, acks=acks, wanted=wanted)
    draft.put(paths.block(*name, block.number), attrs.evolve(block, acks=acks))


def want(draft: Draft, name: TopicPartition, wanted: Wanted | None) -> None:
    """Store the changes for the next roll in the tree, so that any zkserver can carry them out.

    Fields that are None keep their earlier value. If *wanted* is None, the request is cancelled.
    """
    image = draft.image.find(name)
    if image is None:
        return
    node = image.node
    if wanted is not None and node.wanted is not None:
        before = node.wanted
        wanted = Wanted(
            before.acks if wanted.acks is None else wanted.acks,
            before.replicas if wanted.replicas is None else wanted.replicas,
            before.count if wanted.count is None else wanted.count,
            # `move_sealed` belongs to the request that named the replicas.
            before.move_sealed if wanted.replicas is None else wanted.move_sealed,
        )
    if wanted != node.wanted:
        # Brokers need not know this field, so the version stays.
        draft.put(paths.partition(*name), attrs.evolve(node, wanted=wanted))


def _or_none(wanted: Wanted) -> Wanted | None:
    return wanted if wanted != Wanted() else None


def roll(
    draft: Draft,
    sealed: Sealed,
    holders: Collection[str],
    wanted: Wanted | None,
    members: BrokerLiveness,
    wall_ms: int,
    *,
    is_unclean: bool = False,
    leader: str | None = None,
) -> Loss | None:
    """Seal the open block at its end, and open the next block at this offset.

    *holders* have the whole block; if *leader* is one of them, it leads the next block. An empty
    block is removed. If *is_unclean* is set, no replica is known to have the whole block. The
    partition then continues without the lost records, and the possible loss is stored and returned.

    Raises:
        StaleEpoch: the block is no longer the open one.
        NotEnoughBrokers: no broker can host the next block.
        ReplicaNotAvailable: the disks of all *holders* were replaced meanwhile.
    """
    name = TopicPartition(sealed.topic, sealed.partition)
    image = draft.image.partition(*name)
    node, block = image.node, image.open_block
    wanted = wanted or Wanted()
    if block.number != sealed.block:
        raise StaleEpoch(f"{name} was already rolled")
    replicas = succeed(draft.image, members.able(name) or members.live, name, wanted, holders)
    if not replicas:
        raise NotEnoughBrokers(f"no broker is alive for the next block of {name}")
    holding = _holding(draft, name, sealed, holders)
    epoch = max(node.epoch, sealed.leader_epoch, sealed.epoch - 1) + 1
    acks = node.acks if wanted.acks is None else wanted.acks
    past = _past(block, sealed, replicas, holding)
    opened = BlockNode(
        node.next_block, sealed.end, None, epoch, acks, None, replicas, (), past=past
    )
    loss = None
    left = [other for other in image.blocks.values() if other.number != block.number]
    if is_unclean:
        left = _without_lost(draft, name, image, left)
        loss = _loss(block, sealed, left, holding, wall_ms)
    left += [opened] if sealed.end == block.start else [block, opened]
    change(
        draft,
        name,
        acks=acks,
        replicas=wanted.count if wanted.count is not None else node.replicas,
        next_block=node.next_block + 1,
        epoch=epoch,
        leaving=leavers(image, left),
        wanted=None,
        losses=node.losses if loss is None else (*node.losses, loss)[-LOSSES_MAX:],
        sealed_to=(wanted.replicas or ()) if wanted.move_sealed else node.sealed_to,
    )
    _seal(draft, name, image, sealed, holding, is_unclean)
    chosen = _next_leader(leader, sealed, holding, replicas, members.leaving)
    _open(draft, name, opened, replicas, wall_ms, chosen, members.leaving)
    return loss


def _holding(
    draft: Draft, name: TopicPartition, sealed: Sealed, holders: Collection[str]
) -> tuple[str, ...]:
    """Return the *holders* of the open block whose disks were not replaced meanwhile.

    The broker that sealed the block may not know yet that another replica has lost its disk.
    """
    block = draft.image.partition(*name).open_block
    holding = tuple(
        broker
        for broker in block.replicas
        if broker in holders and has_storage(draft.image, block, broker)
    )
    if holders and not holding and sealed.end > block.start:
        raise ReplicaNotAvailable(f"all disks that held {name} up to its end were replaced")
    return holding


def _past(
    block: BlockNode, sealed: Sealed, replicas: tuple[str, ...], holding: tuple[str, ...]
) -> bytes:
    """Return the producer table for the next block.

    If the sealed block had a single replica, that replica has the table. If there were several, the
    next block cannot rely on their tables: an empty block is removed, a fetched copy may not be
    synced yet, and a copy in Raft may continue after its seal with another leader's no-op.
    """
    is_empty = sealed.end == block.start
    is_known = block.replicas == replicas == holding == (sealed.broker,) and not is_empty
    return b"" if is_known else sealed.past


def _without_lost(
    draft: Draft, name: TopicPartition, image: PartitionImage, blocks: list[BlockNode]
) -> list[BlockNode]:
    """Remove the oldest sealed *blocks* without a complete copy; returns the others.

    A block between two remaining blocks stays, so that the remaining offsets have no gap.
    """
    kept = list(dropwhile(lambda block: not block.in_sync, blocks))
    for lost in blocks[: len(blocks) - len(kept)]:
        remove(draft, name, image, lost.number)
    return kept


def _loss(
    block: BlockNode,
    sealed: Sealed,
    left: list[BlockNode],
    holding: tuple[str, ...],
    wall_ms: int,
) -> Loss:
    """Return the possible loss; *left* are the remaining sealed blocks."""
    start = left[0].start if left else block.start if holding else sealed.end
    return Loss(block.number, sealed.end, start, sealed.broker or None, wall_ms)


def _next_leader(
    wanted: str | None,
    sealed: Sealed,
    holding: tuple[str, ...],
    replicas: tuple[str, ...],
    leaving: Collection[str],
) -> str:
    """Return the next leader: the leader that sealed, else a holder of all records, else the first.

    A *wanted* leader that holds the block comes before the leader that sealed. A broker that is not
    *leaving* comes before all brokers that are.
    """
    sealer = wanted if wanted is not None and wanted in holding else sealed.broker
    candidates = [broker for broker in (sealer, *holding, *replicas) if broker in replicas]
    return min(candidates, key=lambda broker: broker in leaving)


def _seal(
    draft: Draft,
    name: TopicPartition,
    image: PartitionImage,
    sealed: Sealed,
    holding: tuple[str, ...],
    is_unclean: bool,
) -> None:
    """Seal the open block, or remove it if it is empty."""
    block, brokers = image.open_block, draft.image.brokers
    if sealed.end == block.start:
        remove(draft, name, image, block.number)
        return
    node = attrs.evolve(
        block,
        end=sealed.end,
        size=sealed.size,
        max_timestamp=sealed.max_timestamp,
        leader=sealed.broker,
        in_sync=holding,
        interrupted=(),
        epochs=sealed.epochs,
        past=b"",
        # From now on only holders count, and these have reported with their present disks.
        storages=tuple(brokers[broker].storage_id for broker in block.replicas),
        is_unclean=is_unclean,
    )
    draft.put(paths.block(*name, block.number), node)
    for broker in block.replicas:
        end = sealed.end if broker in holding else None
        note_replica(draft, name, image, block.number, broker, end)


def note_replica(
    draft: Draft,
    name: TopicPartition,
    image: PartitionImage,
    number: int,
    broker: str,
    end: int | None,
) -> None:
    """Note that a replica of a sealed block is complete, up to *end*, or incomplete (None)."""
    replica = image.replicas.get((number, broker))
    if replica is None:
        return
    whole = end is not None
    noted = attrs.evolve(replica, end=replica.end if end is None else end, in_sync=whole)
    if noted != replica:
        draft.put(paths.replica(*name, number, broker), noted)


def without(block: BlockNode, broker: str) -> tuple[str, ...]:
    """Return the in-sync set without a broker."""
    return tuple(b for b in block.in_sync if b != broker)
