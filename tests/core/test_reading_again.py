"""An open block that the store could not read is read again later."""

from __future__ import annotations

import attrs
import pytest

from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.recovery import READ_AGAIN_MAX_MS
from pymq.core.message import (
    Fetch,
    Fetched,
    FindOffset,
    GetSequence,
    Message,
    OffsetFound,
    Produce,
    Produced,
    ReplicaFetch,
    Seal,
    Sealed,
    Sequence,
)
from pymq.core.metadata.nodes import PartitionState
from pymq.core.partition.partition import Partition
from pymq.core.ready import Recover, Recovered, RecoverFailed, RemoveBlock
from pymq.core.types import NEVER, AckMode
from pymq.errors import (
    CorruptBatch,
    CorruptBlock,
    CorruptMetadata,
    NotLeader,
    PymqError,
    StoreError,
)
from pymq.replication.factory import replicator
from pymq.replication.raft.persistent_state import HardState
from tests.core.block import test_recovery
from tests.core.block.test_recovery import COUNT, PRODUCER, header, states

FIRST_MS = 10 * test_recovery.Host.replication.retry_ms
NAMES = ("me", "b", "c")


class Host(test_recovery.Host):
    """A broker that records its partition's reports and state."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[Message] = []
        self.told: list[Message] = []
        self.led: list[bool] = []
        self.unable: list[bool] = []  # whether the replica cannot act, as reported to its peers
        self.peers: tuple[str, ...] = ()

    def reply(self, source: str, message: Message, now: int) -> None:
        self.replies.append(message)

    def send(self, peer: str, message: Message) -> None:
        assert isinstance(message, ReplicaFetch), "a replica that does not know its log votes"

    def tell_controller(self, message: Message) -> None:
        self.told.append(message)

    def shares(self, partition: Partition, now: int) -> None:
        self.unable.append(partition.unable is not None)
        self.peers = partition.peers

    def role_changed(self, partition: Partition, now: int) -> None:
        self.led.append(partition.leads)
        self.unable.append(partition.unable is not None)


class Bench:
    """A partition with one open block of ten records, just opened by this broker."""

    def __init__(self, state: PartitionState | None = None) -> None:
        self.host = Host()
        self.state = state or states()[0]
        self.partition = Partition(self.state, self.host, replicator, frozenset(), 0)
        self.now = 0

    def asks(self) -> list[Recover]:
        """Return the store's pending request, once."""
        found, self.host.out.ask = self.host.out.ask, []
        return [ask for ask in found if isinstance(ask, Recover)]

    def refuse(self, error: Exception | None = None) -> None:
        """Fail the store's pending reads."""
        (ask,) = self.asks()
        failed = RecoverFailed(ask.block, error or StoreError("cannot read"))
        self.partition.recover_failed(failed, self.now)

    def answer(self, saved: bytes | None = None) -> None:
        """Let the store find ten records."""
        (ask,) = self.asks()
        one = header()
        found = Recovered(ask.block, 0, COUNT, one.length, None, [one], 0, saved)
        self.partition.recovered(found, self.now)

    def wait(self) -> int:
        """Let due work run; returns how long that took."""
        before, self.now = self.now, self.partition.deadline
        self.partition.tick(self.now)
        return self.now - before

    def problem(self) -> str | None:
        """Return the error of reads and writes, if any."""
        return str(self.partition.problem) if self.partition.problem is not None else None

    def acts(self) -> bool:
        """Return whether the replica sends messages to the others."""
        return self.partition.opened.acting is not None

    def fetch(self) -> PymqError | None:
        self.partition.fetch("reader", Fetch(1, "t", "0", 0, 1, 1 << 20, 500), self.now)
        found = self.host.replies.pop() if self.host.replies else None
        return found.error if isinstance(found, Fetched) else None

    def produce(self) -> PymqError | None:
        batch = EncodedBatch.encode([b"x"], timestamp_ms=0)
        self.partition.produces.produce(
            "sender", Produce(1, "t", "0", AckMode.LEADER, batch), self.now
        )
        found = self.host.replies.pop() if self.host.replies else None
        return found.error if isinstance(found, Produced) else None

    def sequence(self) -> PymqError | None:
        self.partition.produces.sequence("sender", GetSequence(1, "t", "0", PRODUCER), self.now)
        found = self.host.replies.pop()
        return found.error if isinstance(found, Sequence) else None

    def find(self) -> PymqError | None:
        assert not self.partition.fetches.find("reader", FindOffset(1, "t", "0", 0), self.now, 1)
        found = self.host.replies.pop()
        return found.error if isinstance(found, OffsetFound) else None


