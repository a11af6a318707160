"""A broker with an empty disk gets thousands of sealed blocks from brokers that have other work,
too.
"""

from __future__ import annotations

import random

import attrs
import pytest

from pymq.broker.broker import BrokerMachine
from pymq.broker.registration import BrokerConfig
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.replicator import ReplicationConfig
from pymq.core.message import (
    LeaderAndIsr,
    Message,
    Progress,
    ReplicaFetch,
    ReplicaFetched,
    StopReplica,
)
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.ready import Append, CreateBlock, FindTime, Ready, SealBlock
from pymq.core.types import AckMode, BlockId
from pymq.errors import PymqError
from pymq.hash.assign import assignor
from pymq.replication.factory import replicator
from pymq.store.memory import MemoryStore

CONFIG = ReplicationConfig()
PARTITIONS = 2
BLOCKS = 1_000  # sealed blocks of each partition
ZK = "zk"
TELL_MS = 100  # delay after which the other nodes learn of complete copies


class World:
    """Three brokers: b0 has nothing, the others have all sealed blocks.

    A message takes a millisecond, and a disk no time. A broker in *down* neither receives nor
    sends.
    """

    def __init__(self) -> None:
        self.now = 0
        self.down: set[str] = set()
        self.stores = {name: MemoryStore() for name in ("b0", "b1", "b2")}
        self.wire: list[tuple[str, str, Message]] = []
        # unanswered requests of b0, with the broker that got each
        self.out: dict[BlockId, str] = {}
        self.most_out = 0
        self.asks = 0
        self.most_read = 0  # largest number of bytes of sealed blocks read in one turn
        # complete blocks as reported to the zkserver, with the end of each
        self.whole: dict[tuple[str, int], int] = {}
        self.tell_at: int | None = None
        self.states = [self.state(index) for index in range(PARTITIONS)]
        for name in ("b1", "b2"):
            self.copy(self.stores[name])
        self.brokers = {name: self.start(name) for name in self.stores}
        for name in self.stores:
            self.wire.append((name, ZK, LeaderAndIsr(1, ZK, 1, tuple(self.states))))

    def state(self, index: int) -> PartitionState:
        holders, all_of_them = ("b1", "b2"), ("b1", "b2", "b0")
        sealed = tuple(
            BlockNode(n, n, n + 1, 1, AckMode.LEADER, None, all_of_them, holders)
            for n in range(BLOCKS)
        )
        last = BlockNode(
            BLOCKS, BLOCKS, None, 2, AckMode.LEADER, "b1", all_of_them, holders
        )  # fmt: skip
        return PartitionState(
            "t", "id", str(index), index, AckMode.LEADER, 2, "b1", TopicConfig(), (*sealed, last),
            version=1,
        )  # fmt: skip

    def copy(self, store: MemoryStore) -> None:
        for state in self.states:
            for block in state.blocks[:-1]:
                name = state.block_id(block)
                batch = EncodedBatch.encode([b"%d" % block.start], timestamp_ms=0)
                made = CreateBlock(name, block.start, "t", state.partition)
                stamped = batch.stamp(block.start, 1, 0)
                store.write([made, Append(name, [stamped], sync=False), SealBlock(name)])

    def start(self, name: str) -> BrokerMachine:
        config = BrokerConfig(name, (ZK,))
        return BrokerMachine(config, replicator, assignor, random.Random(0), (), (), self.now)

    # --- what happens ---------------------------------------------------------------------------

    def run(self, ms: int) -> bool:
        """Let *ms* milliseconds pass, or fewer if b0 gets everything before.

        Returns whether it has everything.
        """
        for _ in range(ms):
            self.now += 1
            arrived, self.wire = self.wire, []
            for to, source, message in arrived:
                if source not in self.down:
                    self.deliver(to, source, message)
            if self.now == self.tell_at:
                self.tell()
            for name, broker in self.brokers.items():
                if name not in self.down:
                    if broker.deadline <= self.now:
                        broker.tick(self.now)
                    self.pump(name, broker)
            self.most_out = max(self.most_out, len(self.out))
            if len(self.whole) == PARTITIONS * BLOCKS:
                return True
        return False

    def deliver(self, to: str, source: str, message: Message) -> None:
        if to == ZK:
            if isinstance(message, Progress):
                for _, partition, number, end in message.ends:
                    self.whole[partition, number] = end
                self.tell_at = self.tell_at or self.now + TELL_MS
        elif to in self.down:
            self.out = {block: who for block, who in self.out.items() if who != to}
        else:
            if isinstance(message, ReplicaFetched):
                self.out.pop(message.block, None)
            self.brokers[to].step(source, message, self.now)

    def tell(self) -> None:
        """Send b0 the zkserver's state of its blocks."""
        self.tell_at = None
        for index, state in enumerate(self.states):
            blocks = tuple(
                attrs.evolve(block, in_sync=("b1", "b2", "b0"))
                if (state.partition, block.number) in self.whole
                else block
                for block in state.blocks
            )
            self.states[index] = attrs.evolve(state, blocks=blocks, version=state.version + 1)
        message = LeaderAndIsr(self.now, ZK, 1, tuple(self.states))
        self.wire.append(("b0", ZK, message))

    def pump(self, name: str, broker: BrokerMachine) -> None:
        store, read_bytes = self.stores[name], 0
        while (ready := broker.ready(self.now)) is not None:
            assert store.write(ready.write) == []
            for peer, message in (*ready.send, *ready.after):
                if isinstance(message, ReplicaFetch) and message.leader_epoch == 0:
                    self.out[message.block] = peer
                    self.asks += 1
                self.wire.append((peer, name, message))
            read_bytes += self.read(name, ready)
            for ask in ready.ask:
                assert not isinstance(ask, FindTime)
                broker.stored(store.recover(ask.block, ask.start, ask.is_open), self.now)
            broker.advance(ready, self.now)
        self.most_read = max(self.most_read, read_bytes)

    def read(self, name: str, ready: Ready) -> int:
        found = 0
        for read in ready.read:
            try:
                store = self.stores[name]
                data = store.read(read.block, read.offset, read.end, read.max_bytes)
                answer: Message = attrs.evolve(read.answer, data=data)
            except PymqError as error:
                answer = attrs.evolve(read.answer, error=error)
            self.wire.append((read.peer, name, answer))
            found += read.max_bytes
        return found

    def check(self) -> None:
        """Check that b0 has the same records as the others."""
        mine, theirs = self.stores["b0"], self.stores["b2"]
        for state in self.states:
            for block in state.blocks[:-1]:
                name = state.block_id(block)
                span = block.start, block.start + 1, 1 << 20
                assert self.whole[state.partition, block.number] == block.end
                assert len(mine.read(name, *span)) == len(theirs.read(name, *span))


