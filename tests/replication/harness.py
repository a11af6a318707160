"""Replicas of one block on disks that may crash, and an unordered set of messages between them.

Nothing happens automatically: each delivery, write and tick is a call of the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import attrs

from pymq.core.batch.header import parse_header
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.replicator import Replica, ReplicationConfig
from pymq.core.message import (
    Message,
    RaftAppend,
    RaftAppended,
    RaftTimeout,
    RaftVote,
    RaftVoted,
    ReplicaFetched,
)
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.ready import Envelope, Ready, SaveState
from pymq.core.types import NEVER, AckMode, BlockId, Rng
from pymq.errors import CorruptBatch
from pymq.replication.raft.persistent_state import HardState
from pymq.replication.raft.quorum_features.messages import (
    RaftSnapshot,
    RoundAppend,
    RoundAppended,
)
from pymq.replication.raft.raft import Raft

BLOCK = BlockId("0" * 32, 0, 0)


class Batch(NamedTuple):
    """A batch in a log."""

    base: int
    end: int
    epoch: int
    data: bytes


@cache
def encoded(text: str, count: int) -> EncodedBatch:
    return EncodedBatch.encode([text.encode()] * count, timestamp_ms=0)


def batch(base: int, epoch: int, text: str = "", count: int = 1) -> Batch:
    stamped = encoded(text, count).stamp(base, epoch, 0)
    return Batch(base, base + count, epoch, bytes(stamped.head) + bytes(stamped.body))


def split(data: bytes) -> list[Batch]:
    """Return the batches in a leader's message."""
    found, position = [], 0
    while position < len(data):
        header = parse_header(data, position)
        part = data[position : position + header.length]
        EncodedBatch.parse(part).verify()
        found.append(Batch(header.base_offset, header.end_offset, header.leader_epoch, part))
        position += header.length
    return found


class Disk:
    """The state that survives a crash."""

    def __init__(self, start: int = 0, epoch: int = 0) -> None:
        self.start, self.epoch = start, epoch
        self.batches: list[Batch] = []
        self.saved: bytes | None = None

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    def holds(self, end: int, epoch: int) -> bool:
        """Return whether the log reaches *end*, with a batch of *epoch* there."""
        if end == self.start:
            return epoch == self.epoch
        return any(b.end == end and b.epoch == epoch for b in self.batches)


Op = Callable[[Disk], None]


def op_append(b: Batch) -> Op:
    def run(disk: Disk) -> None:
        assert disk.end == b.base
        disk.batches.append(b)

    return run


def op_cut(end: int) -> Op:
    def run(disk: Disk) -> None:
        disk.batches = [b for b in disk.batches if b.end <= end]

    return run


def op_save(state: bytes) -> Op:
    def run(disk: Disk) -> None:
        disk.saved = state

    return run


def op_install(end: int, epoch: int) -> Op:
    def run(disk: Disk) -> None:
        disk.start, disk.epoch, disk.batches = end, epoch, []

    return run


def op_compact(end: int, epoch: int) -> Op:
    def run(disk: Disk) -> None:
        disk.start, disk.epoch = end, epoch
        disk.batches = [b for b in disk.batches if b.base >= end]

    return run