def shared(acks: AckMode, leader: str = "b") -> PartitionState:
    """Return a bench whose open block has three replicas."""
    before, _ = states()
    block = attrs.evolve(before.blocks[0], acks=acks, leader=leader, replicas=NAMES, in_sync=NAMES)
    return attrs.evolve(before, acks=acks, leader=leader, blocks=(block,))


def test_what_could_not_be_read_once_is_read_again() -> None:
    """A single disk error does not make the broker restart or lose the replica."""
    bench = Bench()
    partition, host = bench.partition, bench.host
    bench.refuse()
    assert bench.problem() == partition.report().problem == "cannot read"
    assert (partition.leads, host.led, host.unable) == (False, [False], [True])
    for error in (bench.fetch(), bench.produce(), bench.sequence(), bench.find()):
        assert error is not None
        assert error.retriable
        assert str(error) == "cannot read; me tries again"
    assert bench.asks() == []
    assert bench.wait() == FIRST_MS
    assert bench.problem() is not None  # The store has not answered yet.
    assert "cannot read" in str(bench.produce())
    bench.answer()
    assert bench.problem() is partition.report().problem is None
    assert partition.leads
    assert (host.led[-1], host.unable[-1]) == (True, False)
    assert bench.produce() is None
    partition.flush(host.out, bench.now)
    partition.advance(bench.now)
    assert [type(reply) for reply in host.replies] == [Produced]
    assert bench.partition.opened.offsets.end == COUNT + 1
    log = partition.opened.log
    assert log is not None
    assert log.producers.next_sequence(PRODUCER) == COUNT


def test_what_can_never_be_read_is_tried_ever_more_seldom() -> None:
    bench = Bench()
    waits = []
    for number in range(12):
        bench.refuse(StoreError(f"cannot read {number}"))
        assert f"cannot read {number}" in str(bench.problem())
        for error in (bench.fetch(), bench.produce(), bench.sequence(), bench.find()):
            assert str(number) in str(error)
            assert isinstance(error, StoreError) == (number >= 5)
        assert bench.partition.unable is not None
        waits.append(bench.wait())
    assert waits[:3] == [FIRST_MS, 2 * FIRST_MS, 4 * FIRST_MS]
    assert waits == sorted(waits)
    assert waits[-1] == READ_AGAIN_MAX_MS
    assert not any(bench.host.led)
    bench.answer()
    assert bench.partition.leads
    assert bench.partition.opened.is_running


def test_it_is_tried_again_soon_when_it_was_readable_meanwhile() -> None:
    """A success resets the pause, which failures had made longer."""
    bench = Bench(shared(AckMode.LEADER))
    for _ in range(5):
        bench.refuse()
        bench.wait()
    bench.answer()
    log = bench.partition.opened.log
    assert log is not None
    log.truncate(0)
    bench.refuse()
    assert bench.problem() is not None
    assert bench.partition.deadline == bench.now + FIRST_MS


@pytest.mark.parametrize("acks", [AckMode.LEADER, AckMode.RAFT])
def test_a_replica_that_waits_takes_no_part(acks: AckMode) -> None:
    """A waiting replica does not vote, follow or seal, and its peers know that.

    The block can be read later, and the replica recovers.
    """
    bench = Bench(shared(acks))
    partition, host = bench.partition, bench.host
    bench.refuse()
    host.told.clear()
    partition.adopt(attrs.evolve(bench.state, version=1), 1, bench.now)
    assert (host.peers, host.unable[-1]) == ((), True)
    partition.peer_changed("b", bench.now)
    partition.seal(Seal(1, "t", "0", 0, 2), bench.now)
    (refused,) = host.told
    assert isinstance(refused, Sealed)
    assert "cannot read" in str(refused.error)
    assert not partition.hand_over(bench.now)
    assert not partition.is_dirty
    assert not bench.acts()
    assert bench.wait() == FIRST_MS
    saved = None
    if acks is AckMode.RAFT:
        saved = HardState(1, None).dumps()
    bench.answer(saved)
    assert bench.problem() is None
    assert (host.peers, host.unable[-1]) == (("b", "c"), False)
    assert not partition.leads
    assert bench.acts()
    assert partition.opened.leader != "me"


@pytest.mark.parametrize("error", [StoreError("cannot read"), CorruptBlock("bad")])
def test_what_was_under_way_when_it_failed(error: StoreError) -> None:
    """Pending work fails with the log: a truncation is not repeated, and a take-over reports final
    results.
    """
    bench = Bench(shared(AckMode.LEADER))
    bench.answer()
    partition, host = bench.partition, bench.host
    partition.seal(Seal(1, "t", "0", 0, 2, takeover=True), 0)
    log = partition.opened.log
    assert log is not None
    log.truncate(0)
    bench.refuse(error)
    refused = [m.error for m in host.told if isinstance(m, Sealed)]
    assert refused == ([error] if isinstance(error, CorruptBlock) else [])
    assert not partition.opened.sealing.is_fenced


