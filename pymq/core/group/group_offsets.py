"""The offsets and leases of a group, by partition, with the topics of these partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby, repeat
from operator import itemgetter

from pymq.core.batch.offset_ranges import EVERYTHING, NOTHING, Ranges, joined
from pymq.core.group.leases import Leases
from pymq.core.group.member import Member
from pymq.core.group.topic_state import TopicState
from pymq.core.message import Acquire, GetLeases, GroupLeases, GroupOffset, Range, Settle
from pymq.core.pending.growth import Growth
from pymq.core.types import NEVER
from pymq.core.values import Factory, define

SPANS_MAX = 1_000  # most spans in one answer

Name = tuple[str, str]  # topic and partition


@define
class GroupOffsets:
    """The offsets that a group has acknowledged, leased or not yet leased, in all of its topics."""

    leases: dict[Name, Leases] = Factory(dict)
    topics: dict[str, TopicState] = Factory(dict)
    notes: dict[Name, str] = Factory(dict)  # texts that Kafka clients have committed with an offset

    # --- topics ---------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicState:
        """The state of a topic that a member consumes, or in which the group has an offset."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicState(name)
        return found

    def end(self, topic: str, partition: str) -> int | None:
        """The end of a partition, as members have reported it."""
        found = self.topics.get(topic)
        reach = found.reach.get(partition) if found is not None else None
        return reach[1] if reach is not None else None

    def adopt(self, topic: str, topic_id: str) -> None:
        """Adopt the topic id that a member has named."""
        self.topic(topic).adopt(topic_id, [p for found, p in self.leases if found == topic])

    def forget(self, topic: str, is_gone: Callable[[str], bool]) -> list[Name]:
        """Drop the state of deleted topics of that name.

        Returns the partitions that had offsets.
        """
        consumed = self.topic(topic)
        names = [name for name in self.leases if name[0] == topic]
        forgotten = [name for name in names if is_gone(consumed.id_of(name[1]))]
        for name in forgotten:
            del self.leases[name]
            self.notes.pop(name, None)
        consumed.forget(is_gone)
        self._drop_if_blank(topic)
        return forgotten

    def _drop_if_blank(self, topic: str) -> None:
        if self.topics[topic].is_blank:
            del self.topics[topic]

    # --- offsets --------------------------------------------------------------------------------

    def set_offset(
        self, topic: str, partition: str, leases: Leases, topic_id: str = "", note: str = ""
    ) -> None:
        """Set a partition's offset; *topic_id* is the topic that it belongs to, if known."""
        self.leases[topic, partition] = leases
        self.notes.pop((topic, partition), None)
        if note:
            self.notes[topic, partition] = note
        self.topic(topic).begin_anew(partition, topic_id)

    def drop_offset(self, topic: str, partition: str) -> None:
        """Remove a partition's offset."""
        self.notes.pop((topic, partition), None)
        if self.leases.pop((topic, partition), None) is not None:
            self.topic(topic).begin_anew(partition, "")
            self._drop_if_blank(topic)

    def learn(self, member: Member, m: Acquire) -> tuple[list[Name], list[Name]]:
        """Adopt the partition ends that *member* reports; give partitions without an offset a first
        offset.

        Returns the partitions with changed ends, and the partitions whose offsets must be written.
        """
        news, changed = list[Name](), list[Name]()
        consumed = self.topic(member.topic)
        names = set(consumed.partitions)
        for partition, start, end in m.known:
            # Other partitions belong to a deleted topic, or to none.
            if partition in names and consumed.learn(partition, start, end):
                name = member.topic, partition
                news.append(name)
                if self._begin(name, member, consumed):
                    changed.append(name)
                self.open(*name)
        for partition, start, end in m.unkeyed:
            name = member.topic, partition
            leases = self.leases.get(name)
            if leases is None or partition not in names:
                continue
            if leases.unkeyed.put(max(start, leases.committed), end):
                news.append(name)
                self.open(*name)
        for partition, runs in groupby(m.priorities, key=itemgetter(0)):
            leases = self.leases.get((member.topic, partition))
            if leases is not None and partition in names:
                consumed.has_priorities = True
                leases.prioritize(run[1:] for run in runs)
        return news, changed

    def grown(self, growth: Growth) -> bool:
        """Adopt the end of a partition from its leader; returns whether the group consumes it."""
        topic, partition = growth.name
        leases, consumed = self.leases.get(growth.name), self.topic(topic)
        if (
            leases is None
            or partition not in consumed.reach
            or (consumed.topic_id != growth.topic_id)
        ):
            return False  # A member's report will set the group's first offset.
        consumed.learn(partition, -1, growth.end)
        for start, end in growth.unkeyed:
            leases.unkeyed.put(max(start, leases.committed), end)
        if growth.priorities:
            consumed.has_priorities = True
            leases.prioritize(growth.priorities)
        self.open(topic, partition)
        return True

    def _begin(self, name: Name, member: Member, consumed: TopicState) -> bool:
        """Give a partition a first offset if it has none; returns whether an offset must be
        written.
        """
        partition = name[1]
        start, end = consumed.reach[partition]
        leases = self.leases.get(name)
        if leases is not None:
            # Acknowledged ranges that did not fit into the last offset record may fit now.
            is_news = leases.begin_at(start)
        else:
            is_news = not consumed.is_from_start(partition, member.reset)
            # From now on the group's offset is this number, no longer the symbolic END.
            self.leases[name] = Leases(end if is_news else start)
        consumed.begin(partition, member.topic_id)
        return is_news

    # --- unordered records ------------------------------------------------------------------------

    def open(self, topic: str, partition: str) -> None:
        """Note that a partition may have records for members that do not own the partition."""
        consumed = self.topics.get(topic)
        if consumed is not None and consumed.ordered is not True:
            consumed.open[partition] = None

    def loose(self, topic: str, leases: Leases) -> Ranges:
        """Return the unordered records of a partition, which may be leased to any member at any
        time.
        """
        ordered = self.topic(topic).ordered
        return leases.unkeyed if ordered is None else NOTHING if ordered else EVERYTHING

    # --- end of leases ----------------------------------------------------------------------------

    def acknowledge(
        self, member: Member, acks: Iterable[tuple[str, Range]]
    ) -> tuple[int, int, list[Name]]:
        """Acknowledge records.

        Returns the number of records that were not leased to *member*, the number of those that
        will be delivered again, and the partitions with changed offsets.
        """
        refused = lapsed = 0
        changed = list[Name]()
        for partition, ranges in _by_partition(acks).items():
            name = member.topic, partition
            leases = self.leases.get(name)
            if leases is None:
                refused += sum(end - start for start, end in ranges)
                continue
            before = leases.committed
            if late := leases.acknowledge(member.id, ranges):
                refused += late
                lapsed += leases.open_in(ranges)
            if leases.committed != before or leases.spans.done_ranges():
                changed.append(name)
        return refused, lapsed, changed

    def unheld(self, member: Member, m: Settle) -> tuple[int, int]:
        """Return how many records of *m* are in ranges that are not all leased to *member*, and how
        many of those that *m* acknowledges will be delivered again.
        """
        told = (*m.acks, *m.renewals, *((partition, span) for partition, span, _ in m.nacks))
        refused = lapsed = 0
        for partition, (start, end) in told:
            leases = self.leases.get((member.topic, partition))
            if leases is None or not leases.holds(member.id, start, end):
                refused += end - start
        for partition, span in m.acks if refused else ():
            if (leases := self.leases.get((member.topic, partition))) is not None:
                lapsed += leases.open_in([span])
        return refused, lapsed

    def put_off(self, member: Member, m: Settle, now: int) -> int:
        """Make records available for redelivery, or renew leases; returns the earliest due time."""
        due = NEVER
        before: dict[str, int] = {}  # by partition: the end of the member's previous range
        errors = (*m.errors, *repeat("", len(m.nacks) - len(m.errors)))
        # A member may return a record twice before its coordinator answers, because the lease had
        # expired and it got the record again. The later return counts: the sort keeps its place
        # before the earlier one.
        nacks = reversed(list(zip(m.nacks, errors, strict=True)))
        for nack, error in sorted(nacks, key=lambda nack: nack[0][:2]):
            partition, (first, end), delay = nack
            start = max(first, before.get(partition, 0))
            leases = self.leases.get((member.topic, partition))
            if leases is not None and start < end:
                before[partition] = end
                leases.reject(member.id, [(start, end)], now + delay, error)
                due = min(due, now + delay) if delay else due
        for partition, ranges in _by_partition(m.renewals).items():
            if (leases := self.leases.get((member.topic, partition))) is not None:
                leases.renew(member.id, ranges, now + member.ack_wait_ms)
                due = min(due, now + member.ack_wait_ms)
        return due

    def give_back(self, member: Member, unread: Iterable[tuple[str, Range]], now: int) -> None:
        """Make records available that *member* was sent but its application has not seen."""
        for partition, ranges in _by_partition(unread).items():
            if (leases := self.leases.get((member.topic, partition))) is not None:
                leases.give_back(member.id, ranges, now)

    def release(self, member: Member, now: int) -> None:
        """Make the records available that were leased to *member*."""
        for name, leases in self.leases.items():
            leases.release(member.id, now)
            self.open(*name)

    def expire(self, now: int) -> None:
        """End the leases that have expired."""
        for name, leases in self.leases.items():
            leases.expire(now)
            self.open(*name)

    def next_due(self, now: int) -> int:
        """The time when the next delay or lease ends."""
        return min((leases.spans.next_due(now) for leases in self.leases.values()), default=NEVER)

    # --- descriptions -----------------------------------------------------------------------------

    def describe(self) -> tuple[GroupOffset, ...]:
        """Describe all offsets."""
        return tuple(
            GroupOffset(
                topic,
                partition,
                leases.committed,
                leases.next,
                leases.spans.in_flight,
                leases.spans.waiting,
                leases.spans.holders,
                leases.is_full,
                self.notes.get((topic, partition), ""),
            )
            for (topic, partition), leases in sorted(self.leases.items())
        )

    def describe_leases(self, m: GetLeases, now: int) -> GroupLeases:
        """Return the states of a partition's records, as the answer to a request."""
        leases = self.leases.get((m.topic, m.partition))
        end = self.end(m.topic, m.partition) or 0
        if leases is None:
            return GroupLeases(m.id, known_end=end)
        spans = leases.describe(m.offset, max(0, min(m.max_spans, SPANS_MAX)), now)
        return GroupLeases(m.id, leases.committed, leases.next, end, spans)


def _by_partition(spans: Iterable[tuple[str, Range]]) -> dict[str, list[Range]]:
    """Join ranges by partition, so that a record in two ranges is handled once."""
    found: dict[str, list[Range]] = {}
    for partition, span in spans:
        found.setdefault(partition, []).append(span)
    return {partition: joined(ranges) for partition, ranges in found.items()}
