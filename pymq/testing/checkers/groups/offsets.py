"""Rules about committed offsets of groups."""

from __future__ import annotations

import attrs

from pymq.core.group.coordinator import GroupCoordinator
from pymq.core.message import (
    Acquire,
    CommitClassic,
    CommitOffset,
    Join,
    Message,
    Range,
    Settle,
    Settled,
)
from pymq.core.types import OFFSETS_TOPIC, TopicPartition
from pymq.core.values import value
from pymq.testing.checkers.base import Checker, StoreWatch
from pymq.testing.checkers.groups.leases import GenerationRules, Shared, joined
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost
from pymq.testing.simulation.process import Process

RANGES_MAX = 32  # acknowledged ranges that are stored as they arrived


@value
class Confirmed:
    """A committed offset that a coordinator has confirmed to a member."""

    offset: int
    epoch: int  # epoch of the offsets partition
    losses: int  # how often visible records of that partition had been lost then


class OffsetRules(Checker):
    """A committed offset covers only acknowledged records, and never decreases, even under another
    coordinator.

    Confirmed offsets are in the log of the offsets partition, so the next coordinator knows them,
    except offsets that disks lost in a mode without syncs.
    """

    rules = ("group-offset-monotone", "offset-covers-acks", "confirmed-offset-survives")
    sends = (Settled,)
    receives = (Join, Acquire, Settle, CommitOffset, CommitClassic)

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        # by coordinator, because the next coordinator does not know unwritten acknowledgements
        self._offsets: dict[tuple[GroupCoordinator, Shared], int] = {}
        self._joined: dict[tuple[str, str], str] = {}  # topics, by group and member
        self._generations = GenerationRules()
        self._acked: dict[Shared, list[Range]] = {}
        self._confirmed: dict[Shared, Confirmed] = {}
        # requests without a confirmation so far
        self._settles: dict[tuple[str, int], dict[Shared, Confirmed]] = {}
        # groups of Kafka's clients, which may commit any offset
        self._kafka: set[str] = set()

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, BrokerHost):
            return
        match message:
            case Join(group=group, member=member, topic=topic):
                if self._generations.is_new(message):
                    self._made_again(group, topic)
                self._joined[group, member] = topic
            case Acquire(group=group, member=member, known=known):
                topic = self._joined.get((group, member), "")
                for partition, start, _ in known:
                    if start:  # retention has deleted the records before the offset
                        self._cover((group, topic, partition), (0, start))
            case Settle():
                self._settled(process, source, message)
            case CommitOffset(group=group, topic=topic, partition=partition, offset=offset):
                shared = group, topic, partition
                for key in [key for key in self._offsets if key[1] == shared]:
                    del self._offsets[key]
                self._confirmed.pop(shared, None)
                self._cover(shared, (0, offset))
            case CommitClassic(group=group):
                self._kafka.add(group)
            case _:
                pass

    def _made_again(self, group: str, topic: str) -> None:
        """Forget acknowledgements and confirmed offsets of a deleted topic."""

        def is_its(shared: Shared) -> bool:
            return shared[:2] == (group, topic)

        self._offsets = {key: at for key, at in self._offsets.items() if not is_its(key[1])}
        self._acked = {key: spans for key, spans in self._acked.items() if not is_its(key)}
        self._confirmed = {key: at for key, at in self._confirmed.items() if not is_its(key)}
        for waiting in self._settles.values():
            for shared in [shared for shared in waiting if is_its(shared)]:
                del waiting[shared]

    def _cover(self, shared: Shared, span: Range) -> None:
        ranges = self._acked.setdefault(shared, [])
        ranges.append(span)
        if len(ranges) > RANGES_MAX:
            self._acked[shared] = joined(ranges)

    def _settled(self, host: BrokerHost, source: str, m: Settle) -> None:
        topic = self._joined.get((m.group, m.member))
        if topic is None:
            return
        shares = {partition: (m.group, topic, partition) for partition, _ in m.acks}
        for partition, span in m.acks:
            self._cover(shares[partition], span)
        # Use the first arrival of a request: if the coordinator answers only its repetition, that
        # answer confirms no more than an answer to the first one would have.
        if m.id and host.broker is not None and (source, m.id) not in self._settles:
            self._settles[source, m.id] = {
                shared: attrs.evolve(found, offset=self._reached(found.offset, m, partition))
                for partition, shared in shares.items()
                if (found := self._known(host, shared)) is not None
            }

    def _reached(self, offset: int, m: Settle, partition: str) -> int:
        """Return the lowest committed offset that is possible once the coordinator has accepted all
        of *m*.
        """
        for start, end in joined([span for name, span in m.acks if name == partition]):
            if start <= offset < end:
                offset = end
        return offset

    def _known(self, host: BrokerHost, shared: Shared) -> Confirmed | None:
        """Return the last known offset; the coordinator writes it before it confirms a new
        request.
        """
        assert host.broker is not None
        for coordinator in probe.coordinators(host.broker):
            offset = self._offsets.get((coordinator, shared))
            if offset is not None:
                return self._now(host, coordinator, offset)
        return None

    def _now(self, host: BrokerHost, coordinator: GroupCoordinator, offset: int) -> Confirmed:
        name = TopicPartition(OFFSETS_TOPIC, str(coordinator.index))
        look = host.looks.get(name)
        key = self.watch.indexes.get(name)
        history = self.watch.histories.get(key) if key is not None else None
        losses = history.losses if history is not None else 0
        return Confirmed(offset, look.epoch if look is not None else -1, losses)

    def on_send(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(message, Settled) or not isinstance(process, BrokerHost):
            return
        known = self._settles.pop((peer, message.id), None)
        if known is None or message.error is not None or message.refused:
            return
        for shared, found in known.items():
            before = self._confirmed.get(shared)
            if before is None or (before.losses, before.offset) < (found.losses, found.offset):
                self._confirmed[shared] = found

    def on_look(self, host: BrokerHost, found: probe.Look, last: probe.Look | None) -> None:
        if host.broker is None:
            return
        for coordinator, group, topic, partition, leases in probe.all_leases(host.broker):
            if group in self._kafka:
                continue
            shared, offset = (group, topic, partition), leases.committed
            before = self._offsets.get((coordinator, shared))
            if offset == before:
                continue
            place = f"{topic}/{partition}"
            if before is None:
                if probe.is_loading(coordinator):
                    continue
                self._check_first(host, coordinator, shared, offset)
            elif offset < before:
                self.fail(
                    "group-offset-monotone",
                    f"{group} goes back from {before} to {offset} in {place}",
                )
            elif not self._is_covered(shared, (before, offset)):
                self.fail(
                    "offset-covers-acks",
                    f"{group} goes from {before} to {offset} in {place}, and nobody has "
                    "acknowledged all of that",
                )
            self._offsets[coordinator, shared] = offset

    def _check_first(
        self, host: BrokerHost, coordinator: GroupCoordinator, shared: Shared, offset: int
    ) -> None:
        confirmed = self._confirmed.get(shared)
        now = self._now(host, coordinator, offset)
        if confirmed is None or offset >= confirmed.offset or now.epoch < confirmed.epoch:
            return
        if now.losses == confirmed.losses:
            self.fail(
                "confirmed-offset-survives",
                f"{host.name} takes {shared} over at {offset}, though {confirmed.offset} "
                "was confirmed",
            )

    def _is_covered(self, shared: Shared, span: Range) -> bool:
        ranges = self._acked[shared] = joined(self._acked.get(shared, []))
        return any(start <= span[0] and span[1] <= end for start, end in ranges)