def test_a_take_over_asks_until_it_can_be_read() -> None:
    """The zkserver does not repeat a refused request, so the replica does not refuse, but answers
    later.
    """
    bench = Bench(shared(AckMode.LEADER, leader="me"))
    partition, host = bench.partition, bench.host
    bench.refuse()
    takeover = Seal(1, "t", "0", 0, 2, takeover=True)
    partition.seal(takeover, bench.now)
    assert host.told == []
    bench.wait()
    bench.answer()
    partition.seal(takeover, bench.now)
    assert partition.is_dirty
    partition.flush(host.out, bench.now)
    partition.advance(bench.now)
    (sealed,) = (m for m in host.told if isinstance(m, Sealed))
    assert (sealed.error, sealed.end) == (None, COUNT)


@pytest.mark.parametrize("delete", [False, True])
def test_it_is_removed_while_it_waits(delete: bool) -> None:
    bench = Bench()
    bench.refuse()
    gone = NotLeader("gone", leader=None)
    bench.partition.remove(gone, delete, bench.now)
    assert bench.partition.problem is gone
    assert bench.partition.deadline == NEVER
    assert any(isinstance(w, RemoveBlock) for w in bench.host.out.write) == delete
    bench.partition.tick(bench.now + 100 * READ_AGAIN_MAX_MS)
    assert bench.asks() == []


def test_it_is_removed_while_the_store_reads_again() -> None:
    """If the partition was removed, a late answer of the store is ignored."""
    bench = Bench()
    bench.refuse()
    bench.wait()
    gone = NotLeader("gone", leader=None)
    bench.partition.remove(gone, True, bench.now)
    bench.answer()
    assert bench.partition.problem is gone
    assert bench.partition.opened.replicator is None


