"""The repair of a copy of a sealed block, answer by answer."""

from __future__ import annotations

import random

import attrs

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.header import Header
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.log import BlockLog
from pymq.core.block.replicator import ReplicationConfig
from pymq.core.message import Message, ReplicaFetch, ReplicaFetched
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.ready import (
    Append,
    CreateBlock,
    Ready,
    Recover,
    Recovered,
    RemoveBlock,
    SealBlock,
    Truncate,
)
from pymq.core.repair.block_repair import REST_MAX, BlockRepair
from pymq.core.repair.partition_repairs import PartitionRepairs
from pymq.core.repair.repair_scheduler import RepairScheduler
from pymq.core.repair.repair_throttle import RepairThrottle
from pymq.core.types import NEVER, AckMode, BlockId
from pymq.errors import CorruptBlock, StoreError
from pymq.store.memory import MemoryStore

NAME = BlockId("id", 0, 0)
EPOCH = 3


class Host:
    """A broker that records the requests of its repair."""

    me = "me"
    incarnation = 1
    replication = ReplicationConfig()

    def __init__(self) -> None:
        self.out = Ready()
        self.rng = random.Random(0)
        self.slots = RepairScheduler(self.replication)
        self.lending = RepairThrottle(self.replication.lend_bytes)
        self.asked: list[tuple[str, ReplicaFetch]] = []

    def wall_ms(self, now: int) -> int:
        return now

    def send(self, peer: str, message: Message) -> None:
        assert isinstance(message, ReplicaFetch)
        self.asked.append((peer, message))

    def tell_controller(self, message: Message) -> None:
        raise AssertionError("a repair does not speak to zkservers")

    def is_alive(self, peer: str) -> bool:
        return True


class Bench:
    """A copy with the first *end* records of a block of ten, one record a batch.

    Batches from offset 5 on have a later epoch; the copy has *others* more batches of the earlier
    epoch.
    """

    def __init__(self, end: int, others: int = 0) -> None:
        records = [EncodedBatch.encode([b"%d" % i], timestamp_ms=0) for i in range(10)]
        self.batches = [r.stamp(i, EPOCH if i >= 5 else 1, 0) for i, r in enumerate(records)]
        self.host = Host()
        self.log = BlockLog(self.host, NAME, 0, is_shared=True)
        block = BlockNode(0, 0, 10, EPOCH, AckMode.RAFT, "a", ("a", "b", "me"), ("a", "b"))
        block = attrs.evolve(block, epochs=((1, 0), (EPOCH, 5)))
        self.block = block
        self.repair = BlockRepair(self.host, block, self.log)
        self.log.recover()
        mine = [r.stamp(end + i, 1, 0) for i, r in enumerate(records[:others])]
        headers: list[Header] = [batch.header for batch in (*self.batches[:end], *mine)]
        end += others
        size = sum(header.length for header in headers)
        self.repair.recovered(Recovered(NAME, 0, end, size, None, headers, 0), "t", "0")
        self.host.slots.fill(0)

    def answer(self, *batches: EncodedBatch) -> None:
        """Let the broker of the last request send *batches*, and write them."""
        peer, ask = self.host.asked[-1]
        data = b"".join(bytes(b.head) + bytes(b.body) for b in batches)
        self.repair.step(peer, ReplicaFetched(ask.id, NAME, ask.offset, 0, 0, data), 0)
        self.write()

    def wait(self) -> None:
        """Let the timeout of an answer pass, or a pause end."""
        slots = self.host.slots
        now = slots.deadline
        slots.tick(now)
        slots.fill(now)

    def is_dirty(self) -> bool:
        return self.repair.is_dirty

    def write(self) -> list[EncodedBatch]:
        ready = Ready()
        if self.repair.is_dirty:
            self.repair.flush(ready)
            self.repair.advance()
        self.host.slots.fill(0)
        self.written = [b for w in ready.write if isinstance(w, Append) for b in w.batches]
        self.is_sealed = any(isinstance(w, SealBlock) for w in ready.write)
        return self.written


def test_a_holder_has_compacted_what_this_copy_has_half_of() -> None:
    """A compacted batch of another holder may begin before this copy's end; the repair does not
    refuse it as damaged.
    """
    bench = Bench(end=5)
    assert bench.host.asked[-1][1].offset == 5
    bench.answer(EncodedBatch.gap(3, 6, EPOCH), bench.batches[9])
    assert [(b.base_offset, b.end_offset) for b in bench.written] == [(5, 9), (9, 10)]
    assert bench.is_sealed
    assert bench.repair.is_done
    data = b"".join(bytes(b.head) + bytes(b.body) for b in bench.written)
    assert [len(batch.verify()) for batch in split(data)] == [0, 1]


