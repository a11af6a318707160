"""If power fails at any disk operation, data that was confirmed as durable survives."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from pymq.core.batch.batch_sequence import restamp, split
from pymq.core.batch.record import EncodedBatch
from pymq.core.ready import (
    Append,
    Checkpoint,
    Compact,
    CreateBlock,
    Recovered,
    RecoverFailed,
    RemoveBlock,
    SaveState,
    SealBlock,
    Sync,
    Truncate,
    Write,
    WriteFailed,
)
from pymq.core.types import BlockId
from pymq.store.file import appending
from pymq.store.file import states as states_module
from pymq.store.file.file_store import FileStore
from pymq.testing.simulation.disk import PowerCut, SimDisk
from tests.seeds import seeds
from tests.store.helpers import batch

BLOCKS = [BlockId("cd" * 16, i // 2, i % 2) for i in range(4)]


class Life:
    """The life of one store over many power cuts, with the data that must and may be there."""

    def __init__(
        self,
        seed: int,
        *,
        holes: bool,
        synced: float = 0.5,
        group: int = 2,
        faulty: float = 0.0,
    ) -> None:
        self.faulty = faulty  # probability that a disk operation fails
        self.synced = synced  # share of the appends that request a sync
        self.group = group  # limit of the batches in one write
        self.dice = random.Random(seed)
        self.disk = SimDisk(holes=holes)
        self.safe: dict[BlockId, list[EncodedBatch]] = {block: [] for block in BLOCKS}
        self.seen: dict[BlockId, list[EncodedBatch]] = {block: [] for block in BLOCKS}
        # The content of each block before a truncation that may be done or not when the power
        # fails.
        self.uncut: dict[BlockId, list[EncodedBatch]] = {}
        self.states: dict[BlockId, bytes] = {}
        self.saving: dict[BlockId, bytes] = {}  # the states in the pending write
        self.failures = 0
        self.sealed: set[BlockId] = set()
        self.epoch = 1

    def live(self, times: int) -> None:
        """Work until the power fails, again and again; check the confirmed data each time."""
        for _ in range(times):
            self.run()
        self.disk.cut_in = -1
        self.open().close()

    def run(self) -> None:
        """Work until the power fails."""
        self.disk.cut_in = self.dice.randrange(60)
        try:
            store = self.open()
            for _ in range(30):
                self.work(store)
            store.close()
        except PowerCut:
            pass
        if self.dice.random() < 0.2:
            self.disk.kill()  # written data survives a killed process, and must be made durable
        else:
            self.disk.crash(self.dice)

    def open(self) -> FileStore:
        self.epoch += 1
        store = FileStore("/data", files=self.disk, handles_max=2)
        for block in BLOCKS:
            found = store.recover(block, 0, block not in self.sealed)
            assert isinstance(found, Recovered), found
            self.check(store, found)
        kept = [self.states.get(block) != state for block, state in self.saving.items()]
        assert self.faulty or len(set(kept)) < 2, "of the states of a turn only some were saved"
        self.saving = {}
        return store

    def check(self, store: FileStore, found: Recovered) -> None:
        block = found.block
        data = store.read(block, 0, found.end, 1 << 30)
        batches = [one.verify() for one in split(data)]
        ids = [bytes(one.head) for one in batches]
        safe = [bytes(one.head) for one in self.safe[block]]
        seen = [bytes(one.head) for one in self.seen[block]]
        assert ids[: len(safe)] == safe, f"{block} has lost {len(safe) - len(ids)} batches"
        uncut = [bytes(one.head) for one in self.uncut.pop(block, [])]
        assert ids in (seen[: len(ids)], uncut[: len(ids)]), f"{block} holds what was never written"
        after = len(batches) - len(found.headers)
        if found.snapshot is not None:
            assert found.snapshot == b"%d" % after, "the snapshot is not as of its place"
        # From now on recovered data has to survive: a leader counts it for commits.
        self.safe[block] = self.seen[block] = batches
        state = self.states.get(block)
        assert found.state in (state, self.saving.get(block, state)), "a state was lost or torn"
        if found.state is not None:
            self.states[block] = found.state

    def break_something(self) -> None:
        """Make operations fail for a block, for the states, or for both, once or repeatedly."""
        if self.dice.random() < 0.3:
            self.disk.room = self.dice.randrange(1_000)
        for _ in range(self.dice.randrange(3)):
            operation = self.dice.choice(("sync", "sync", "sync_dir", "pwritev", "truncate"))
            rng = self.dice if self.dice.random() < 0.5 else None
            self.disk.fail(operation, path=self.dice.choice(("/cd", "states", "")), rng=rng)

    def fail(self, store: FileStore, failed: list[WriteFailed]) -> None:
        """Recover each block after a disk failure.

        The state may be that before or that after the operation.
        """
        self.failures += 1
        errors = {one.block: one for one in failed}
        for block in BLOCKS:
            if block in errors and errors[block].fatal:
                assert store.write([Sync(block), SaveState(block, b"never")])[0].fatal
        for block in BLOCKS:
            found = store.recover(block, 0, block not in self.sealed)
            assert isinstance(found, Recovered), found
            self.check(store, found)
        self.saving = {}

    def end(self, block: BlockId) -> int:
        return self.seen[block][-1].end_offset if self.seen[block] else 0

    def work(self, store: FileStore) -> None:
        writes: list[Write] = []
        seen = {block: list(batches) for block, batches in self.seen.items()}
        safe = {block: list(batches) for block, batches in self.safe.items()}
        for block in self.dice.sample(BLOCKS, self.dice.randint(1, 2)):
            if block in self.sealed:
                continue
            writes.append(CreateBlock(block, 0, "t", "p"))
            kinds = ["append"] * 6 + ["sync", "truncate", "checkpoint", "seal", "follow"]
            kind = self.dice.choice(kinds)
            batches = seen[block]
            if self.dice.random() < 0.3:
                self.saving[block] = self.dice.randbytes(self.dice.choice((9, 9, 700)))
            if kind == "follow":  # a follower's log is cut and continues in one turn
                self.uncut[block] = list(batches)
                del batches[self.dice.randrange(len(batches) + 1) :]
                end = batches[-1].end_offset if batches else 0
                writes.append(Truncate(block, end))
                self.safe[block] = self.safe[block][: len(batches)]
                safe[block] = safe[block][: len(batches)]
                self.epoch += 1
            if kind in ("append", "follow"):
                sync = self.dice.random() < self.synced
                durable = safe[block][-1].end_offset if safe[block] else 0
                for _ in range(self.dice.randint(1, self.group)):
                    end = batches[-1].end_offset if batches else 0
                    size = self.dice.choice((10, 700))
                    new = batch(end, epoch=self.epoch, size=size, durable=durable)
                    batches.append(new)
                    writes.append(Append(block, [new], sync))
                self.seen[block] = batches
                if sync:
                    safe[block] = list(batches)
            elif kind == "truncate" and batches:
                del batches[self.dice.randrange(len(batches)) :]
                end = batches[-1].end_offset if batches else 0
                writes.append(Truncate(block, end))
                # If the power fails now, the truncation may be done or not: only the batches before
                # it are promised.
                self.safe[block] = self.safe[block][: len(batches)]
                safe[block] = list(batches)
            else:
                if kind == "seal" and self.dice.random() < 0.8:
                    continue
                if kind == "seal":
                    writes.append(SealBlock(block))
                elif kind == "checkpoint":
                    writes.append(Checkpoint(block, b"%d" % len(batches)))
                else:
                    writes.append(Sync(block))
                safe[block] = list(batches)
        before = self.seen
        for block, state in self.saving.items():
            writes.insert(self.dice.randint(0, len(writes)), SaveState(block, state))
        if self.dice.random() < self.faulty:
            self.break_something()
        failed = store.write(writes)
        if self.faulty:
            cut_in = self.disk.cut_in
            self.disk.heal()
            self.disk.cut_in = cut_in
        if failed:
            self.fail(store, failed)
            return
        self.states |= self.saving
        self.saving, self.uncut = {}, {}
        self.safe, self.seen = safe, seen
        assert before is not self.seen
        self.sealed |= {write.block for write in writes if isinstance(write, SealBlock)}


@pytest.fixture(params=[False, True])
def reserve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parametrize the tests: zeros are written ahead of small blocks, too, or only of large
    ones.
    """
    if request.param:
        monkeypatch.setattr(appending, "RESERVE_FROM", 64)
    monkeypatch.setattr(states_module, "REWRITE_FROM", 2_000)


