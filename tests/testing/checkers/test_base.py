"""Each checker finds violations of its rules, and reports none in legal runs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from attrs import evolve

from pymq.coord import paths
from pymq.coord.tree import CommitPlan
from pymq.core.batch.record import EncodedBatch
from pymq.core.group.leases import Leases
from pymq.core.group.offset_log import RANGES_MAX
from pymq.core.message import (
    Acquire,
    Acquired,
    Answer,
    BrokerHeartbeat,
    CreateTopic,
    Fetched,
    Join,
    Lease,
    Message,
    Produce,
    Produced,
    Range,
    RecoverPartition,
    Settle,
    Settled,
)
from pymq.core.metadata.coordination import Commit, Create, Delete, Op, Put
from pymq.core.metadata.nodes import (
    BlockNode,
    ControllerEpoch,
    ControllerNode,
    Move,
    PartitionNode,
    TopicNode,
    encode_node,
)
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.ready import (
    Append,
    Checkpoint,
    CreateBlock,
    Recovered,
    SaveState,
    SealBlock,
    Truncate,
    Write,
    WriteFailed,
)
from pymq.core.types import NEVER, OFFSETS_TOPIC, AckMode, BlockId, TopicPartition
from pymq.errors import StoreError
from pymq.testing import Cluster, Violation
from pymq.testing.checkers.base import StoreWatch
from pymq.testing.checkers.groups.priorities import PriorityRules
from pymq.testing.checkers.immutable import Immutable
from pymq.testing.checkers.ledger import WatchedStore
from pymq.testing.checkers.rules import RULES
from pymq.testing.simulation.nodes import BrokerHost, ClientHost
from pymq.testing.simulation.probe import Look
from tests.core.group.test_coordinator import Host as GroupHost

if TYPE_CHECKING:
    from pymq.store.base import BlockStore

BLOCK = BlockId("ab" * 16, 0, 0)
NAME = ("t", "0")
OFFSETS_BLOCK = BlockId("cd" * 16, 0, 0)
HOLDERS = ("broker-0",)


def batch(
    offset: int,
    value: bytes,
    *,
    epoch: int = 1,
    sequence: int = -1,
    fence: int = 0,
    key: bytes | None = None,
) -> EncodedBatch:
    """Return a batch of one record; with a sequence it belongs to producer 7, at epoch *fence*."""
    made = EncodedBatch.encode(
        [value],
        timestamp_ms=0,
        keys=[key],
        producer_id=7 if sequence >= 0 else -1,
        producer_epoch=fence,
        base_sequence=sequence,
    )
    return made.stamp(offset, epoch, 0)


class Scene:
    """Two brokers that are not started, and a client.

    The test reports their events to the checkers.
    """

    def __init__(self) -> None:
        self.cluster = Cluster(brokers=2, seed=0)
        assert self.cluster.watch is not None
        self.watch: StoreWatch = self.cluster.watch
        self.brokers = list(self.cluster.brokers)
        self.client: ClientHost = self.cluster.add_client("app")
        self.last: dict[str, Look] = {}
        self.watch._meet(NAME, BLOCK)

    def host(self, index: int) -> BrokerHost:
        return self.cluster.brokers[self.brokers[index]]

    def append(self, index: int, *batches: EncodedBatch, sync: bool = True) -> None:
        for one in batches:
            for checker in self.watch.checkers:
                checker.on_send(self.client, "", "app.x", Produce(0, *NAME, AckMode.RAFT, one))
        writes = [Append(BLOCK, list(batches), sync)]
        self.watch.ledger.begin(self.brokers[index], writes)
        self.watch.ledger.done(self.brokers[index], writes, [])

    def look(
        self,
        index: int,
        high: int,
        *,
        end: int | None = None,
        epoch: int = 1,
        leads: bool = True,
        strict: bool = True,
        majority: int = 1,
        block: BlockId = BLOCK,
        start: int = 0,
        told: tuple[int, int] = (1, 1),
        made_on: str = "",
    ) -> None:
        host, log = self.host(index), self.watch.ledger.log(self.brokers[index], block)
        end = end if end is not None else (log.end if log is not None else 0)
        found = Look(block, start, end, high, epoch, leads, strict, majority, told, made_on)
        for checker in self.watch.checkers:
            checker.on_look(host, found, self.last.get(host.name))
        self.last[host.name] = found

    def restart(self, index: int, end: int) -> None:
        self.last.pop(self.brokers[index], None)
        recovered = Recovered(BLOCK, 0, end, 0, None, [], 0)
        self.watch.ledger.recovered(self.brokers[index], recovered)

    def dies(self, index: int) -> None:
        for checker in self.watch.checkers:
            checker.on_death(self.host(index))

    def client_sends(self, message: Message, source: str = "app.p") -> None:
        for checker in self.watch.checkers:
            checker.on_send(self.client, "broker-0", source, message)

    def broker_says(self, index: int, message: Message, peer: str = "app.p") -> None:
        for checker in self.watch.checkers:
            checker.on_send(self.host(index), peer, self.brokers[index], message)

    def client_gets(self, message: Message, peer: str = "app.p") -> None:
        for checker in self.watch.checkers:
            checker.on_receive(self.client, peer, "broker-0", message)

    def commit(self, session: str, *ops: Op) -> None:
        tree = self.cluster.ensemble.tree
        request = Commit(1, ops)
        plan = tree.plan(request, session)
        assert isinstance(plan, CommitPlan), plan
        for callback in self.cluster.ensemble.on_commit:
            callback(session, request, plan)
        tree.adopt(plan)


def dense(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.append(0, batch(2, b"b"))


def epochs_fall(s: Scene) -> None:
    s.append(0, batch(0, b"a", epoch=3))
    s.append(0, batch(1, b"b", epoch=2))


def logs_differ(s: Scene) -> None:
    s.append(0, batch(0, b"a"), batch(1, b"c"))
    s.append(1, batch(0, b"b"), batch(1, b"c"))


def synced_is_lost(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.restart(0, 0)


def invented_on_disk(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.restart(0, 2)


def visible_beyond_the_end(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.look(0, 2)


def high_watermark_falls(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.look(0, 1)
    s.look(0, 0)


def high_watermark_falls_with_a_roll(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.look(0, 1)
    s.append(1, batch(0, b"a"), sync=False)
    s.restart(1, 0)
    s.look(0, 0, block=BLOCK._replace(number=1), end=0, strict=False)


def epoch_falls(s: Scene) -> None:
    s.look(0, 0, epoch=5)
    s.look(0, 0, epoch=4)


def epoch_falls_with_a_roll(s: Scene) -> None:
    s.look(0, 0, epoch=5, told=(5, 1), leads=False)
    s.look(0, 0, epoch=4, told=(5, 2), leads=False, block=BLOCK._replace(number=1), end=0)


def led_epoch_falls_with_a_roll(s: Scene) -> None:
    s.look(0, 0, epoch=5)
    s.look(0, 0, epoch=4, leads=False, block=BLOCK._replace(number=1), end=0)


def visible_before_durable(s: Scene) -> None:
    tree(s)
    s.append(0, batch(0, b"a"), sync=False)
    s.look(0, 1)


def visible_on_a_minority(s: Scene) -> None:
    tree(s)
    s.append(0, batch(0, b"a"))
    s.look(0, 1, majority=2)


def a_replaced_disk_counts_on(s: Scene) -> None:
    """A replica relies on the content of its old disk, although the disk was replaced."""
    tree(s)
    s.append(0, batch(0, b"a"))
    s.append(1, batch(0, b"a"))
    s.watch.ledger.forget("broker-1")
    s.append(0, batch(1, b"b"))
    s.look(0, 2, majority=2)


def two_leaders(s: Scene) -> None:
    s.look(0, 0, epoch=2)
    s.look(1, 0, epoch=2)


def leader_without_what_is_visible(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.look(0, 1)
    s.append(1, batch(0, b"b", epoch=2))
    s.look(1, 0, epoch=2)


def another_record_at_an_offset(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.look(0, 1)
    s.append(1, batch(0, b"b", epoch=2))
    s.look(1, 1, epoch=2, leads=False)


def sent_by_nobody(s: Scene) -> None:
    writes = [Append(BLOCK, [batch(0, b"a")], True)]
    s.watch.ledger.begin("broker-0", writes)
    s.watch.ledger.done("broker-0", writes, [])
    s.look(0, 1)


def written_twice(s: Scene) -> None:
    s.append(0, batch(0, b"a", sequence=0), batch(1, b"a", sequence=0))
    s.look(0, 2)


def written_by_a_zombie(s: Scene) -> None:
    s.append(0, batch(0, b"a", sequence=0, fence=1), batch(1, b"b", sequence=1))
    s.look(0, 2)


def truncated_though_visible(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.look(0, 1)
    writes = [Truncate(BLOCK, 0)]
    s.watch.ledger.begin("broker-0", writes)
    s.watch.ledger.done("broker-0", writes, [])


def acked_and_not_committed(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.look(0, 0)
    s.client_sends(Produce(1, *NAME, AckMode.RAFT, batch(0, b"a")))
    s.client_gets(Produced(1, 0, 1))


def acked_and_not_written(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.client_sends(Produce(1, *NAME, AckMode.LEADER, batch(0, b"b")))
    s.broker_says(0, Produced(1, 0, 1))


def acked_before_the_sync(s: Scene) -> None:
    s.append(0, batch(0, b"a"), sync=False)
    s.look(0, 0)
    s.host(0).looks[TopicPartition(*NAME)] = s.last["broker-0"]
    s.client_sends(Produce(1, *NAME, AckMode.RAFT, batch(0, b"a")))
    s.broker_says(0, Produced(1, 0, 1))


def overtaken(s: Scene) -> None:
    one, two = batch(0, b"a"), batch(1, b"b")
    s.client_sends(Produce(1, *NAME, AckMode.RAFT, two))
    s.append(0, one, two)
    s.look(0, 2)
    s.client_gets(Produced(1, 1, 1))
    three = batch(0, b"a")
    s.client_sends(Produce(2, "t", "0", AckMode.RAFT, batch(2, b"z")))
    s.watch.checkers[4]._asked["app.p", 2].header = three.header  # type: ignore[attr-defined] # as if it had been sent
    s.client_gets(Produced(2, 0, 1))


def acked_on_a_minority(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.look(0, 0, majority=2)
    s.host(0).looks[TopicPartition(*NAME)] = s.last["broker-0"]
    s.client_sends(Produce(1, *NAME, AckMode.RAFT, batch(0, b"a")))
    s.broker_says(0, Produced(1, 0, 1))


def read_with_a_gap(s: Scene) -> None:
    s.append(0, batch(0, b"a"), batch(1, b"b"))
    s.look(0, 2)
    later = batch(1, b"b")
    data = bytes(later.head) + bytes(later.body)
    s.client_gets(Fetched(1, *NAME, 0, 0, 2, data))


def promise_is_forgotten(s: Scene) -> None:
    writes = [SaveState(BLOCK, b"term 2")]
    s.watch.ledger.begin("broker-0", writes)
    s.watch.ledger.done("broker-0", writes, [])
    s.restart(0, 0)


def dirty_read(s: Scene) -> None:
    one = batch(0, b"a")
    s.append(0, one)
    s.look(0, 0)
    data = bytes(one.head) + bytes(one.body)
    s.client_gets(Fetched(1, *NAME, 0, 0, 1, data))


def read_something_else(s: Scene) -> None:
    s.append(0, batch(0, b"a"))
    s.look(0, 1)
    other = batch(0, b"b")
    data = bytes(other.head) + bytes(other.body)
    s.client_gets(Fetched(1, *NAME, 0, 0, 1, data))


class Group:
    """A broker that coordinates a group of two members."""

    def __init__(self, s: Scene, index: int = 0) -> None:
        self.s, self.host = s, s.host(index)
        for member in ("m1", "m2"):
            self.gets(Join(1, "g", member, "t", ("0",), "sticky", 1000, 500, 0, -2), member)
        self.owners = ["m1", "m2"]
        self.begin(5)

    def begin(self, committed: int, *done: Range) -> None:
        """Let another coordinator take over the group."""
        self.leases = Leases(committed, done)
        group = SimpleNamespace(
            name="g",
            generation=1,
            members={
                name: SimpleNamespace(topic="t", generation=1, gone_at=NEVER, source=name)
                for name in ("m1", "m2")
            },
            offsets=SimpleNamespace(
                topic=lambda name: SimpleNamespace(reach={"0": (0, 1)}),
                leases={("t", "0"): self.leases},
            ),
            owners=lambda topic, partition: self.owners,
        )
        broker = SimpleNamespace(_coordinators={0: Coordinator({"g": group})})
        self.host.broker = broker  # type: ignore[assignment] # what the probe reads of a broker

    def gets(self, message: Message, source: str) -> None:
        for checker in self.s.watch.checkers:
            checker.on_receive(self.host, "broker-0", source, message)

    def says(self, message: Message, peer: str) -> None:
        for checker in self.s.watch.checkers:
            checker.on_send(self.host, peer, "broker-0", message)

    def returns(self, count: int, delay_ms: int) -> None:
        """Lease the record at 0 for the *count*-th time, return it, and confirm that."""
        (lease,) = self.leases.acquire("m1", 1, 1, 1_000, 0, 0)
        self.gives("m1", lease.start, lease.end, 1, count)
        self.gets(Settle(2, "g", "m1", nacks=(("0", (0, 1), delay_ms),)), "m1")
        self.leases.reject("m1", [(0, 1)], 0)
        self.says(Settled(2), "m1")

    def settles(self, *offsets: int, overtaken: int = 0) -> None:
        """Let *offsets* be leased, acknowledged, written and confirmed.

        Before the confirmation, retention removes the records before *overtaken*.
        """
        end = offsets[-1] + 1
        for lease in self.leases.acquire("m1", end, end, 1_000, 0, 0):
            self.gives("m1", lease.start, lease.end, 1)
        self.gets(Settle(2, "g", "m1", tuple(("0", (at, at + 1)) for at in offsets)), "m1")
        self.leases.acknowledge("m1", [(at, at + 1) for at in offsets])
        self.writes()
        self.leases.begin_at(overtaken)
        self.says(Settled(2), "m1")

    def writes(self) -> None:
        """Let the coordinator write its changes."""
        self.s.watch._meet((OFFSETS_TOPIC, "0"), OFFSETS_BLOCK)
        ledger, node = self.s.watch.ledger, self.host.name
        log = ledger.log(node, OFFSETS_BLOCK)
        writes = [Append(OFFSETS_BLOCK, [batch(log.end if log is not None else 0, b"")], True)]
        ledger.begin(node, writes)
        ledger.done(node, writes, [])

    def gives(self, member: str, start: int, end: int, request: int, count: int = 1) -> None:
        self.gets(Acquire(request, "g", member, (), 10, 0), member)
        self.says(Acquired(request, (Lease("0", start, end, count),), 1), member)


def leased_twice(s: Scene) -> None:
    group = Group(s)
    group.gives("m1", 0, 10, 1)
    group.gives("m2", 5, 6, 2)


def renewed_and_leased_twice(s: Scene) -> None:
    group = Group(s)
    group.gives("m1", 0, 10, 1)
    for _ in range(2):
        s.cluster.world.now += 300_000
        group.gets(Settle(0, "g", "m1", renewals=(("0", (0, 10)),)), "m1")
    group.gives("m2", 5, 6, 2)


def acked_and_given_again(s: Scene) -> None:
    group = Group(s)
    group.gives("m1", 0, 10, 1)
    group.gets(Settle(2, "g", "m1", (("0", (0, 10)),)), "m1")
    group.says(Settled(2), "m1")
    group.gives("m2", 9, 12, 3)


def known_and_given_again(s: Scene) -> None:
    """The group returns to a broker, whose coordinator must know all confirmed acknowledgements."""
    group = Group(s)
    group.begin(0)
    group.settles(*range(0, 20, 2))
    group.begin(0)
    group.gives("m2", 4, 5, 3)


def confirmed_and_given_again_elsewhere(s: Scene) -> None:
    """Another broker becomes the coordinator, and must know all confirmed acknowledgements."""
    here, there = Group(s), Group(s, 1)
    here.begin(0)
    here.settles(0, 2)
    s.dies(0)
    there.begin(1)
    there.gives("m2", 2, 3, 3)


class Coordinator:
    """A coordinator with only those attributes that the checkers read."""

    index = 0
    offsets = SimpleNamespace(is_loaded=True)
    clock = SimpleNamespace(ms=0, at=lambda now: 0)

    def __init__(self, groups: dict[str, Any]) -> None:
        self.groups = groups
        self._leases = SimpleNamespace(answer=lambda *arguments: None)


def group_goes_back(s: Scene) -> None:
    group = Group(s)
    s.look(0, 0)
    group.leases.committed = 4
    s.look(0, 0)


def served_before_the_former_owner_is_done(s: Scene) -> None:
    group = Group(s)
    s.append(0, batch(0, b"a", key=b"k"), batch(1, b"b", key=b"k"))
    s.look(0, 2)
    group.gives("m1", 0, 1, 1)
    group.owners = ["m2"]
    group.gives("m2", 1, 2, 2)


def keys_go_to_a_member_that_is_free(s: Scene) -> None:
    group = Group(s)
    s.append(0, batch(0, b"a", key=b"k"))
    s.look(0, 1)
    group.owners = ["m2"]
    group.gives("m1", 0, 1, 1)


def nobody_serves_a_member_that_is_free(s: Scene) -> None:
    group = Group(s)
    group.begin(0)
    s.append(0, batch(0, b"a"))
    s.look(0, 1)
    group.owners = ["m2"]
    group.leases.unkeyed.put(0, 1)
    group.gets(Acquire(1, "g", "m1", (), 10, 1, shares=True), "m1")
    s.cluster.world.run(1_000_000)
    group.says(Acquired(1, (), 1), "m1")


def gets_up_to(s: Scene, own: str, urgent: str, end: int) -> None:
    """The owner of a partition gets its records before *end* of ten.

    In the partition *urgent* the record at 5 has priority 9, and no record has a key.
    """
    host, real = s.host(0), GroupHost()
    host.broker = cast(Any, SimpleNamespace(_coordinators={0: real.coordinator}))
    names = ("0", "1")
    for member in ("m1", "m2"):
        real.join(member, names)
    owners = {real.beat(member, names)[0]: member for member in ("m1", "m2")}
    group, member = real.coordinator.groups["g"], owners[own]
    wait = Acquire(real.id(), "g", member, tuple((n, 0, 0) for n in names), 10, 9, shares=True)
    for checker in s.watch.checkers:
        if isinstance(checker, PriorityRules):
            checker.on_receive(host, "broker-0", member, wait)
    assert real.send(member, wait) == []
    topic, leases = group.offsets.topic("t"), group.offsets.leases
    topic.has_priorities = True
    topic.reach.update(dict.fromkeys(names, (0, 10)))
    leases["t", urgent].prioritize([(5, 6, 9)])
    leases["t", urgent].unkeyed.put(0, 10)
    found = leases["t", own].acquire(member, end, 9, 100, 0, 0)
    given = tuple(evolve(lease, partition=own) for lease in found)
    topic.idle.clear()
    real.coordinator._leases.answer(group, group.members[member], given, 0)


def an_urgent_record_is_left(s: Scene) -> None:
    gets_up_to(s, "0", "0", 5)


def an_urgent_record_of_another_partition_is_left(s: Scene) -> None:
    gets_up_to(s, "0", "1", 5)


def returned_and_given_too_early(s: Scene) -> None:
    group = Group(s)
    group.begin(0)
    group.returns(1, 500)
    s.cluster.world.now += 500_000
    (lease,) = group.leases.acquire("m1", 1, 1, 1_000, 0, 0)
    group.gives("m1", lease.start, lease.end, 3, 2)  # the record's delay is over
    group.leases.reject("m1", [(0, 1)], 0)
    group.returns(3, 500)
    s.cluster.world.now += 400_000
    group.gives("m2", 0, 1, 4, 4)


def returned_and_given_too_early_elsewhere(s: Scene) -> None:
    group = Group(s)
    group.begin(0)
    group.returns(1, 500)
    group.begin(0)
    s.cluster.world.now += 400_000
    group.gives("m2", 0, 1, 3, 2)


def returned_and_not_counted(s: Scene) -> None:
    group = Group(s)
    group.begin(0)
    group.returns(1, 0)
    group.gives("m2", 0, 1, 3, 1)


def bound_to_another_partition(s: Scene) -> None:
    group = Group(s)
    options = ("0", "1"), "sticky", 1000, 500, 0, -2
    group.gets(Join(3, "g", "m1", "t", *options, ordered=False, within=("1",)), "m1")
    group.gives("m1", 0, 1, 1)


def settled_by_another(s: Scene) -> None:
    group = Group(s)
    group.gives("m1", 0, 10, 1)
    group.gets(Settle(2, "g", "m2", (("0", (0, 5)),)), "m2")
    group.says(Settled(2), "m2")


def group_skips_records(s: Scene) -> None:
    group = Group(s)
    s.look(0, 0)
    group.gets(Settle(2, "g", "m1", (("0", (5, 6)),)), "m1")
    group.leases.committed = 7
    s.look(0, 0)


def group_forgets_what_was_confirmed(s: Scene) -> None:
    group = Group(s)
    s.look(0, 0)
    group.gets(Settle(2, "g", "m1", (("0", (9, 10)),)), "m1")
    group.says(Settled(2), "m1")
    group.begin(4)
    s.look(0, 0)


def group_forgets_what_was_confirmed_after_a_loss(s: Scene) -> None:
    """A loss from the disks' caches does not excuse the loss of later acknowledgements."""
    group = Group(s)
    group.writes()
    s.look(0, 0)
    group.gets(Settle(2, "g", "m1", (("0", (5, 10)),)), "m1")
    group.says(Settled(2), "m1")
    s.watch.history(OFFSETS_BLOCK).losses += 1
    group.begin(5)
    s.look(0, 0)
    group.gets(Settle(3, "g", "m1", (("0", (5, 6)),)), "m1")
    group.says(Settled(3), "m1")
    group.begin(5)
    s.look(0, 0)


