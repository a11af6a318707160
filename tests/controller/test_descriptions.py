"""Descriptions of a topic: which replica's report about a partition counts."""

from __future__ import annotations

from pymq.core.message import DescribePartitions, DescribeTopic, Message, PartitionReports
from pymq.core.message.control import PartitionReport
from pymq.core.metadata.descriptions import PartitionDescription, TopicDescription
from pymq.core.types import AckMode
from tests.controller.cluster import T0, Cluster


class Describing:
    """A description in progress; the reports are scripted."""

    def __init__(self, acks: AckMode) -> None:
        self.cluster = Cluster()
        self.cluster.topic(acks, 3)
        self.asked: dict[str, DescribePartitions] = {}
        self.cluster.dropped = self._noted
        self._request = self.cluster.send(lambda i: DescribeTopic(i, "t"))

    def _noted(self, source: str, peer: str, message: Message) -> bool:
        if isinstance(message, DescribePartitions):
            assert peer not in self.asked, "asked twice"
            self.asked[peer] = message
        return False

    @property
    def followers(self) -> set[str]:
        return set(self.cluster.followers())

    def report(self, broker: str, end: int, *, leads: bool) -> None:
        """Let a broker report."""
        told = PartitionReport(*T0, 0, end, end, 10 * end, (), None, leads)
        self.cluster.to_active(broker, PartitionReports(self.asked[broker].id, (told,)))

    def answer(self) -> PartitionDescription | None:
        """The description, once it is there."""
        if self._request not in self.cluster.answers:
            return None
        found = self.cluster.answers[self._request].result
        assert isinstance(found, TopicDescription)
        return found.partitions[0]


def test_the_leader_is_asked_and_its_report_is_enough() -> None:
    it = Describing(AckMode.RAFT)
    leader = it.cluster.leader()
    assert set(it.asked) == {leader}
    it.report(leader, 7, leads=True)
    shown = it.answer()
    assert shown is not None
    assert (shown.high_watermark, shown.is_reported) == (7, True)


def test_the_others_are_asked_if_the_broker_leads_no_more() -> None:
    """The replicas have elected another leader, which the zkserver does not know yet.

    The old leader does not have the records that the new one has acknowledged, so its end would
    hide existing records.
    """
    it = Describing(AckMode.RAFT)
    leader = it.cluster.leader()
    it.report(leader, 7, leads=False)
    assert it.answer() is None
    assert set(it.asked) == {leader} | it.followers
    new, other = sorted(it.followers)
    it.report(new, 8, leads=True)
    it.report(other, 7, leads=False)
    shown = it.answer()
    assert shown is not None
    assert (shown.high_watermark, shown.is_reported) == (8, True)


def test_a_partition_that_nobody_reports_is_shown_as_such() -> None:
    """The description shows the offsets in the tree, which say nothing about the partition's
    present records.
    """
    it = Describing(AckMode.LEADER)
    it.cluster.pass_ms(2_500)
    shown = it.answer()
    assert shown is not None
    assert not shown.is_reported
    assert (shown.end_offset, shown.high_watermark) == (0, 0)


def test_a_report_that_comes_too_late_changes_nothing() -> None:
    it = Describing(AckMode.LEADER)
    it.cluster.pass_ms(2_500)
    it.report(it.cluster.leader(), 7, leads=True)
    shown = it.answer()
    assert shown is not None
    assert shown.end_offset == 0