@pytest.mark.usefixtures("reserve")
@pytest.mark.parametrize("seed", seeds(30, 150))
def test_what_was_synced_survives_power_cuts(seed: int) -> None:
    Life(seed, holes=False).live(times=12)


@pytest.mark.usefixtures("reserve")
@pytest.mark.parametrize("seed", seeds(20, 100))
def test_sectors_may_be_written_in_any_order(seed: int) -> None:
    """After sectors were written in any order, synced data is there and no block is refused."""
    Life(1_000 + seed, holes=True).live(times=8)


@pytest.mark.usefixtures("reserve")
@pytest.mark.parametrize("seed", seeds(20, 100))
def test_a_power_cut_amid_unsynced_groups_refuses_no_block(seed: int) -> None:
    """The hardest case: many batches without a sync, whose sectors are written in any order.

    Synced data is always there. Each batch contains the durable end of its time, so unsynced
    batches never count as damage.
    """
    Life(2_000 + seed, holes=True, synced=0.1, group=8).live(times=12)


@pytest.mark.usefixtures("reserve")
@pytest.mark.parametrize("seed", seeds(20, 100))
def test_what_was_synced_survives_disks_that_fail(seed: int) -> None:
    """Synced data survives syncs that fail or lie, full disks, and then a power cut."""
    Life(3_000 + seed, holes=True, faulty=0.2).live(times=8)