BOTH = ("broker-0", "broker-1")


def fetched(number: int, start: int, end: int | None, in_sync: tuple[str, ...] = BOTH) -> bytes:
    """A block of two replicas that is fetched."""
    return encode_node(BlockNode(number, start, end, 1, AckMode.LEADER, "broker-0", BOTH, in_sync))


def visible_beyond_who_is_in_sync(s: Scene) -> None:
    tree(s)
    s.commit("s1", Put(paths.block("t", "0", 0), fetched(0, 0, None), 0))
    s.append(0, batch(0, b"a"), sync=False)
    s.look(0, 1, strict=False)


def visible_beyond_what_is_synced_on_who_is_in_sync(s: Scene) -> None:
    tree(s)
    s.commit("s1", Put(paths.block("t", "0", 0), fetched(0, 0, None), 0))
    s.append(0, batch(0, b"a"))
    s.append(1, batch(0, b"a"), sync=False)
    s.look(0, 1)


def in_sync_too_early(s: Scene) -> None:
    tree(s)
    s.commit("s1", Put(paths.block("t", "0", 0), fetched(0, 0, None, HOLDERS), 0))
    s.append(0, batch(0, b"a"), sync=False)
    s.look(0, 1, strict=False)
    s.commit("s1", Put(paths.block("t", "0", 0), fetched(0, 0, None), 1))