def test_a_damaged_batch_is_asked_of_another() -> None:
    """If the body of a fetched batch is damaged, the repair asks another broker.

    This holds even for a batch that reaches beyond the requested range, which would otherwise be
    cut.
    """
    for bad in (EncodedBatch.gap(3, 6, EPOCH), EncodedBatch.gap(5, 5, EPOCH)):
        bench = Bench(end=5)
        first = bench.host.asked[-1][0]
        bench.answer(EncodedBatch(bad.head, bytes(len(bad.body)), bad.header))
        assert not bench.written
        bench.wait()
        assert bench.host.asked[-1][0] != first
        bench.answer(*bench.batches[5:])
        assert bench.repair.is_done


def test_records_that_begin_too_early_are_refused() -> None:
    """A batch with records keeps its end after compaction.

    A batch with another end does not belong to this log.
    """
    bench = Bench(end=5)
    odd = EncodedBatch.encode([b"x", b"y"], timestamp_ms=0).stamp(4, EPOCH, 0)
    bench.answer(odd)
    assert not bench.written
    assert bench.log.end == 5


def test_a_write_that_fails_is_tried_again_later_and_not_at_once() -> None:
    """A broker whose disk refuses to seal a complete copy still does its other work."""
    bench = Bench(end=10)
    repair = bench.repair
    assert bench.is_dirty()
    repair.flush(Ready())
    repair.failed(0, is_fatal=True)
    assert not bench.is_dirty()
    assert repair.deadline > 0
    repair.tick(repair.deadline)
    assert bench.is_dirty()
    bench.write()
    assert bench.is_sealed
    assert repair.is_done


def test_a_store_that_failed_for_good_is_tried_ever_less_often() -> None:
    """The pause grows, so that the repair does not fetch and lose the same part each second."""
    bench = Bench(end=5)
    repair, host = bench.repair, bench.host
    pauses = []
    now = 0
    for _ in range(12):
        peer, ask = host.asked[-1]
        data = b"".join(bytes(b.head) + bytes(b.body) for b in bench.batches[5:])
        repair.step(peer, ReplicaFetched(ask.id, NAME, ask.offset, 0, 0, data), now)
        assert repair.is_dirty
        repair.flush(Ready())
        repair.failed(now, is_fatal=True)
        host.slots.fill(now)
        pauses.append(repair.deadline - now)
        now = repair.deadline
        repair.tick(now)
        host.slots.fill(now)
    first = 10 * host.replication.retry_ms
    assert pauses[:4] == [first, 2 * first, 4 * first, 8 * first]
    assert len(host.asked) == 13, "once after each pause"
    assert max(pauses) == pauses[-1] == REST_MAX * host.replication.retry_ms
    bench.answer(*bench.batches[5:])
    assert repair.is_done, "and it goes on when the disk does"


def test_after_a_pause_that_grew_the_next_failure_is_the_first() -> None:
    bench = Bench(end=5)
    repair, first = bench.repair, 10 * bench.host.replication.retry_ms
    for batches, pause in ((bench.batches[5:7], 2 * first), (bench.batches[7:], first)):
        for _ in range(2 if pause > first else 1):
            repair.failed(0, is_fatal=True)
        assert repair.deadline == pause
        repair.tick(pause)
        bench.host.slots.fill(pause)
        bench.answer(*batches)
    assert repair.is_done


def test_after_a_write_that_failed_it_goes_on_from_what_is_on_the_disk() -> None:
    """After a failed write the repair continues from the disk, where the store may have sealed the
    copy.
    """
    bench = Bench(end=5)
    repair, host, store = bench.repair, bench.host, MemoryStore()
    first, rest = bench.batches[:5], bench.batches[5:]
    made = CreateBlock(NAME, 0, "t", "0"), Append(NAME, first, False), SealBlock(NAME)
    assert store.write(made) == []
    (failed,) = store.write([Append(NAME, rest, False)])
    assert not failed.fatal
    host.out.ask.clear()
    repair.failed(0, is_fatal=failed.fatal)
    (recover,) = host.out.ask
    assert isinstance(recover, Recover)
    found = store.recover(recover.block, recover.start, recover.is_open)
    assert isinstance(found, Recovered)
    asked = len(host.asked)
    repair.recovered(found, "t", "0")
    host.slots.fill(0)
    assert len(host.asked) == asked  # the repair does not ask again at once
    repair.tick(repair.deadline)
    host.slots.fill(0)
    assert host.asked[-1][1].offset == 5
    bench.answer(*rest)
    assert store.write([Append(NAME, bench.written, False), SealBlock(NAME)]) == []
    assert repair.is_done


