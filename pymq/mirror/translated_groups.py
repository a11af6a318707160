"""Sets the offsets of groups of a queue to those that the groups have in Kafka, translated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pymq.errors import InvalidRequest, UnknownGroup
from pymq.mirror.journal import MirrorEntry, Place
from pymq.mirror.kafka_client import KafkaAdmin
from pymq.mirror.plan import matches
from pymq.mirror.progress import MirrorProgress

if TYPE_CHECKING:
    from pymq.client.client import Client

OWN = "pymq-mirror-"  # groups that hold the progress of mirrors


def sync_groups(
    mq: Client,
    admin: KafkaAdmin,
    patterns: Sequence[str],
    names: Mapping[Place, str],
    entries: Mapping[Place, MirrorEntry],
    progress: MirrorProgress,
) -> None:
    """Translate the committed offsets of all groups that match.

    An offset is only moved forward. A group with members in the queue is left alone: it has moved.

    Args:
        mq: the queue.
        admin: of the Kafka.
        patterns: of the groups' names.
        names: the mirrored partitions, with their names in the queue.
        entries: their state.
        progress: gets the number of offsets that were set.
    """
    for group in admin.groups():
        if not matches(group, patterns) or group.startswith(OWN):
            continue
        wanted = dict[str, dict[str, int]]()
        for place, offset in admin.committed(group).items():
            target = entries[place].offsets.find(offset) if place in names else None
            if target is not None:
                wanted.setdefault(place[0], {})[names[place]] = target
        if not wanted:
            continue
        try:
            state = mq.questions.group_state(group)
        except UnknownGroup:
            current: dict[tuple[str, str], int] = {}
        else:
            if state.members:
                progress.busy_groups.add(group)
                continue
            current = {(o.topic, o.partition): o.committed for o in state.offsets}
        progress.busy_groups.discard(group)
        progress.groups.setdefault(group, 0)
        for topic, offsets in wanted.items():
            ahead = {p: at for p, at in offsets.items() if at > current.get((topic, p), -1)}
            if not ahead:
                continue
            try:
                mq.reset_group(group, topic, dict[str, int | str](ahead))
            except InvalidRequest:
                progress.busy_groups.add(group)  # a member has just joined
                break
            progress.groups[group] += len(ahead)
