"""R: the cost of unused partitions: three brokers in one process, in virtual time.

Messages are passed directly, and the clock jumps to the next deadline. So this benchmark measures
the CPU time of the state machines over a number of virtual seconds.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.model import At, Goal, Job, Measures, Part, Side, Unit, resident_bytes

if TYPE_CHECKING:
    from pymq.broker.broker import BrokerMachine
    from pymq.core.message import Message
    from pymq.core.metadata.nodes import PartitionState
    from pymq.core.types import AckMode

MANY = 10_000
SOME = 500
IDLE_MS = 20_000
SETTLE_MS = 2_000
BROKERS = ("b0", "b1", "b2")


class Cluster:
    """Brokers with disks in memory, and a zkserver that only sends one state for each partition."""

    def __init__(self) -> None:
        import random

        from pymq.broker.broker import BrokerMachine
        from pymq.broker.registration import BrokerConfig
        from pymq.hash.assign import assignor
        from pymq.replication.factory import replicator
        from pymq.store.memory import MemoryStore

        self.now = 0
        self.messages = 0
        self.stores = {name: MemoryStore() for name in BROKERS}
        self.brokers = {
            name: BrokerMachine(
                BrokerConfig(name, ("zk",)), replicator, assignor, random.Random(name), (), (), 0
            )
            for name in BROKERS
        }

    def step(self, source: str, broker: str, message: Message) -> None:
        """Deliver a message to a broker, and run all work that follows."""
        self.brokers[broker].step(source, message, self.now)
        self._settle()

    def run(self, milliseconds: int) -> None:
        """Let time pass."""
        end = self.now + milliseconds
        while (due := min(broker.deadline for broker in self.brokers.values())) <= end:
            self.now = max(self.now, due)
            for broker in self.brokers.values():
                if broker.deadline <= self.now:
                    broker.tick(self.now)
            self._settle()
        self.now = end

    def _settle(self) -> None:
        is_busy = True
        while is_busy:
            is_busy = False
            for name, broker in self.brokers.items():
                is_busy |= self._act(name, broker)

    def _act(self, name: str, broker: BrokerMachine) -> bool:
        from pymq.core.ready import Recover

        ready = broker.ready(self.now)
        if ready is None:
            return False
        store = self.stores[name]
        if store.write(ready.write):
            raise RuntimeError("a disk in memory has failed")
        for ask in ready.ask:
            if isinstance(ask, Recover):
                broker.stored(store.recover(ask.block, ask.start, ask.is_open), self.now)
        for peer, message in [*ready.send, *ready.after]:
            if peer in self.brokers:
                self.messages += 1
                self.brokers[peer].step(name, message, self.now)
        broker.advance(ready, self.now)
        return True


def _state(index: int, acks: AckMode) -> PartitionState:
    from pymq.core.metadata.nodes import BlockNode, PartitionState
    from pymq.core.metadata.topic_config import TopicConfig

    turn = index % len(BROKERS)
    replicas = BROKERS[turn:] + BROKERS[:turn]
    block = BlockNode(0, 0, None, 1, acks, replicas[0], replicas, replicas)
    name = str(index)
    return PartitionState("t", "id", name, index, acks, 1, replicas[0], TopicConfig(), (block,))


def _idle(job: Job, usual: int, mode: int) -> Measures:
    from pymq.core.batch.record import EncodedBatch
    from pymq.core.message import LeaderAndIsr, Produce
    from pymq.core.types import AckMode

    count = min(usual, job.pick(tiny=50, default=MANY))
    acks = AckMode(mode)
    states = tuple(_state(index, acks) for index in range(count))
    cluster = Cluster()
    before = resident_bytes()
    for name in BROKERS:
        cluster.step("zk", name, LeaderAndIsr(1, "zk", 1, states, full=True))
    batch = EncodedBatch.encode([b"x"], timestamp_ms=0)
    # put a record into each partition: an empty partition costs even less
    for index in range(count):
        leader = BROKERS[index % len(BROKERS)]
        cluster.step("p", leader, Produce(index, "t", str(index), acks, batch))
    cluster.run(SETTLE_MS)
    used = resident_bytes() - before
    messages, start = cluster.messages, time.process_time()
    cluster.run(IDLE_MS)
    cpu = time.process_time() - start
    each = len(BROKERS) * IDLE_MS / 1000
    return {
        "idle": 100 * cpu / each,
        "memory": used / 1024 / count / len(BROKERS),
        "messages": (cluster.messages - messages) / each,
    }


def _side(name: str, usual: int, mode: int, said: str) -> Side:
    return Side(
        name, f"{usual:,} {said}, with a record in each", partial(_idle, usual=usual, mode=mode)
    )


RAFT = "raft many"
PARTS = (
    Part(
        "R-idle",
        "what idle partitions with three replicas take of each broker, without the network",
        (
            _side(RAFT, MANY, -1, "Raft partitions"),
            _side("raft one", 1, -1, "Raft partition"),
            # Each follower fetches twice a second, so the cost grows with the number of partitions.
            _side("fetch some", SOME, 1, "partitions with followers that fetch"),
        ),
        (Goal(At(RAFT, "idle"), at_most=2),),
        {
            "idle": Unit("% of a core", False),
            "memory": Unit("KiB/partition", False),
            "messages": Unit("messages/s", False),
        },
        runs_max=2,
    ),
)
