"""Converts descriptions to JSON for the page, limited to the amount that the page can draw."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs

from pymq.client.admin.groups import GroupDescription
from pymq.core.metadata.descriptions import (
    BlockDescription,
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
)

BLOCKS_MAX = 120  # blocks of a partition; older ones are only counted
PARTITIONS_MAX = 500  # partitions of a topic
MEMBERS_MAX = 200  # members of a group

Json = dict[str, Any]


def cluster(found: ClusterDescription, held: Mapping[str, tuple[int, int]]) -> Json:
    """Describe brokers and the controller; *held* has the blocks and bytes on each broker."""
    brokers = []
    for broker in found.brokers:
        blocks, size = held.get(broker.name, (0, 0))
        brokers.append({**attrs.asdict(broker), "blocks": blocks, "bytes": size})
    return {
        "controller": found.controller,
        "epoch": found.controller_epoch,
        "brokers": brokers,
        "topics": found.topics,
        "partitions": found.partitions,
        "leaderless": list(found.leaderless),
        "under_replicated_blocks": found.under_replicated_blocks,
        "moving_blocks": found.moving_blocks,
    }


def topic_line(
    found: TopicDescription,
    records: int,
    rate: tuple[float, float] | None,
    dead: Collection[str] = (),
) -> Json:
    """Describe a topic in a list; *dead* brokers serve no reads."""
    partitions = found.partitions
    short = sum(len(p.in_sync) < len(p.replicas) for p in partitions)
    return {
        "name": found.name,
        "partitions": len(partitions),
        "acks": sorted({p.acks.name.lower() for p in partitions}),
        "replicas": max((len(p.replicas) for p in partitions), default=0),
        "blocks": sum(len(p.blocks) for p in partitions),
        "records": records,
        "bytes": sum(block.size_bytes for p in partitions for block in p.blocks),
        "records_s": None if rate is None else round(rate[0], 1),
        "bytes_s": None if rate is None else round(rate[1]),
        "short": short,
        "problems": sum(p.problem is not None for p in partitions),
        "unreadable": sum(bool(p.unreadable(dead)) for p in partitions),
    }


def topic(found: TopicDescription, dead: Collection[str] = ()) -> Json:
    """Describe a topic in full; *dead* brokers serve no reads."""
    shown = found.partitions[:PARTITIONS_MAX]
    return {
        "name": found.name,
        "config": attrs.asdict(found.config),
        "partitions": [_partition(partition, dead) for partition in shown],
        "more_partitions": len(found.partitions) - len(shown),
    }


def _partition(found: PartitionDescription, dead: Collection[str]) -> Json:
    blocks = found.blocks[-BLOCKS_MAX:]
    unreadable = found.unreadable(dead)
    return {
        "name": found.name,
        "acks": found.acks.name.lower(),
        "leader": found.leader,
        "epoch": found.epoch,
        "replicas": list(found.replicas),
        "in_sync": list(found.in_sync),
        "start": found.start_offset,
        "end": found.end_offset,
        "high": found.high_watermark,
        "problem": found.problem,
        "offline": list(found.offline),
        "under_replicated": found.under_replicated,
        "unreadable": {
            "blocks": len(unreadable),
            "records": sum((b.end_offset or 0) - b.start_offset for b in unreadable),
            "from": min((b.start_offset for b in unreadable), default=0),
        },
        "losses": [attrs.asdict(loss) for loss in found.losses],
        "blocks": [_block(block, found) for block in blocks],
        "older": len(found.blocks) - len(blocks),
    }


def _block(found: BlockDescription, partition: PartitionDescription) -> Json:
    end = partition.end_offset if found.end_offset is None else found.end_offset
    return {
        "name": found.name,
        "start": found.start_offset,
        "end": max(end, found.start_offset),
        "open": found.end_offset is None,
        "epoch": found.epoch,
        "acks": found.acks.name.lower(),
        "leader": found.leader,
        "replicas": list(found.replicas),
        "in_sync": list(partition.in_sync if found.end_offset is None else found.in_sync),
        "bytes": found.size_bytes,
        "opened_ms": found.opened_ms,
        "newest_ms": found.max_timestamp_ms,
        "unclean": found.is_unclean,
    }


def group_line(found: GroupDescription) -> Json:
    """Describe a group in a list."""
    return {
        "name": found.name,
        "members": len(found.members),
        "topics": sorted({topic for topic, _ in found.committed}),
        "lag": sum(found.lag.values()),
        "in_flight": sum(found.in_flight.values()),
        "waiting": sum(found.waiting.values()),
    }


def group(found: GroupDescription, not_begun: Iterable[tuple[str, str]] = ()) -> Json:
    """Describe a group in full; partitions of *not_begun* have no numbers."""
    names = sorted([*found.committed, *not_begun])
    return {
        "name": found.name,
        "generation": found.generation,
        "members": [
            {
                "name": member.name,
                "client": member.client,
                "topic": member.topic,
                "partitions": list(member.partitions),
                "silent_s": round(member.silent_s, 1),
                "waits": member.asks is not None,
            }
            for member in found.consumers[:MEMBERS_MAX]
        ],
        "more_members": max(0, len(found.consumers) - MEMBERS_MAX),
        "offsets": [
            {
                "topic": topic,
                "partition": partition,
                "committed": found.committed.get((topic, partition)),
                "end": found.end.get((topic, partition)),
                "lag": found.lag.get((topic, partition)),
                "in_flight": found.in_flight.get((topic, partition)),
                "waiting": found.waiting.get((topic, partition)),
            }
            for topic, partition in names
        ],
    }
