"""Checks of many blocks: sealing, states, removal, times, compaction."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.columns import TIMESTAMPS, VALUES, encode_bytes, encode_numbers
from pymq.core.batch.record import EncodedBatch
from pymq.core.ready import (
    Append,
    Checkpoint,
    Compact,
    CreateBlock,
    RemoveBlock,
    SaveState,
    SealBlock,
    Truncate,
    Write,
)
from pymq.core.types import BlockId
from pymq.errors import Closed, CorruptBatch, StoreError
from pymq.testing.check_store.suite import TOPIC, StoreSuite, make_run


def check_seal(suite: StoreSuite) -> None:
    """A sealed block is complete, takes no more appends, and is still sealed after a restart."""
    block = suite.block()
    suite.write(Append(block, make_run(0, 3), sync=False), SealBlock(block))
    suite.refused(Append(block, make_run(9, 1), sync=True))
    assert suite.reopen(block, is_open=False).end == 9
    suite.refused(Append(block, make_run(9, 1), sync=True))
    assert suite.content(block, 0, 9) == [0, 3, 6]
    suite.write(Truncate(block, 6))
    assert suite.reopen(block, is_open=False).end == 6, "the tail of a sealed block can be cut"
    suite.recovered(block, is_open=True)
    suite.write(Append(block, make_run(6, 1), sync=True))
    assert suite.content(block, 0, 9) == [0, 3, 6], "a block recovered as open accepts appends"
    suite.write(Truncate(block, 3))
    found = suite.reopen(block)
    assert (found.end, found.cut_bytes) == (3, 0), "the index from the seal must not count now"
    suite.write(Append(block, make_run(3, 1, epoch=2, size=500), sync=True))
    found = suite.reopen(block)
    assert (found.end, found.cut_bytes) == (6, 0), "the index from the seal must not count now"
    suite.write(Append(block, make_run(6, 1, epoch=2), sync=True))
    if suite.durable:
        suite.store.close()
        suite.open()
        assert suite.content(block, 0, 9) == [0, 3, 6], "a block can be read without recovering it"

    empty = suite.block(start=4)
    suite.write(SealBlock(empty))
    found = suite.reopen(empty, 4, is_open=False)
    assert (found.end, found.headers) == (4, []), "an empty block can be sealed"


def check_blocks_and_remove(suite: StoreSuite) -> None:
    """The store lists exactly the existing blocks, and removed blocks have no content."""
    before = suite.store.blocks()
    first = suite.block()
    second = suite.block(start=3, number=1)
    suite.write(Append(first, make_run(0, 1), sync=True), SealBlock(first))
    suite.write(Append(second, make_run(3, 1), sync=True))
    assert [b for b in suite.store.blocks() if b not in before] == [first, second]
    suite.write(RemoveBlock(first))
    suite.write(RemoveBlock(first))  # removing a block again does nothing
    assert [b for b in suite.store.blocks() if b not in before] == [second]
    try:
        suite.store.read(first, 0, 3, 100)
    except StoreError:
        pass
    else:
        raise AssertionError("reading a removed block must raise StoreError")
    if suite.durable:
        suite.store.close()
        suite.open()
        assert [b for b in suite.store.blocks() if b not in before] == [second]
    suite.write(CreateBlock(first, 50, "topic", "partition"), Append(first, make_run(50, 1), True))
    assert suite.content(first, 50, 53) == [50], "a removed block can be made again"


def check_states(suite: StoreSuite) -> None:
    """The store keeps a block's state beside its log, durably, and removes it with the block."""
    absent = BlockId(TOPIC, 10**6, 7)
    suite.write(SaveState(absent, b"first"))
    assert absent in suite.store.blocks(), "a block with only a state is listed"
    assert suite.reopen(absent, 9).state == b"first", "a state needs no created block"
    block, other = suite.block(), suite.block()
    assert suite.recovered(block).state is None, "nothing was saved"
    suite.write(
        SaveState(block, b"lost"),
        Append(block, make_run(0, 2), sync=True),
        SaveState(other, b""),
        SaveState(block, b"\0vote\xff"),
    )
    assert suite.store.read(block, 0, 6, 1), "appends of the same turn are done as well"
    found = suite.reopen(block)
    assert (found.state, found.end) == (b"\0vote\xff", 6), "of two in a turn the last counts"
    assert suite.reopen(other).state == b"", "an empty state is a state, too"
    assert suite.recovered(absent, 9).state == b"first", "other states must not change"

    suite.refused(Append(block, make_run(9, 1), sync=True), SaveState(block, b"kept"))
    assert suite.recovered(block).state == b"kept", "a saved state stays if other writes fail"
    suite.write(Truncate(block, 3), Checkpoint(block, b"snapshot"), SealBlock(block))
    suite.write(CreateBlock(block, 0, "topic", "partition"))
    assert suite.reopen(block, is_open=False).state == b"kept", "other writes must leave it alone"
    assert suite.recovered(block).snapshot == b"snapshot"

    suite.write(SaveState(block, b"gone"), RemoveBlock(block))
    assert block not in suite.store.blocks(), "removing a block removes its state"
    suite.write(RemoveBlock(absent))
    assert absent not in suite.store.blocks(), "a block that has only a state can be removed"
    assert suite.reopen(block).state is None, "removing a block removes its state"
    assert suite.recovered(absent, 9).state is None
    suite.write(RemoveBlock(other), SaveState(other, b"new"))
    assert suite.reopen(other).state == b"new", "a state saved after the removal counts"