class FakeLog:
    """The log of one replica: its batches in memory, and their durable part."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.start, self.start_epoch = node.disk.start, node.disk.epoch
        self.batches = list(node.disk.batches)
        self.ops: list[Op] = []  # operations that are not yet handed to the disk
        self.resident = self.start  # batches before it are evicted from memory

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    @end.setter
    def end(self, end: int) -> None:
        raise AssertionError

    @property
    def stable_end(self) -> int:
        """The end up to which the log is on disk."""
        end = self.start
        for mine, durable in zip(self.batches, self.node.disk.batches, strict=False):
            if mine is not durable:
                break
            end = mine.end
        return end

    @stable_end.setter
    def stable_end(self, end: int) -> None:
        raise AssertionError

    def epoch_at(self, end: int) -> int:
        assert self.start <= end <= self.end, (self.start, end, self.end)
        for b in reversed(self.batches):
            if b.base < end:
                return b.epoch
        return self.start_epoch

    def end_of(self, epoch: int) -> tuple[int, int]:
        for b in reversed(self.batches):
            if b.epoch <= epoch:
                return b.epoch, b.end
        return (self.start_epoch if self.start_epoch <= epoch else 0), self.start

    def add(self, b: Batch) -> None:
        last = self.batches[-1].epoch if self.batches else self.start_epoch
        if b.base != self.end or b.epoch < last:
            raise CorruptBatch("it does not follow on")
        self.batches.append(b)
        self.ops.append(op_append(b))

    def begin(self, epoch: int) -> None:
        self.add(batch(self.end, epoch, "begin"))

    def push(self, epoch: int, text: str, count: int = 1) -> None:
        self.add(batch(self.end, epoch, text, count))

    def extend(self, data: bytes) -> None:
        found, end = split(data), self.end
        for b in found:
            if b.base != end:
                raise CorruptBatch("it does not follow on")
            end = b.end
        for b in found:
            self.add(b)

    def truncate(self, end: int) -> None:
        assert end == self.start or any(b.end == end for b in self.batches), "not where one ends"
        self.batches = [b for b in self.batches if b.end <= end]
        self.ops.append(op_cut(end))
        self.resident = min(self.resident, end)

    def recent(self, offset: int, max_bytes: int) -> bytes | None:
        assert offset == self.end or any(b.base == offset for b in self.batches), offset
        if offset < self.resident:
            return None
        return self.gather(offset, max_bytes, self.end)

    def gather(self, offset: int, max_bytes: int, end: int) -> bytes:
        data = b""
        for b in self.batches:
            if b.base >= offset and b.end <= end and (not data or len(data + b.data) <= max_bytes):
                data += b.data
        return data

    def read(
        self, peer: str, answer: ReplicaFetched | RaftAppend, offset: int, max_bytes: int
    ) -> None:
        assert isinstance(answer, RaftAppend)
        self.node.reads.append((peer, answer, offset, max_bytes))

    def evict(self, offset: int) -> None:
        """Evict the batches before *offset* from memory, so that they have to be read from disk."""
        self.resident = max([self.start, *(b.base for b in self.batches if b.base <= offset)])
        if offset >= self.end:
            self.resident = self.end

    def show(self) -> str:
        """Format each batch as end/epoch; batches behind a bar are not durable."""
        words, stable = [f"{self.start}/{self.start_epoch}"] if self.start else [], self.stable_end
        for b in self.batches:
            if b.base == stable:
                words.append("|")
            words.append(f"{b.end}/{b.epoch}")
        return " ".join(words) or "-"


class SnapshotFakeLog(FakeLog):
    """A log whose beginning a snapshot may replace."""

    def snapshot(self) -> tuple[int, int, bytes] | None:
        return (self.start, self.start_epoch, b"state") if self.start else None

    def send_snapshot(self, peer: str, message: RaftSnapshot) -> None:
        self.node.send(peer, message)

    def install(self, end: int, epoch: int, data: bytes) -> None:
        assert data == b"state"
        self.start, self.start_epoch, self.batches, self.resident = end, epoch, [], end
        self.ops.append(op_install(end, epoch))

    def compact(self, end: int) -> None:
        """Drop the committed batches before *end*."""
        epoch = self.epoch_at(end)
        self.batches = [b for b in self.batches if b.base >= end]
        self.start, self.start_epoch = end, epoch
        self.resident = max(self.resident, end)
        self.ops.append(op_compact(end, epoch))


class Write(NamedTuple):
    """A write in progress."""

    ops: list[Op]
    end: int
    after: list[Envelope]


MakeRaft = Callable[[Replica, int, tuple[str, ...]], Raft]


class Node:
    """A replica: its broker (as the replicator sees it), its log and its disk."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.me = name
        self.cluster = cluster
        self.rng: Rng = cluster.rng
        self.incarnation = 1
        self.replication = cluster.config
        self.disk = Disk()
        self.writing: Write | None = None
        self.reads: list[tuple[str, RaftAppend, int, int]] = []
        self.is_up = False
        self.state_first = True  # whether the hard state is written before the log
        self.dead: set[str] = set()  # brokers that seem dead

    # --- what the replicator sees

    def send(self, peer: str, message: Message | RaftSnapshot) -> None:
        self.cluster.post(self.me, peer, message)

    def tell_controller(self, message: Message) -> None:
        raise AssertionError

    def is_alive(self, peer: str) -> bool:
        return peer not in self.dead

    # --- what the test does

    def start(self, is_new: bool) -> None:
        self.log = self.cluster.make_log(self)
        replica = Replica(BLOCK, self.log, self, self.cluster.state, self.disk.saved, is_new)
        self.raft = self.cluster.make_raft(replica, self.cluster.now, self.cluster.learners)
        self.writing, self.reads = None, []
        self.is_up = True
        self.lowest = self.raft.high_watermark

    def crash(self, done: int = 0) -> None:
        """Stop the replica; of the write in progress only the first *done* parts survive."""
        self.is_up = False
        if self.writing is not None:
            for op in self.writing.ops[:done]:
                op(self.disk)
        self.writing, self.reads = None, []

    @property
    def has_work(self) -> bool:
        return self.is_up and self.writing is None and (self.raft.is_dirty or bool(self.log.ops))

    def write(self) -> None:
        """Hand all operations to the disk."""
        ready = Ready()
        self.raft.flush(ready, self.cluster.now)
        saves = [op_save(w.state) for w in ready.write if isinstance(w, SaveState)]
        ops = saves + self.log.ops if self.state_first else self.log.ops + saves
        self.log.ops = []
        assert not ready.send
        self.writing = Write(ops, self.log.end, ready.after)

    def sync(self) -> None:
        """Complete the write."""
        assert self.writing is not None
        write, self.writing = self.writing, None
        for op in write.ops:
            op(self.disk)
        for peer, message in write.after:
            self.send(peer, message)
        self.raft.stable(write.end, self.cluster.now)

    def read(self) -> None:
        """Complete the requested reads."""
        peer, answer, offset, max_bytes = self.reads.pop(0)
        if self.log.start <= offset <= self.log.end:
            data = self.log.gather(offset, max_bytes, self.log.stable_end)
            self.send(peer, attrs.evolve(answer, data=data))

    def push(self, text: str, count: int = 1) -> None:
        assert self.raft.is_leader
        self.log.push(self.raft.epoch, text, count)
        self.raft.appended(self.cluster.now)

    def hears(self, peer: str, is_alive: bool) -> None:
        """Notify the replica's broker whether another broker is alive."""
        (self.dead.discard if is_alive else self.dead.add)(peer)
        self.raft.peer_changed(peer, self.cluster.now)

    def show(self) -> str:
        if not self.is_up:
            return f"{self.me} down"
        raft = self.raft
        leader = f" of {raft.leader}" if raft.leader not in (None, self.me) else ""
        role = raft.election.role.value if raft.election.is_voter else "learner"
        vote = f" vote {raft.state.vote}" if raft.state.vote else ""
        return (
            f"{self.me} {role}{leader} t{raft.epoch}{vote} hw {raft.high_watermark}"
            f" log {self.log.show()}"
        )


