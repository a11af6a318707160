"""Decides which replicas of sealed blocks move, and to which brokers; pure functions.

A sealed block is copied for three reasons only: one of its brokers is lost, one was decommissioned,
or an administrator wants the sealed blocks on other brokers. The number of copies does not change.
In all functions, *live* are the live brokers, and *lost* those that have been dead for too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from pymq.controller.state.image import Image, PartitionImage
from pymq.core.metadata.nodes import BlockNode, Move
from pymq.core.types import TopicPartition

REASONS_MAX = 5  # most reasons in the answer to why a broker is not empty

Place = tuple[TopicPartition, int]  # a block, by its partition and its number


def candidates(image: Image, live: Collection[str], lost: Collection[str]) -> list[Place]:
    """Return the sealed blocks with a replica that must move; those with the fewest live copies
    first.
    """
    found: dict[Place, int] = {}
    for broker in _sources(image, lost):
        for name in image.hosting.hosted(broker):
            for block in _sealed(image.partition(*name)):
                if broker in block.replicas:
                    found[name, block.number] = _alive(block, live)
    for name in image.sealed_to:
        for block in _sealed(image.partition(*name)):
            if _unwanted(image, image.partition(*name), block) is not None:
                found[name, block.number] = _alive(block, live)
    return sorted(found, key=lambda place: (found[place], place))


def _sources(image: Image, lost: Collection[str]) -> list[str]:
    """Return the brokers that must hold no sealed blocks."""
    return sorted({*image.draining, *lost})


def sealed_on_sources(image: Image, lost: Collection[str]) -> int:
    """Count the copies of sealed blocks on brokers that must hold none."""
    hosting = image.hosting
    return sum(hosting.blocks[b] - hosting.opened_count(b) for b in _sources(image, lost))


def _sealed(image: PartitionImage) -> Iterator[BlockNode]:
    return (block for block in image.blocks.values() if block.end is not None)


def _alive(block: BlockNode, live: Collection[str]) -> int:
    return sum(broker in live for broker in block.in_sync)


def _unwanted(image: Image, found: PartitionImage, block: BlockNode) -> str | None:
    """Return a replica that must move to a broker named by an administrator, or None."""
    wanted = found.node.sealed_to
    if all(b in block.replicas for b in wanted if not image.brokers[b].is_draining):
        return None
    return next((broker for broker in block.replicas if broker not in wanted), None)


def choose(
    image: Image, live: Collection[str], lost: Collection[str], place: Place
) -> Move | str | None:
    """Return the move of one replica, the reason why it cannot move, or None if no replica must
    move.
    """
    name, number = place
    found = image.find(name)
    block = found.blocks.get(number) if found is not None else None
    if found is None or block is None or block.end is None or block.move is not None:
        return None
    sources = _sources(image, lost)
    bad = [broker for broker in block.replicas if broker in sources]
    # Choose replicas on dead brokers first, then replicas on live decommissioned brokers.
    removing = min(bad, key=lambda broker: (broker in live, broker), default=None)
    wanted: tuple[str, ...] = ()
    if removing is None:
        removing, wanted = _unwanted(image, found, block), found.node.sealed_to
    if removing is None:
        return None
    if not _alive(block, live):
        return "no live broker holds all of it"
    if found.open_block.replicas == (removing,):
        # Recovery of the open block may need this block's producer table
        # (pymq.core.block.recovery).
        return "the open block is on that broker alone"
    adding = _target(image, live, block, removing, wanted)
    if adding is None:
        return "no other live broker may get a copy"
    return Move(adding, removing)


def _target(
    image: Image,
    live: Collection[str],
    block: BlockNode,
    removing: str,
    wanted: Sequence[str],
) -> str | None:
    """Return the broker for the new copy: the least loaded one, if possible in another rack."""
    brokers, carried = image.brokers, image.hosting.blocks
    able = [
        broker
        for broker in wanted or sorted(live)
        if broker in live and broker not in block.replicas and not brokers[broker].is_draining
    ]
    racks = {brokers[broker].rack for broker in block.replicas if broker != removing} - {None}
    return min(
        able,
        key=lambda b: (brokers[b].rack in racks, (carried[b] + 1) / max(1, brokers[b].weight), b),
        default=None,
    )


def is_void(image: Image, live: Collection[str], lost: Collection[str], place: Place) -> bool:
    """Whether a move in progress must be cancelled."""
    name, number = place
    found = image.partition(*name)
    move = found.blocks[number].move
    if move is None:
        return False
    if image.brokers[move.adding].is_draining or move.adding in lost:
        return True
    if move.removing in image.draining or move.removing in lost:
        return False
    is_wanted = move.adding in found.node.sealed_to and move.removing not in found.node.sealed_to
    # If the old replica's broker is dead but not lost, an earlier zkserver may have considered it
    # lost.
    return move.removing in live and not is_wanted


def is_stuck(image: Image, live: Collection[str], place: Place) -> bool:
    """Whether a move waits for dead brokers.

    A move that waits does not count as being in progress.
    """
    block = image.partition(*place[0]).blocks[place[1]]
    return block.move is not None and (block.move.adding not in live or not _alive(block, live))


def is_settled(image: Image, name: TopicPartition) -> bool:
    """Whether the sealed blocks of a partition are on the brokers that an administrator named."""
    found = image.partition(*name)
    return not any(
        block.move is not None or _unwanted(image, found, block) is not None
        for block in _sealed(found)
    )


# --- descriptions -------------------------------------------------------------------------------


def under_replicated(image: Image, live: Collection[str]) -> int:
    """Count the sealed blocks with fewer complete live copies than requested."""
    short: dict[Place, None] = dict(image.not_whole)
    for broker in image.brokers:
        if broker in live:
            continue
        for name in image.hosting.hosted(broker):
            for block in _sealed(image.partition(*name)):
                if broker in block.replicas and _alive(block, live) < block.wanted_copies:
                    short[name, block.number] = None
    return len(short)


def kept_by(
    image: Image, live: Collection[str], lost: Collection[str], broker: str
) -> tuple[str, ...]:
    """Return the reasons, as text, why a decommissioned broker is not empty; () if it is empty."""
    whys: Counter[str] = Counter()
    firsts: dict[str, str] = {}
    for name in image.hosting.hosted(broker):
        found = image.partition(*name)
        for block in found.blocks.values():
            if broker in block.replicas:
                why = _why(image, live, lost, name, block)
                whys[why] += 1
                firsts.setdefault(why, f"{name} {block.name}")
    if broker in live and (left := len(image.hosting.leaving(broker))):
        why = "it has not removed its files yet"
        whys[why] += left
        firsts.setdefault(why, str(image.hosting.leaving(broker)[0]))
    return tuple(
        f"{firsts[why]}{f' and {count - 1} more' if count > 1 else ''}: {why}"
        for why, count in whys.most_common(REASONS_MAX)
    )


def _why(
    image: Image,
    live: Collection[str],
    lost: Collection[str],
    name: TopicPartition,
    block: BlockNode,
) -> str:
    if block.end is None:
        return "it is open, and no roll has moved it yet"
    if block.move is not None:
        if is_stuck(image, live, (name, block.number)):
            return "its copying has begun, and waits for a dead broker"
        return "it is being copied"
    found = choose(image, live, lost, (name, block.number))
    return found if isinstance(found, str) else "it waits for its turn to be copied"