FOLLOWER = BLOCKS[0]


def follower(disk: SimDisk, dice: random.Random, *, is_stamped_anew: bool) -> FileStore | None:
    """Recover a follower, and append to it, without syncs, the batches of a leader whose disk has
    all data.

    Returns:
        None when recovery refuses the file.
    """
    store = FileStore("/data", files=disk)
    found = store.recover(FOLLOWER, 0, True)
    if isinstance(found, RecoverFailed):
        return None
    assert not store.write([CreateBlock(FOLLOWER, 0, "t", "p")])
    durable = end = found.end
    for _ in range(6):
        sent = [batch(end + 3 * i, size=400) for i in range(dice.randint(1, 4))]
        end = sent[-1].end_offset
        if is_stamped_anew:
            sent = restamp(b"".join(bytes(one.head) + bytes(one.body) for one in sent), durable)
        is_synced = dice.random() < 0.1
        assert not store.write([Append(FOLLOWER, sent, is_synced)])
        durable = end if is_synced else durable
    return store


@pytest.mark.parametrize("is_stamped_anew", [True, False])
def test_a_follower_must_stamp_what_its_leader_sends(is_stamped_anew: bool) -> None:
    """A follower must stamp batches itself: with its leader's stamps a power cut would look like
    damage.
    """
    refused = 0
    for seed in range(60):
        dice, disk = random.Random(seed), SimDisk()
        for _ in range(4):
            if follower(disk, dice, is_stamped_anew=is_stamped_anew) is None:
                refused += 1
                break
            disk.crash(dice)
    assert (refused == 0) == is_stamped_anew


def script() -> Iterator[tuple[list[Write], int, bytes | None]]:
    """Return turns of a follower, each with the durable end and the state after it."""
    one = BLOCKS[0]
    yield [CreateBlock(one, 0, "t", "p"), SaveState(one, b"0")], 0, b"0"
    yield [Append(one, [batch(0), batch(3)], True), SaveState(one, b"1")], 6, b"1"
    yield [Append(one, [batch(6, durable=6), batch(9, durable=6)], False)], 6, b"1"
    yield [Sync(one)], 12, b"1"
    yield [Checkpoint(one, b"state")], 12, b"1"
    again = [batch(at, epoch=2, size=700, durable=6) for at in (6, 9, 12)]
    yield [SaveState(one, b"2"), Truncate(one, 6), Append(one, again, True)], 15, b"2"
    yield [Truncate(one, 9), SaveState(one, b"3" * 600)], 9, b"3" * 600
    yield [Append(one, [batch(9, epoch=3)], True), SaveState(one, b"4")], 12, b"4"
    yield [SealBlock(one)], 12, b"4"