def sealed_on_a_minority(s: Scene) -> None:
    tree(s)
    s.append(0, batch(0, b"a"))
    two = BlockNode(0, 0, 1, 1, AckMode.RAFT, "broker-0", BOTH, HOLDERS)
    s.commit("s1", Put(paths.block("t", "0", 0), encode_node(two), 0))


def sealed_on_one(s: Scene, made_on: str, sealed_on: str) -> None:
    """Seal a block whose data is only on the first replica.

    *made_on* and *sealed_on* give the disk of each replica, at creation and at the seal.
    """
    tree(s)
    path = paths.block("t", "0", 0)
    replicas = tuple(f"broker-{index}" for index in range(len(made_on)))
    opened = BlockNode(0, 0, None, 1, AckMode.RAFT, None, replicas, replicas, tuple(made_on))
    s.commit("s1", Put(path, encode_node(opened), 0))
    s.append(0, batch(0, b"a"))
    last = BlockNode(0, 0, 1, 1, AckMode.RAFT, None, replicas, HOLDERS, tuple(sealed_on))
    s.commit("s1", Put(path, encode_node(last), 1))


def sealed_on_a_minority_though_a_majority_is_left(s: Scene) -> None:
    sealed_on_one(s, "abc", "abx")


def sealed_on_a_minority_though_somebody_lost_something_before(s: Scene) -> None:
    s.append(1, batch(0, b"a"), sync=False)
    s.restart(1, 0)
    sealed_on_one(s, "ab", "ab")


