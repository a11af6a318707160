"""Rules about consumer groups: leases, acknowledgements and committed offsets."""

from __future__ import annotations

from collections.abc import Iterator

from pymq.core.batch.columns import KEYS
from pymq.core.batch.header import Header
from pymq.core.group import offset_log
from pymq.core.group.coordinator import GroupCoordinator
from pymq.core.message import (
    Acquire,
    Acquired,
    CommitOffset,
    Join,
    Leave,
    Message,
    Range,
    Settle,
    Settled,
)
from pymq.core.types import OFFSETS_TOPIC, TopicPartition
from pymq.core.values import Factory, define
from pymq.testing.checkers.base import Checker, StoreWatch
from pymq.testing.checkers.ledger import ReplicaLog
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost
from pymq.testing.simulation.process import Process

Shared = tuple[str, str, str]  # group, topic, partition


@define
class LeaseGrant:
    """Records that a member has leased."""

    start: int
    end: int
    member: str
    until: int  # end of the lease by the clock of the broker that granted it


@define
class Done:
    """The confirmed acknowledgements of a group in a partition; later coordinators must
    know them.
    """

    ranges: list[Range] = Factory(list)
    coordinator: GroupCoordinator | None = None  # the latest coordinator
    # epoch in which the coordinator's broker leads its partition of the offsets topic
    epoch: int = -1
    committed: int = 0  # the group's committed offset when the last acknowledgement was confirmed
    losses: int = 0  # how often visible records of that partition were lost, as weak modes allow

    def add(self, span: Range) -> None:
        """Note that a coordinator has confirmed the acknowledgement of these offsets."""
        self.ranges.append(span)
        if len(self.ranges) > 64:
            self.ranges = joined(self.ranges)

    def forget(self, losses: int) -> None:
        """Forget the acknowledgements from before a loss of records of the offsets topic."""
        self.ranges, self.committed, self.losses = [], 0, losses

    def pass_on(self, coordinator: GroupCoordinator, epoch: int, *, is_cut: bool) -> None:
        """Note a new coordinator, which starts with the written state; with *is_cut* some ranges
        are missing there.
        """
        if is_cut:
            kept = [(a, min(b, self.committed)) for a, b in self.ranges if a < self.committed]
            self.ranges = kept
        self.coordinator, self.epoch = coordinator, epoch


