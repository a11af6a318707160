"""Proves that a block store keeps the contract of :mod:`pymq.store.base`.

A store's own test is one call::

    def test_contract(tmp_path):
        check_store(lambda: FileStore(str(tmp_path / "store")))
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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
)
from pymq.core.record import RecordBatch
from pymq.core.runs import split
from pymq.core.types import BlockId
from pymq.errors import Closed, OffsetOutOfRange, PymqError, StoreError
from pymq.store.base import BlockStore

__all__ = ["check_store"]

Make = Callable[[], BlockStore]
_TOPIC = "5ca1ab1e" * 4


def check_store(make: Make, *, durable: bool = True, steps: int = 400, seed: int = 0) -> None:
    """Raise :class:`AssertionError`, saying what is broken, unless the store keeps every rule.

    *make()* opens the store. Stores that *make* gave are closed here before it is called again,
    and if the store is *durable*, it must then find what was there. It must begin empty.

    *steps* random operations, drawn from *seed*, are compared with a plain list.
    """
    suite = _Suite(make, durable)
    for check in _CHECKS:
        with _named(check.__name__.removeprefix("_check_")):
            check(suite)
            suite.store.close()
        suite.open()
    with _named("random"):
        _Random(suite, random.Random(seed)).run(steps)
    suite.store.close()


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error


class _Suite:
    """A store under test, and helpers to use it."""

    def __init__(self, make: Make, durable: bool) -> None:
        self.make = make
        self.durable = durable
        self.partition = 0
        self.open()
        assert self.store.blocks() == [], "the store must begin empty"

    def open(self) -> None:
        self.store = self.make()

    def block(self, start: int = 0, number: int = 0) -> BlockId:
        """Create a block that no check has used."""
        self.partition += number == 0
        block = BlockId(_TOPIC, self.partition, number)
        self.write(CreateBlock(block, start, "topic", "partition"))
        return block

    def write(self, *writes: Write) -> None:
        failed = self.store.write(writes)
        assert not failed, f"{writes} failed with {failed[0].error!r}"

    def refused(self, *writes: Write) -> None:
        failed = self.store.write(writes)
        blocks = {write.block for write in writes}
        assert [f.block for f in failed] == list(blocks), f"{writes} must fail once a block"
        assert all(isinstance(f.error, PymqError) for f in failed), "errors must be pymq's own"
        assert not any(f.fatal for f in failed), f"{writes} must fail, but not fatally"

    def recovered(self, block: BlockId, start: int = 0, is_open: bool = True) -> Recovered:
        found = self.store.recover(block, start, is_open)
        assert isinstance(found, Recovered), f"recovering {block} gave {found}"
        return found

    def reopen(self, block: BlockId, start: int = 0, is_open: bool = True) -> Recovered:
        if self.durable:
            self.store.close()
            self.open()
        return self.recovered(block, start, is_open)

    def content(self, block: BlockId, start: int, end: int, max_bytes: int = 1 << 20) -> list[int]:
        """Read from *start* to *end* as a consumer does; return the base offsets of the batches."""
        found: list[int] = []
        while start < end:
            data = self.store.read(block, start, end, max_bytes)
            assert type(data) is bytes, "read must return bytes"
            batches = [batch.verify() for batch in split(data)]
            assert batches, f"nothing is read at {start}, before the end {end}"
            assert batches[0].base_offset <= start < batches[0].end_offset, (
                "the wrong batch is read"
            )
            found += [batch.base_offset for batch in batches]
            start = batches[-1].end_offset
        assert start == end, f"batches up to {start} were read, beyond {end}"
        return found


def _batch(offset: int, count: int = 1, *, epoch: int = 1, size: int = 10) -> RecordBatch:
    values = [b"%08d " % (offset + i) + bytes(size) for i in range(count)]
    times = [1_000 + 10 * (offset + i) for i in range(count)]
    batch = RecordBatch.encode(values, timestamp_ms=times[0], timestamps=times)
    return batch.stamp(offset, epoch, 0)


def _run(offset: int, count: int, **options: int) -> list[RecordBatch]:
    """*count* batches of 3 records."""
    return [_batch(offset + 3 * i, 3, **options) for i in range(count)]


# --- writing and reading ------------------------------------------------------------------------


def _check_append_and_read(suite: _Suite) -> None:
    block = suite.block(start=5)
    assert suite.store.read(block, 5, 100, 1000) == b"", "an empty block holds nothing"
    batches = _run(5, 4)
    suite.write(Append(block, batches[:2], sync=False), Append(block, batches[2:], sync=True))
    whole = b"".join(bytes(batch.head) + bytes(batch.body) for batch in batches)
    read, size = suite.store.read, batches[0].size
    assert read(block, 5, 17, 1 << 20) == whole, "the bytes must come back as they were written"
    assert read(block, 7, 17, 1 << 20) == whole, "reading inside a batch gives the whole batch"
    assert read(block, 8, 17, 1 << 20) == whole[size:]
    assert read(block, 5, 11, 1 << 20) == whole[: 2 * size], "read must stop at end"
    assert read(block, 5, 9, 1 << 20) == whole[: 2 * size], "a batch that begins before end is read"
    assert read(block, 5, 6, 1) == whole[:size], "a batch that begins before end is read"
    assert read(block, 5, 17, 2 * size) == whole[: 2 * size], "what just fits is read"
    assert read(block, 5, 17, 2 * size - 1) == whole[:size], "batches are never cut"
    assert read(block, 5, 17, 1) == whole[:size], "at least one batch is read"
    assert read(block, 17, 17, 1000) == b"", "nothing is read at the end"
    assert read(block, 17, 99, 1000) == b"", "nothing is read at the end"
    for offset in (4, 18):
        try:
            read(block, offset, 99, 1000)
        except OffsetOutOfRange:
            continue
        raise AssertionError(f"reading at {offset}, outside the block, must raise OffsetOutOfRange")


def _check_order_within_a_turn(suite: _Suite) -> None:
    block = suite.block()
    suite.write(
        Append(block, _run(0, 3), sync=False),
        Truncate(block, 3),
        Append(block, _run(3, 1, epoch=2), sync=True),
        Checkpoint(block, b"state"),
        Append(block, _run(6, 1, epoch=2), sync=False),
        Sync(block),
    )
    found = suite.recovered(block)
    assert (found.end, found.snapshot) == (9, b"state")
    assert [header.base_offset for header in found.headers] == [6]
    assert suite.content(block, 0, 9) == [0, 3, 6]


def _check_buffers_are_copied(suite: _Suite) -> None:
    block = suite.block()
    batch = _batch(0)
    head, body = bytearray(batch.head), bytearray(batch.body)
    suite.write(Append(block, [RecordBatch(head, memoryview(body), batch.header)], sync=False))
    head[:], body[:] = bytes(len(head)), bytes(len(body))
    suite.content(block, 0, 1)  # verifies


def _check_many_batches(suite: _Suite) -> None:
    block = suite.block()
    batches = [_batch(i, size=i % 50) for i in range(3_000)]
    suite.write(Append(block, batches, sync=True))
    suite.write(Append(block, [_batch(3_000, size=200_000), _batch(3_001)], sync=True))
    for max_bytes in (1, 700, 100_000, 1 << 20):
        start = 2_900 if max_bytes == 1 else 0
        assert suite.content(block, start, 3_002, max_bytes) == list(range(start, 3_002))
    for offset in (0, 1, 1_234, 2_999, 3_000, 3_001):
        batch = next(split(suite.store.read(block, offset, 3_002, 1)))
        assert batch.verify().base_offset == offset


def _check_refuses_what_does_not_follow(suite: _Suite) -> None:
    block = suite.block()
    suite.write(Append(block, _run(0, 2, epoch=5), sync=True))
    suite.refused(Append(block, _run(7, 1, epoch=5), sync=False))
    suite.refused(Append(block, _run(3, 1, epoch=5), sync=True))
    suite.refused(Append(block, _run(6, 1, epoch=4), sync=False))
    suite.refused(Append(block, [_batch(6, epoch=5)], sync=False), Append(block, [_batch(9)], True))
    assert suite.content(block, 0, suite.recovered(block).end) == [0, 3], "a refused append counts"
    suite.refused(Append(BlockId(_TOPIC, 10**6, 0), _run(0, 1), sync=False))


def _check_failures_stay_alone(suite: _Suite) -> None:
    good, bad = suite.block(), suite.block()
    failed = suite.store.write(
        [
            Append(bad, _run(9, 1), sync=True),
            Append(good, _run(0, 1), sync=True),
            Append(bad, _run(0, 1), sync=True),
        ]
    )
    assert [f.block for f in failed] == [bad], "only the block with a bad write fails, and once"
    assert suite.recovered(good).end == 3, "the other block must be written"
    assert suite.recovered(bad).end == 0, "nothing of a failed block's writes counts"


# --- life of a block ----------------------------------------------------------------------------


def _check_create_twice(suite: _Suite) -> None:
    block = suite.block(start=7)
    suite.write(Append(block, _run(7, 1), sync=True))
    suite.write(CreateBlock(block, 7, "topic", "partition"))
    assert suite.content(block, 7, 10) == [7], "creating a block that is there must change nothing"
    if suite.durable:
        suite.store.close()
        suite.open()
        suite.write(CreateBlock(block, 7, "topic", "partition"), Append(block, _run(10, 1), True))
        assert suite.content(block, 7, 13) == [7, 10]


def _check_recover(suite: _Suite) -> None:
    absent = BlockId(_TOPIC, 10**6, 3)
    assert isinstance(suite.store.recover(absent, 0, is_open=False), RecoverFailed)
    found = suite.recovered(absent, 40)
    assert (found.start, found.end, found.size, found.headers) == (40, 40, 0, [])
    suite.write(Append(absent, _run(40, 1), sync=True), RemoveBlock(absent))

    block = suite.block(start=9)
    batches = _run(9, 5)
    suite.write(Append(block, batches, sync=True))
    found = suite.reopen(block, 9)
    assert (found.start, found.end, found.snapshot, found.cut_bytes) == (9, 24, None, 0)
    assert found.size == sum(batch.size for batch in batches), "size is that of the batches"
    assert found.headers == [batch.header for batch in batches], "all headers are reported"
    assert isinstance(suite.store.recover(block, 8, True), RecoverFailed), "the start is wrong"
    suite.recovered(block, 9)
    suite.write(Append(block, _run(24, 1), sync=True))
    assert suite.content(block, 9, 27) == [9, 12, 15, 18, 21, 24]


def _check_checkpoint(suite: _Suite) -> None:
    block = suite.block()
    suite.write(Checkpoint(block, b"empty"))
    assert suite.reopen(block).snapshot == b"empty", "a checkpoint of an empty block counts"
    suite.write(Append(block, _run(0, 2), sync=True), Checkpoint(block, b"first"))
    suite.write(Append(block, _run(6, 2), sync=True), Checkpoint(block, b"second"))
    suite.write(Append(block, _run(12, 2), sync=True))
    found = suite.reopen(block)
    assert (found.end, found.snapshot) == (18, b"second")
    assert [header.base_offset for header in found.headers] == [12, 15]
    suite.write(Truncate(block, 15))
    assert suite.reopen(block).snapshot == b"second", "it still holds: the cut was behind it"
    suite.write(Truncate(block, 9))
    found = suite.reopen(block)
    assert found.snapshot is None, "a checkpoint beyond the end must not come back"
    assert [header.base_offset for header in found.headers] == [0, 3, 6]


def _check_truncate(suite: _Suite) -> None:
    block = suite.block(start=3)
    suite.write(Append(block, _run(3, 4), sync=True))
    suite.refused(Truncate(block, 2))
    suite.refused(Truncate(block, 7))
    suite.write(Truncate(block, 15), Truncate(block, 99))
    assert suite.recovered(block, 3).end == 15, "there was nothing to cut"
    suite.write(Truncate(block, 9))
    assert suite.reopen(block, 3).end == 9
    suite.write(Append(block, _run(9, 1, epoch=2), sync=True))
    assert suite.content(block, 3, 12) == [3, 6, 9]
    suite.write(Truncate(block, 6), Append(block, _run(6, 4, epoch=3, size=99), sync=True))
    assert suite.content(block, 12, 18) == [12, 15], "the end of the last read lies elsewhere now"
    suite.write(Truncate(block, 3), Append(block, _run(3, 1), sync=True))
    assert suite.content(block, 3, suite.reopen(block, 3).end) == [3]


def _check_a_follower_cuts_its_log(suite: _Suite) -> None:
    """Cut by epoch, and go on with what the new leader has, again and again."""
    block = suite.block()
    model: list[RecordBatch] = []
    dice = random.Random(2)
    for epoch in range(1, 60):
        kept = dice.randint(max(len(model) - 6, 0), len(model))
        del model[kept:]
        end = model[-1].end_offset if model else 0
        new = _run(end, dice.randint(1, 5), epoch=epoch, size=dice.choice((0, 500, 9_000)))
        model += new
        suite.write(Truncate(block, end), Append(block, new, sync=dice.random() < 0.5))
        if dice.random() < 0.5:
            found = suite.recovered(block) if dice.random() < 0.7 else suite.reopen(block)
            assert found.headers == [one.header for one in model], f"epoch {epoch}"
            assert found.cut_bytes == 0, "a cut must be durable"
        suite.refused(Truncate(block, model[-1].base_offset + 1), Append(block, _run(end, 1), True))
        end = model[-1].end_offset
        data = b"".join(bytes(one.head) + bytes(one.body) for one in model)
        assert suite.store.read(block, 0, end, 1 << 24) == data, f"epoch {epoch}"
    suite.write(Checkpoint(block, b"state"))
    suite.write(Truncate(block, 0), Append(block, _run(0, 2, epoch=99), sync=False), Sync(block))
    found = suite.reopen(block)
    assert (found.end, found.snapshot) == (6, None)
    suite.write(Truncate(block, 0))
    found = suite.reopen(block)
    assert (found.end, found.size, found.headers) == (0, 0, []), "all of it can be cut"
    suite.write(Append(block, _run(0, 1, epoch=100), sync=True))
    assert suite.content(block, 0, suite.reopen(block).end) == [0]


def _check_seal(suite: _Suite) -> None:
    block = suite.block()
    suite.write(Append(block, _run(0, 3), sync=False), SealBlock(block))
    suite.refused(Append(block, _run(9, 1), sync=True))
    assert suite.reopen(block, is_open=False).end == 9
    suite.refused(Append(block, _run(9, 1), sync=True))
    assert suite.content(block, 0, 9) == [0, 3, 6]
    suite.write(Truncate(block, 6))
    assert suite.reopen(block, is_open=False).end == 6, "the tail of a sealed block can be cut"
    suite.recovered(block, is_open=True)
    suite.write(Append(block, _run(6, 1), sync=True))
    assert suite.content(block, 0, 9) == [0, 3, 6], "recovered as open, it takes appends again"
    suite.write(Truncate(block, 3))
    found = suite.reopen(block)
    assert (found.end, found.cut_bytes) == (3, 0), "what was known when it was sealed has passed"
    suite.write(Append(block, _run(3, 1, epoch=2, size=500), sync=True))
    found = suite.reopen(block)
    assert (found.end, found.cut_bytes) == (6, 0), "what was known when it was sealed has passed"
    suite.write(Append(block, _run(6, 1, epoch=2), sync=True))
    if suite.durable:
        suite.store.close()
        suite.open()
        assert suite.content(block, 0, 9) == [0, 3, 6], "a block can be read without recovering it"

    empty = suite.block(start=4)
    suite.write(SealBlock(empty))
    found = suite.reopen(empty, 4, is_open=False)
    assert (found.end, found.headers) == (4, []), "an empty block can be sealed"


def _check_blocks_and_remove(suite: _Suite) -> None:
    before = suite.store.blocks()
    first = suite.block()
    second = suite.block(start=3, number=1)
    suite.write(Append(first, _run(0, 1), sync=True), SealBlock(first))
    suite.write(Append(second, _run(3, 1), sync=True))
    assert [b for b in suite.store.blocks() if b not in before] == [first, second]
    suite.write(RemoveBlock(first))
    suite.write(RemoveBlock(first))  # nothing to do
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
    suite.write(CreateBlock(first, 50, "topic", "partition"), Append(first, _run(50, 1), True))
    assert suite.content(first, 50, 53) == [50], "a removed block can be made again"


def _check_states(suite: _Suite) -> None:
    absent = BlockId(_TOPIC, 10**6, 7)
    suite.write(SaveState(absent, b"first"))
    assert absent in suite.store.blocks(), "a block that has only a state is there"
    assert suite.reopen(absent, 9).state == b"first", "a block need not have been created"
    block, other = suite.block(), suite.block()
    assert suite.recovered(block).state is None, "nothing was saved"
    suite.write(
        SaveState(block, b"lost"),
        Append(block, _run(0, 2), sync=True),
        SaveState(other, b""),
        SaveState(block, b"\0vote\xff"),
    )
    assert suite.store.read(block, 0, 6, 1), "appends of the same turn are done as well"
    found = suite.reopen(block)
    assert (found.state, found.end) == (b"\0vote\xff", 6), "of two in a turn the last counts"
    assert suite.reopen(other).state == b"", "an empty state is one"
    assert suite.recovered(absent, 9).state == b"first", "others must be left alone"

    suite.refused(Append(block, _run(9, 1), sync=True), SaveState(block, b"kept"))
    assert suite.recovered(block).state == b"kept", "what is saved stays, whatever else fails"
    suite.write(Truncate(block, 3), Checkpoint(block, b"snapshot"), SealBlock(block))
    suite.write(CreateBlock(block, 0, "topic", "partition"))
    assert suite.reopen(block, is_open=False).state == b"kept", "other writes must leave it alone"
    assert suite.recovered(block).snapshot == b"snapshot"

    suite.write(SaveState(block, b"gone"), RemoveBlock(block))
    assert block not in suite.store.blocks(), "the state goes with the block"
    suite.write(RemoveBlock(absent))
    assert absent not in suite.store.blocks(), "a block that has only a state can be removed"
    assert suite.reopen(block).state is None, "the state goes with the block"
    assert suite.recovered(absent, 9).state is None
    suite.write(RemoveBlock(other), SaveState(other, b"new"))
    assert suite.reopen(other).state == b"new", "what is saved after the removal counts"


def _check_many_states(suite: _Suite) -> None:
    """Far more is saved than lasts."""
    blocks = [BlockId(_TOPIC, 10**7 + i, 0) for i in range(30)]
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


def _check_unsealed(suite: _Suite) -> None:
    old = suite.store.blocks()

    def unsealed() -> list[BlockId]:
        return [block for block in suite.store.unsealed() if block not in old]

    first = suite.block()
    second = suite.block(start=3, number=1)
    voted = BlockId(_TOPIC, suite.partition, 2)
    assert unsealed() == [first, second], "a block that was created is not sealed"
    suite.write(Append(first, _run(0, 1), sync=True), Append(second, _run(3, 1), sync=True))
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


def _check_close(suite: _Suite) -> None:
    block = suite.block()
    suite.write(Append(block, _run(0, 1), sync=False))
    store = suite.store
    store.close()
    store.close()
    for call in (
        lambda: store.write([Append(block, _run(3, 1), sync=False)]),
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


def _check_find_time(suite: _Suite) -> None:
    block = suite.block()
    assert suite.store.find_time(block, 100, 0) is None
    times, batches = [], []
    dice = random.Random(1)
    for i in range(200):  # clocks of producers disagree, so times go up and down
        own = [1_000 + 10 * i + dice.randrange(-300, 300) for _ in range(3)]
        values = [bytes(dice.randrange(1, 1_000)) for _ in own]
        batch = RecordBatch.encode(values, timestamp_ms=own[0], timestamps=own)
        batches.append(batch.stamp(3 * i, 1, 0))
        times += own
    suite.write(Append(block, batches, sync=False))
    for end in (600, 599, 300, 1):
        for time in (-1, 0, 700, *range(900, 3_400, 37), 10**12):
            expected = next((o for o, t in enumerate(times[:end]) if t >= time), None)
            found = suite.store.find_time(block, end, time)
            assert found == expected, f"find_time({end=}, {time}) gave {found}, not {expected}"


# --- compaction ---------------------------------------------------------------------------------


def _check_compact(suite: _Suite) -> None:
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
    control = RecordBatch.control(b"epoch", timestamp_ms=0).stamp(8, 1, 5)
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


def _keyed(offset: int, rows: Sequence[tuple[bytes | None, bytes, bool]]) -> RecordBatch:
    batch = RecordBatch.encode(
        [value for _, value, _ in rows],
        keys=[key for key, _, _ in rows],
        headers=[(("pymq.tombstone", b""),) if gone else () for _, _, gone in rows],
        timestamp_ms=1_000,
    )
    return batch.stamp(offset, 1, 0)


def _records(
    suite: _Suite, block: BlockId, start: int, end: int
) -> list[tuple[int, bytes | None, bytes]]:
    data = suite.store.read(block, start, end, 1 << 20)
    return [(r.offset, r.key, r.value) for batch in split(data) for r in batch.records()]


_CHECKS: tuple[Callable[[_Suite], None], ...] = (
    _check_append_and_read,
    _check_order_within_a_turn,
    _check_buffers_are_copied,
    _check_many_batches,
    _check_refuses_what_does_not_follow,
    _check_failures_stay_alone,
    _check_create_twice,
    _check_recover,
    _check_checkpoint,
    _check_truncate,
    _check_a_follower_cuts_its_log,
    _check_states,
    _check_many_states,
    _check_seal,
    _check_unsealed,
    _check_blocks_and_remove,
    _check_find_time,
    _check_compact,
    _check_close,
)


# --- anything, in any order ---------------------------------------------------------------------


class _Random:
    """A few blocks, each beside the list of batches that it should hold."""

    def __init__(self, suite: _Suite, dice: random.Random) -> None:
        self.suite = suite
        self.dice = dice
        self.model = {suite.block(start=i): list[RecordBatch]() for i in range(4)}
        self.start = {block: i for i, block in enumerate(self.model)}
        self.snapshot: dict[BlockId, tuple[int, bytes]] = {}
        self.state: dict[BlockId, bytes] = {}

    def end(self, block: BlockId) -> int:
        batches = self.model[block]
        return batches[-1].end_offset if batches else self.start[block]

    def run(self, steps: int) -> None:
        actions = [self.append] * 6 + [self.read] * 4 + [self.truncate, self.checkpoint]
        actions += [self.recover, self.find_time, self.save]
        for _ in range(steps):
            self.dice.choice(actions)()
            if self.suite.durable and self.dice.random() < 0.02:
                self.suite.store.close()
                self.suite.open()
                for block in self.model:
                    self.recover(block)

    def append(self) -> None:
        writes: list[Write] = []
        for block in self.dice.sample(list(self.model), self.dice.randint(1, 3)):
            batches = self.model[block]
            epoch = batches[-1].header.leader_epoch if batches else 0
            for _ in range(self.dice.randint(1, 3)):
                end = self.end(block)
                size = self.dice.choice((0, 100, 3_000, 40_000))
                batch = _batch(end, self.dice.randint(1, 5), epoch=epoch, size=size)
                batches.append(batch)
                writes.append(Append(block, [batch], sync=self.dice.random() < 0.3))
                epoch += self.dice.random() < 0.1
        self.suite.write(*writes)

    def read(self) -> None:
        block = self.dice.choice(list(self.model))
        start, end = self.start[block], self.end(block)
        offset = self.dice.randint(start, end)
        most = self.dice.choice((1, 500, 30_000, 1 << 20))
        stop = self.dice.choice([end, self.dice.randint(start, end)])
        found = self.suite.store.read(block, offset, stop, most)
        expected = b""
        for batch in self.model[block]:
            if offset < batch.end_offset and max(offset, batch.base_offset) < stop:
                if expected and len(expected) + batch.size > most:
                    break
                expected += bytes(batch.head) + bytes(batch.body)
        assert found == expected, f"read({block}, {offset}, {stop}, {most}) gave something else"

    def truncate(self) -> None:
        block = self.dice.choice(list(self.model))
        batches = self.model[block]
        keep = self.dice.randint(max(len(batches) - 5, 0), len(batches))
        del batches[keep:]
        self.suite.write(Truncate(block, self.end(block)))
        if block in self.snapshot and self.snapshot[block][0] > self.end(block):
            del self.snapshot[block]

    def checkpoint(self) -> None:
        block = self.dice.choice(list(self.model))
        self.snapshot[block] = (self.end(block), self.dice.randbytes(10))
        self.suite.write(Checkpoint(block, self.snapshot[block][1]))

    def recover(self, block: BlockId | None = None) -> None:
        block = block or self.dice.choice(list(self.model))
        found = self.suite.recovered(block, self.start[block])
        after, snapshot = self.snapshot.get(block, (self.start[block], None))
        batches = self.model[block]
        assert found == Recovered(
            block,
            self.start[block],
            self.end(block),
            sum(batch.size for batch in batches),
            snapshot,
            [batch.header for batch in batches if batch.base_offset >= after],
            0,
            self.state.get(block),
        ), f"recovering {block} gave something else"

    def save(self) -> None:
        chosen = self.dice.sample(list(self.model), self.dice.randint(1, 3))
        states = {block: self.dice.randbytes(10) for block in chosen}
        self.state |= states
        self.suite.write(*(SaveState(block, state) for block, state in states.items()))

    def find_time(self) -> None:
        block = self.dice.choice(list(self.model))
        end = self.end(block)
        offset = self.dice.randint(self.start[block], end + 1)
        found = self.suite.store.find_time(block, end, 1_000 + 10 * offset)
        assert found == (offset if offset < end else None)