def told_of_a_topic_that_is_not_there(s: Scene) -> None:
    zkserver = next(iter(s.cluster.zkservers.values()))
    for checker in s.watch.checkers:
        checker.on_receive(zkserver, "", "app.x", CreateTopic(5, "t2", ("0",), 1, AckMode.RAFT, {}))
        checker.on_send(zkserver, "app.x", "", Answer(5, True))


def a_torn_batch_is_kept(s: Scene) -> None:
    store = SimpleNamespace(
        recover=lambda *a: Recovered(BLOCK, 0, 1, 0, None, [], 0),
        read=lambda *a: b"torn",
        write=lambda writes: [],
    )
    watched = WatchedStore(cast("BlockStore", store), "broker-0", s.watch.ledger)
    one = batch(0, b"a")
    s.watch.ledger.begin("broker-0", [Append(BLOCK, [one], False)])
    watched.recover(BLOCK, 0, True)


def said_to_hold_all(s: Scene) -> None:
    tree(s)
    s.append(0, batch(0, b"a"), batch(1, b"b"))
    s.append(1, batch(0, b"a"))
    s.commit("s1", Put(paths.block("t", "0", 0), fetched(0, 0, 2), 0))


def node(number: int, start: int, end: int | None) -> bytes:
    return encode_node(BlockNode(number, start, end, 1, AckMode.RAFT, "broker-0", HOLDERS, HOLDERS))