@pytest.mark.parametrize(
    "error",
    [CorruptBlock("bad"), CorruptMetadata("bad"), CorruptBatch("bad"), ValueError("bad")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("tries", [0, 1])
def test_damage_is_final(error: Exception, tries: int) -> None:
    """Damage is final, since a second read does not mend it."""
    bench = Bench()
    for _ in range(tries):
        bench.refuse()
        bench.wait()
    bench.refuse(error)
    assert "bad" in str(bench.problem())
    assert bench.partition.deadline == NEVER
    bench.partition.tick(100 * READ_AGAIN_MAX_MS)
    assert bench.asks() == []


def test_after_a_failed_sync_nothing_is_tried_again() -> None:
    """After a failed sync the block is not retried, since the state of the disk is unknown."""
    bench = Bench()
    (ask,) = bench.asks()
    bench.partition.recover_failed(RecoverFailed(ask.block, StoreError("no"), fatal=True), 0)
    assert bench.problem() is not None
    assert bench.partition.deadline == NEVER


def test_votes_that_are_missing_are_final() -> None:
    """If a block's saved votes are missing, its replica stays failed, even when its records can be
    read.
    """
    bench = Bench(shared(AckMode.RAFT))
    bench.refuse()
    bench.wait()
    bench.answer(None)
    assert "saved vote is missing" in str(bench.problem())
    assert bench.partition.deadline == NEVER
    assert bench.partition.opened.replicator is None


def test_what_was_durable_is_not_forgotten_while_it_waits() -> None:
    """A durable end is remembered while the block cannot be read, so a later read without it finds
    damage.
    """
    bench = Bench(shared(AckMode.LEADER))
    bench.answer()
    log = bench.partition.opened.log
    assert log is not None
    log.recover()
    bench.refuse()
    bench.wait()
    bench.partition.recovered(Recovered(log.name, 0, 0, 0, None, [], header().length), bench.now)
    assert isinstance(bench.partition.problem, CorruptBlock)
    assert "durable up to 10" in str(bench.problem())
    assert bench.partition.deadline == NEVER


@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("is_asked", [False, True], ids=["it waits", "the store reads again"])
def test_a_roll_while_it_waits(is_asked: bool, has_past: bool) -> None:
    """A roll opens the next block; the failure to read belongs to the sealed one."""
    bench = Bench()
    partition, host = bench.partition, bench.host
    bench.refuse()
    if is_asked:
        bench.wait()
    _, after = states()
    if has_past:
        past = ProducerTable()
        past.replay(header())
        last = attrs.evolve(after.blocks[1], past=past.snapshot())
        after = attrs.evolve(after, blocks=(after.blocks[0], last))
    partition.adopt(after, 1, bench.now)
    assert bench.problem() is None
    assert host.unable[-1] is False
    for _ in range(5):
        test_recovery.answer(partition, host)
        partition.flush(host.out, bench.now)
        partition.advance(bench.now)
    assert partition.leads
    assert partition.blocks.has(after.blocks[0])
    log = partition.opened.log
    assert log is not None
    assert log.name.number == 1
    assert log.producers.next_sequence(PRODUCER) == COUNT


def test_a_roll_to_a_block_that_others_hold() -> None:
    """This broker still completes the sealed block, and does not report an error."""
    bench = Bench(shared(AckMode.LEADER))
    bench.refuse()
    sealed = attrs.evolve(bench.state.blocks[0], end=COUNT, in_sync=("b", "c"))
    others = ("b", "c")
    opened = attrs.evolve(
        sealed, number=1, start=COUNT, end=None, epoch=2, replicas=others, in_sync=others
    )
    rolled = attrs.evolve(bench.state, epoch=2, blocks=(sealed, opened))
    bench.partition.adopt(rolled, 1, bench.now)
    assert bench.problem() is None
    assert bench.partition.unable is None
    assert [ask.block.number for ask in bench.asks()] == [0]
    assert isinstance(bench.fetch(), PymqError)


def test_damage_outlasts_rolls() -> None:
    bench = Bench()
    bench.refuse(CorruptBlock("bad"))
    _, after = states()
    bench.partition.adopt(after, 1, 0)
    assert "bad" in str(bench.problem())
    third = attrs.evolve(after.blocks[1], number=2, epoch=3)
    bench.partition.adopt(attrs.evolve(after, epoch=3, blocks=(after.blocks[0], third)), 1, 0)
    assert "bad" in str(bench.problem())


def after_a_roll() -> Bench:
    """Return a bench after a roll.

    The open block is empty, so only the previous block contains the producers.
    """
    _, state = states()
    return Bench(state)


def found_nothing(bench: Bench) -> None:
    """Let the store find the open block empty."""
    (ask,) = bench.asks()
    assert ask.block.number == 1
    found = Recovered(ask.block, COUNT, COUNT, 0, None, [], 0)
    bench.partition.recovered(found, bench.now)


def test_the_block_before_cannot_be_read() -> None:
    """If the previous block cannot be read, all blocks are read again, from the open one on."""
    bench = after_a_roll()
    found_nothing(bench)
    bench.refuse()
    assert bench.problem() is not None
    bench.wait()
    found_nothing(bench)
    assert bench.problem() is not None
    bench.answer()
    assert bench.problem() is None
    log = bench.partition.opened.log
    assert log is not None
    assert log.producers.next_sequence(PRODUCER) == COUNT


@pytest.mark.parametrize("is_readable", [False, True])
def test_a_block_that_is_to_be_read_for_two(is_readable: bool) -> None:
    """The repair of the unsealed previous block and the open block both get the store's answer."""
    host = Host()
    _, state = states()
    partition = Partition(state, host, replicator, frozenset({0}), 0)
    bench = Bench.__new__(Bench)
    bench.host, bench.partition, bench.now, bench.state = host, partition, 0, state
    sealed, opened = bench.asks()
    partition.recover_failed(RecoverFailed(sealed.block, StoreError("cannot read")), 0)
    assert bench.problem() is None  # Only reads of the previous block fail.
    host.out.ask = [opened]
    found_nothing(bench)
    if is_readable:
        bench.answer()
    else:
        bench.refuse()
        assert "cannot read" in str(bench.problem())
        bench.partition.tick(FIRST_MS)
    test_recovery.answer(partition, host)
    log = partition.opened.log
    assert log is not None
    assert log.producers.next_sequence(PRODUCER) == COUNT
    assert partition.leads


def test_an_empty_block_that_could_not_be_read_is_rolled() -> None:
    """A roll removes an unreadable empty block; its producers are known from the previous block."""
    bench = after_a_roll()
    bench.refuse()
    first, second = bench.state.blocks
    third = attrs.evolve(second, number=2, epoch=3)
    bench.partition.adopt(attrs.evolve(bench.state, epoch=3, blocks=(first, third)), 1, bench.now)
    test_recovery.answer(bench.partition, bench.host)
    log = bench.partition.opened.log
    assert log is not None
    assert log.name.number == 2
    assert log.producers.next_sequence(PRODUCER) == COUNT
    assert bench.partition.leads
