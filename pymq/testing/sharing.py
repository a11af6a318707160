"""What groups promise their members, and what zkservers keep to in the coordinator's tree."""

from __future__ import annotations

from collections.abc import Iterator

from pymq.coord import paths
from pymq.coord.tree import Plan
from pymq.core.coordination import Commit
from pymq.core.message import (
    Acquire,
    Acquired,
    Answer,
    CommitOffset,
    CreatePartition,
    CreateTopic,
    Join,
    LeaderAndIsr,
    Leave,
    Message,
    Range,
    Settle,
    Settled,
)
from pymq.core.metadata import BlockNode, ControllerEpoch, PartitionNode, decode_node
from pymq.core.values import Factory, define
from pymq.testing import probe
from pymq.testing.checkers import Checker, Watch
from pymq.testing.nodes import BrokerHost, ZkserverHost
from pymq.testing.process import Process

Shared = tuple[str, str, str]  # group, topic, partition


@define
class Grant:
    """Records that a member holds."""

    start: int
    end: int
    member: str
    until: int  # by the clock of the broker that has given them


@define
class Sharing:
    """One group in one partition, as the broker that coordinates it has told."""

    grants: list[Grant] = Factory(list)
    done: list[Range] = Factory(list)  # confirmed


class Leases(Checker):
    """A record is leased to one live member at a time, and never again once its ack is confirmed.

    A confirmed acknowledgement may be lost with a coordinator that dies, since it is synced after
    an interval; so what was confirmed counts for the life of that broker.
    """

    rules = (
        "ptp-exclusive",
        "handover-waits",
        "acked-not-delivered-again",
        "settled-by-its-holder",
    )
    sends = (Acquired, Settled)
    receives = (Join, Leave, Acquire, Settle, CommitOffset)

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._joined: dict[tuple[str, str], Join] = {}  # by group and member
        self._acquires: dict[tuple[str, int], Acquire] = {}  # by address and request
        self._settles: dict[tuple[str, int], Settle] = {}
        self._shared: dict[tuple[str, Shared], Sharing] = {}  # by broker
        self._not_theirs: dict[tuple[str, int], int] = {}  # acks of what others hold, by Settle

    def on_death(self, process: Process) -> None:
        for key in [key for key in self._shared if key[0] == process.name]:
            del self._shared[key]

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, BrokerHost):
            return
        match message:
            case Join(group=group, member=member):
                self._joined[group, member] = message
                broker, now = process.broker, process.clock()
                if broker is None or not probe.is_member(broker, group, member, now):
                    self._left(process, group, member)  # It begins anew, and holds nothing.
            case Leave(group=group, member=member):
                self._left(process, group, member)
            case Acquire(id=id, group=group, member=member, known=known):
                self._acquires[source, id] = message
                for partition, start, _ in known:
                    self._overtaken(process, group, member, partition, start)
            case Settle(id=id):
                self._settles[source, id] = message
                self._count_others(process, source, message)
                self._settled(process, message)
            case CommitOffset(group=group, topic=topic, partition=partition):
                self._shared.pop((process.name, (group, topic, partition)), None)
            case _:
                pass

    def on_send(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, BrokerHost):
            return
        if isinstance(message, Acquired):
            self._granted(process, peer, message)
        elif isinstance(message, Settled) and message.error is None:
            self._confirmed(process, peer, message)

    def _left(self, host: BrokerHost, group: str, member: str) -> None:
        """A member holds nothing any more."""
        for (broker, shared), sharing in self._shared.items():
            if broker == host.name and shared[0] == group:
                sharing.grants = [grant for grant in sharing.grants if grant.member != member]

    def _overtaken(
        self, host: BrokerHost, group: str, member: str, partition: str, start: int
    ) -> None:
        """Retention has removed what is before *start*: nobody holds any of that."""
        sharing = self._of(host, group, member, partition) if start else None
        if sharing is not None:
            sharing.grants = [grant for grant in sharing.grants if grant.end > start]

    def _of(self, host: BrokerHost, group: str, member: str, partition: str) -> Sharing | None:
        join = self._joined.get((group, member))
        if join is None:
            return None
        key = (host.name, (group, join.topic, partition))
        return self._shared.setdefault(key, Sharing())

    def _count_others(self, host: BrokerHost, source: str, m: Settle) -> None:
        """How many records are acknowledged that another member holds now: they are refused."""
        members = probe.members(host.broker, m.group) or () if host.broker is not None else ()
        found, now = 0, host.clock()
        for partition, (start, end) in m.acks:
            sharing = self._of(host, m.group, m.member, partition)
            for grant in sharing.grants if sharing is not None else ():
                if grant.member != m.member and grant.member in members and grant.until > now:
                    found += max(0, min(end, grant.end) - max(start, grant.start))
        if found and m.id:
            self._not_theirs[source, m.id] = found

    def _settled(self, host: BrokerHost, m: Settle) -> None:
        for partition, (start, end) in _given_up(m):
            sharing = self._of(host, m.group, m.member, partition)
            if sharing is not None:
                sharing.grants = [
                    part for g in sharing.grants for part in _without(g, m.member, start, end)
                ]
        join = self._joined.get((m.group, m.member))
        for partition, (start, end) in m.renewals:
            sharing = self._of(host, m.group, m.member, partition)
            if sharing is None or join is None:
                continue
            for grant in list(sharing.grants):
                if grant.member == m.member and grant.start < end and start < grant.end:
                    rest = list(_without(grant, m.member, start, end))
                    grant.start, grant.end = max(grant.start, start), min(grant.end, end)
                    grant.until = host.clock() + join.ack_wait_ms
                    sharing.grants += rest

    def _granted(self, host: BrokerHost, peer: str, m: Acquired) -> None:
        acquire = self._acquires.pop((peer, m.id), None)
        if acquire is None or not m.leases or host.broker is None:
            return
        join = self._joined.get((acquire.group, acquire.member))
        now = host.clock()
        members = probe.members(host.broker, acquire.group) or ()
        topic = join.topic if join is not None else ""
        for lease in m.leases:
            name = topic, lease.partition
            owners = probe.owners(host.broker, acquire.group, m.generation, name)
            sharing = self._of(host, acquire.group, acquire.member, lease.partition)
            if sharing is None or join is None:
                continue
            for grant in sharing.grants:
                overlaps = grant.start < lease.end and lease.start < grant.end
                is_held = grant.member in members and grant.until > now
                if is_held and owners is not None and grant.member not in owners:
                    self.fail(
                        "handover-waits",
                        f"{host.name} gives {acquire.group} {lease} to {acquire.member}, while "
                        f"{grant.member}, which had that partition, holds {grant.start} to "
                        f"{grant.end}",
                    )
                if overlaps and is_held and grant.member != acquire.member:
                    self.fail(
                        "ptp-exclusive",
                        f"{host.name} gives {acquire.group} {lease} to {acquire.member}, while "
                        f"{grant.member} holds {grant.start} to {grant.end}",
                    )
            for start, end in sharing.done:
                if start < lease.end and lease.start < end:
                    self.fail(
                        "acked-not-delivered-again",
                        f"{host.name} gives {acquire.group} {lease} to {acquire.member}, though "
                        f"{start} to {end} was acknowledged, and that was confirmed",
                    )
            sharing.grants = [
                g for g in sharing.grants if g.end <= lease.start or lease.end <= g.start
            ]
            until = now + join.ack_wait_ms
            sharing.grants.append(Grant(lease.start, lease.end, acquire.member, until))

    def _confirmed(self, host: BrokerHost, peer: str, m: Settled) -> None:
        settle = self._settles.pop((peer, m.id), None)
        others = self._not_theirs.pop((peer, m.id), 0)
        if m.refused < others:
            self.fail(
                "settled-by-its-holder",
                f"{host.name} tells {peer} that {m.refused} of what it acknowledges are not its "
                f"to settle; others hold {others}",
            )
        if m.refused:
            return
        for partition, span in settle.acks if settle is not None else ():
            assert settle is not None
            sharing = self._of(host, settle.group, settle.member, partition)
            if sharing is not None:
                sharing.done.append(span)
                if len(sharing.done) > 64:
                    sharing.done = joined(sharing.done)


