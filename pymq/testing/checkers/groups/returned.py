"""Rules about the redelivery of records that a member has returned to its group."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from pymq.broker.broker import BrokerMachine
from pymq.core.batch.header import Header
from pymq.core.group import offset_log
from pymq.core.group.coordinator import GroupCoordinator
from pymq.core.message import (
    Acquire,
    Acquired,
    CommitOffset,
    DeleteGroup,
    Join,
    Lease,
    Message,
    Settle,
    Settled,
)
from pymq.core.types import OFFSETS_TOPIC, TopicPartition
from pymq.core.values import value
from pymq.testing.checkers.base import Checker, StoreWatch
from pymq.testing.checkers.groups.leases import GenerationRules, Shared
from pymq.testing.checkers.ledger import ReplicaLog
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost
from pymq.testing.simulation.process import Process

TOLERANCE_US = 2_000  # rounding of two clocks with whole milliseconds


@value
class Returned:
    """Records that a member has returned, and that no member has received since."""

    start: int
    end: int
    deliveries: int  # number of deliveries when the member returned them
    coordinator: GroupCoordinator
    due_ms: int  # end of the delay, by the clock of the coordinator's broker
    due_us: int  # end of the delay, by true time
    settle: tuple[str, int]  # the request that returned the records
    epoch: int  # leader epoch of the offsets partition at that time
    is_confirmed: bool = False  # True: the next coordinator knows of the return
    losses: int = 0  # how often that partition had lost visible records at the confirmation


class ReturnedRules(Checker):
    """A returned record is delivered again after its delay, and then counts one delivery more.

    So a backoff never becomes shorter: its length depends on the deliveries. The coordinator that
    has confirmed a return measures the delay by its own clock, even if this clock is wrong. The
    next coordinator knows the time of day at which the delay ends. The rule holds for that
    coordinator if all clocks were right, unless disks have lost offsets, or there were more ranges
    than a coordinator writes.
    """

    rules = ("backoff-is-waited", "deliveries-are-counted")
    sends = (Acquired, Settled)
    receives = (Join, Acquire, Settle, CommitOffset, DeleteGroup)

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self._topics: dict[tuple[str, str], str] = {}  # by group and member
        self._generations = GenerationRules()
        self._returned: dict[Shared, list[Returned]] = {}
        self._asked: dict[tuple[str, int], tuple[str, str]] = {}  # group and member, by request

    # --- what is returned -----------------------------------------------------------------------

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, BrokerHost):
            return
        match message:
            case Join(group=group, member=member, topic=topic):
                if self._generations.is_new(message):
                    self._forget(lambda shared: shared[:2] == (group, topic))
                self._topics[group, member] = topic
            case Acquire(id=id, group=group, member=member):
                self._asked[source, id] = group, member
            case Settle():
                self._settled(process, source, message)
            case CommitOffset(group=group, topic=topic, partition=partition):
                self._returned.pop((group, topic, partition), None)
            case DeleteGroup(group=group):
                self._forget(lambda shared: shared[0] == group)
            case _:
                pass

    def _forget(self, which: Callable[[Shared], bool]) -> None:
        for shared in [shared for shared in self._returned if which(shared)]:
            del self._returned[shared]

    def _settled(self, host: BrokerHost, source: str, m: Settle) -> None:
        broker, now, world = host.broker, host.clock(), self.watch.cluster.world
        topic = self._topics.get((m.group, m.member))
        if broker is None or topic is None or not probe.is_member(broker, m.group, m.member, now):
            return
        if probe.address(broker, m.group, m.member) != source:
            return  # The coordinator refuses this return.
        if host.is_paused:
            return  # It is handled later, perhaps for another delivery, if it is a repetition.
        acked = {(partition, span) for partition, span in m.acks}
        # of two returns of the same records the later one counts
        nacks = {(partition, span): delay for partition, span, delay in m.nacks}
        for (partition, span), delay in nacks.items():
            shared = m.group, topic, partition
            found = probe.leases(broker, *shared)
            if found is None or probe.is_loading(found[0]) or (partition, span) in acked:
                continue
            coordinator, leases = found
            epoch = self._epoch(host, coordinator)
            for start, end, count in probe.held(leases, m.member, span, coordinator.clock.at(now)):
                due_us = world.now + delay * 1_000
                self._returned.setdefault(shared, []).append(
                    Returned(
                        *(start, end, count, coordinator),
                        *(now + delay, due_us, (source, m.id), epoch),
                    )
                )

    def _confirmed(self, peer: str, m: Settled) -> None:
        request = peer, m.id
        for found in self._returned.values():
            for index, each in enumerate(found):
                if each.settle == request:
                    losses = self._losses(each.coordinator)
                    found[index] = attrs.evolve(each, is_confirmed=True, losses=losses)

    def on_append(self, log: ReplicaLog, header: Header) -> None:
        """Forget the returned records of partitions with more ranges than a coordinator writes."""
        broker = self.watch.cluster.brokers[log.node].broker
        name = self.watch.names.get((log.block.topic_id, log.block.partition))
        if self._returned and broker is not None and name is not None and name[0] == OFFSETS_TOPIC:
            self._drop_unwritten(broker, log.block.partition)

    def _drop_unwritten(self, broker: BrokerMachine, index: int | None = None) -> None:
        for coordinator, group, topic, partition, leases in probe.all_leases(broker):
            is_its = index is None or coordinator.index == index
            if is_its and len(leases.spans.counts()) > offset_log.RANGES_MAX:
                self._returned.pop((group, topic, partition), None)

    # --- what comes again -----------------------------------------------------------------------

    def on_send(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, BrokerHost):
            return
        if isinstance(message, Settled) and message.error is None:
            if self._returned and process.broker is not None:
                # The broker has written the ranges that it had before this append.
                self._drop_unwritten(process.broker)
            self._confirmed(peer, message)
        elif isinstance(message, Acquired):
            group, member = self._asked.pop((peer, message.id), ("", ""))
            topic = self._topics.get((group, member))
            for lease in message.leases if topic is not None else ():
                shared = group, topic or "", lease.partition
                for each in self._overlapping(shared, lease):
                    self._check(process, shared, each, lease)

    def _overlapping(self, shared: Shared, lease: Lease) -> list[Returned]:
        """Remove the part that *lease* covers from the returned records, and return the affected
        entries.
        """
        found, rest = list[Returned](), list[Returned]()
        for each in self._returned.pop(shared, ()):
            if each.end <= lease.start or lease.end <= each.start:
                rest.append(each)
                continue
            found.append(each)
            for start, end in ((each.start, lease.start), (lease.end, each.end)):
                if start < end:
                    rest.append(attrs.evolve(each, start=start, end=end))
        if rest:
            self._returned[shared] = rest
        return found

    def _check(self, host: BrokerHost, shared: Shared, each: Returned, lease: Lease) -> None:
        group, topic, partition = shared
        found = probe.leases(host.broker, *shared) if host.broker is not None else None
        history = self.watch.history_of(topic, partition)
        if found is None or (history is not None and history.losses):
            return  # Other records have these offsets now.
        coordinator, _ = found
        is_same = coordinator is each.coordinator
        if not is_same and not self._must_know(host, coordinator, each):
            return
        what = f"{host.name} gives {group} {topic}/{partition} {lease}"
        clocks = [each.clock for each in self.watch.cluster.brokers.values()]
        early = each.due_ms - host.clock()
        if not is_same:
            early = (each.due_us - TOLERANCE_US - self.watch.cluster.world.now) // 1_000
        if early > 0 and (is_same or not any(clock.was_wrong for clock in clocks)):
            self.fail("backoff-is-waited", f"{what}, {early} ms before its delay is over")
        if lease.delivery_count < each.deliveries + (not lease.dead):
            self.fail("deliveries-are-counted", f"{what} after {each.deliveries} deliveries")

    def _must_know(self, host: BrokerHost, coordinator: GroupCoordinator, each: Returned) -> bool:
        """Whether another coordinator must know of the return and of the end of its delay."""
        if any(broker.was_skewed for broker in self.watch.cluster.brokers.values()):
            return False
        is_kept = each.is_confirmed and each.losses == self._losses(coordinator)
        return is_kept and self._epoch(host, coordinator) >= each.epoch

    def _epoch(self, host: BrokerHost, coordinator: GroupCoordinator) -> int:
        look = host.looks.get(TopicPartition(OFFSETS_TOPIC, str(coordinator.index)))
        return look.epoch if look is not None else -1

    def _losses(self, coordinator: GroupCoordinator) -> int:
        history = self.watch.history_of(OFFSETS_TOPIC, str(coordinator.index))
        return history.losses if history is not None else 0
