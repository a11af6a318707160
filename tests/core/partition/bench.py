"""A partition on one broker, with a store in memory, driven step by step."""

from __future__ import annotations

from typing import TypeVar

import attrs

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Message, Produce, Produced, Seal
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.partition.partition import Partition
from pymq.core.ready import Ready, Recover, RecoverFailed, WriteFailed
from pymq.core.types import AckMode
from pymq.errors import PymqError, StoreError
from pymq.replication.factory import replicator
from pymq.store.memory import MemoryStore
from tests.core.partition import test_maintenance

M = TypeVar("M")
BROKEN = StoreError("cannot write")


class Host(test_maintenance.Host):
    """A broker that records the messages of its partition."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[Message] = []
        self.reports: list[Message] = []  # messages to the controller
        self.sent: list[tuple[str, Message]] = []  # messages to other brokers
        self.led: list[bool] = []  # whether the replica leads, at each change of its role

    def reply(self, source: str, message: Message, now: int) -> None:
        self.replies.append(message)

    def send(self, peer: str, message: Message) -> None:
        self.sent.append((peer, message))

    def tell_controller(self, message: Message) -> None:
        self.reports.append(message)

    def shares(self, partition: Partition, now: int) -> None:
        pass

    def role_changed(self, partition: Partition, now: int) -> None:
        self.led.append(partition.leads)


def state(
    *replicas: str, acks: AckMode = AckMode.LEADER, leader: str = "me", number: int = 0
) -> PartitionState:
    """Return a partition with one open block, on this broker alone unless *replicas* are given."""
    names = replicas or ("me",)
    block = BlockNode(number, 0, None, 1, acks, leader, names, names)
    return PartitionState("t", "ef" * 16, "0", 0, acks, 1, leader, TopicConfig(), (block,))


def rolled(before: PartitionState, end: int) -> PartitionState:
    """Return the partition after a roll that sealed its open block at *end*."""
    last = before.blocks[-1]
    sealed = attrs.evolve(last, end=end)
    opened = attrs.evolve(last, number=last.number + 1, start=end, epoch=before.epoch + 1)
    blocks = (*before.blocks[:-1], sealed, opened)
    return attrs.evolve(before, epoch=before.epoch + 1, blocks=blocks)


def batch(count: int = 1, *, producer: int = -1, sequence: int = 0) -> EncodedBatch:
    """Return a batch of a producer."""
    values = [b"%d" % number for number in range(count)]
    if producer < 0:
        return EncodedBatch.encode(values, timestamp_ms=0)
    return EncodedBatch.encode(
        values, timestamp_ms=0, producer_id=producer, producer_epoch=0, base_sequence=sequence
    )


class Bench:
    """A partition and its store; time passes only on request of the test."""

    def __init__(self, first: PartitionState | None = None) -> None:
        self.host = Host()
        self.store = MemoryStore()
        self.now = 0
        self.partition = Partition(first or state(), self.host, replicator, frozenset(), 0)

    # --- the store ------------------------------------------------------------------------------

    def recover(self, error: Exception | None = None) -> int:
        """Complete the store's pending recoveries, or fail them; returns how many there were."""
        asks, self.host.out.ask = self.host.out.ask, []
        for ask in asks:
            assert isinstance(ask, Recover)
            found = self.store.recover(ask.block, ask.start, ask.is_open)
            if error is not None:
                found = RecoverFailed(ask.block, error)
            if isinstance(found, RecoverFailed):
                self.partition.recover_failed(found, self.now)
            else:
                self.partition.recovered(found, self.now)
        return len(asks)

    def begin_write(self) -> Ready:
        """Take the pending write out of the partition."""
        ready, self.host.out = self.host.out, Ready()
        if self.partition.is_dirty:
            self.partition.flush(ready, self.now)
        return ready

    def write(self, ready: Ready | None = None) -> None:
        """Carry the pending write out."""
        ready = ready or self.begin_write()
        assert self.store.write(ready.write) == []
        self.partition.advance(self.now)

    def fail_write(self, *, is_fatal: bool = False) -> None:
        """Fail the pending write, as the disk would."""
        self.begin_write()
        block = self.partition.state.block_id(self.partition.opened.node)
        self.partition.write_failed(WriteFailed(block, BROKEN, is_fatal), self.now)

    def started(self) -> Bench:
        """Return the bench with the open block recovered."""
        while self.recover():
            pass
        self.write()
        return self

    # --- requests -------------------------------------------------------------------------------

    def produce(
        self, number: int = 1, what: EncodedBatch | None = None, acks: AckMode = AckMode.LEADER
    ) -> None:
        """Send a batch as produce request *number*."""
        m = Produce(number, "t", "0", acks, what if what is not None else batch())
        self.partition.produces.produce("sender", m, self.now)

    def seal(self, epoch: int = 2, *, takeover: bool = False, block: int = 0) -> None:
        """Request a seal, as the controller."""
        self.partition.seal(Seal(1, "t", "0", block, epoch, takeover), self.now)

    def produced(self) -> list[tuple[int, int | PymqError]]:
        """Return the answers to produce requests since the last call: by request, an offset or an
        error.
        """
        found = [reply for reply in self.host.replies if isinstance(reply, Produced)]
        self.host.replies.clear()
        return [(reply.id, reply.error or reply.base_offset) for reply in found]

    def reported(self, kind: type[M]) -> list[M]:
        """Return the messages of a kind to the controller since the last call."""
        found: list[M] = [m for m in self.host.reports if isinstance(m, kind)]
        self.host.reports = [m for m in self.host.reports if not isinstance(m, kind)]
        return found

    def values(self) -> list[bytes]:
        """Return the records of the open block."""
        opened = self.partition.opened
        name = self.partition.state.block_id(opened.node)
        data = self.store.read(name, opened.node.start, opened.offsets.end, 1 << 20)
        return [record.value or b"" for each in split(data) for record in each.records()]