def tree(s: Scene) -> None:
    topic = encode_node(TopicNode("t", BLOCK.topic_id, 1, AckMode.RAFT, 1, TopicConfig()))
    for path in (paths.ROOT, paths.brokers(), paths.topics(), paths.topic("t")):
        data = topic if path == paths.topic("t") else b""
        s.cluster.ensemble.tree.apply(Commit(0, (Create(path, data),)), "x")
    s.cluster.ensemble.tree.apply(Commit(0, (Create(paths.partitions("t"), b""),)), "x")
    s.commit(
        "s1",
        Create(paths.controller(), encode_node(ControllerNode("z")), ephemeral=True),
        Create(paths.controller_epoch(), encode_node(ControllerEpoch(1))),
    )
    partition = PartitionNode("0", 0, AckMode.RAFT, 1, 1, 5)
    s.commit(
        "s1",
        Create(paths.partition("t", "0"), encode_node(partition)),
        Create(paths.block("t", "0", 0), node(0, 0, None)),
    )


def blocks_with_a_gap(s: Scene) -> None:
    tree(s)
    s.commit(
        "s1",
        Put(paths.block("t", "0", 0), node(0, 0, 10), 0),
        Create(paths.block("t", "0", 1), node(1, 11, None)),
    )


def an_empty_block_gives_way_elsewhere(s: Scene) -> None:
    tree(s)
    s.commit(
        "s1",
        Delete(paths.block("t", "0", 0), 0),
        Create(paths.block("t", "0", 1), node(1, 4, None)),
    )


def sealed_over_another_log(s: Scene) -> None:
    """A seal makes records visible, so no broker may show other records at these offsets."""
    tree(s)
    s.append(0, batch(0, b"a"), batch(1, b"b"))
    s.commit("s1", Put(paths.block("t", "0", 0), node(0, 0, 2), 0))
    s.append(1, batch(0, b"c", epoch=2))
    s.look(1, 1, epoch=2, leads=False)


def sealed_with_a_repeat(s: Scene) -> None:
    tree(s)
    s.append(0, batch(0, b"a", sequence=0), batch(1, b"a", sequence=0))
    s.commit("s1", Put(paths.block("t", "0", 0), node(0, 0, 2), 0))


def written_again_under_another_epoch(s: Scene) -> None:
    s.append(0, batch(0, b"a", sequence=0), batch(1, b"a", sequence=0, fence=1))
    s.look(0, 2)


def sealed_twice(s: Scene) -> None:
    tree(s)
    s.commit("s1", Put(paths.block("t", "0", 0), node(0, 0, 10), 0))
    s.commit("s1", Put(paths.block("t", "0", 0), node(0, 0, 9), 1))


def sealed_below_what_is_visible(s: Scene) -> None:
    tree(s)
    s.append(0, batch(0, b"a"), batch(1, b"b"))
    s.look(0, 2)
    s.commit("s1", Put(paths.block("t", "0", 0), node(0, 0, 1), 0))


def of_two(end: int | None, holders: tuple[str, ...] = ("broker-0", "broker-1")) -> bytes:
    """A block of two replicas that is fetched."""
    replicas = "broker-0", "broker-1"
    return encode_node(BlockNode(0, 0, end, 1, AckMode.LEADER, "broker-0", replicas, holders))


def one_of_two_has_lost(s: Scene) -> None:
    """Of two replicas one loses visible records, which the other one still has."""
    tree(s)
    s.commit("s1", Put(paths.block("t", "0", 0), of_two(None), 0))
    for index in (0, 1):
        s.append(index, batch(0, b"a"), sync=True)
        s.append(index, batch(1, b"b"), sync=index == 1)
    s.look(0, 2, strict=False)
    s.restart(0, 1)


def sealed_without_what_one_in_sync_has(s: Scene) -> None:
    one_of_two_has_lost(s)
    s.commit("s1", Put(paths.block("t", "0", 0), of_two(1, ("broker-0",)), 1))


def led_without_what_one_in_sync_has(s: Scene) -> None:
    one_of_two_has_lost(s)
    s.look(0, 1, strict=False)


def sealed(holders: tuple[str, ...], move: Move | None, *, replicas: int = 2) -> bytes:
    """A sealed block of one record, which has two replicas.

    Perhaps one copy is not complete yet.
    """
    names = ("broker-0", "broker-1")[:replicas]
    found = BlockNode(0, 0, 1, 1, AckMode.LEADER, "broker-0", names, holders, names, move=move)
    return encode_node(found)


def moved_for_no_reason(s: Scene) -> None:
    tree(s)
    both, path = ("broker-0", "broker-1"), paths.block("t", "0", 0)
    s.commit("s1", Put(path, sealed(both, None), 0))
    s.commit("s1", Put(path, sealed(both, Move("broker-1", "broker-0")), 1))