def test_a_cut_that_fails_is_tried_again_later_and_not_at_once() -> None:
    """A broker whose disk refuses a cut still does its other work, and retries the cut later."""
    bench = Bench(end=5)
    repair, host = bench.repair, bench.host
    headers = [batch.header for batch in bench.batches[:5]]
    other = EncodedBatch.encode([b"x"], timestamp_ms=0).stamp(5, 1, 0)
    found = Recovered(NAME, 0, 6, 0, None, [*headers, other.header], 0)
    bench.log.recover()
    repair.recovered(found, "t", "0")
    assert host.out.write == [Truncate(NAME, 5)]
    host.out.write.clear()
    for _ in range(2):
        repair.failed(0, is_fatal=False)
        repair.recovered(found, "t", "0")
        assert host.out.write == [], "not at once"
        repair.tick(repair.deadline)
        repair.recovered(found, "t", "0")
        assert host.out.write == [Truncate(NAME, 5)]
        host.out.write.clear()


def test_what_the_sealed_block_has_not_is_cut_though_there_are_as_many() -> None:
    """Records that the sealed block lacks are cut even if the numbers are equal (KIP-101): another
    leader wrote other records.
    """
    for others in (1, 3, 5):
        bench = Bench(end=5, others=others)
        assert bench.log.end == 5
        assert not bench.repair.is_done


def damaged() -> Bench:
    """Return a copy that the store reports as damaged."""
    bench = Bench(end=5)
    bench.log.recover()
    bench.repair.leave()
    bench.repair.unreadable(CorruptBlock("bad", file="f"), "t", "0", 0)
    bench.host.slots.fill(0)
    return bench


def test_a_damaged_copy_goes_when_there_is_a_better_one_and_not_before() -> None:
    """A damaged copy is removed only when there is a better one."""
    bench = damaged()
    assert bench.host.asked[-1][1].offset == 0
    bad = bench.batches[0]
    bench.answer(EncodedBatch(bad.head, bytes(len(bad.body)), bad.header))
    bench.wait()
    assert removals(bench) == []
    assert "bad" in str(bench.repair.problem)
    bench.answer(*bench.batches[:4])
    assert removals(bench) == [RemoveBlock(NAME), CreateBlock(NAME, 0, "t", "0")]
    assert bench.repair.problem is None
    bench.answer(*bench.batches[4:])
    assert bench.is_sealed
    assert bench.repair.is_done
    assert len(removals(bench)) == 2


def test_a_damaged_copy_that_nobody_else_holds_stays() -> None:
    bench = damaged()
    alone = attrs.evolve(bench.block, in_sync=("me",))
    bench.wait()
    bench.repair.adopt(alone)
    asked = len(bench.host.asked)
    while bench.host.slots.deadline != NEVER:
        bench.wait()
    assert len(bench.host.asked) == asked
    assert removals(bench) == []


def test_a_copy_that_cannot_be_read_now_is_read_again() -> None:
    """The copy is perhaps not damaged: the disk may have failed once."""
    bench = Bench(end=5)
    bench.host.out.ask.clear()
    bench.log.recover()
    bench.repair.unreadable(StoreError("no"), "t", "0", 0)
    assert len(bench.host.out.ask) == 1
    bench.repair.tick(bench.repair.deadline - 1)
    assert len(bench.host.out.ask) == 1
    bench.repair.tick(bench.repair.deadline)
    assert bench.host.out.ask == 2 * [Recover(NAME, 0, True)]
    assert removals(bench) == []


def test_of_the_only_copy_nothing_is_cut() -> None:
    """The only copy is never truncated: its bytes were durable before the seal, so invalid bytes
    are damage.
    """
    host = Host()
    state = PartitionState("t", "id", "0", 0, AckMode.LEADER, 1, "me", TopicConfig(), ())
    for replicas, is_open in (("me",), False), (("me", "b"), True):
        block = BlockNode(0, 0, 10, EPOCH, AckMode.LEADER, None, replicas, replicas)
        PartitionRepairs(host).start(state, block, None)
        assert host.out.ask.pop() == Recover(NAME, 0, is_open)


def removals(bench: Bench) -> list[object]:
    """Return the writes by which the repair replaces the copy."""
    return [w for w in bench.host.out.write if isinstance(w, RemoveBlock | CreateBlock)]


def test_a_copy_that_counts_as_whole_and_is_not_is_told() -> None:
    """A broker repeats the report of its bad copy until the zkserver knows or the copy is
    complete.
    """
    bench = Bench(end=5)
    repair, block = bench.repair, bench.block
    overrated = attrs.evolve(block, in_sync=("a", "b", "me"))
    found = [repair.is_overrated]  # No broker counts this copy as complete.
    repair.adopt(overrated)
    found.append(repair.is_overrated)
    bench.answer(*bench.batches[5:8])
    found.append(repair.is_overrated)
    repair.adopt(block)
    found.append(repair.is_overrated)
    bench.answer(*bench.batches[8:])
    repair.adopt(overrated)
    found.append(repair.is_overrated)
    assert found == [False, True, True, False, False]
    assert repair.is_done


def test_a_copy_that_is_whole_when_it_is_read_needs_no_word() -> None:
    bench = Bench(end=10)
    bench.repair.adopt(attrs.evolve(bench.block, in_sync=("a", "b", "me")))
    assert not bench.repair.is_overrated
