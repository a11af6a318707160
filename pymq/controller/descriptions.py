"""Describes topics and the cluster, from the tree and from leaders' reports."""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from pymq.controller.gradual_reads import gradually
from pymq.controller.lookup import Lookup
from pymq.controller.operations.broker_updates import BrokerUpdates
from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Image
from pymq.controller.state.replica_ends import KnownEnds
from pymq.controller.state.transactions import Later, Send, Transactions
from pymq.controller.transitions import rereplication, takeover
from pymq.core.message import (
    Answer,
    DescribePartitions,
    DescribeTopic,
    PartitionReport,
    PartitionReports,
    Result,
)
from pymq.core.metadata.nodes import (
    BlockDescription,
    BlockNode,
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
    PartitionState,
    TopicDescription,
)
from pymq.core.types import NEVER, TopicPartition, is_internal
from pymq.core.values import Factory, define
from pymq.errors import NotController, UnknownTopic

DESCRIBE_WAIT_MS = 2_000
SHOWN_MAX = 100  # partitions without a leader in one description
PARTS_MAX = 250  # partitions described in a turn, some 10 ms


@define
class Describing:
    """A description that waits for leaders' reports."""

    source: str
    request: int
    topic: str
    asked: dict[str, frozenset[str]]  # partitions, by the broker that reports them
    missing: set[str]
    until: int
    reports: dict[str, PartitionReport] = Factory(dict)


class Descriptions:
    """All descriptions of topics that are under way."""

    def __init__(
        self,
        commits: Transactions,
        members: BrokerLiveness,
        notices: BrokerUpdates,
        ends: KnownEnds,
        send: Send,
    ) -> None:
        self._commits = commits
        self._members = members
        self._notices = notices
        self._ends = ends
        self._send = send
        self._waiting: dict[int, Describing] = {}

    def start(self, source: str, m: DescribeTopic, now: int) -> None:
        """Request reports from the leaders, then answer.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        topic = self._commits.image.topic(m.name)
        by_leader: dict[str, list[tuple[str, str]]] = {}
        for name, partition in topic.partitions.items():
            leader = partition.open_block.leader
            # Without a leader, the live replicas report their high watermarks.
            sources: tuple[str, ...]
            if leader is not None and leader in self._members:
                sources = (leader,)
            else:
                found = Lookup(self._commits.image, self._members, self._ends)
                sources = found.readable(m.name, partition)
            for broker in sources:
                by_leader.setdefault(broker, []).append((m.name, name))
        key = self._notices.next_id()
        asked = {leader: frozenset(name for _, name in led) for leader, led in by_leader.items()}
        until = now + DESCRIBE_WAIT_MS
        waiting = Describing(source, m.id, m.name, asked, set(by_leader), until)
        self._waiting[key] = waiting
        for leader, names in by_leader.items():
            self._send(leader, DescribePartitions(key, tuple(names)))
        if not by_leader:
            self._answer(key, waiting)

    def reported(self, source: str, m: PartitionReports) -> None:
        """Take in a broker's reports; without a leader, the highest high watermark counts."""
        waiting = self._waiting.get(m.id)
        if waiting is None:
            return
        waiting.missing.discard(source)
        asked = waiting.asked.get(source, frozenset())
        for report in m.reports:
            known = waiting.reports.get(report.partition)
            is_best = known is None or report.high_watermark > known.high_watermark
            if report.partition in asked and is_best:
                waiting.reports[report.partition] = report
        if not waiting.missing:
            self._answer(m.id, waiting)

    def end_all(self, error: NotController) -> None:
        """End all descriptions with *error*: this zkserver is no longer active."""
        ended, self._waiting = self._waiting, {}
        for waiting in ended.values():
            self._send(waiting.source, Answer(waiting.request, error=error))

    def tick(self, now: int) -> None:
        """Answer without the brokers that have not reported in time."""
        for key, waiting in list(self._waiting.items()):
            if waiting.until <= now:
                self._answer(key, waiting)

    @property
    def deadline(self) -> int:
        """The deadline of :meth:`tick`."""
        return min((waiting.until for waiting in self._waiting.values()), default=NEVER)

    def _answer(self, key: int, waiting: Describing) -> None:
        del self._waiting[key]
        topic = self._commits.image.topics.get(waiting.topic)
        if topic is None:
            gone = UnknownTopic(f"topic {waiting.topic!r} was deleted")
            self._send(waiting.source, Answer(waiting.request, error=gone))
            return
        found: list[PartitionDescription] = []

        def names(image: Image) -> list[TopicPartition]:
            return [TopicPartition(waiting.topic, name) for name in topic.partitions]

        def each(image: Image, name: TopicPartition) -> None:
            if image.find(name) is not None:
                found.append(self._described(name, waiting.reports.get(name.partition)))

        def result(image: Image) -> TopicDescription:
            now = image.topics.get(waiting.topic)
            if now is None or now.node.id != topic.node.id:
                raise UnknownTopic(f"topic {waiting.topic!r} was deleted")
            return TopicDescription(waiting.topic, now.node.config, tuple(found))

        self._commits.read(
            gradually(names, each, result, PARTS_MAX), answer=(waiting.source, waiting.request)
        )

    def _described(
        self, name: TopicPartition, report: PartitionReport | None
    ) -> PartitionDescription:
        image = self._commits.image
        shown = _description(image.topics[name.topic].state(name.partition), report)
        problem = takeover.problem(image, self._members, name)
        found = image.partition(*name)
        sound = takeover.able(image, self._members, name, found.open_block)
        offline = tuple(broker for broker in shown.replicas if broker not in sound)
        is_short = sum(b not in offline for b in shown.in_sync) < found.node.replicas
        return attrs.evolve(
            shown,
            offline=offline,
            under_replicated=bool(shown.replicas) and is_short,
            leader=shown.leader if problem is None else None,
            problem=problem or (report.problem if report is not None else None),
            losses=found.node.losses,
        )


