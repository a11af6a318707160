"""Power fails at any operation of the disk: what was promised to be durable is there afterwards."""

from __future__ import annotations

import random

import pytest

from pymq.core.ready import (
    Append,
    Checkpoint,
    Compact,
    CreateBlock,
    Recovered,
    RecoverFailed,
    RemoveBlock,
    SealBlock,
    Sync,
    Truncate,
    Write,
)
from pymq.core.record import RecordBatch, split
from pymq.core.types import BlockId
from pymq.store import file as file_module
from pymq.store.file import FileStore
from tests.store.helpers import PowerCut, SimDisk, batch

BLOCKS = [BlockId("cd" * 16, i // 2, i % 2) for i in range(4)]


class Life:
    """One broker's store, over many power cuts; knows what must be there and what may be."""

    def __init__(self, seed: int, *, holes: bool, synced: float = 0.5, group: int = 2) -> None:
        self.synced = synced  # how many of the appends ask for a sync
        self.group = group  # at most so many batches in one write
        self.dice = random.Random(seed)
        self.disk = SimDisk(self.dice, holes=holes)
        self.safe: dict[BlockId, list[RecordBatch]] = {block: [] for block in BLOCKS}
        self.seen: dict[BlockId, list[RecordBatch]] = {block: [] for block in BLOCKS}
        self.sealed: set[BlockId] = set()
        self.epoch = 1

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
        self.disk.crash()

    def open(self) -> FileStore:
        self.epoch += 1
        store = FileStore("/data", files=self.disk, handles_max=2, sync_threads=1)
        for block in BLOCKS:
            found = store.recover(block, 0, block not in self.sealed)
            assert isinstance(found, Recovered), found
            self.check(store, found)
        return store

    def check(self, store: FileStore, found: Recovered) -> None:
        block = found.block
        data = store.read(block, 0, found.end, 1 << 30)
        batches = [one.verify() for one in split(data)]
        ids = [bytes(one.head) for one in batches]
        safe = [bytes(one.head) for one in self.safe[block]]
        seen = [bytes(one.head) for one in self.seen[block]]
        assert ids[: len(safe)] == safe, f"{block} has lost {len(safe) - len(ids)} batches"
        assert ids == seen[: len(ids)], f"{block} holds what was never written"
        after = len(batches) - len(found.headers)
        if found.snapshot is not None:
            assert found.snapshot == b"%d" % after, "the snapshot is not as of its place"
        # What was recovered is durable now: a leader counts it.
        self.safe[block] = self.seen[block] = batches

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
            kind = self.dice.choice(["append"] * 6 + ["sync", "truncate", "checkpoint", "seal"])
            batches = seen[block]
            if kind == "append":
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
                # Before the power fails it may be cut or not: only what stays is promised.
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
        failed = store.write(writes)
        assert not failed, failed
        self.safe, self.seen = safe, seen
        assert before is not self.seen
        self.sealed |= {write.block for write in writes if isinstance(write, SealBlock)}


@pytest.fixture(params=[False, True])
def reserve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros are written ahead of small blocks, too; or only of large ones."""
    if request.param:
        monkeypatch.setattr(file_module, "RESERVE_FROM", 64)


@pytest.mark.usefixtures("reserve")
@pytest.mark.parametrize("seed", range(150))
def test_what_was_synced_survives_power_cuts(seed: int) -> None:
    life = Life(seed, holes=False)
    for _ in range(12):
        life.run()
    life.disk.cut_in = -1
    life.open().close()


@pytest.mark.usefixtures("reserve")
@pytest.mark.parametrize("seed", range(100))
def test_sectors_may_be_written_in_any_order(seed: int) -> None:
    """What was synced is there, and no block is refused."""
    life = Life(1_000 + seed, holes=True)
    for _ in range(8):
        life.run()
    life.disk.cut_in = -1
    life.open().close()


@pytest.mark.usefixtures("reserve")
@pytest.mark.parametrize("seed", range(100))
def test_a_power_cut_amid_unsynced_groups_refuses_no_block(seed: int) -> None:
    """The harsh one: long runs that nobody synced, their sectors written in any order.

    What was synced is always there; and since each batch says what was durable when it was made,
    the rest is never taken for damage.
    """
    life = Life(2_000 + seed, holes=True, synced=0.1, group=8)
    for _ in range(12):
        life.run()
    life.disk.cut_in = -1
    life.open().close()


@pytest.mark.parametrize("seed", range(60))
def test_compaction_and_removal_survive_power_cuts(seed: int) -> None:
    """A compacted block is there as before or as after, and a removed one never half."""
    dice = random.Random(seed)
    disk = SimDisk(dice)
    first, second = BLOCKS[:2]
    store = FileStore("/data", files=disk, sync_threads=1)
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
    disk.crash()
    store = FileStore("/data", files=disk, sync_threads=1)
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