def check_many_states(suite: StoreSuite) -> None:
    """Many states are saved, and most of them replaced soon."""
    blocks = [BlockId(TOPIC, 10**7 + i, 0) for i in range(30)]
    model: dict[BlockId, bytes] = {}
    dice = random.Random(3)
    for turn in range(400):
        writes: list[Write] = []
        for block in dice.sample(blocks, dice.choice((1, 3, 30))):
            if dice.random() < 0.1:
                writes.append(RemoveBlock(block))
                model.pop(block, None)
            else:
                model[block] = dice.randbytes(dice.choice((5, 20, 100)))
                writes.append(SaveState(block, model[block]))
        suite.write(*writes)
        if turn % 100 == 99:
            for block in blocks:
                found = suite.reopen(block, 5) if block is blocks[0] else suite.recovered(block, 5)
                assert found.state == model.get(block), f"turn {turn}: {block} has another state"
    suite.write(*map(RemoveBlock, blocks))
    assert not set(blocks) & set(suite.store.blocks())


def check_unsealed(suite: StoreSuite) -> None:
    """A block counts as unsealed until it is sealed or removed."""
    old = suite.store.blocks()

    def unsealed() -> list[BlockId]:
        return [block for block in suite.store.unsealed() if block not in old]

    first = suite.block()
    second = suite.block(start=3, number=1)
    voted = BlockId(TOPIC, suite.partition, 2)
    assert unsealed() == [first, second], "a block that was created is not sealed"
    suite.write(Append(first, make_run(0, 1), sync=True), Append(second, make_run(3, 1), sync=True))
    suite.write(SaveState(voted, b"vote"), SealBlock(first))
    assert unsealed() == [second, voted]
    assert sorted(unsealed(), reverse=True) == [voted, second], "they come in order"
    if suite.durable:
        suite.store.close()
        suite.open()
        assert unsealed() == [second, voted], "it must be known without recovering the blocks"
        suite.store.read(second, 3, 6, 100)
        assert unsealed() == [second, voted], "reading seals nothing"
    suite.recovered(first)
    assert unsealed() == [first, second, voted], "recovered as open it is not sealed any more"
    if suite.durable:
        suite.store.close()
        suite.open()
        assert unsealed() == [first, second, voted], "nor after a restart"
    suite.recovered(first, is_open=False)
    suite.write(RemoveBlock(second), RemoveBlock(voted))
    assert unsealed() == []


def check_close(suite: StoreSuite) -> None:
    """A closed store refuses all calls."""
    block = suite.block()
    suite.write(Append(block, make_run(0, 1), sync=False))
    store = suite.store
    store.close()
    store.close()
    for call in (
        lambda: store.write([Append(block, make_run(3, 1), sync=False)]),
        lambda: store.read(block, 0, 3, 100),
        lambda: store.recover(block, 0, True),
    ):
        try:
            call()
        except Closed:
            continue
        raise AssertionError("a closed store must raise Closed")
    suite.open()
    if suite.durable:
        assert suite.recovered(block).end == 3, "closing must make everything durable"


# --- time ---------------------------------------------------------------------------------------


def check_find_time(suite: StoreSuite) -> None:
    """A search by time finds the first record that is not older than the time."""
    block = suite.block()
    assert suite.store.find_time(block, 100, 0) is None
    times: list[int] = []
    batches: list[EncodedBatch] = []
    dice = random.Random(1)
    for i in range(200):  # clocks of producers differ, so times go up and down
        own = [1_000 + 10 * i + dice.randrange(-300, 300) for _ in range(3)]
        values = [bytes(dice.randrange(1, 1_000)) for _ in own]
        batch = EncodedBatch.encode(values, timestamp_ms=own[0], timestamps=own)
        batches.append(batch.stamp(len(times), 1, 0))
        times += own
        if i % 50 == 25:  # a control batch holds no record for consumers, whatever its time
            control = EncodedBatch.control(b"", timestamp_ms=10**9)
            batches.append(control.stamp(len(times), 1, 0))
            times.append(-(10**9))
    suite.write(Append(block, batches, sync=False))
    for end in (604, 599, 300, 1):
        for time in (-1, 0, 700, *range(900, 3_400, 37), 10**12):
            expected = next((o for o, t in enumerate(times[:end]) if t >= time), None)
            found = suite.store.find_time(block, end, time)
            assert found == expected, f"find_time({end=}, {time}) gave {found}, not {expected}"