def a_copy_that_counts_too_early(s: Scene) -> None:
    tree(s)
    s.append(0, batch(0, b"a"))
    s.look(0, 1)
    move, path = Move("broker-1", "broker-0"), paths.block("t", "0", 0)
    s.commit("s1", Put(path, sealed(("broker-0",), move), 0))
    s.commit("s1", Put(path, sealed(("broker-0", "broker-1"), move), 1))


def one_copy_fewer(s: Scene) -> None:
    tree(s)
    path = paths.block("t", "0", 0)
    s.commit("s1", Put(path, sealed(("broker-0", "broker-1"), None), 0))
    s.commit("s1", Put(path, sealed(("broker-0",), None, replicas=1), 1))


def sent_before_it_is_committed(s: Scene) -> None:
    """A follower serves records although it does not know that they are committed."""
    opened = SimpleNamespace(offsets=SimpleNamespace(high_watermark=1))
    partition = SimpleNamespace(opened=opened)
    s.host(0).broker = cast(Any, SimpleNamespace(_partitions={TopicPartition(*NAME): partition}))
    data = b"".join(bytes(one.head) + bytes(one.body) for one in (batch(0, b"a"), batch(1, b"b")))
    s.broker_says(0, Fetched(1, *NAME, 0, 0, 1, data))


def older_state_counts(s: Scene) -> None:
    s.look(0, 0, told=(2, 5))
    s.look(0, 0, told=(2, 4))


def another_disk_takes_part(s: Scene) -> None:
    s.look(0, 0, made_on="the one before")


def partition_epoch_falls(s: Scene) -> None:
    tree(s)
    partition = PartitionNode("0", 0, AckMode.RAFT, 1, 1, 4)
    s.commit("s1", Put(paths.partition("t", "0"), encode_node(partition), 0))


def controller_epoch_stands(s: Scene) -> None:
    tree(s)
    s.commit("s2", Put(paths.controller_epoch(), encode_node(ControllerEpoch(1)), 0))


def somebody_else_commits(s: Scene) -> None:
    tree(s)
    s.commit("s2", Put(paths.block("t", "0", 0), node(0, 0, 10), 0))


ANOMALIES: dict[Callable[[Scene], None], str] = {
    moved_for_no_reason: "moves-are-asked-for",
    a_copy_that_counts_too_early: "moved-copies-are-whole",
    one_copy_fewer: "never-fewer-copies",
    sent_before_it_is_committed: "shown-when-committed",
    dense: "dense-offsets",
    epochs_fall: "epochs-rise",
    logs_differ: "log-matching",
    synced_is_lost: "synced-survives",
    invented_on_disk: "nothing-invented-on-disk",
    promise_is_forgotten: "promise-survives",
    visible_beyond_the_end: "hw-bounded",
    high_watermark_falls: "hw-monotone",
    high_watermark_falls_with_a_roll: "hw-monotone",
    epoch_falls: "epoch-monotone",
    epoch_falls_with_a_roll: "epoch-monotone",
    led_epoch_falls_with_a_roll: "epoch-monotone",
    visible_before_durable: "durable-before-visible",
    visible_on_a_minority: "durable-before-visible",
    a_replaced_disk_counts_on: "durable-before-visible",
    two_leaders: "one-leader-per-epoch",
    leader_without_what_is_visible: "leader-completeness",
    another_record_at_an_offset: "immutable-offset",
    sent_by_nobody: "no-invention",
    written_twice: "written-once",
    written_by_a_zombie: "send-order",
    truncated_though_visible: "no-truncation",
    acked_and_not_committed: "acked-is-committed",
    acked_and_not_written: "acked-is-written",
    acked_before_the_sync: "synced-before-acked",
    acked_on_a_minority: "durable-before-acked",
    overtaken: "realtime-order",
    dirty_read: "no-dirty-read",
    read_something_else: "immutable-offset",
    read_with_a_gap: "no-gap-in-reads",
    leased_twice: "ptp-exclusive",
    renewed_and_leased_twice: "ptp-exclusive",
    acked_and_given_again: "acked-not-delivered-again",
    known_and_given_again: "acked-not-delivered-again",
    confirmed_and_given_again_elsewhere: "acked-not-delivered-again",
    served_before_the_former_owner_is_done: "handover-waits",
    keys_go_to_a_member_that_is_free: "keys-to-their-owner",
    nobody_serves_a_member_that_is_free: "idle-is-served",
    settled_by_another: "settled-by-its-holder",
    bound_to_another_partition: "within-its-partitions",
    an_urgent_record_is_left: "urgent-first",
    an_urgent_record_of_another_partition_is_left: "urgent-first",
    returned_and_given_too_early: "backoff-is-waited",
    returned_and_given_too_early_elsewhere: "backoff-is-waited",
    returned_and_not_counted: "deliveries-are-counted",
    group_goes_back: "group-offset-monotone",
    group_skips_records: "offset-covers-acks",
    group_forgets_what_was_confirmed: "confirmed-offset-survives",
    group_forgets_what_was_confirmed_after_a_loss: "confirmed-offset-survives",
    visible_beyond_who_is_in_sync: "visible-on-all-in-sync",
    visible_beyond_what_is_synced_on_who_is_in_sync: "visible-on-all-in-sync",
    in_sync_too_early: "in-sync-has-all",
    said_to_hold_all: "sealed-copies-are-equal",
    sealed_on_a_minority: "sealed-is-durable",
    sealed_on_a_minority_though_a_majority_is_left: "sealed-is-durable",
    sealed_on_a_minority_though_somebody_lost_something_before: "sealed-is-durable",
    told_of_a_topic_that_is_not_there: "answered-is-committed",
    a_torn_batch_is_kept: "recovered-is-whole",
    blocks_with_a_gap: "blocks-adjoin",
    an_empty_block_gives_way_elsewhere: "blocks-adjoin",
    sealed_over_another_log: "immutable-offset",
    sealed_with_a_repeat: "written-once",
    written_again_under_another_epoch: "written-once",
    sealed_twice: "sealed-for-ever",
    sealed_below_what_is_visible: "seal-keeps-what-is-visible",
    sealed_without_what_one_in_sync_has: "seal-keeps-what-is-visible",
    led_without_what_one_in_sync_has: "leader-completeness",
    older_state_counts: "newest-state-counts",
    another_disk_takes_part: "own-disk-only",
    partition_epoch_falls: "partition-epoch-rises",
    controller_epoch_stands: "one-controller-per-epoch",
    somebody_else_commits: "only-the-controller-commits",
}


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: str(anomaly.__name__))
def test_an_anomaly_is_found(anomaly: Callable[[Scene], None]) -> None:
    scene = Scene()
    with pytest.raises(Violation) as caught:
        anomaly(scene)
    assert caught.value.name == ANOMALIES[anomaly]
    with pytest.raises(Violation):  # a later call raises the violation again
        scene.cluster.check()


