"""Answers clients' queries about topics, partitions and the cluster, from the tree."""

from __future__ import annotations

from collections.abc import Callable

from pymq.controller import descriptions
from pymq.controller.context import ControllerContext
from pymq.controller.descriptions import Descriptions
from pymq.controller.lookup import Lookup, metadata
from pymq.controller.operations.block_copying import BlockCopying
from pymq.controller.operations.topics import Topics
from pymq.controller.state.commit_queues import Later
from pymq.controller.state.image import Draft, Image
from pymq.controller.transitions import request_plans
from pymq.controller.transitions.placement import usable
from pymq.core.message import (
    Answer,
    DescribeCluster,
    DescribeTopic,
    GetMetadata,
    ListTopics,
    Locate,
    Message,
    Result,
)
from pymq.core.types import OFFSETS_TOPIC
from pymq.errors import NoBrokers


class QueryHandler:
    """Answers requests that change nothing, with the state after all earlier requests."""

    def __init__(
        self,
        context: ControllerContext,
        topics: Topics,
        copying: BlockCopying,
        described: Descriptions,
        *,
        offsets_partitions: int,
        offsets_replicas: int,
    ) -> None:
        self._context = context
        self._topics = topics
        self._copying = copying
        self._descriptions = described
        self._offsets_partitions = offsets_partitions
        self._offsets_replicas = offsets_replicas

    def step(self, source: str, m: Message, now: int) -> bool:
        """Handle a query; returns False for any other message."""
        match m:
            case GetMetadata():
                self._metadata(source, m, now)
            case Locate():
                self._read(source, m.id, lambda image: self._lookup(image).locate(m))
            case DescribeTopic():
                self._describe(source, m, now)
            case ListTopics():
                self._read(source, m.id, descriptions.topics)
            case DescribeCluster():
                context, lost = self._context, self._copying.lost(now)
                look = descriptions.cluster(context.me, context.members, lost)
                if m.brokers_only:
                    look = descriptions.brokers(context.me, context.members)
                self._read(source, m.id, look)
            case _:
                return False
        return True

    def _read(self, source: str, request: int, look: Callable[[Image], Result | Later]) -> None:
        self._context.commits.read(look, answer=(source, request))

    def _lookup(self, image: Image) -> Lookup:
        return Lookup(image, self._context.members, self._context.ends)

    def _metadata(self, source: str, m: GetMetadata, now: int) -> None:
        context, image = self._context, self._context.commits.image
        if m.topic == OFFSETS_TOPIC and OFFSETS_TOPIC not in image.topics:
            # The internal topic is created when the first group needs it, as in Kafka.
            replicas, count = self._offsets_replicas, len(usable(image, context.members.live))
            # The request waits until enough brokers are alive, or all have had time to register.
            if count < (1 if context.members.is_settled else replicas):
                wait = NoBrokers("the brokers for the offsets of groups are not alive yet")
                context.send(source, Answer(m.id, error=wait))
                return
            make = request_plans.offsets_topic(0, self._offsets_partitions, replicas, count)
            self._topics.create("", make, now, fewer=True)
        context.commits.read(
            metadata(self._lookup, m.topic),
            answer=(source, m.id),
            # The client can continue only when leaders are known, so this read is urgent, unless
            # the partitions are still being created.
            is_urgent=m.topic in image.topics,
        )

    def _describe(self, source: str, m: DescribeTopic, now: int) -> None:
        def plan(draft: Draft) -> Later:
            self._descriptions.start(source, m, now)
            return Later.ANSWER

        self._context.commits.do(plan, answer=(source, m.id))