class Letter(NamedTuple):
    source: str
    target: str
    message: Message | RaftSnapshot


def default_raft(replica: Replica, now: int, learners: tuple[str, ...]) -> Raft:
    return Raft(replica, now, learners)


class Cluster:
    """All replicas of one block."""

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        seed: int = 0,
        config: ReplicationConfig | None = None,
        snapshots: bool = False,
        learners: tuple[str, ...] = (),
        epoch: int = 1,
        leader: str | None = None,
        make_raft: MakeRaft = default_raft,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.config = config or ReplicationConfig()
        self.learners = learners
        self.make_raft = make_raft
        self.make_log: Callable[[Node], FakeLog] = SnapshotFakeLog if snapshots else FakeLog
        self.state = partition_state(names, epoch, leader or names[0])
        self.bag: list[Letter] = []
        self.cuts: set[tuple[str, str]] = set()  # cut links, as (from, to)
        self.sent = 0
        self.on_post: Callable[[Letter], None] = lambda letter: None
        self.nodes = {name: Node(name, self) for name in names}

    def post(self, source: str, target: str, message: Message | RaftSnapshot) -> None:
        self.sent += 1
        letter = Letter(source, target, message)
        self.on_post(letter)
        self.bag.append(letter)

    def deliver(self, index: int = 0, keep: bool = False) -> Letter:
        letter = self.bag[index] if keep else self.bag.pop(index)
        node = self.nodes[letter.target]
        if node.is_up and (letter.source, letter.target) not in self.cuts:
            assert not isinstance(letter.message, ReplicaFetched)
            node.raft.step(letter.source, letter.message, self.now)  # type: ignore[arg-type] # only these are posted
        return letter

    def settle(self, limit: int = 10_000) -> None:
        """Run all work that needs no time to pass."""
        for _ in range(limit):
            if not self.turn():
                return
        raise AssertionError("it does not come to rest")

    def turn(self) -> bool:
        """Let each disk and each message make one step; returns whether any did."""
        did = False
        for node in self.nodes.values():
            if not node.is_up:
                continue
            while node.reads:
                node.read()
                did = True
            if node.has_work:
                node.write()
            if node.writing is not None:
                node.sync()
                did = True
        for _ in range(len(self.bag)):
            self.deliver()
            did = True
        return did

    def run(self, ms: int) -> None:
        """Let time pass, and run everything that is due."""
        until = self.now + ms
        self.settle()
        while (due := self.deadline) <= until:
            self.now = max(self.now, due)
            for node in self.nodes.values():
                if node.is_up and node.raft.deadline <= self.now:
                    node.raft.tick(self.now)
            self.settle()
        self.now = until

    @property
    def deadline(self) -> int:
        return min((n.raft.deadline for n in self.nodes.values() if n.is_up), default=NEVER)

    @property
    def up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_up]

    @property
    def leaders(self) -> list[Node]:
        return [node for node in self.up if node.raft.leader == node.me]


