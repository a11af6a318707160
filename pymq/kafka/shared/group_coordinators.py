"""Finds the broker that coordinates a group: the leader of the partition with its offsets."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pymq.core.message import Answer, GetMetadata
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.types import OFFSETS_TOPIC
from pymq.core.values import define
from pymq.hash.partitioner import key_partition
from pymq.kafka.shared.controllers import ask_controller
from pymq.kafka.shared.conversation import GateContext, Wait

FRESH_MS = 5_000  # a heartbeat learns within this time that another broker coordinates the group


@define
class GroupLeaders:
    """The leaders of the partitions of the offsets topic, as the zkserver has named them."""

    metadata: TopicMetadata | None = None
    loaded_at: int = 0

    def forget(self) -> None:
        """Ask the zkserver again, because a coordinator has moved or does not answer."""
        self.metadata = None


def coordinator_of(context: GateContext, group: str) -> Generator[Wait, Any, str | None]:
    """Return the broker that coordinates a group; None if there is none at the moment."""
    known = context.share.leaders
    if known.metadata is None or context.now - known.loaded_at >= FRESH_MS:
        found = yield from ask_controller(context, lambda r: GetMetadata(r, OFFSETS_TOPIC))
        if isinstance(found, Answer) and isinstance(found.result, TopicMetadata):
            known.metadata, known.loaded_at = found.result, context.now
    if known.metadata is None or not known.metadata.partitions:
        return None
    partitions = known.metadata.partitions
    leader = partitions[key_partition(group.encode(), len(partitions))].leader
    if not leader:
        known.forget()
    return leader or None
