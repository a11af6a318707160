"""The broker, request by request, on a disk that obeys at once."""

from __future__ import annotations

import random
from typing import Any, TypeVar

import attrs
import pytest

from pymq.broker.broker import BrokerMachine
from pymq.broker.registration import BrokerConfig
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import (
    BEGIN,
    END,
    Acquire,
    Acquired,
    Assigned,
    Fetch,
    Fetched,
    FindOffset,
    GetSequence,
    Heartbeat,
    Join,
    LeaderAndIsr,
    LeaderAndIsrAnswer,
    Message,
    OffsetFound,
    Ping,
    Produce,
    Produced,
    RaftAppend,
    RaftAppended,
    RaftVote,
    ReplicaFetch,
    ReplicaFetched,
    Seal,
    Sealed,
    Sequence,
    Stopped,
    StopReplica,
)
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.partition.partition import Partition
from pymq.core.pending.fetch_limits import FetchLimits
from pymq.core.ready import Checkpoint, CreateBlock, Recover, Sync, WriteFailed
from pymq.core.types import OFFSETS_TOPIC, AckMode, BlockId
from pymq.errors import (
    CorruptMetadata,
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    QuotaExceeded,
    ReplicaNotAvailable,
    StaleControllerEpoch,
    StaleEpoch,
    StoreFull,
    UnknownPartition,
)
from pymq.hash.assign import assignor
from pymq.replication.factory import replicator
from pymq.store.memory import MemoryStore

PRODUCE = Produce(1, "t", "0", AckMode.LEADER, EncodedBatch.encode([b"x"], timestamp_ms=0))

M = TypeVar("M", bound=Message)


class Bench:
    """A broker, its disk, and all messages that the broker has sent."""

    def __init__(
        self, storage_id: str = "", incarnation: int = 0, fetches: FetchLimits | None = None
    ) -> None:
        self.now = 0
        self.store = MemoryStore()
        self.sent: list[tuple[str, Message]] = []
        config = BrokerConfig(
            "b0",
            ("zk", "zk-2"),
            storage_id=storage_id,
            incarnation=incarnation,
            fetches=fetches or FetchLimits(),
        )
        self.broker = BrokerMachine(config, replicator, assignor, random.Random(0), (), (), 0)
        self.syncs: list[BlockId] = []
        self.reads: list[int] = []
        self.disk_answers = True  # whether the disk answers recoveries
        self.pump()

    def step(self, source: str, message: Message) -> None:
        self.broker.step(source, message, self.now)
        self.pump()

    def tick(self, ms: int) -> None:
        self.now += ms
        self.broker.tick(self.now)
        self.pump()

    def pump(self) -> None:
        while (ready := self.broker.ready(self.now)) is not None:
            failed = self.store.write(ready.write)
            assert not failed
            self.sent += ready.send
            self.syncs += [w.block for w in ready.write if isinstance(w, Sync)]
            self.reads += [read.offset for read in ready.read]
            self.sent += [(read.peer, read.answer) for read in ready.read]
            for ask in ready.ask if self.disk_answers else ():
                assert isinstance(ask, Recover)
                found = self.store.recover(ask.block, ask.start, ask.is_open)
                self.broker.stored(found, self.now)
            self.sent += ready.after
            self.broker.advance(ready, self.now)

    def sent_to(self, peer: str, kind: type[M]) -> list[M]:
        """Return the messages of a kind that were sent to *peer*."""
        return [m for name, m in self.sent if name == peer and isinstance(m, kind)]

    def last(self, kind: type[M]) -> M:
        """Return the last message of a kind that was sent."""
        return next(m for _, m in reversed(self.sent) if isinstance(m, kind))


def state(
    *replicas: str,
    topic: str = "t",
    topic_id: str = "id-1",
    index: int = 0,
    epoch: int = 1,
    version: int = 1,
    acks: AckMode = AckMode.LEADER,
) -> PartitionState:
    block = BlockNode(0, 0, None, epoch, acks, replicas[0], replicas, replicas)
    return PartitionState(
        topic, topic_id, str(index), index, acks, epoch, replicas[0], TopicConfig(), (block,),
        version=version,
    )  # fmt: skip


def tell(request: int, *states: PartitionState, controller_epoch: int = 1) -> LeaderAndIsr:
    return LeaderAndIsr(request, "zk", controller_epoch, states)