def test_every_rule_has_its_anomaly() -> None:
    assert set(RULES) <= set(ANOMALIES.values())


@pytest.mark.parametrize("asked", [1, 2])
@pytest.mark.parametrize(
    ("planned_ms", "is_allowed"), [(1_000, False), (699_000, True), (701_000, False)]
)
def test_a_move_is_judged_by_what_was_known_when_it_was_planned(
    planned_ms: int, is_allowed: bool, asked: int
) -> None:
    """The broker is silent from 0 to 700 s.

    The coordinator backend is slow, and commits the move after that.
    """
    s = Scene()
    tree(s)
    both, path = ("broker-0", "broker-1"), paths.block("t", "0", 0)
    s.commit("s1", Put(path, sealed(both, None), 0))
    ensemble, world = s.cluster.ensemble, s.cluster.world
    (zkserver,) = s.cluster.zkservers.values()
    session = ensemble.connect(zkserver)
    session._session = "s1"
    ensemble.sessions["s1"] = session
    move = Put(path, sealed(both, Move("broker-1", "broker-0")), 1)
    for now_ms in sorted({0, planned_ms, 700_000, 702_000}):
        world.now = now_ms * 1_000
        if now_ms == planned_ms:
            for tag in range(asked):  # a repeated request was planned the first time
                for submitted in ensemble.on_submit:
                    submitted(zkserver.name, Commit(tag, (move,)))
                world.now += 2_000_000 * tag
        else:
            for checker in s.watch.checkers:
                if BrokerHeartbeat in checker.receives:
                    checker.on_receive(zkserver, "", "", BrokerHeartbeat("broker-0", 1))
    if is_allowed:
        s.commit("s1", move)
        s.cluster.check()
        return
    with pytest.raises(Violation) as caught:
        s.commit("s1", move)
    assert caught.value.name == "moves-are-asked-for"


def test_what_is_allowed_is_not_found() -> None:
    """Replicas may lag, an unconfirmed tail may be lost, and leases may follow each other: the
    checkers report none of these.
    """
    s = Scene()
    one, two = batch(0, b"a", sequence=0), batch(1, b"b", sequence=1)
    s.append(0, one, two)
    s.append(1, one)
    s.look(0, 1, majority=2)
    s.look(1, 0, leads=False)
    s.append(1, two)
    s.look(0, 2, majority=2)
    s.look(1, 2, leads=False)
    s.append(0, batch(2, b"c", sequence=2), sync=False)
    s.restart(0, 2)
    s.append(0, batch(2, b"d", epoch=2, sequence=2))
    s.look(0, 3, epoch=2)
    group = Group(s)
    group.gives("m1", 0, 10, 1)
    group.gets(Settle(2, "g", "m1", (), (("0", (0, 10), 0),)), "m1")
    group.gives("m2", 0, 10, 3)
    tree(s)
    s.commit(
        "s1",
        Put(paths.block("t", "0", 0), node(0, 0, 3), 0),
        Create(paths.block("t", "0", 1), node(1, 3, None)),
    )
    s.cluster.check()


def test_an_urgent_record_that_was_leased_is_not_left() -> None:
    gets_up_to(s := Scene(), "0", "0", 10)
    s.cluster.check()


def test_what_a_disk_held_counts_though_it_was_replaced_since() -> None:
    """The broker reported its end before its disk was replaced, and the leader gets the report
    later.
    """
    s = Scene()
    s.append(0, batch(0, b"a"))
    s.append(1, batch(0, b"a"))
    s.watch.ledger.forget("broker-1")
    s.look(0, 1, majority=2)
    s.cluster.check()


@pytest.mark.parametrize(("made_on", "sealed_on"), [("ab", "ax"), ("abc", "axy")])
def test_what_is_left_of_a_block_may_be_on_one_disk(made_on: str, sealed_on: str) -> None:
    """No majority can elect a leader any more, so the best remaining copy determines the end.

    Found by the simulator: --profile all --seconds 4 --seeds 6666.
    """
    s = Scene()
    sealed_on_one(s, made_on, sealed_on)
    s.cluster.check()


def test_an_administrator_may_go_on_with_one_disk() -> None:
    s = Scene()
    zkserver = next(iter(s.cluster.zkservers.values()))
    for checker in s.watch.checkers:
        checker.on_receive(zkserver, "", "app.x", RecoverPartition(5, *NAME))
    sealed_on_one(s, "ab", "ab")
    s.cluster.check()


def test_a_producer_that_retention_has_forgotten_begins_anew() -> None:
    """Retention has removed the producer's records, and a restart has removed its entry in the
    producer table.
    """
    s = Scene()
    tree(s)
    s.append(0, batch(0, b"a", sequence=0))
    s.look(0, 1)
    sealed = Put(paths.block("t", "0", 0), node(0, 0, 1), 0)
    s.commit("s1", sealed, Create(paths.block("t", "0", 1), node(1, 1, None)))
    s.commit("s1", Delete(paths.block("t", "0", 0), 1))
    history = s.watch.history(BLOCK)
    later = batch(1, b"b", sequence=0, fence=1)
    immutable = next(c for c in s.watch.checkers if isinstance(c, Immutable))
    immutable.sent[later.header.batch_crc] = 1
    immutable._check_batch(BLOCK._replace(number=1), history, later.header)
    s.cluster.check()


def test_a_loss_that_is_allowed_is_counted() -> None:
    """Without a sync no record must survive; other records may take its offset."""
    s = Scene()
    s.append(0, batch(0, b"a"), sync=False)
    s.look(0, 1, strict=False)
    s.restart(0, 0)
    s.append(0, batch(0, b"b"))
    s.look(0, 1, strict=False)
    s.cluster.check()
    assert s.watch.history(BLOCK).losses == 1