def check_find_time_in_a_batch_that_came_so(suite: StoreSuite) -> None:
    """A batch with a sound CRC and times that cannot be decoded is no sign of a damaged disk."""
    block = suite.block()
    good = EncodedBatch.encode([b"a", b"b"], timestamp_ms=1_000)
    encoded = {VALUES: encode_bytes([b"c"] * 3), TIMESTAMPS: encode_numbers([0])}
    bad = EncodedBatch.of_columns(3, encoded, 2_000, 2_000)
    last = EncodedBatch.encode([b"d"], timestamp_ms=3_000)
    batches = [good.stamp(0, 1, 0), bad.stamp(2, 1, 0), last.stamp(5, 1, 0)]
    suite.write(Append(block, batches, sync=False))
    assert [suite.store.find_time(block, 6, time) for time in (1_000, 2_001)] == [0, 5]
    told: dict[str, object] = {}
    try:
        suite.store.find_time(block, 6, 1_001)
    except CorruptBatch as error:
        told = error.details
    place = (told.get("offset"), told.get("end"))
    assert place == (2, 5), "times that cannot be decoded raise CorruptBatch, which says where"


# --- compaction ---------------------------------------------------------------------------------


def check_compact(suite: StoreSuite) -> None:
    """Compaction keeps the last record of each key, at its offset."""
    rows: list[tuple[bytes | None, bytes, bool]] = [  # key, value, whether it deletes the key
        (b"a", b"1", False),
        (b"b", b"1", False),
        (None, b"keyless", False),
        (b"a", b"2", False),
        (b"b", b"", True),
        (b"c", b"1", False),
        (b"c", b"2", False),
        (b"a", b"3", False),
    ]
    first, second = suite.block(), suite.block(start=5, number=1)
    suite.write(Append(first, [_keyed(0, rows[:2]), _keyed(2, rows[2:5])], sync=True))
    control = EncodedBatch.control(b"epoch", timestamp_ms=0).stamp(8, 1, 5)
    suite.write(Append(second, [_keyed(5, rows[5:]), control], sync=True))
    suite.write(Checkpoint(first, b"state"), SealBlock(first))
    for tombstones_before_ms, expected in ((0, {2, 4, 6, 7, 8}), (10**9, {2, 6, 7, 8})):
        job = Compact("topic", "partition", (first, second), tombstones_before_ms)
        if tombstones_before_ms == 0:
            assert suite.store.compact(job).error is not None, "an open block is not compacted"
            suite.write(SealBlock(second))
        done = suite.store.compact(job)
        assert done.error is None, f"compaction failed: {done.error!r}"
        found = {first: suite.reopen(first, 0, False), second: suite.reopen(second, 5, False)}
        assert dict(done.sizes) == {block: answer.size for block, answer in found.items()}
        assert [found[first].end, found[second].end] == [5, 9], "offsets must not change"
        assert suite.content(first, 0, 5)[0] == 0
        assert suite.content(second, 5, 9)[0] == 5
        records = [*_records(suite, first, 0, 5), *_records(suite, second, 5, 9)]
        assert {offset for offset, _, _ in records} == expected, f"wrong records stay: {records}"
        for offset, key, value in records:
            wanted = (None, b"epoch") if offset == 8 else rows[offset][:2]
            assert (key, value) == wanted, f"offset {offset} has changed"


def _keyed(offset: int, rows: Sequence[tuple[bytes | None, bytes, bool]]) -> EncodedBatch:
    batch = EncodedBatch.encode(
        [value for _, value, _ in rows],
        keys=[key for key, _, _ in rows],
        headers=[(("pymq.tombstone", b""),) if gone else () for _, _, gone in rows],
        timestamp_ms=1_000,
    )
    return batch.stamp(offset, 1, 0)


def _records(
    suite: StoreSuite, block: BlockId, start: int, end: int
) -> list[tuple[int, bytes | None, bytes]]:
    data = suite.store.read(block, start, end, 1 << 20)
    return [(r.offset, r.key, r.value) for batch in split(data) for r in batch.records()]