def _description(state: PartitionState, report: PartitionReport | None) -> PartitionDescription:
    blocks = tuple(
        BlockDescription(
            block.name,
            block.start,
            block.end,
            block.epoch,
            block.acks,
            block.leader,
            block.replicas,
            block.size if block.end is not None or report is None else report.size,
            block.number,
            _in_sync(block, report),
            block.opened_ms,
            block.max_timestamp,
            block.is_unclean,
        )
        for block in state.blocks
    )
    last = state.blocks[-1]
    end = report.end if report is not None else last.start
    return PartitionDescription(
        state.partition,
        state.index,
        state.acks,
        state.leader,
        state.epoch,
        last.replicas,
        _in_sync(last, report),
        state.blocks[0].start,
        end,
        report.high_watermark if report is not None else end,
        blocks,
    )


def _in_sync(block: BlockNode, report: PartitionReport | None) -> tuple[str, ...]:
    """The in-sync set of a block; for the open block, the leader's report if there is one."""
    is_reported = block.end is None and report is not None and report.in_sync
    return report.in_sync if report is not None and is_reported else block.in_sync


def topics(image: Image) -> tuple[str, ...]:
    """The names of all topics except internal ones."""
    return tuple(sorted(name for name in image.topics if not is_internal(name)))


def cluster(
    me: str, members: BrokerLiveness, lost: Collection[str] = ()
) -> Callable[[Image], Result | Later]:
    """Return a read of the cluster's description, some partitions in each turn.

    *lost* are the brokers whose copies are replaced on other brokers.
    """
    stuck: list[TopicPartition] = []
    count = 0

    def names(image: Image) -> list[TopicPartition]:
        return [
            TopicPartition(topic, name)
            for topic in topics(image)
            for name in image.topics[topic].partitions
        ]

    def each(image: Image, name: TopicPartition) -> None:
        nonlocal count
        if image.find(name) is not None:
            count += 1
            if takeover.problem(image, members, name) is not None:
                stuck.append(name)

    def result(image: Image) -> ClusterDescription:
        live, hosting = members.live, image.hosting
        brokers = tuple(
            BrokerDescription(
                b.name,
                b.endpoint,
                b.rack,
                name in members,
                hosting.leads[name],
                b.is_draining,
                hosting.blocks[name],
                rereplication.kept_by(image, live, lost, name) if b.is_draining else (),
            )
            for name, b in sorted(image.brokers.items())
        )
        return ClusterDescription(
            me,
            image.controller_epoch,
            brokers,
            len(topics(image)),
            count,
            tuple(map(str, stuck[:SHOWN_MAX])),
            rereplication.under_replicated(image, live),
            len(image.moving),
        )

    return gradually(names, each, result, PARTS_MAX)