def test_what_a_disks_cache_has_lost_may_be_missing_behind_a_roll() -> None:
    """A follower has fetched more records than the next block's start allows, and lost them from
    its disk's cache.
    """
    s = Scene()
    s.append(0, batch(0, b"a"), sync=False)
    s.append(1, batch(0, b"a"), sync=False)
    s.look(0, 1, strict=False)
    s.look(1, 1, strict=False, leads=False)
    s.restart(0, 0)
    s.look(1, 0, strict=False, leads=False, block=BLOCK._replace(number=1), end=0, epoch=2)
    s.cluster.check()


def test_a_lease_that_has_run_out_cannot_be_renewed() -> None:
    """The lease has expired, and the broker leases its records to other members.

    Found by the simulator: --profile all --seconds 4 --seeds 1659.
    """
    s = Scene()
    group = Group(s)
    group.gives("m1", 0, 10, 1)
    s.cluster.world.now += 600_000
    group.gets(Settle(0, "g", "m1", renewals=(("0", (0, 10)),)), "m1")
    group.gives("m2", 5, 6, 2)
    s.cluster.check()


def test_who_was_elected_behind_a_seal_is_nobodys_leader() -> None:
    """The roll was committed before, and the broker learns that later: the next block has an
    earlier epoch.

    Found by the simulator: --profile all --seconds 4 --seeds 970.
    """
    s = Scene()
    s.look(0, 0, epoch=1)
    s.look(0, 0, epoch=3, leads=False)
    s.look(0, 0, epoch=2, told=(2, 2), block=BLOCK._replace(number=1), end=0)
    s.cluster.check()


def test_no_more_ranges_are_remembered_than_are_written() -> None:
    """The next coordinator knows only a limited number of ranges above a group's offset."""
    s = Scene()
    group = Group(s)
    group.begin(0)
    group.settles(*range(1, 2 * RANGES_MAX + 3, 2))
    group.begin(0)
    group.gives("m2", 2 * RANGES_MAX + 1, 2 * RANGES_MAX + 2, 3)
    s.cluster.check()


@pytest.mark.parametrize("is_dead", [False, True])
def test_ranges_may_be_forgotten_while_the_group_is_elsewhere(is_dead: bool) -> None:
    """One broker knew all ranges, another one had more of them, and the group comes back to the
    first broker.
    """
    s = Scene()
    here, there = Group(s), Group(s, 1)
    here.begin(0)
    here.settles(9)
    there.begin(0, (9, 10))
    there.settles(*range(11, 2 * RANGES_MAX + 13, 2))
    if is_dead:
        s.dies(1)
    here.begin(0)
    here.gives("m2", 9, 10, 3)
    s.cluster.check()


def test_ranges_that_had_no_room_may_be_forgotten_though_there_are_fewer_by_now() -> None:
    """Retention removes the lowest range while the others are written and not confirmed yet."""
    s = Scene()
    group = Group(s)
    group.begin(0)
    group.settles(*range(1, 2 * RANGES_MAX + 3, 2), overtaken=8)
    group.begin(8)
    group.gives("m2", 2 * RANGES_MAX + 1, 2 * RANGES_MAX + 2, 3)
    s.cluster.check()


def test_where_a_group_had_got_to_before_a_loss_is_not_where_it_is() -> None:
    """After a loss the group has to do its work again, and the next coordinator again knows only a
    limited number of ranges.
    """
    s = Scene()
    group = Group(s)
    far = 4 * RANGES_MAX
    group.begin(far)
    group.settles(far)
    group.settles(far + 1)  # this proves that the offset before is written
    s.watch.history(OFFSETS_BLOCK).losses += 1
    group.begin(0)
    group.settles(*range(1, 2 * RANGES_MAX + 3, 2))
    group.begin(0)
    group.gives("m2", 2 * RANGES_MAX + 1, 2 * RANGES_MAX + 2, 3)
    s.cluster.check()


def test_a_block_is_there_though_a_part_of_the_write_that_began_it_failed() -> None:
    """Writing a checkpoint fails, but the block itself is written, and can be sealed."""
    s = Scene()
    ledger = s.watch.ledger
    writes: list[Write] = [CreateBlock(BLOCK, 7, *NAME), Checkpoint(BLOCK, b"")]
    failed = WriteFailed(BLOCK, StoreError("cannot create it"), fatal=False)
    ledger.begin("broker-0", writes)
    ledger.done("broker-0", writes, [failed])
    assert ledger.log("broker-0", BLOCK) is None
    ledger.begin("broker-0", [SealBlock(BLOCK)])
    ledger.done("broker-0", [SealBlock(BLOCK)], [])
    log = ledger.log("broker-0", BLOCK)
    assert log is not None
    assert (log.start, log.end, log.synced_end) == (7, 7, 7)


def test_what_is_asked_again_is_confirmed_as_it_was_asked_first() -> None:
    """The answer to a repeated request may ignore later changes of the coordinator, which may not
    be written yet.

    Found by the simulator: --profile swarm --brokers 3 --zkservers 2 --seconds 6 --seeds 30001.
    """
    s = Scene()
    group = Group(s)
    group.begin(4)
    s.look(0, 0)
    settle = Settle(2, "g", "m1", (("0", (4, 5)),))
    group.gets(settle, "m1")
    group.leases.committed = 5
    s.look(0, 0)
    group.gets(Settle(3, "g", "m1", (("0", (5, 9)),)), "m1")
    group.leases.committed = 9
    s.look(0, 0)
    group.gets(settle, "m1")
    group.says(Settled(2), "m1")
    group.begin(5)
    s.look(0, 0)
    s.cluster.check()


@pytest.mark.parametrize("kept", [1, 2])
def test_a_cut_that_a_crash_interrupts_is_done_or_not(kept: int) -> None:
    """Until a truncation has returned, the disk may have the old or the new end.

    No other loss is excused.
    """
    scene = Scene()
    scene.append(0, batch(0, b"a"), batch(1, b"b"))
    scene.look(0, 1)
    scene.watch.ledger.begin("broker-0", [Truncate(BLOCK, 1)])
    scene.restart(0, kept)
    log = scene.watch.ledger.log("broker-0", BLOCK)
    assert log is not None
    assert (log.end, log.synced_end) == (kept, kept)
    with pytest.raises(Violation, match="synced-survives"):
        scene.restart(0, 0)