def _given_up(m: Settle) -> Iterator[tuple[str, Range]]:
    yield from m.acks
    yield from m.unread
    for partition, span, _ in m.nacks:
        yield partition, span


def _without(grant: Grant, member: str, start: int, end: int) -> Iterator[Grant]:
    """What is left of a grant when its member has given up a range."""
    if grant.member != member or end <= grant.start or grant.end <= start:
        yield grant
        return
    if grant.start < start:
        yield Grant(grant.start, start, member, grant.until)
    if end < grant.end:
        yield Grant(end, grant.end, member, grant.until)


def joined(ranges: list[Range]) -> list[Range]:
    """The same ranges as few, in order."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


class Metadata(Checker):
    """The tree is sound after every commit: blocks adjoin, epochs rise, one zkserver an epoch."""

    rules = (
        "blocks-adjoin",
        "sealed-for-ever",
        "partition-epoch-rises",
        "one-controller-per-epoch",
        "only-the-controller-commits",
        "answered-is-committed",
    )
    sends = (LeaderAndIsr, Answer)
    receives = (CreateTopic, CreatePartition)

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._controllers: dict[int, str] = {}  # sessions, by controller epoch
        self._actors: dict[int, str] = {}  # zkservers that have told brokers something, likewise
        self._asked: dict[tuple[str, int], str] = {}  # what is to be in the tree, by request

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, ZkserverHost):
            return
        if isinstance(message, CreateTopic):
            self._asked[source, message.id] = paths.topic(message.name)
        elif isinstance(message, CreatePartition):
            path = paths.partition(message.topic, message.partition)
            self._asked[source, message.id] = path

    def on_send(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, ZkserverHost):
            return
        if isinstance(message, LeaderAndIsr):
            epoch = message.controller_epoch
            if self._actors.setdefault(epoch, process.name) != process.name:
                who = f"{self._actors[epoch]} and {process.name}"
                self.fail("one-controller-per-epoch", f"{who} tell brokers what to do at {epoch}")
        elif isinstance(message, Answer) and message.error is None:
            path = self._asked.pop((peer, message.id), None)
            if path is not None and self.watch.cluster.ensemble.tree.get(path) is None:
                self.fail("answered-is-committed", f"{peer} is told that {path} was made")

    def on_commit(self, session: str, commit: Commit, plan: Plan) -> None:
        tree = self.watch.cluster.ensemble.tree
        for path, entry in plan.changes.items():
            if entry is None:
                continue
            before = tree.get(path)
            match paths.parse(path):
                case paths.ControllerEpochPath():
                    self._check_controller(session, entry.data, before.data if before else None)
                case paths.PartitionPath() if before is not None:
                    old, new = (decode_node(PartitionNode, e.data) for e in (before, entry))
                    if new.epoch < old.epoch:
                        self.fail("partition-epoch-rises", f"{path}: {old.epoch} to {new.epoch}")
                case paths.BlockPath(topic=topic, partition=partition, block=number):
                    node = decode_node(BlockNode, entry.data)
                    known = decode_node(BlockNode, before.data) if before is not None else None
                    self._check_block(path, plan, (topic, partition, number), node, known)
                case _:
                    pass
        self._check_fence(session, plan)

    def _check_controller(self, session: str, data: bytes, before: bytes | None) -> None:
        epoch = decode_node(ControllerEpoch, data).epoch
        old = decode_node(ControllerEpoch, before).epoch if before else 0
        if epoch <= old or self._controllers.setdefault(epoch, session) != session:
            self.fail("one-controller-per-epoch", f"{session} begins epoch {epoch} after {old}")

    def _check_fence(self, session: str, plan: Plan) -> None:
        owner = plan.changes.get(paths.controller())
        owner = owner or self.watch.cluster.ensemble.tree.get(paths.controller())
        topics = paths.topics() + "/"
        has_right = owner is not None and owner.owner == session
        if not has_right and any(path.startswith(topics) for path in plan.changes):
            who = owner.owner if owner is not None else "nobody"
            self.fail("only-the-controller-commits", f"{session} changes topics, {who} is active")

    def _check_block(
        self,
        path: str,
        plan: Plan,
        place: tuple[str, str, int],
        node: BlockNode,
        known: BlockNode | None,
    ) -> None:
        topic, partition, number = place
        if node.end is not None and node.end < node.start:
            self.fail("blocks-adjoin", f"{path} goes from {node.start} to {node.end}")
        before_it = (known.start, known.end) if known is not None else (0, None)
        if before_it[1] is not None and before_it != (node.start, node.end):
            self.fail("sealed-for-ever", f"{path} was sealed at {before_it[1]}, now {node.end}")
        if known is None and number > 0:
            before = paths.block(topic, partition, number - 1)
            old = self.watch.cluster.ensemble.tree.get(before)
            entry = plan.changes.get(before, old)
            if entry is None and old is not None:  # It was empty, and gives way.
                previous = decode_node(BlockNode, old.data)
                if previous.start != node.start:
                    self.fail("blocks-adjoin", f"{path} replaces {before} of {previous.start}")
            elif entry is not None:
                previous = decode_node(BlockNode, entry.data)
                if previous.end != node.start:
                    self.fail(
                        "blocks-adjoin", f"{path} begins at {node.start}, after {previous.end}"
                    )