@pytest.fixture
def world() -> World:
    return World()


def test_a_broker_with_an_empty_disk_asks_for_a_few_blocks_at_a_time(world: World) -> None:
    """A broker requests few blocks at a time, so their holders read a bounded part in each turn."""
    assert world.run(5_000)
    world.check()
    assert world.most_out == CONFIG.repairs
    assert world.most_read <= CONFIG.repairs * CONFIG.append_bytes
    assert world.asks == PARTITIONS * BLOCKS  # each part was requested once


def test_who_holds_the_blocks_dies_meanwhile(world: World) -> None:
    """If a holder dies, the repairs ask other holders, without waiting for a timeout at the dead
    one for each block.
    """
    assert not world.run(200)
    assert 0 < len(world.whole) < PARTITIONS * BLOCKS
    world.down = {"b1"}
    assert world.run(5_000)
    world.check()
    assert world.most_out == CONFIG.repairs


def test_nobody_who_holds_the_blocks_is_there_for_a_while(world: World) -> None:
    """Absent holders are asked with growing pauses, and the repair continues when one is back."""
    world.run(100)
    world.down = {"b1", "b2"}
    world.run(10_000)
    asks = world.asks
    assert not world.run(10_000)
    assert world.asks - asks <= 2 * 2 * 10_000 / (50 * CONFIG.retry_ms)
    world.down = {"b1"}
    assert world.run(20_000)
    world.check()


def test_a_partition_that_is_given_up_leaves_its_slots_to_others(world: World) -> None:
    world.run(20)
    state = world.states.pop(0)
    stop = StopReplica(10_000, 1, "t", "id", state.partition, state.epoch, True, state.index)
    world.wire.append(("b0", ZK, stop))
    world.whole.update({(state.partition, n): n + 1 for n in range(BLOCKS)})
    world.run(2)
    world.out = {block: who for block, who in world.out.items() if block.partition != state.index}
    assert world.run(5_000)
    world.check()
    assert world.most_out == CONFIG.repairs


def test_who_is_asked_for_much_at_once_reads_it_turn_by_turn(world: World) -> None:
    """A holder reads a bounded part in each turn, for any number and size of requests."""
    world.run(5)
    world.most_read = 0
    fetches = [ReplicaFetch(1, BlockId("id", 0, n), n, 0, 0, 1 << 20, 0) for n in range(100)]
    world.wire += [("b1", "b9", fetch) for fetch in fetches + fetches]
    answers: list[ReplicaFetched] = []
    turns = 0
    world.down = {"b0"}
    while len(answers) < len(fetches):
        world.run(1)
        got = [m for to, _, m in world.wire if to == "b9" and isinstance(m, ReplicaFetched)]
        world.wire = [each for each in world.wire if each[0] != "b9"]
        answers += got
        turns += bool(got)
        assert world.now < 100
    assert [m.block.number for m in answers] == list(range(100))
    assert all(m.data for m in answers)
    assert world.most_read == CONFIG.lend_bytes
    assert turns == 7


def test_who_does_not_host_the_partition_says_so(world: World) -> None:
    """A broker answers at once that it does not host the partition."""
    world.run(5)
    world.wire.append(("b1", "b9", ReplicaFetch(1, BlockId("other", 0, 0), 0, 0, 0, 1, 0)))
    world.run(1)
    ((_, _, answer),) = [each for each in world.wire if each[0] == "b9"]
    assert isinstance(answer, ReplicaFetched)
    assert answer.error is not None
