"""Describes topics and the cluster, from the tree and from leaders' reports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import attrs

from pymq.controller.context import ControllerContext
from pymq.controller.gradual_reads import gradually
from pymq.controller.lookup import Lookup
from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.commit_queues import Later
from pymq.controller.state.image import Image, PartitionImage
from pymq.controller.transitions import rereplication, takeover
from pymq.core.message import (
    Answer,
    DescribePartitions,
    DescribeTopic,
    PartitionReport,
    PartitionReports,
    Result,
)
from pymq.core.metadata.descriptions import (
    BlockDescription,
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
)
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.types import NEVER, TopicPartition, is_internal
from pymq.core.values import Factory, define
from pymq.errors import NotController, UnknownTopic

DESCRIBE_WAIT_MS = 2_000
SHOWN_MAX = 100  # partitions without a leader in one description
PARTS_MAX = 250  # partitions described in a turn, which takes about 10 ms


@define
class Describing:
    """A description that waits for leaders' reports."""

    source: str
    request: int
    topic: str
    until: int
    # partitions to report, by the broker that reports them
    asked: dict[str, set[str]] = Factory(dict)
    missing: set[str] = Factory(set)  # brokers that have not reported yet
    reports: dict[str, PartitionReport] = Factory(dict)


class Descriptions:
    """All descriptions of topics in progress."""

    def __init__(self, context: ControllerContext) -> None:
        self._commits = context.commits
        self._members = context.members
        self._updates = context.updates
        self._ends = context.ends
        self._send = context.send
        self._waiting: dict[int, Describing] = {}

    def start(self, source: str, m: DescribeTopic, now: int) -> None:
        """Request reports from the leaders, then answer.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        topic = self._commits.image.topic(m.name)
        by_broker: dict[str, list[str]] = {}
        for name, partition in topic.partitions.items():
            leader = partition.open_block.leader
            if leader is not None and leader in self._members:
                by_broker.setdefault(leader, []).append(name)
                continue
            # Without a leader, live replicas report their high watermarks.
            for broker in self._readable(m.name, partition):
                by_broker.setdefault(broker, []).append(name)
        key = self._updates.next_id()
        waiting = Describing(source, m.id, m.name, now + DESCRIBE_WAIT_MS)
        self._waiting[key] = waiting
        self._ask(key, waiting, by_broker)
        if not by_broker:
            self._answer(key, waiting)

    def _readable(self, topic: str, partition: PartitionImage) -> tuple[str, ...]:
        found = Lookup(self._commits.image, self._members, self._ends)
        return found.readable(topic, partition)

    def _ask(self, key: int, waiting: Describing, by_broker: Mapping[str, list[str]]) -> None:
        for broker, names in by_broker.items():
            waiting.asked.setdefault(broker, set()).update(names)
            waiting.missing.add(broker)
            parts = tuple((waiting.topic, name) for name in names)
            self._send(broker, DescribePartitions(key, parts))

    def reported(self, source: str, m: PartitionReports) -> None:
        """Handle a broker's reports; of several reports, the one with the highest high watermark
        counts.

        If the broker does not lead a partition, the zkserver also asks the other replicas. They may
        have elected another leader, which may have acknowledged records that this broker does not
        have yet.
        """
        waiting = self._waiting.get(m.id)
        if waiting is None:
            return
        waiting.missing.discard(source)
        asked = waiting.asked.get(source, set())
        others: dict[str, list[str]] = {}
        for report in m.reports:
            if report.partition not in asked:
                continue
            known = waiting.reports.get(report.partition)
            if known is None or report.high_watermark > known.high_watermark:
                waiting.reports[report.partition] = report
            if not report.leads:
                for broker in self._not_asked(waiting, report.partition):
                    others.setdefault(broker, []).append(report.partition)
        if others:
            self._ask(m.id, waiting, others)
        if not waiting.missing:
            self._answer(m.id, waiting)

    def _not_asked(self, waiting: Describing, partition: str) -> list[str]:
        found = self._commits.image.find(TopicPartition(waiting.topic, partition))
        if found is None:
            return []
        replicas = self._readable(waiting.topic, found)
        return [name for name in replicas if partition not in waiting.asked.get(name, ())]

    def end_all(self, error: NotController) -> None:
        """Answer all waiting requests with *error*, because this zkserver is no longer active."""
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
                report = waiting.reports.get(name.partition)
                is_asked = any(name.partition in asked for asked in waiting.asked.values())
                found.append(self._described(name, report, report is not None or not is_asked))

        def result(image: Image) -> TopicDescription:
            now = image.topics.get(waiting.topic)
            if now is None or now.node.id != topic.node.id:
                raise UnknownTopic(f"topic {waiting.topic!r} was deleted")
            return TopicDescription(waiting.topic, now.node.config, tuple(found))

        self._commits.read(
            gradually(names, each, result, PARTS_MAX), answer=(waiting.source, waiting.request)
        )

    def _described(
        self, name: TopicPartition, report: PartitionReport | None, is_reported: bool
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
            is_reported=is_reported,
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
        state.log_start,
        end,
        report.high_watermark if report is not None else end,
        blocks,
    )


def _in_sync(block: BlockNode, report: PartitionReport | None) -> tuple[str, ...]:
    """The in-sync set of a block; for the open block, from the leader's report if any."""
    is_reported = block.end is None and report is not None and report.in_sync
    return report.in_sync if report is not None and is_reported else block.in_sync


def topics(image: Image) -> tuple[str, ...]:
    """The names of all topics except internal ones."""
    return tuple(sorted(name for name in image.topics if not is_internal(name)))


def brokers(me: str, members: BrokerLiveness) -> Callable[[Image], ClusterDescription]:
    """Return a read of the cluster's brokers alone."""

    def look(image: Image) -> ClusterDescription:
        return ClusterDescription(
            me,
            image.controller_epoch,
            tuple(
                BrokerDescription(
                    b.name,
                    b.endpoint,
                    b.rack,
                    name in members,
                    image.hosting.leads[name],
                    b.is_draining,
                    number=b.number,
                    kafka=b.kafka,
                )
                for name, b in sorted(image.brokers.items())
            ),
        )

    return look


def cluster(
    me: str, members: BrokerLiveness, lost: Collection[str] = ()
) -> Callable[[Image], Result | Later]:
    """Return a read of the cluster's description, which handles some partitions in each turn.

    *lost* are brokers whose copies are being replaced on other brokers.
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
                b.number,
                b.kafka,
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