def stop(request: int, partition: str = "0", epoch: int = 1) -> StopReplica:
    return StopReplica(request, 1, "t", "id-1", partition, epoch, True, 0 if partition else -1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_late_state_does_not_bring_back_what_was_stopped(bench: Bench) -> None:
    """A late state does not bring back a removed block, which would start empty and count as in
    sync.
    """
    for which in ("0", ""):
        bench.step("zk", tell(10, state("b0", "b1")))
        bench.step("zk", stop(11, which))
        assert bench.last(Stopped).id == 11
        bench.step("zk", tell(9, state("b0", "b1", version=0)))
        ((_, _, error),) = bench.last(LeaderAndIsrAnswer).errors
        assert isinstance(error, StaleEpoch)
        assert not bench.store.blocks()


def test_a_stopped_partition_comes_back_when_it_is_given_again(bench: Bench) -> None:
    bench.step("zk", tell(10, state("b0", "b1")))
    bench.step("zk", stop(11))
    bench.step("zk", tell(12, state("b0", "b1", epoch=2, version=2)))
    assert bench.last(LeaderAndIsrAnswer).errors == (("t", "0", None),)
    bench.step("zk", stop(8))  # this request is late: the broker hosts the partition again
    bench.step(
        "p", Produce(1, "t", "0", AckMode.LEADER, EncodedBatch.encode([b"x"], timestamp_ms=0))
    )
    assert bench.last(Produced).error is None


def test_a_late_state_of_a_deleted_topic_does_not_replace_the_new_one(bench: Bench) -> None:
    bench.step("zk", tell(10, state("b0")))
    bench.step("zk", tell(12, state("b0", topic_id="id-2")))
    bench.step(
        "p", Produce(1, "t", "0", AckMode.LEADER, EncodedBatch.encode([b"x"], timestamp_ms=0))
    )
    bench.step("zk", tell(11, state("b0", version=3)))
    ((_, _, error),) = bench.last(LeaderAndIsrAnswer).errors
    assert isinstance(error, StaleEpoch)
    assert [block.topic_id for block in bench.store.blocks()] == ["id-2"]


def test_what_a_replaced_zkserver_orders_is_refused_whole(bench: Bench) -> None:
    """E-1: a request with a lower controller epoch changes nothing, however new its states are."""
    bench.step("zk-2", tell(10, state("b0"), controller_epoch=2))
    other = state("b0", topic="u", topic_id="id-2")
    bench.step("zk", tell(99, state("b0", epoch=5, version=5), other, controller_epoch=1))
    answer = bench.last(LeaderAndIsrAnswer)
    assert (type(answer.error), answer.errors) == (StaleControllerEpoch, ())
    bench.step("p", attrs.evolve(PRODUCE, topic="u"))
    assert isinstance(bench.last(Produced).error, NotLeader)
    bench.step("zk-2", tell(11, state("b0", epoch=2, version=2), controller_epoch=2))
    assert bench.last(LeaderAndIsrAnswer).errors == (("t", "0", None),)


def test_a_replaced_zkserver_neither_seals_nor_stops_anything(bench: Bench) -> None:
    bench.step("zk-2", tell(10, state("b0"), controller_epoch=2))
    bench.step("zk", Seal(1, "t", "0", 0, 9))
    bench.step("zk", stop(99, epoch=9))
    bench.step("p", PRODUCE)
    assert bench.last(Produced).error is None
    assert not bench.sent_to("zk", Sealed)
    assert not bench.sent_to("zk", Stopped)


def test_an_order_to_the_life_before_is_not_heard() -> None:
    """E-5: an order for an earlier incarnation does not affect the next one."""
    bench = Bench(incarnation=8)
    bench.step("zk", attrs.evolve(tell(10, state("b0")), incarnation=7))
    bench.step("p", PRODUCE)
    assert isinstance(bench.last(Produced).error, NotLeader)
    assert not bench.sent_to("zk", LeaderAndIsrAnswer)


def test_each_partition_of_an_order_has_an_answer_of_its_own(bench: Bench) -> None:
    """L-10: an error for one partition does not affect the others."""
    bench.step("zk", tell(10, state("b0", epoch=3, version=3)))
    orders = [
        state("b0", epoch=2, version=2),
        state("b1", "b2", topic="u", topic_id="id-2"),
        state("b0", topic="v", topic_id="id-3"),
    ]
    bench.step("zk", tell(11, *orders))
    found = {topic: type(error) for topic, _, error in bench.last(LeaderAndIsrAnswer).errors}
    assert found == {"t": StaleEpoch, "u": UnknownPartition, "v": type(None)}
    for topic, error in (("t", None), ("u", NotLeader), ("v", None)):
        bench.step("p", attrs.evolve(PRODUCE, topic=topic))
        assert isinstance(bench.last(Produced).error, error or type(None))


def test_another_zkserver_begins_its_own_count(bench: Bench) -> None:
    bench.step("zk", tell(10, state("b0")))
    bench.step("zk", stop(11))
    bench.step("zk", tell(7, state("b0", epoch=2, version=2), controller_epoch=2))
    assert bench.last(LeaderAndIsrAnswer).errors == (("t", "0", None),)


def test_pings_do_not_name_partitions_that_are_gone(bench: Bench) -> None:
    """Pings do not become longer with each deleted topic."""
    bench.step("zk", tell(10, state("b0", "b1"), state("b0", "b1", topic="u", topic_id="id-2")))
    bench.step("zk", stop(11))
    bench.tick(1_000)
    assert bench.last(Ping).failed == ()


@pytest.mark.parametrize("count", [1, 200])
def test_brokers_at_rest_ping_each_other_and_look_at_no_partition(
    count: int, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair of brokers may share any number of blocks, and no turn iterates over all of them."""
    names = [f"t{number}" for number in range(count)]
    shared = [state("b1", "b0", topic=n, topic_id=n, acks=AckMode.RAFT) for n in names]
    bench.step("b1", Ping(1))
    bench.step("zk", tell(10, *shared))
    bench.step("b1", Ping(1))
    bench.tick(50)
    bench.sent.clear()
    looks: list[str] = []
    for name in ("tick", "flush", "peer_changed", "is_dirty"):
        inner = Partition.__dict__[name]
        ask = inner.fget if isinstance(inner, property) else inner

        def look(self: Partition, *arguments: Any, name: str = name, ask: Any = ask) -> Any:
            looks.append(name)
            return ask(self, *arguments)

        monkeypatch.setattr(Partition, name, property(look) if ask is not inner else look)
    for _ in range(20):
        bench.tick(50)
        bench.step("b1", Ping(1))
    assert looks == []
    assert [type(m) for name, m in bench.sent if name == "b1"] == [Ping] * 20


def test_others_hear_of_a_block_that_a_disk_has_not_any_more() -> None:
    """Followers learn that the leader's broker is alive but has another disk, and do not wait for
    it forever.

    Found by the simulator: --profile all --seconds 4 --seeds 1040 (and 1895).
    """
    bench = Bench("new disk")
    lost = state("b0", "b1", acks=AckMode.RAFT)
    lost = attrs.evolve(lost, blocks=(attrs.evolve(lost.blocks[0], storages=("old disk", "disk")),))
    bench.step("zk", tell(10, lost, state("b0", "b1", topic="u", topic_id="id-2")))
    bench.tick(1_000)
    assert bench.last(Ping).failed == (lost.block_id(lost.blocks[0]),)
    sealed = attrs.evolve(lost.blocks[0], end=0, in_sync=("b1",))
    opened = attrs.evolve(
        lost.blocks[0], number=1, epoch=2, leader="b1", storages=("new disk", "disk")
    )
    rolled = attrs.evolve(lost, epoch=2, version=2, leader="b1", blocks=(sealed, opened))
    bench.step("zk", tell(11, rolled))
    bench.tick(1_000)
    assert bench.last(Ping).failed == ()


def test_what_a_broker_cannot_act_on_is_told_seldom_where_it_is_much() -> None:
    """If the disk of 10,000 partitions was replaced, a ping that names all of them would have 400
    kB.
    """
    bench, count = Bench("new disk"), 101
    states = [state("b0", "b1", acks=AckMode.RAFT, index=index) for index in range(count)]
    failed = [
        attrs.evolve(s, blocks=(attrs.evolve(s.blocks[0], storages=("old disk", "disk")),))
        for s in states
    ]
    bench.step("zk", tell(10, *failed))
    other = state("b0", "b1", topic="u", topic_id="id-2")
    bench.step("zk", tell(11, other))
    for _ in range(40):
        bench.tick(50)
    pings = bench.sent_to("b1", Ping)
    assert [len(ping.failed) for ping in pings if not ping.omits] == [count, count]
    assert sum(ping.omits for ping in pings) == len(pings) - 2 > 30
    assert not [ping for ping in pings if ping.omits and ping.failed]


def test_what_a_ping_omits_is_as_it_was_told_last(bench: Bench) -> None:
    """A ping may omit a state that was sent before, until the other broker restarts."""
    led = state("b1", "b0", "b2", acks=AckMode.RAFT)
    bench.step("zk", tell(9, state("b0", "b1", topic="u", topic_id="id-2")))
    bench.step("b1", Ping(2, (led.block_id(led.blocks[0]),)))
    bench.step("b1", Ping(2, omits=True))
    assert bench.broker._environment.has_failed("b1", led.block_id(led.blocks[0]))
    bench.step("b1", Ping(3, omits=True))
    assert not bench.broker._environment.has_failed("b1", led.block_id(led.blocks[0]))


def test_a_leader_without_the_disk_is_not_waited_for(bench: Bench) -> None:
    """A follower starts an election if the leader lacks the disk of the block."""
    led = state("b1", "b0", "b2", acks=AckMode.RAFT)
    bench.step("zk", tell(9, state("b0", "b1", topic="u", topic_id="id-2")))
    bench.step("b1", Ping(2, (led.block_id(led.blocks[0]),)))
    bench.step("zk", tell(10, led))
    for _ in range(10):
        bench.step("b1", Ping(2, (led.block_id(led.blocks[0]),)))
        bench.tick(50)
    assert bench.last(RaftVote).block == led.block_id(led.blocks[0])


def test_followers_are_sent_all_of_a_turn_at_once(bench: Bench) -> None:
    """Followers get one message each for all producers of a turn, with the same bytes in it."""
    bench.step("zk", tell(10, state("b0", "b1", "b2", acks=AckMode.RAFT)))
    for peer in ("b1", "b2"):
        bench.step(peer, Ping(2, ()))
    bench.step("p", attrs.evolve(PRODUCE, acks=AckMode.RAFT))
    for peer in ("b1", "b2"):
        (probe,) = bench.sent_to(peer, RaftAppend)
        bench.step(peer, RaftAppended(probe.block, 1, 1, commit=0))
    bench.sent.clear()
    for request in (2, 3, 4):
        more = attrs.evolve(PRODUCE, id=request, acks=AckMode.RAFT)
        bench.broker.step("p", more, bench.now)
    bench.pump()
    (first,), (second,) = (bench.sent_to(peer, RaftAppend) for peer in ("b1", "b2"))
    assert [batch.header.base_offset for batch in split(first.data)] == [1, 2, 3]
    assert second.data is first.data


@pytest.mark.parametrize("is_settled", [True, False])
def test_what_is_kept_no_more_is_nobodys_to_serve(bench: Bench, is_settled: bool) -> None:
    """A leader answers that records were removed, even if only other brokers have the first
    retained block.

    In an earlier version the leader sent readers to those brokers, which sent them back, since only
    a leader may say that records are removed.

    Found by the simulator: --profile all --seconds 4 --seeds 1413.
    """
    found = state("b0", "b1", epoch=2)
    opened = attrs.evolve(found.blocks[0], number=7, start=400)
    sealed = attrs.evolve(opened, number=6, start=324, end=400, epoch=1, in_sync=("b1",))
    bench.disk_answers = is_settled
    bench.step("zk", tell(10, attrs.evolve(found, blocks=(sealed, opened))))
    for number, offset in enumerate((243, 324)):
        bench.step("r", Fetch(number, "t", "0", offset, 1, 1_000))
    if not is_settled:
        assert not [m for _, m in bench.sent if isinstance(m, Fetched)]
        block = found.block_id(opened)
        bench.broker.stored(bench.store.recover(block, 400, True), bench.now)
        bench.pump()
    errors = [m.error for _, m in bench.sent if isinstance(m, Fetched)]
    assert [type(error) for error in errors] == [OffsetOutOfRange, ReplicaNotAvailable]


def test_a_sequence_is_not_told_before_the_log_is_known(bench: Bench) -> None:
    """Before recovery the broker does not answer 0 as the next sequence, or later records would
    count as duplicates.
    """
    bench.step("zk", tell(10, state("b0")))
    batch = EncodedBatch.encode([b"x"] * 3, timestamp_ms=0, producer_id=7, base_sequence=0)
    bench.step("p", Produce(1, "t", "0", AckMode.LEADER, batch))
    bench.broker.shut_down(0)
    bench.pump()
    store, bench = bench.store, Bench()
    bench.store, bench.disk_answers = store, False
    bench.step("zk", tell(10, state("b0")))
    bench.step("p", GetSequence(2, "t", "0", 7))
    answer = bench.last(Sequence)
    assert answer.error is not None
    assert answer.error.retriable


def test_a_sequence_is_told_once_its_records_are_safe(bench: Bench) -> None:
    """The answer with the next sequence waits until the records are safe: records of a leader alone
    may be lost.
    """
    found = state("b0", "b1", "b2", acks=AckMode.RAFT)
    bench.step("zk", tell(10, found))
    batch = EncodedBatch.encode([b"x"] * 3, timestamp_ms=0, producer_id=7, base_sequence=0)
    bench.step("p", Produce(1, "t", "0", AckMode.RAFT, batch))
    bench.step("p", GetSequence(2, "t", "0", 7))
    assert not bench.sent_to("p", Sequence)
    bench.step("b1", RaftAppended(found.block_id(found.blocks[-1]), 1, 3, 0))
    assert [(m.next_sequence, m.error) for m in bench.sent_to("p", Sequence)] == [(3, None)]


def test_another_is_elected_before_the_appointed_leader_has_begun(bench: Bench) -> None:
    """Waiting requests get NotLeader when another broker is elected before the appointed one."""
    found = state("b0", "b1", "b2", acks=AckMode.RAFT)
    block = found.block_id(found.blocks[-1])
    bench.disk_answers = False
    bench.step("zk", tell(10, found))
    # the state is not saved yet
    bench.broker.stored(bench.store.recover(block, 0, True), bench.now)
    bench.broker.step("p", attrs.evolve(PRODUCE, acks=AckMode.RAFT), bench.now)
    bench.broker.step("b1", RaftVote(block, 2, 0, 0, pre=False), bench.now)
    bench.pump()
    (answer,) = bench.sent_to("p", Produced)
    assert isinstance(answer.error, NotLeader)


def test_another_zkserver_may_leave_a_block_to_its_leader(bench: Bench) -> None:
    """A replica follows its leader again when another zkserver cancels a take-over."""
    found = state("b1", "b0")
    bench.step("zk", tell(10, found))
    bench.step("zk", Seal(1, "t", "0", 0, 2, takeover=True))
    assert bench.sent_to("zk", Sealed)
    bench.sent.clear()
    bench.tick(5_000)
    assert not bench.sent_to("b1", ReplicaFetch)
    bench.step("zk", tell(12, found))  # The zkserver has only repeated its earlier state.
    bench.tick(5_000)
    assert not bench.sent_to("b1", ReplicaFetch)
    bench.step("zk-2", tell(1, found, controller_epoch=2))
    bench.tick(5_000)
    assert bench.sent_to("b1", ReplicaFetch)


def test_what_was_asked_in_another_life_is_not_answered_in_this_one() -> None:
    """A restarted broker ignores late answers to requests of its earlier incarnation.

    Otherwise the broker would read the offsets of groups from a later place of the log, and skip
    the offsets before.
    """
    found = state("b0", topic=OFFSETS_TOPIC, epoch=2)
    opened = attrs.evolve(found.blocks[0], number=1, start=400)
    sealed = attrs.evolve(found.blocks[0], end=400, replicas=("b1",), in_sync=("b1",))
    asked: list[list[int]] = []
    for incarnation in (7, 8):
        bench = Bench(incarnation=incarnation)
        for epoch in (2, 4):
            here = attrs.evolve(found, epoch=epoch, version=epoch, blocks=(sealed, opened))
            order = attrs.evolve(tell(10 * epoch, here), incarnation=incarnation)
            bench.step("zk", order)
            gone = StopReplica(10 * epoch + 1, 1, OFFSETS_TOPIC, "id-1", "0", epoch, False, 0)
            bench.step("zk", gone)
            # in each millisecond a broker handles one part of the coordinators' reads
            bench.tick(1)
        asked.append([fetch.id for fetch in bench.sent_to("b1", Fetch)])
    first, second = asked
    assert len(first) == len(second) == 2
    assert len({*first, *second}) == 4


@pytest.mark.parametrize("is_stopped", [False, True])
def test_groups_go_with_the_leadership_of_their_partition(is_stopped: bool, bench: Bench) -> None:
    """A leader loads the groups of its partition.

    When a leader is replaced, it answers the waiting requests of the groups.
    """
    found = state("b0", "b1", topic=OFFSETS_TOPIC)
    bench.step("c", Join(1, "g", "m", "t", ("0",), "sticky", 10_000, 1_000, 0, BEGIN))
    assert isinstance(bench.last(Assigned).error, NotLeader)
    bench.step("zk", tell(10, found))
    bench.step("c", Join(2, "g", "m", "t", ("0",), "sticky", 10_000, 1_000, 0, BEGIN))
    assert bench.last(Assigned).partitions == ("0",)
    bench.step("c", Acquire(3, "g", "m", (("0", 0, 0),), 5, 60_000))
    assert not bench.sent_to("c", Acquired)
    sealed = attrs.evolve(found.blocks[0], end=0)
    opened = attrs.evolve(found.blocks[0], number=1, epoch=2, leader="b1")
    gone = attrs.evolve(found, epoch=2, version=2, leader="b1", blocks=(sealed, opened))
    bench.step("zk", attrs.evolve(stop(11), topic=OFFSETS_TOPIC) if is_stopped else tell(11, gone))
    assert [(m.id, type(m.error)) for m in bench.sent_to("c", Acquired)] == [(3, NotLeader)]
    bench.step("c", Heartbeat(4, "g", "m", ("0",)))
    assert isinstance(bench.last(Assigned).error, NotLeader)


def test_only_coordinators_write_offsets(bench: Bench) -> None:
    """Only coordinators may write offsets, because an invalid record could break every coordinator
    that reads it.
    """
    bench.step("zk", tell(10, state("b0", topic="__consumer_offsets")))
    bench.step("p", attrs.evolve(PRODUCE, topic="__consumer_offsets"))
    assert isinstance(bench.last(Produced).error, InvalidRequest)


def test_a_search_that_is_answered_at_once_leaves_nothing_behind(bench: Bench) -> None:
    """A search that is answered leaves nothing in memory, since clients ask often and a broker runs
    for months.
    """
    bench.step("zk", tell(10, state("b1", "b0")))
    for request in range(3):
        bench.step("c", FindOffset(request, "t", "0", 0))
        assert isinstance(bench.last(OffsetFound).error, NotLeader)
    assert not bench.broker._environment.searches


def test_an_answer_that_nobody_asked_for_does_no_harm(bench: Bench) -> None:
    """A late or forged answer is ignored; without access control any node may send one."""
    for partition in ("0", "", "x", "-1", "²"):
        bench.step("c", Fetched(1, "__consumer_offsets", partition, 0, 0, 0))


def test_a_checkpoint_of_another_version_fails_one_partition_and_not_the_broker(
    bench: Bench,
) -> None:
    block = BlockId("id-1", 0, 0)
    bench.store.write([CreateBlock(block, 0, "t", "0"), Checkpoint(block, b"of the future")])
    bench.step("zk", tell(10, state("b0")))
    bench.step("p", PRODUCE)
    assert isinstance(bench.last(Produced).error, CorruptMetadata)
    bench.step("zk", tell(11, state("b0", topic="u", topic_id="id-2")))
    bench.step("p", attrs.evolve(PRODUCE, id=2, topic="u"))
    assert bench.last(Produced) == Produced(2, 0, 1)


def test_a_checkpoint_of_another_version_in_a_sealed_copy_fails_its_readers_alone(
    bench: Bench,
) -> None:
    """A damaged checkpoint of a sealed copy does not affect the open block, and the copy is fetched
    again.
    """
    block = BlockId("id-1", 0, 0)
    bench.store.write([CreateBlock(block, 0, "t", "0"), Checkpoint(block, b"of the future")])
    (last,) = state("b0").blocks
    sealed = attrs.evolve(last, end=1, replicas=("b1", "b0"), in_sync=("b1",))
    blocks = (sealed, attrs.evolve(last, number=1, start=1))
    bench.step("zk", tell(10, attrs.evolve(state("b0"), blocks=blocks)))
    bench.step("p", PRODUCE)
    assert bench.last(Produced) == Produced(1, 1, 1)
    assert {fetch.offset for fetch in bench.sent_to("b1", ReplicaFetch)} == {0}


def test_a_seal_of_another_topic_of_the_name_is_not_heeded(bench: Bench) -> None:
    """A late seal of a deleted topic does not affect the new topic of its name."""
    bench.step("zk", tell(10, state("b0")))
    bench.step("zk", Seal(1, "t", "0", 0, 2, topic_id="id-0"))
    bench.step("p", PRODUCE)
    assert bench.last(Produced) == Produced(1, 0, 1)
    bench.step("zk", Seal(1, "t", "0", 0, 2, topic_id="id-1"))
    bench.step("p", attrs.evolve(PRODUCE, id=2))
    assert bench.last(Produced).id == 1


def test_what_waits_for_the_next_block_is_bounded(bench: Bench) -> None:
    """The number of batches that wait for the next block is bounded, because the zkserver may be
    away for hours.
    """
    bench.step("zk", tell(10, state("b0")))
    bench.step("zk", Seal(1, "t", "0", 0, 2))
    big = EncodedBatch.encode([bytes(1 << 20)], timestamp_ms=0)
    for request in range(60):
        acks = AckMode.NONE if request % 2 else AckMode.LEADER
        bench.step("p", Produce(request, "t", "0", acks, big))
    refused = [m for _, m in bench.sent if isinstance(m, Produced)]
    assert refused, "all of it is kept"
    assert all(m.error is not None and m.error.retriable for m in refused)
    bench.step("p", attrs.evolve(PRODUCE, id=99))  # no later batch may overtake a refused one
    assert bench.last(Produced).id == 99
    assert bench.last(Produced).error is not None
    (first,) = state("b0").blocks
    following = attrs.evolve(first, number=1, epoch=2)
    bench.step("zk", tell(11, attrs.evolve(state("b0", epoch=2, version=2), blocks=(following,))))
    done = [m for _, m in bench.sent if isinstance(m, Produced) and m.error is None]
    assert [m.id for m in done] == list(range(0, 2 * len(done), 2))
    assert len(done) + len(refused) == 30
    bench.step("p", attrs.evolve(PRODUCE, id=100))
    assert bench.last(Produced).error is None


def test_no_fetch_waits_for_ever(bench: Bench) -> None:
    """A fetch ends after a time, since a broker does not learn that its client has died."""
    bench.step("zk", tell(10, state("b0")))
    for request in range(3):
        bench.step("c", Fetch(request, "t", "0", 0, 1, 1 << 62))
    bench.tick(60_000)
    assert [m.id for _, m in bench.sent if isinstance(m, Fetched)] == [0, 1, 2]


def test_a_fetch_that_waited_for_room_is_served_by_what_the_partition_is_then() -> None:
    """When a waiting fetch is served, the partition's present state counts: its block may have been
    moved or removed.
    """
    bench = Bench(fetches=FetchLimits(turn_bytes=100))
    bench.step("zk", tell(10, state("b0")))
    bench.step("p", PRODUCE)
    for request in range(3):
        bench.step("c", Fetch(request, "t", "0", 0, 100, 0))
    assert bench.reads == [0], "each of them fills a turn"
    bench.tick(1)
    assert bench.reads == [0, 0]
    bench.step("zk", stop(11, epoch=2))
    bench.tick(1)
    assert bench.reads == [0, 0]
    last = bench.last(Fetched)
    assert (last.id, type(last.error)) == (2, NotLeader)
    assert bench.broker.deadline > bench.now, "nothing waits any more"


def test_a_client_has_so_many_fetches_waiting_and_no_more() -> None:
    """A client's waiting fetches are bounded; a refused fetch may be retried.

    Coordinators and brokers do not count.
    """
    bench = Bench(fetches=FetchLimits(turn_bytes=100, waiting=2))
    bench.step("zk", tell(10, state("b0")))
    bench.step("p", PRODUCE)
    for request in range(5):
        bench.step("c", Fetch(request, "t", "0", 0, 100, 0))
    refused = [m for m in bench.sent_to("c", Fetched) if m.error is not None]
    assert [m.id for m in refused] == [3, 4]
    assert all(isinstance(m.error, QuotaExceeded) and m.error.retry_ms for m in refused)
    for _ in range(3):
        bench.tick(1)
    assert sorted(m.id for m in bench.sent_to("c", Fetched)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("most", [0, -1, -(1 << 40)])
def test_who_asks_for_no_bytes_gets_none(bench: Bench, most: int) -> None:
    """A fetch of 0 bytes returns nothing, since it is not charged."""
    bench.step("zk", tell(10, state("b0")))
    bench.step("p", PRODUCE)
    bench.step("c", Fetch(1, "t", "0", 0, most, 0))
    assert (bench.last(Fetched).id, bench.last(Fetched).error, bench.reads) == (1, None, [])


def test_the_end_is_the_one_at_the_time_of_asking(bench: Bench) -> None:
    """A fetch of the end returns the present end at once; it does not wait for a record there."""
    bench.step("zk", tell(10, state("b0")))
    bench.step("c", Fetch(1, "t", "0", END, 1000, 5_000))
    bench.step("p", PRODUCE)
    assert (bench.last(Fetched).id, bench.last(Fetched).offset) == (1, 0)
    assert bench.reads == [0]


def test_who_asks_for_the_end_before_it_is_known_waits_for_it(bench: Bench) -> None:
    bench.disk_answers = False
    bench.step("zk", tell(10, state("b0")))
    for request in (1, 2):
        bench.step("c", Fetch(request, "t", "0", END, 1000, 5_000))
    bench.broker.stored(bench.store.recover(BlockId("id-1", 0, 0), 0, True), bench.now)
    bench.pump()
    assert not [m for _, m in bench.sent if isinstance(m, Fetched)]
    bench.step("p", PRODUCE)
    assert bench.reads == [0, 0]


def test_an_interval_after_a_write_it_is_synced(bench: Bench) -> None:
    """One sync covers all writes of an interval, and a block without new writes is not synced
    again.
    """
    config = TopicConfig(fsync="interval", fsync_interval_ms=100)
    bench.step("zk", tell(10, attrs.evolve(state("b0"), config=config)))
    bench.step("p", PRODUCE)
    bench.tick(60)
    bench.step("p", PRODUCE)
    bench.tick(39)
    assert not bench.syncs
    bench.tick(1)
    bench.tick(1_000)
    assert bench.syncs == [BlockId("id-1", 0, 0)]
    bench.step("p", PRODUCE)
    bench.tick(100)
    assert len(bench.syncs) == 2


@pytest.mark.parametrize("end", [1, 5], ids=["whole", "in part"])
def test_a_partition_that_is_given_up_in_the_middle_of_a_repair_is_gone(
    bench: Bench, end: int
) -> None:
    """The repair of a removed partition ends: the broker sends no more requests or reports for its
    blocks.
    """
    one = state("b0", "b1")
    sealed = attrs.evolve(one.blocks[0], end=end, in_sync=("b1",))
    opened = attrs.evolve(one.blocks[0], number=1, start=end, epoch=2, leader="b1")
    bench.step("zk", tell(1, attrs.evolve(one, epoch=2, leader="b1", blocks=(sealed, opened))))
    ask = next(m for m in bench.sent_to("b1", ReplicaFetch) if m.block.number == 0)
    batch = EncodedBatch.encode([b"x"], timestamp_ms=0).stamp(0, 1, 0)
    data = bytes(batch.head) + bytes(batch.body)
    broker = bench.broker
    broker.step("b1", ReplicaFetched(ask.id, ask.block, 0, 0, 0, data), 0)
    ready = broker.ready(0)
    assert ready is not None
    bench.store.write(ready.write)
    broker.step("zk", stop(2, epoch=2), 0)
    broker.advance(ready, 0)
    bench.pump()
    assert bench.last(Stopped).id == 2
    bench.sent.clear()
    for _ in range(10):
        bench.tick(1_000)
    assert not bench.sent


def test_what_is_said_of_another_topic_of_that_name_is_refused(bench: Bench) -> None:
    """A late request for a deleted topic is refused, and does not affect the recreated topic."""
    bench.step("zk", tell(10, state("b0", topic_id="id-2")))
    numbered = EncodedBatch.encode([b"x"], timestamp_ms=0, producer_id=7, base_sequence=0)
    for topic_id in ("id-1", "id-3"):
        for request in (
            Produce(1, "t", "0", AckMode.LEADER, numbered, topic_id=topic_id),
            GetSequence(2, "t", "0", 7, topic_id),
            Fetch(3, "t", "0", 0, 1, 0, topic_id=topic_id),
            FindOffset(4, "t", "0", 0, topic_id),
        ):
            bench.sent.clear()
            bench.step("p", request)
            ((_, answer),) = bench.sent
            assert isinstance(answer, (Produced, Sequence, Fetched, OffsetFound))
            assert answer.id == request.id
            assert isinstance(answer.error, NotLeader)
            told: dict[str, object] = {"leader": None, "topic_id": "id-2"}
            if isinstance(answer, Produced):
                told["is_written"] = False
            assert answer.error.details == told
    for number, topic_id in enumerate(("id-2", "")):  # another topic id, or none
        batch = EncodedBatch.encode([b"x"], timestamp_ms=0)
        bench.step("p", Produce(5, "t", "0", AckMode.LEADER, batch, topic_id=topic_id))
        assert (bench.last(Produced).base_offset, bench.last(Produced).error) == (number, None)


def test_what_an_unclean_election_has_lost_is_not_counted_on_in_the_next_block(
    bench: Bench,
) -> None:
    """The next block does not rely on offsets that an unclean election has lost: readers would skip
    records.
    """
    before = state("b0", "b1")
    bench.step("zk", tell(10, before))
    for request in range(3):
        bench.step("p", attrs.evolve(PRODUCE, id=request))
    block = BlockId("id-1", 0, 0)
    bench.step("b1", ReplicaFetch(1, block, 3, 1, 1, 1 << 20, 0))
    bench.broker.stored(WriteFailed(block, StoreFull("no room"), False), bench.now)
    lost = attrs.evolve(before.blocks[0], end=1, in_sync=("b1",), is_unclean=True)
    then = BlockNode(1, 1, None, 2, AckMode.LEADER, "b0", ("b0", "b1"), ("b0", "b1"))
    after = attrs.evolve(before, epoch=2, version=2, blocks=(lost, then))
    bench.step("zk", tell(11, after))
    bench.step("c", Fetch(7, "t", "0", END, 0, 0))
    answer = bench.last(Fetched)
    assert (answer.id, answer.error, answer.offset, answer.high_watermark) == (7, None, 1, 1)