def partition_state(names: tuple[str, ...], epoch: int, leader: str | None) -> PartitionState:
    block = BlockNode(0, 0, None, epoch, AckMode.RAFT, leader, names, names)
    return PartitionState(
        "t", "0" * 32, "p", 0, AckMode.RAFT, epoch, leader, TopicConfig(), (block,)
    )


def hard(saved: bytes | None) -> HardState | None:
    return None if saved is None else HardState.loads(saved)


def show(letter: Letter) -> str:
    """Format a message as one line."""
    m = letter.message
    text = f"{letter.source}>{letter.target} "
    match m:
        case RaftAppend():
            text += f"t{m.epoch} append {m.prev}/{m.prev_epoch} commit {m.commit}"
            text += "".join(f" +{b.end}/{b.epoch}" for b in split(m.data))
            text += f" round {m.round}" if isinstance(m, RoundAppend) and m.round else ""
        case RaftAppended(conflict=None):
            text += f"t{m.epoch} appended {m.end} commit {m.commit}"
            text += f" round {m.round}" if isinstance(m, RoundAppended) and m.round else ""
        case RaftAppended(conflict=(epoch, end)):
            text += f"t{m.epoch} refused {m.end} go to {end}/{epoch}"
        case RaftVote():
            text += f"t{m.epoch} {'pre' if m.pre else ''}vote for {m.end}/{m.last_epoch}"
            text += " transfer" if m.transfer else ""
        case RaftVoted():
            what = "granted" if m.granted else "denied"
            text += f"t{m.epoch} {'pre' if m.pre else ''}{what}"
        case RaftTimeout():
            text += f"t{m.epoch} timeout"
        case RaftSnapshot():
            text += f"t{m.epoch} snapshot {m.end}/{m.last_epoch}"
        case _:
            text += repr(m)
    return text
