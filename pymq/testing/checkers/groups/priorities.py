"""The rule about priorities: of the records that a member may get, it gets the most urgent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pymq.core.batch.offset_ranges import EVERYTHING, Ranges
from pymq.core.group.consumer_group import ConsumerGroup
from pymq.core.group.coordinator import GroupCoordinator
from pymq.core.group.leases import RUNS_AT_ONCE, Leases
from pymq.core.group.member import Member
from pymq.core.group.spans import AVAILABLE
from pymq.core.message import Acquire, Lease, Message
from pymq.testing.checkers.base import Checker, StoreWatch
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost
from pymq.testing.simulation.process import Process

Urgent = tuple[int, str, int]  # priority, partition, offset


class PriorityRules(Checker):
    """A lease holds no record while a more urgent record that the member may get is left out.

    A member may get all available records of its own partitions that it has not paused. If it
    accepts records without a key, it may also get such records of other partitions (decision 165).
    Nevertheless these more urgent records may be left out:

    - ordered records of a partition of which another member still has ordered records,
    - new records of a partition with too many open spans, or with too many runs for one answer,
    - records that are left to members that wait.

    The rule looks at the coordinator's state right after it has leased the records, since every
    later message may change that.
    """

    rules = ("urgent-first",)
    receives = (Acquire,)

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self._watched: set[GroupCoordinator] = set()

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, BrokerHost) or process.broker is None:
            return
        for coordinator in probe.coordinators(process.broker):
            if coordinator not in self._watched:
                self._watched.add(coordinator)
                probe.on_lease(coordinator, self._leased)

    def _leased(
        self, group: ConsumerGroup, member: Member, leases: tuple[Lease, ...], now: int
    ) -> None:
        consumed = group.offsets.topic(member.topic)
        if not consumed.has_priorities or member.waiting is None:
            return
        if any(other != member.id for other in consumed.idle) or len(leases) >= RUNS_AT_ONCE:
            return
        least = min(_level(group, member.topic, lease) for lease in leases)
        for level, partition, offset in _left(group, member, now):
            if level > least:
                self.fail(
                    "urgent-first",
                    f"{group.name} gives {member.id} {leases}, down to priority {least}, and "
                    f"{member.topic}/{partition} at {offset} has priority {level}",
                )


def _level(group: ConsumerGroup, topic: str, lease: Lease) -> int:
    """The lowest priority of the records of a lease."""
    spans = group.offsets.leases[topic, lease.partition].spans
    return min(s.priority for s in spans if s.start < lease.end and lease.start < s.end)


def _left(group: ConsumerGroup, member: Member, now: int) -> Iterator[Urgent]:
    """The other records with a priority that the coordinator could have leased to the member."""
    assert member.waiting is not None
    reach = group.offsets.topic(member.topic).reach
    wanted = {partition for partition, _, _ in member.waiting.known}
    shares = member.waiting.shares
    for (topic, partition), leases in group.offsets.leases.items():
        known = reach.get(partition)
        if topic != member.topic or known is None or not member.can_consume(partition):
            continue
        among = loose = group.offsets.loose(topic, leases)
        owners = group.owners(topic, partition)
        if member.id in owners:
            if partition not in wanted:
                continue
            if not leases.held_by_others(owners if shares is None else (member.id,), loose):
                among = EVERYTHING
        elif not shares:
            continue
        for level, offset in _urgent(leases, known[1], now, among):
            yield level, partition, offset


def _urgent(leases: Leases, end: int, now: int, among: Ranges) -> Iterator[tuple[int, int]]:
    """Priorities and first offsets of the available records of a partition in *among*."""
    spans: Iterable[tuple[int, int, int]] = (
        (s.start, s.end, s.priority)
        for s in leases.spans
        if s.priority and s.state == AVAILABLE and s.due <= now
    )
    new = () if leases.is_full else leases.priorities.between(leases.next, end)
    for start, stop, level in (*spans, *new):
        first = among.first(start, stop)
        if first is not None:
            yield level, first[0]
