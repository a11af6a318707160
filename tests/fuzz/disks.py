"""Readers of a store's files: blocks, the files beside them, and small states."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import get_args

from pymq.core import cbor
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.offset_index import Index
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import ProducerTable
from pymq.core.metadata import nodes as metadata
from pymq.core.ready import Append, Checkpoint, CreateBlock, RecoverFailed, SaveState, SealBlock
from pymq.core.types import BlockId
from pymq.errors import CorruptBatch, CorruptBlock, CorruptMetadata, PymqError, StoreError
from pymq.replication.raft.persistent_state import HardState
from pymq.store.block.block_file import FileHead, Known
from pymq.store.file import states
from pymq.store.file.file_store import FileStore
from pymq.store.verification.verify import verify
from pymq.testing.simulation.disk import SimDisk
from tests.fuzz.damage import distort, scramble, write
from tests.fuzz.targets import as_bytes, forged, sound_batches
from tests.transport.samples import sample

BLOCK = BlockId("ab" * 16, 0, 7)
FOLDER = "/store"


class Blocks:
    """The block reader: recovers a folder with one damaged file, then reads it."""

    def __init__(self) -> None:
        self.disks = [_disk(Random(f"disk {number}"), number % 3) for number in range(12)]

    def attempt(self, rng: Random) -> bool:
        """Read an open or a sealed block with a damaged file or a forged batch."""
        kept, batches, is_open = rng.choice(self.disks)
        disk = kept.fork()
        paths = [path for path in disk.paths() if not path.endswith("LOCK")]
        path = rng.choice([one for one in paths if one.endswith(".block")] * 4 + paths)
        data = disk.data(path)
        is_forged = path.endswith(".block") and rng.random() < 0.3
        if is_forged:
            chosen = rng.choice(batches)
            data = data.replace(as_bytes(chosen), forged(rng, chosen, ()))
        else:
            data = scramble(rng, data, ())
        disk.put(path, data)
        try:
            if rng.random() < 0.2:
                verify(FOLDER, files=disk)
            store = FileStore(FOLDER, files=disk)
        except StoreError:
            return False
        try:
            return self._read(store, batches, is_open, rng, is_forged)
        except (StoreError, CorruptBatch):
            return False
        finally:
            store.close()

    @staticmethod
    def _read(
        store: FileStore, batches: list[EncodedBatch], is_open: bool, rng: Random, is_forged: bool
    ) -> bool:
        start = batches[0].base_offset
        is_recovered = is_open or rng.random() < 0.5
        if is_recovered:
            found = store.recover(BLOCK, start, is_open)
            if isinstance(found, RecoverFailed):
                assert isinstance(found.error, PymqError), found.error
                return False
            end = found.end
        else:
            end = batches[-1].end_offset
        store.find_time(BLOCK, end, rng.choice((0, 1_000, 1 << 62)))
        at, sound = start, [as_bytes(batch) for batch in batches]
        while at < end:
            data = store.read(BLOCK, at, end, rng.choice((1, 5_000, 1 << 20)))
            if not data:
                # A sealed block that has lost its end and its index looks shorter; only the tree
                # proves that it is not.
                assert not is_recovered, "reading does not get on"
                return False
            for batch in split(data):
                # With a checkpoint or an index, the reader checks the bodies.
                batch.verify()
                assert is_forged or as_bytes(batch) in sound, "something was read that never was"
                assert batch.end_offset > at, "reading does not get on"
                at = batch.end_offset
        return True


def _disk(rng: Random, kind: int) -> tuple[SimDisk, list[EncodedBatch], bool]:
    """Return a store with one block, open or sealed, with and without a checkpoint."""
    disk = SimDisk()
    store = FileStore(FOLDER, files=disk)
    small = [batch for batch in sound_batches() if batch.size < 2_000]
    offset, batches = rng.choice((0, 1_000)), []
    start = offset
    for _ in range(rng.randrange(2, 7)):
        batch = rng.choice(small).stamp(offset, 1, rng.choice((start, offset)))
        batches.append(batch)
        offset = batch.end_offset
    assert not store.write([CreateBlock(BLOCK, start, "orders", "eu"), SaveState(BLOCK, b"\x80")])
    for at, batch in enumerate(batches):
        assert not store.write([Append(BLOCK, [batch], True)])
        if kind and not at:
            assert not store.write([Checkpoint(BLOCK, b"\x80")])
    if kind == 2:
        assert not store.write([SealBlock(BLOCK)])
    store.close()
    return disk, batches, kind != 2


class Notes:
    """Small stored items: indexes, checkpoints, votes, producers, metadata."""

    def __init__(self) -> None:
        rng = Random("notes")
        disk, batches, _ = _disk(rng, 2)
        table, index = ProducerTable(), Index()
        for number in range(20):
            batch = EncodedBatch.encode([b"x"], timestamp_ms=1, producer_id=number, base_sequence=0)
            table.replay(batch.stamp(number, 1, 0).header)
            index.add(batch.stamp(number, 1, 0).header, number * 40_000)
        saved = disk.data(f"{FOLDER}/states.log")
        known = Known(BLOCK, 0, 9, 500, 1, 100, 77, index, table.snapshot())
        head = FileHead(BLOCK, 0, "orders", "eu")
        one = as_bytes(batches[0])
        self.readers: list[tuple[list[bytes], Callable[[bytes], object]]] = [
            ([index.to_bytes()], Index.from_bytes),
            ([known.to_bytes()], Known.from_bytes),
            ([head.to_bytes() + one], FileHead.from_bytes),
            ([saved], lambda data: states.parse(data, "states.log")),
            ([table.snapshot()], ProducerTable.restore),
            ([HardState(5, "broker-1").dumps()], HardState.loads),
        ]
        for cls in get_args(metadata.Node):
            nodes = [metadata.encode_node(sample(cls, rng)) for _ in range(5)]
            self.readers.append((nodes, _node_reader(cls)))

    def attempt(self, rng: Random) -> bool:
        """Damage one of the items, as bytes or as CBOR, and read it."""
        made, read = rng.choice(self.readers)
        data = rng.choice(made)
        try:
            item = cbor.loads(data) if rng.random() < 0.6 else None
        except PymqError:
            item = None
        data = scramble(rng, data, made) if item is None else write(distort(rng, item, ()))
        try:
            read(data)
        except (CorruptMetadata, CorruptBlock):
            return False
        return True


def _node_reader(cls: type) -> Callable[[bytes], object]:
    return lambda data: metadata.decode_node(cls, data)
