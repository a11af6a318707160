"""Changes the offsets topic to Raft when there are enough brokers.

The first group may join while a cluster has one broker. The offsets topic then begins in ack mode
``leader``, in which a confirmed commit can be lost together with a disk's cache or with the leader.
When three brokers can hold the topic, the zkserver rolls its partitions to mode ``raft``, one at a
time. From then on a confirmed commit is durable on a majority of brokers.
"""

from __future__ import annotations

from pymq.controller.context import ControllerContext
from pymq.controller.operations.rolls import Rolls
from pymq.controller.state.image import Draft
from pymq.controller.transitions import blocks
from pymq.controller.transitions.placement import usable
from pymq.core.message import Result
from pymq.core.metadata.nodes import Wanted
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, OFFSETS_TOPIC, AckMode, TopicPartition

SOON_MS = 1_000  # pause after a broker's registration, so that the registration is committed first
LEAST = 3  # minimal number of replicas; with fewer, no majority survives the loss of one


class Promotion:
    """Checks periodically whether the offsets topic can change to Raft."""

    def __init__(
        self,
        context: ControllerContext,
        rolls: Rolls,
        *,
        replicas: int,
        check_ms: int,
    ) -> None:
        self.deadline = NEVER
        self._commits = context.commits
        self._members = context.members
        self._rolls = rolls
        self._replicas = replicas
        self._check_ms = check_ms

    def begin(self, now: int) -> None:
        """Begin as the active zkserver."""
        if self._replicas >= LEAST:
            self.deadline = now + self._check_ms

    def end(self) -> None:
        """Stop, because this zkserver is no longer active."""
        self.deadline = NEVER

    def soon(self, now: int) -> None:
        """Check soon, because there may be a new broker."""
        if self.deadline != NEVER:
            self.deadline = min(self.deadline, now + SOON_MS)

    def tick(self, now: int) -> None:
        """Begin with the next partition, if there is one and enough brokers are alive."""
        if now < self.deadline:
            return
        self.deadline = now + self._check_ms
        image = self._commits.image
        topic = image.topics.get(OFFSETS_TOPIC)
        count = min(self._replicas, len(usable(image, self._members.live)))
        if topic is None or count < LEAST:
            return
        names = [TopicPartition(OFFSETS_TOPIC, each) for each in topic.partitions]
        if any(self._rolls.get(name) is not None for name in names):
            self.deadline = now + SOON_MS
            return
        for name in names:
            if image.partition(*name).node.acks is AckMode.LEADER:
                mark("promotion.offsets")
                self._promote(name, count)
                self.deadline = now + SOON_MS
                return

    def _promote(self, name: TopicPartition, count: int) -> None:
        def plan(draft: Draft) -> Result:
            if draft.image.partition(*name).node.acks is AckMode.LEADER:
                blocks.want(draft, name, Wanted(AckMode.RAFT, count=count))
            return None

        def done(now: int) -> None:
            self._rolls.start(name, now)

        self._commits.do(plan, scope=name, done=done)
