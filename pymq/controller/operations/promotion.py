"""Brings the offsets of groups to Raft once there are enough brokers.

The first group may come while a cluster has one broker. Its offsets topic then begins in ack mode
``leader``, in which a confirmed commit can be lost with a disk's cache or with the leader. As soon
as three brokers can hold it, each of its partitions is rolled to mode ``raft``, one at a time, and
from then on a confirmed commit is durable on a majority.
"""

from __future__ import annotations

from pymq.controller.operations.rolls import Rolls
from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Draft
from pymq.controller.state.transactions import Transactions
from pymq.controller.transitions import blocks
from pymq.controller.transitions.placement import usable
from pymq.core.message import Result
from pymq.core.metadata.nodes import Wanted
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, OFFSETS_TOPIC, AckMode, TopicPartition

SOON_MS = 1_000  # after a broker has registered: its own commit comes first
LEAST = 3  # replicas, below which a majority does not outlive the loss of one


class Promotion:
    """Looks from time to time whether the offsets topic can go over to Raft."""

    def __init__(
        self,
        commits: Transactions,
        members: BrokerLiveness,
        rolls: Rolls,
        *,
        replicas: int,
        check_ms: int,
    ) -> None:
        self.deadline = NEVER
        self._commits = commits
        self._members = members
        self._rolls = rolls
        self._replicas = replicas
        self._check_ms = check_ms

    def begin(self, now: int) -> None:
        """This zkserver is active from now on."""
        if self._replicas >= LEAST:
            self.deadline = now + self._check_ms

    def end(self) -> None:
        """This zkserver is active no more."""
        self.deadline = NEVER

    def soon(self, now: int) -> None:
        """There may be one more broker."""
        if self.deadline != NEVER:
            self.deadline = min(self.deadline, now + SOON_MS)

    def tick(self, now: int) -> None:
        """Begin with the next partition, if there is one and brokers are enough."""
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