class GenerationRules:
    """The current topic of each name that a group consumes.

    A topic that is created again has a later id. A checker must not apply its knowledge of a
    deleted topic to a new topic of that name.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], str] = {}  # topic ids by group and topic

    def is_new(self, join: Join) -> bool:
        """Whether *join* is the first join for a topic that was created again."""
        known = self._ids.get((join.group, join.topic), "")
        if join.topic_id > known:
            self._ids[join.group, join.topic] = join.topic_id
        return bool(known) and join.topic_id > known

    def is_past(self, join: Join) -> bool:
        """Whether *join* was for a topic that has been deleted since."""
        return join.topic_id < self._ids.get((join.group, join.topic), "")


class LeaseRules(Checker):
    """A record is leased to one live member at a time, and never after a confirmed ack.

    The next coordinator knows all confirmed acknowledgements, with two exceptions: acknowledgements
    that the replicas' disks lost in a mode without syncs, and, above the committed offset, ranges
    beyond the limit of their number. A former coordinator that does not know of its successor may
    lease records whose acknowledgement the successor has confirmed.

    The logs show the checker which records have keys; it does not rely on the members' reports.
    Records with keys go to the member with the partition; if the partition moves, the next member
    gets records once the former member has finished its own. A member that accepts records without
    keys does not wait while such a record is available.
    """

    rules = (
        "ptp-exclusive",
        "handover-waits",
        "keys-to-their-owner",
        "idle-is-served",
        "acked-not-delivered-again",
        "settled-by-its-holder",
        "within-its-partitions",
    )
    sends = (Acquired, Settled)
    receives = (Join, Leave, Acquire, Settle, CommitOffset)

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self._joined: dict[tuple[str, str], Join] = {}  # the last Join, by group and member
        self._generations = GenerationRules()
        # by address and request: the request, and the time when it came
        self._acquires: dict[tuple[str, int], tuple[Acquire, int]] = {}
        # Settle requests, each with the committed offsets of its partitions at that time
        self._settles: dict[tuple[str, int], tuple[Settle, dict[str, int]]] = {}
        self._grants: dict[tuple[str, Shared], list[LeaseGrant]] = {}  # granted leases, by broker
        self._done: dict[Shared, Done] = {}
        # Coordinators that wrote fewer ranges than they knew, because of the limit of their number.
        self._cut: set[tuple[GroupCoordinator | None, Shared]] = set()
        # by Settle request: how many of its acknowledged records other members hold
        self._not_theirs: dict[tuple[str, int], int] = {}

    def on_death(self, process: Process) -> None:
        for key in [key for key in self._grants if key[0] == process.name]:
            del self._grants[key]

    def on_append(self, log: ReplicaLog, header: Header) -> None:
        """Note a coordinator's write, which contains all its ranges except those beyond the limit.

        Do this at the write: when the coordinator answers, it may know fewer ranges, because
        retention has removed some records.
        """
        block, broker = log.block, self.watch.cluster.brokers[log.node].broker
        name = self.watch.names.get((block.topic_id, block.partition))
        if broker is None or name is None or name[0] != OFFSETS_TOPIC:
            return
        for coordinator, group, topic, partition, leases in probe.all_leases(broker):
            is_its = coordinator.index == block.partition
            if is_its and len(leases.spans.done_ranges()) > offset_log.RANGES_MAX:
                self._cut.add((coordinator, (group, topic, partition)))

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, BrokerHost):
            return
        match message:
            case Join(group=group, member=member):
                if self._generations.is_new(message):
                    self._made_again(group, message.topic)
                self._joined[group, member] = message
                broker, now = process.broker, process.clock()
                if broker is None or not probe.is_member(broker, group, member, now):
                    self._left(process, group, member)  # a member that joins again has no leases
            case Leave(group=group, member=member):
                self._left(process, group, member)
            case Acquire(id=id, group=group, member=member, known=known):
                self._acquires[source, id] = message, process.clock()
                for partition, start, _ in known:
                    self._overtaken(process, group, member, partition, start)
            case Settle(id=id):
                if id and (source, id) not in self._settles:
                    self._settles[source, id] = message, self._offsets(process, message)
                self._count_others(process, source, message)
                self._settled(process, message)
            case CommitOffset(group=group, topic=topic, partition=partition):
                shared = group, topic, partition
                for key in [key for key in self._grants if key[1] == shared]:
                    del self._grants[key]
                self._done.pop(shared, None)
            case _:
                pass

    def on_send(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, BrokerHost):
            return
        if isinstance(message, Acquired):
            self._granted(process, peer, message)
        elif isinstance(message, Settled) and message.error is None:
            self._confirmed(process, peer, message)

    def _made_again(self, group: str, topic: str) -> None:
        """Forget leases and acknowledgements of a deleted topic."""
        for shared in [shared for shared in self._done if shared[:2] == (group, topic)]:
            del self._done[shared]
        for key in [key for key in self._grants if key[1][:2] == (group, topic)]:
            del self._grants[key]

    def _left(self, host: BrokerHost, group: str, member: str) -> None:
        """Note that a member no longer has leases."""
        for (broker, shared), grants in self._grants.items():
            if broker == host.name and shared[0] == group:
                grants[:] = [grant for grant in grants if grant.member != member]

    def _overtaken(
        self, host: BrokerHost, group: str, member: str, partition: str, start: int
    ) -> None:
        """Note that retention has removed the records before *start*, and so their leases."""
        if start:
            grants = self._held(host, group, member, partition)
            grants[:] = [grant for grant in grants if grant.end > start]
            for grant in grants:
                grant.start = max(grant.start, start)

    def _held(self, host: BrokerHost, group: str, member: str, partition: str) -> list[LeaseGrant]:
        """Note the leases that a broker has granted in a partition.

        Ignores a *member* that never joined.
        """
        join = self._joined.get((group, member))
        if join is None:
            return []
        return self._grants.setdefault((host.name, (group, join.topic, partition)), [])

    def _follow(self, host: BrokerHost, shared: Shared) -> Done | None:
        """Return the acknowledgements that the coordinator on *host* must know.

        None if the coordinator has loaded nothing yet, or if there was another coordinator since.
        """
        found = probe.leases(host.broker, *shared) if host.broker is not None else None
        if found is None or probe.is_loading(found[0]):
            return None
        coordinator, _ = found
        name = TopicPartition(OFFSETS_TOPIC, str(coordinator.index))
        look, key = host.looks.get(name), self.watch.indexes.get(name)
        epoch = look.epoch if look is not None else -1
        done = self._done.setdefault(shared, Done())
        history = self.watch.histories.get(key) if key is not None else None
        losses = history.losses if history is not None else 0
        if losses != done.losses:
            done.forget(losses)
        if coordinator is not done.coordinator:
            if epoch < done.epoch:
                return None
            done.pass_on(coordinator, epoch, is_cut=(done.coordinator, shared) in self._cut)
        return done

    def _offsets(self, host: BrokerHost, m: Settle) -> dict[str, int]:
        """Return the committed offsets of the partitions with acknowledgements."""
        join, committed = self._joined.get((m.group, m.member)), {}
        if join is not None and host.broker is not None:
            for partition, _ in m.acks:
                found = probe.leases(host.broker, m.group, join.topic, partition)
                if found is not None:
                    committed[partition] = found[1].committed
        return committed

    def _count_others(self, host: BrokerHost, source: str, m: Settle) -> None:
        """Count the acknowledged records that another member leases now; the coordinator must
        refuse them.
        """
        members = probe.members(host.broker, m.group) or () if host.broker is not None else ()
        found, now = 0, host.clock()
        for partition, (start, end) in m.acks:
            for grant in self._held(host, m.group, m.member, partition):
                if grant.member != m.member and grant.member in members and grant.until > now:
                    found += max(0, min(end, grant.end) - max(start, grant.start))
        if found and m.id:
            self._not_theirs[source, m.id] = found

    def _settled(self, host: BrokerHost, m: Settle) -> None:
        for partition, (start, end) in _given_up(m):
            grants = self._held(host, m.group, m.member, partition)
            grants[:] = [part for g in grants for part in _without(g, m.member, start, end)]
        join = self._joined.get((m.group, m.member))
        for partition, (start, end) in m.renewals:
            # A paused coordinator first handles the requests that came earlier; with one of them
            # it may find that the lease has expired.
            if join is None or host.is_paused:
                continue
            grants = self._held(host, m.group, m.member, partition)
            for grant in list(grants):
                if grant.until <= host.clock():
                    continue  # the lease has run out, so no member may renew the rest
                if grant.member == m.member and grant.start < end and start < grant.end:
                    rest = list(_without(grant, m.member, start, end))
                    grant.start, grant.end = max(grant.start, start), min(grant.end, end)
                    grant.until = host.clock() + join.ack_wait_ms
                    grants += rest

    def _granted(self, host: BrokerHost, peer: str, m: Acquired) -> None:
        acquire, since = self._acquires.pop((peer, m.id), (None, 0))
        if acquire is None or host.broker is None:
            return
        if not m.leases:
            if host.clock() - since >= acquire.max_wait_ms and not self._asks_again(peer, acquire):
                self._idle(host, acquire, m)
            return
        join = self._joined.get((acquire.group, acquire.member))
        now = host.clock()
        members = probe.members(host.broker, acquire.group) or ()
        topic = join.topic if join is not None else ""
        for lease in m.leases:
            name = topic, lease.partition
            owners = probe.owners(host.broker, acquire.group, m.generation, name)
            if join is None:
                continue
            grants = self._held(host, acquire.group, acquire.member, lease.partition)
            has_keys = self._has_keys(name, lease.start, lease.end) and join.ordered is not False
            if join.within is not None and lease.partition not in join.within:
                self.fail(
                    "within-its-partitions",
                    f"{host.name} gives {acquire.group} {lease} to {acquire.member}, which can "
                    f"consume {join.within} only",
                )
            if has_keys and owners is not None and acquire.member not in owners:
                self.fail(
                    "keys-to-their-owner",
                    f"{host.name} gives {acquire.group} {lease} to {acquire.member}, which has not "
                    "got that partition, and some of it has keys",
                )
            for grant in grants:
                overlaps = grant.start < lease.end and lease.start < grant.end
                is_held = grant.member in members and grant.until > now
                is_anothers = is_held and grant.member != acquire.member and owners is not None
                if acquire.shares is None and owners is not None and grant.member in owners:
                    # the coordinator of the lease does not know which records have keys
                    is_anothers = False
                if is_anothers and has_keys and self._has_keys(name, grant.start, grant.end):
                    self.fail(
                        "handover-waits",
                        f"{host.name} gives {acquire.group} {lease} to {acquire.member}, while "
                        f"{grant.member} is at work on records with keys, from {grant.start} to "
                        f"{grant.end}",
                    )
                if overlaps and is_held and grant.member != acquire.member:
                    self.fail(
                        "ptp-exclusive",
                        f"{host.name} gives {acquire.group} {lease} to {acquire.member}, while "
                        f"{grant.member} holds {grant.start} to {grant.end}",
                    )
            done = self._follow(host, (acquire.group, topic, lease.partition))
            for start, end in done.ranges if done is not None else ():
                if start < lease.end and lease.start < end:
                    self.fail(
                        "acked-not-delivered-again",
                        f"{host.name} gives {acquire.group} {lease} to {acquire.member}, though "
                        f"{start} to {end} was acknowledged, and that was confirmed",
                    )
            grants[:] = [g for g in grants if g.end <= lease.start or lease.end <= g.start]
            until = now + join.ack_wait_ms
            grants.append(LeaseGrant(lease.start, lease.end, acquire.member, until))

    def _asks_again(self, peer: str, acquire: Acquire) -> bool:
        """Whether a later request of the same member has arrived, which ends the wait of this
        request.
        """
        return any(
            source == peer and request > acquire.id and later.member == acquire.member
            for (source, request), (later, _) in self._acquires.items()
        )

    def _idle(self, host: BrokerHost, acquire: Acquire, m: Acquired) -> None:
        """Check an answer without leases: no record may have been available."""
        join = self._joined.get((acquire.group, acquire.member))
        is_free = acquire.shares and acquire.max_records > 0 and acquire.max_wait_ms > 0
        if m.error is not None or join is None or not is_free or host.broker is None:
            return
        for partition, start, end in probe.loose(host.broker, acquire.group, acquire.member):
            if join.within is not None and partition not in join.within:
                continue
            if self._has_keys((join.topic, partition), start, end) is False:
                self.fail(
                    "idle-is-served",
                    f"{host.name} has nothing for {acquire.member} of {acquire.group}, though "
                    f"{start} to {end} of {partition} are available and have no keys",
                )

    def _has_keys(self, name: tuple[str, str], start: int, end: int) -> bool | None:
        """Whether any of these records has a key, by the header of its batch.

        None if visible records were lost, as weak settings allow: other records have these offsets
        now. Also None if compaction has removed some records, because those may have had keys.
        """
        found: bool | None = False
        history = self.watch.history_of(*name)
        if history is not None and history.losses:
            return None
        for log in history.blocks.values() if history is not None else ():
            index = log.batch_at(start)
            while index < len(log.headers) and log.headers[index].base_offset < end:
                header = log.headers[index]
                if header.end_offset > start and header.columns & KEYS and not header.is_control:
                    return True
                if (
                    header.end_offset > start
                    and header.count < header.span
                    and not header.is_control
                ):
                    found = None
                index += 1
        return found

    def _confirmed(self, host: BrokerHost, peer: str, m: Settled) -> None:
        settle, committed = self._settles.pop((peer, m.id), (None, {}))
        others = self._not_theirs.pop((peer, m.id), 0)
        if m.refused < others:
            self.fail(
                "settled-by-its-holder",
                f"{host.name} answers {peer} that {m.refused} acknowledged records were not leased "
                f"to it; others hold {others}",
            )
        if m.refused:
            return
        join = self._joined.get((settle.group, settle.member)) if settle is not None else None
        if settle is None or join is None or self._generations.is_past(join):
            return
        for partition, span in settle.acks:
            shared = (settle.group, join.topic, partition)
            done = self._follow(host, shared)
            if done is not None:
                done.committed = max(done.committed, committed.get(partition, 0))
                done.add(span)
                continue
            known = self._done.get(shared)
            if known is not None and (known.coordinator, shared) not in self._cut:
                known.add(span)  # the coordinator's successor has read this offset


def _given_up(m: Settle) -> Iterator[tuple[str, Range]]:
    yield from m.acks
    yield from m.unread
    for partition, span, _ in m.nacks:
        yield partition, span


def _without(grant: LeaseGrant, member: str, start: int, end: int) -> Iterator[LeaseGrant]:
    """Return the rest of a lease after its member has returned a range."""
    if grant.member != member or end <= grant.start or grant.end <= start:
        yield grant
        return
    if grant.start < start:
        yield LeaseGrant(grant.start, start, member, grant.until)
    if end < grant.end:
        yield LeaseGrant(end, grant.end, member, grant.until)


def joined(ranges: list[Range]) -> list[Range]:
    """Return the fewest ranges with the same offsets, in order."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
