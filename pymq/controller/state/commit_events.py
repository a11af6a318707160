"""Journal events of a commit: the differences between the image before it and the draft."""

from __future__ import annotations

from collections.abc import Iterator

from pymq.controller.state.image import Draft, Image
from pymq.coord import paths
from pymq.core.metadata.nodes import BlockNode, Node, TopicNode
from pymq.core.types import TopicPartition, is_internal

Event = tuple[str, dict[str, object]]


def events(draft: Draft) -> Iterator[Event]:
    """Yield the changes that *draft* makes; call this before the image adopts the draft."""
    for path, node, is_gone in draft.edits:
        place = paths.parse(path)
        if isinstance(place, paths.TopicPath) and not is_internal(place.topic):
            yield from _topic(draft.image, place.topic, node, is_gone=is_gone)
        elif isinstance(place, paths.BlockPath) and isinstance(node, BlockNode):
            name = TopicPartition(place.topic, place.partition)
            yield from _block(draft.image, name, node)


def _topic(image: Image, topic: str, node: Node | None, *, is_gone: bool) -> Iterator[Event]:
    is_shown = isinstance(node, TopicNode) and not node.is_hidden
    if topic in image.topics:
        if is_gone or not is_shown:
            yield "topic_deleted", {"topic": topic}
    elif is_shown:
        yield "topic_created", {"topic": topic}


def _block(image: Image, name: TopicPartition, node: BlockNode) -> Iterator[Event]:
    found = image.find(name)
    if found is None or not found.blocks:
        return  # The partition is new.
    before, where = found.open_block, {"topic": name.topic, "partition": name.partition}
    if node.end is not None:
        if node.number == before.number and node.is_unclean:
            yield "unclean_election", {**where, "end": node.end}
        return
    if node.number != before.number:
        what = {"end": node.start, "acks": node.acks.name, "replicas": node.replicas}
        yield "block_rolled", {**where, **what}
    else:
        gone = tuple(broker for broker in before.in_sync if broker not in node.in_sync)
        come = tuple(broker for broker in node.in_sync if broker not in before.in_sync)
        if gone:
            yield "isr_shrunk", {**where, "gone": gone, "in_sync": node.in_sync}
        if come and before.replicas:
            yield "isr_expanded", {**where, "come": come, "in_sync": node.in_sync}
    if node.leader != before.leader and before.replicas:
        what = {"leader": node.leader, "before": before.leader, "epoch": node.epoch}
        yield "leader_changed", {**where, **what}
