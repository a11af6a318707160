"""Whose answers end a block that has no leader and gets none; pure functions over the image.

A leader of a fetch block that is gone has no successor in it: any one of the committed in-sync set
holds all that was committed. A Raft block elects another leader, as long as a majority of its
replicas can vote. A replica whose disk was replaced never votes again, for what it had promised is
lost with the disk; and when so many are gone that no majority is left, the rest is asked as it is
in a fetch block. Whatever was committed is on some majority, so those that see all of it between
them are any so many that no majority fits beside them: one of two, two of four. No leader can
arise meanwhile: it would need the vote of one of those that have stopped to answer.

Where the disks of all that were in sync in a fetch block were replaced, those count that were in
sync until they started anew, if the leader cannot have gone on without them since: all of them
together have what was committed, but for what they had not synced by then.

With fewer than that, records that were committed may be lost. Then a partition goes on only where
its topic's ``unclean_election`` says so and the rest is gone for good as far as anybody knows, or
when an administrator insists.
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
    """The replicas that have the disk that they were made on, alive or not."""
    return tuple(broker for broker in block.replicas if has_storage(image, block, broker))


def able(
    image: Image, members: BrokerLiveness, name: TopicPartition, block: BlockNode
) -> tuple[str, ...]:
    """The survivors that are alive and whose disk does not fail them."""
    left = survivors(image, block)
    return tuple(broker for broker in left if members.can_act(broker, name))


def is_enough(block: BlockNode, brokers: Collection[str]) -> bool:
    """Whether *brokers*, of the surviving replicas, hold all that was committed between them."""
    if block.acks is AckMode.RAFT:
        count = len(block.replicas)
        return len(brokers) > count - majority(count)
    if block.in_sync:
        return any(broker in block.in_sync for broker in brokers)
    # All of those had their disks replaced. Whoever was in sync until it started anew has what was
    # committed, but for what it had not synced; so all of them together are the best there is.
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
    """Whether the open block is to be ended without a leader; else its leader is asked.

    *is_forced*: also when those that are away could elect one if they came back.
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


def seal_targets(
    image: Image, members: BrokerLiveness, name: TopicPartition, *, is_forced: bool = False
) -> tuple[str, ...] | None:
    """The replicas that are to say where they end; None if that would lead to nothing.

    Nobody at all if there is nothing left of the block, and it is to go on all the same.
    """
    block = image.partition(*name).open_block
    left = survivors(image, block)
    live = tuple(broker for broker in left if broker in members)
    sound = able(image, members, name, block)
    if is_enough(block, sound):
        return sound
    if is_enough(block, live):
        return live  # A disk that cannot be written may yet be read.
    if is_forced:
        return live
    if not image.topics[name.topic].node.config.unclean_election:
        return None
    hopes = left
    if block.acks is not AckMode.RAFT:
        # Whoever was silent for a session is given up here; who votes is given up with its disk.
        hopes = tuple(b for b in left if members.may_live(b))
    if is_enough(block, hopes) or (left and not live):
        return None
    return live


def rank(m: Sealed) -> tuple[int, int]:
    """How much of what was committed a copy may hold; copies of one rank are the same.

    A later epoch goes before a longer log, as in an election of Raft: its leader had all that was
    committed before. A fetch block has but one epoch.
    """
    return (m.epochs[-1][0] if m.epochs else 0, m.end)


def problem(image: Image, members: BrokerLiveness, name: TopicPartition) -> str | None:
    """Why a partition cannot be written to, in words for those who look after it."""
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
        what = "no replica that is known to hold all that was committed is alive"
    lost = [broker for broker in block.replicas if broker not in left]
    away = [broker for broker in left if broker not in members]
    offline = [f"{broker}: {why}" for broker in left if (why := members.offline.why(broker, name))]
    told = [f"the disk of {' and '.join(lost)} was replaced"] if lost else []
    told += [f"{' and '.join(away)} did not answer for a session"] if away else []
    told += offline
    hint = "wait for them" if away else "nothing brings it back by itself"
    return f"{what}: {'; '.join(told)}; {hint}, or go on without with recover_partition()"