def test_power_may_fail_at_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The power fails at every operation in turn, with many possible states of the disk."""
    monkeypatch.setattr(states_module, "REWRITE_FROM", 300)
    steps = [([], 0, None), *script()]
    at = 0
    while True:
        disk = SimDisk()
        disk.cut_in = at
        done = 0
        try:
            store = FileStore("/data", files=disk)
            for writes, _, _ in steps[1:]:
                assert not store.write(writes)
                done += 1
        except PowerCut:
            pass
        else:
            break
        (_, end, state), (writes, end_now, state_now) = steps[done : done + 2]
        cuts = [write.end for write in writes if isinstance(write, Truncate)]
        for seed in range(20):
            fork = disk.fork()
            fork.crash(random.Random(1_000 * at + seed))
            found = FileStore("/data", files=fork).recover(BLOCKS[0], 0, True)
            assert isinstance(found, Recovered), (at, seed, found)
            assert found.state in (state, state_now), (at, seed)
            assert min([end, end_now, *cuts]) <= found.end <= 15, (at, seed)
            if cuts:
                assert found.end in (end, end_now, *cuts) or found.headers[-1].leader_epoch == 2
            survives_being_killed(disk.fork(), seed)
        at += 1
    assert at > 50


def survives_being_killed(disk: SimDisk, seed: int) -> None:
    """Check that data confirmed by the killed process survives a power cut during the next
    process.
    """
    store = FileStore("/data", files=disk)
    found = store.recover(BLOCKS[0], 0, True)
    assert isinstance(found, Recovered)
    more = batch(found.end, epoch=9)
    create = CreateBlock(BLOCKS[0], 0, "t", "p")
    assert not store.write([create, SaveState(BLOCKS[0], b"9"), Append(BLOCKS[0], [more], True)])
    disk.crash(random.Random(seed))
    again = FileStore("/data", files=disk).recover(BLOCKS[0], 0, True)
    assert isinstance(again, Recovered), again
    assert (again.end, again.state) == (more.end_offset, b"9")


@pytest.mark.parametrize("seed", seeds(20, 60))
def test_compaction_and_removal_survive_power_cuts(seed: int) -> None:
    """After a power cut a compacted block has its old or its new form, and a removed block exists
    completely or not at all.
    """
    dice = random.Random(seed)
    disk = SimDisk()
    first, second = BLOCKS[:2]
    store = FileStore("/data", files=disk)
    one, two = [batch(3 * i) for i in range(5)], [batch(15 + 3 * i) for i in range(5)]
    for block, start, batches in ((first, 0, one), (second, 15, two)):
        assert not store.write([CreateBlock(block, start, "t", "p"), Append(block, batches, True)])
        assert not store.write([Checkpoint(block, b"state"), SealBlock(block)])
    disk.cut_in = dice.randrange(45)
    is_removed = False
    try:
        assert store.compact(Compact("t", "p", (first, second), 0)).error is None
        is_removed = True
        assert not store.write([RemoveBlock(first)])
    except PowerCut:
        pass
    disk.crash(dice)
    store = FileStore("/data", files=disk)
    for block, start, end in ((first, 0, 15), (second, 15, 30)):
        found = store.recover(block, start, False)
        if is_removed and block == first and isinstance(found, RecoverFailed):
            continue
        assert isinstance(found, Recovered), found
        assert found.end == end
        records = [
            record
            for batch_ in split(store.read(block, start, end, 1 << 20))
            for record in batch_.verify().records()
        ]
        assert {record.key for record in records} or block == first
        if block == second:
            assert {r.offset for r in records} >= set(range(25, 30))
        assert store.find_time(block, end, 1_029) == (29 if block == second else None)
    store.close()
