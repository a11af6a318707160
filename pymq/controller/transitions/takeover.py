"""Decides which replicas' answers suffice to seal a block without a leader; pure functions.

| block | replicas that together have all committed records |
|---|---|
| fetch | any one replica of the committed in-sync set |
| fetch, all in-sync disks replaced | all that were in sync until their restart (see below) |
| Raft, a majority can vote | no replica is asked: the block elects another leader |
| Raft, no majority can vote | so many that the others are no majority: one of two, two of four |

A block with fetch replication (a fetch block) cannot elect a leader. In a block with Raft
replication, every committed record is on a majority.

If all in-sync disks of a fetch block were replaced, the replicas that were in sync until their
restart count instead, provided that the leader cannot have committed records without them
afterwards. Together, these replicas have all committed records that were synced before the restart.

A Raft replica with a replaced disk never votes again, because its earlier votes are lost. During a
take-over of a Raft block no leader can be elected: a candidate would need the vote of a replica
that has answered the seal request, and such a replica no longer votes.

With fewer replicas, committed records may be lost. The partition then continues in two cases only:
its topic has ``unclean_election`` and no needed replica is expected back, or an administrator
requests it.
"""

from __future__ import annotations

from collections.abc import Collection

from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Image
from pymq.controller.transitions.placement import has_storage
from pymq.core.message import Sealed
from pymq.core.metadata.nodes import BlockNode
from pymq.core.types import AckMode, TopicPartition
from pymq.replication.quorum import majority


def survivors(image: Image, block: BlockNode) -> tuple[str, ...]:
    """Return the replicas, alive or dead, that still have the disk on which they were created."""
    return tuple(broker for broker in block.replicas if has_storage(image, block, broker))


def able(
    image: Image, members: BrokerLiveness, name: TopicPartition, block: BlockNode
) -> tuple[str, ...]:
    """Return the survivors that are alive and not offline."""
    left = survivors(image, block)
    return tuple(broker for broker in left if members.can_act(broker, name))


def is_enough(block: BlockNode, brokers: Collection[str]) -> bool:
    """Whether *brokers*, which are surviving replicas, together have all committed records."""
    if block.acks is AckMode.RAFT:
        count = len(block.replicas)
        return len(brokers) > count - majority(count)
    if block.in_sync:
        return any(broker in block.in_sync for broker in brokers)
    # The disks of all in-sync replicas were replaced. A replica that was in sync until it restarted
    # has all committed records except unsynced ones, so all such replicas together are the best.
    known = [entry.broker for entry in block.interrupted]
    return bool(known) and block.leader is None and all(broker in brokers for broker in known)


def is_needed(
    image: Image,
    members: BrokerLiveness,
    name: TopicPartition,
    block: BlockNode,
    *,
    is_forced: bool = False,
) -> bool:
    """Whether the open block must be sealed without a leader; otherwise its leader seals it.

    If *is_forced* is set, the result is true even if dead replicas could elect a leader after their
    return.
    """
    if block.acks is not AckMode.RAFT:
        if block.leader is None or not members.may_live(block.leader):
            return True
        return members.offline.has(block.leader, name) and is_enough(
            block, able(image, members, name, block)
        )
    voters = survivors(image, block)
    if is_forced:
        voters = tuple(broker for broker in voters if broker in members)
    return len(voters) < majority(len(block.replicas))


def has_leader(
    image: Image, members: BrokerLiveness, name: TopicPartition, block: BlockNode
) -> bool:
    """Whether the live replicas have or can elect a leader that can seal the open block."""
    if block.acks is not AckMode.RAFT:
        return block.leader is not None and members.can_act(block.leader, name)
    return 2 * len(able(image, members, name, block)) > len(block.replicas)


def seal_targets(
    image: Image, members: BrokerLiveness, name: TopicPartition, *, is_forced: bool = False
) -> tuple[str, ...] | None:
    """Return the replicas to ask for their ends; None if the block cannot be sealed now.

    The result is empty if no copy of the block is left and the partition may continue without it.
    """
    block = image.partition(*name).open_block
    left = survivors(image, block)
    live = tuple(broker for broker in left if broker in members)
    sound = able(image, members, name, block)
    if is_enough(block, sound):
        return sound
    if is_enough(block, live):
        return live  # an offline disk may still be readable
    if is_forced:
        return live
    if not image.topics[name.topic].node.config.unclean_election:
        return None
    hopes = left
    if block.acks is not AckMode.RAFT:
        # In a fetch block, a broker that is silent for a session is given up. In a Raft block, a
        # broker is given up only if its disk is lost.
        hopes = tuple(b for b in left if members.may_live(b))
    if is_enough(block, hopes) or (left and not live):
        return None
    return live


def rank(m: Sealed) -> tuple[int, int]:
    """Return a sort key of copies by completeness; copies with equal keys are equal.

    As in a Raft election, a later epoch counts more than a longer log, because the leader of the
    later epoch had all records that were committed before. A fetch block has only one epoch.
    """
    return (m.epochs[-1][0] if m.epochs else 0, m.end)


def problem(image: Image, members: BrokerLiveness, name: TopicPartition) -> str | None:
    """Return the reason why a partition accepts no writes, as text for administrators.

    The result is None if the block can have a leader.
    """
    found = image.partition(*name)
    block = found.open_block
    if found.node.acks is AckMode.UNSET:
        return None
    left = survivors(image, block)
    live = able(image, members, name, block)
    if block.acks is AckMode.RAFT:
        count, needed = len(block.replicas), majority(len(block.replicas))
        if len(live) >= needed:
            return None
        what = f"{needed} of {count} replicas must be alive"
    elif block.leader in live or is_enough(block, live):
        return None
    else:
        what = "no live replica is known to hold all committed records"
    lost = [broker for broker in block.replicas if broker not in left]
    away = [broker for broker in left if broker not in members]
    offline = [f"{broker}: {why}" for broker in left if (why := members.offline.why(broker, name))]
    told = [f"the disk of {' and '.join(lost)} was replaced"] if lost else []
    told += [f"{' and '.join(away)} did not answer for a session"] if away else []
    told += offline
    hint = "wait for them" if away else "this does not end by itself"
    return f"{what}: {'; '.join(told)}; {hint}, or continue without them with recover_partition()"
