"""Checks of one block's log: appending, reading, recovering, truncating."""

from __future__ import annotations

import random

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import EncodedBatch
from pymq.core.ready import (
    Append,
    Checkpoint,
    CreateBlock,
    RecoverFailed,
    RemoveBlock,
    Sync,
    Truncate,
)
from pymq.core.types import BlockId
from pymq.errors import OffsetOutOfRange
from pymq.testing.check_store.suite import TOPIC, StoreSuite, make_batch, make_run

# --- writing and reading ------------------------------------------------------------------------


def check_append_and_read(suite: StoreSuite) -> None:
    """Reads return appended records from any offset, in portions of any size."""
    block = suite.block(start=5)
    assert suite.store.read(block, 5, 100, 1000) == b"", "an empty block holds nothing"
    batches = make_run(5, 4)
    suite.write(Append(block, batches[:2], sync=False), Append(block, batches[2:], sync=True))
    whole = b"".join(bytes(batch.head) + bytes(batch.body) for batch in batches)
    read, size = suite.store.read, batches[0].size
    assert read(block, 5, 17, 1 << 20) == whole, "the bytes must come back as they were written"
    assert read(block, 7, 17, 1 << 20) == whole, "reading inside a batch gives the whole batch"
    assert read(block, 8, 17, 1 << 20) == whole[size:]
    assert read(block, 5, 11, 1 << 20) == whole[: 2 * size], "read must stop at end"
    assert read(block, 5, 9, 1 << 20) == whole[: 2 * size], "a batch that begins before end is read"
    assert read(block, 5, 6, 1) == whole[:size], "a batch that begins before end is read"
    assert read(block, 5, 17, 2 * size) == whole[: 2 * size], "a batch that just fits is read"
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


def check_order_within_a_turn(suite: StoreSuite) -> None:
    """A store does the writes of one call in order."""
    block = suite.block()
    suite.write(
        Append(block, make_run(0, 3), sync=False),
        Truncate(block, 3),
        Append(block, make_run(3, 1, epoch=2), sync=True),
        Checkpoint(block, b"state"),
        Append(block, make_run(6, 1, epoch=2), sync=False),
        Sync(block),
    )
    found = suite.recovered(block)
    assert (found.end, found.snapshot) == (9, b"state")
    assert [header.base_offset for header in found.headers] == [6]
    assert suite.content(block, 0, 9) == [0, 3, 6]


def check_buffers_are_copied(suite: StoreSuite) -> None:
    """A caller may reuse a buffer after a write: the stored bytes stay the same."""
    block = suite.block()
    batch = make_batch(0)
    head, body = bytearray(batch.head), bytearray(batch.body)
    suite.write(Append(block, [EncodedBatch(head, memoryview(body), batch.header)], sync=False))
    head[:], body[:] = bytes(len(head)), bytes(len(body))
    suite.content(block, 0, 1)  # content() verifies the batches


def check_many_batches(suite: StoreSuite) -> None:
    """Reads return thousands of batches in portions."""
    block = suite.block()
    batches = [make_batch(i, size=i % 50) for i in range(3_000)]
    suite.write(Append(block, batches, sync=True))
    suite.write(Append(block, [make_batch(3_000, size=200_000), make_batch(3_001)], sync=True))
    for max_bytes in (1, 700, 100_000, 1 << 20):
        start = 2_900 if max_bytes == 1 else 0
        assert suite.content(block, start, 3_002, max_bytes) == list(range(start, 3_002))
    for offset in (0, 1, 1_234, 2_999, 3_000, 3_001):
        batch = next(split(suite.store.read(block, offset, 3_002, 1)))
        assert batch.verify().base_offset == offset


def check_refuses_what_does_not_follow(suite: StoreSuite) -> None:
    """An append must continue the log, in offset and in epoch."""
    block = suite.block()
    suite.write(Append(block, make_run(0, 2, epoch=5), sync=True))
    suite.refused(Append(block, make_run(7, 1, epoch=5), sync=False))
    suite.refused(Append(block, make_run(3, 1, epoch=5), sync=True))
    suite.refused(Append(block, make_run(6, 1, epoch=4), sync=False))
    suite.refused(
        Append(block, [make_batch(6, epoch=5)], sync=False), Append(block, [make_batch(9)], True)
    )
    assert suite.content(block, 0, suite.recovered(block).end) == [0, 3], "a refused append counts"
    suite.refused(Append(BlockId(TOPIC, 10**6, 0), make_run(0, 1), sync=False))


def check_failures_stay_alone(suite: StoreSuite) -> None:
    """If a write fails for one block, the store still does the writes for other blocks."""
    good, bad = suite.block(), suite.block()
    failed = suite.store.write(
        [
            Append(bad, make_run(9, 1), sync=True),
            Append(good, make_run(0, 1), sync=True),
            Append(bad, make_run(0, 1), sync=True),
        ]
    )
    assert [f.block for f in failed] == [bad], "only the block with a bad write fails, and once"
    assert suite.recovered(good).end == 3, "the other block must be written"
    assert suite.recovered(bad).end == 0, "nothing of a failed block's writes counts"


# --- life of a block ----------------------------------------------------------------------------


def check_create_twice(suite: StoreSuite) -> None:
    """Creating a block again changes nothing."""
    block = suite.block(start=7)
    suite.write(Append(block, make_run(7, 1), sync=True))
    suite.write(CreateBlock(block, 7, "topic", "partition"))
    assert suite.content(block, 7, 10) == [7], "creating a block that is there must change nothing"
    if suite.durable:
        suite.store.close()
        suite.open()
        suite.write(
            CreateBlock(block, 7, "topic", "partition"), Append(block, make_run(10, 1), True)
        )
        assert suite.content(block, 7, 13) == [7, 10]


def check_recover(suite: StoreSuite) -> None:
    """Recovery finds all appended batches."""
    absent = BlockId(TOPIC, 10**6, 3)
    assert isinstance(suite.store.recover(absent, 0, is_open=False), RecoverFailed)
    found = suite.recovered(absent, 40)
    assert (found.start, found.end, found.size, found.headers) == (40, 40, 0, [])
    suite.write(Append(absent, make_run(40, 1), sync=True), RemoveBlock(absent))

    block = suite.block(start=9)
    batches = make_run(9, 5)
    suite.write(Append(block, batches, sync=True))
    found = suite.reopen(block, 9)
    assert (found.start, found.end, found.snapshot, found.cut_bytes) == (9, 24, None, 0)
    assert found.size == sum(batch.size for batch in batches), "size is that of the batches"
    assert found.headers == [batch.header for batch in batches], "all headers are reported"
    assert isinstance(suite.store.recover(block, 8, True), RecoverFailed), "the start is wrong"
    suite.recovered(block, 9)
    suite.write(Append(block, make_run(24, 1), sync=True))
    assert suite.content(block, 9, 27) == [9, 12, 15, 18, 21, 24]


def check_checkpoint(suite: StoreSuite) -> None:
    """Recovery returns the last checkpoint and the headers of the batches after it."""
    block = suite.block()
    suite.write(Checkpoint(block, b"empty"))
    assert suite.reopen(block).snapshot == b"empty", "a checkpoint of an empty block counts"
    suite.write(Append(block, make_run(0, 2), sync=True), Checkpoint(block, b"first"))
    suite.write(Append(block, make_run(6, 2), sync=True), Checkpoint(block, b"second"))
    suite.write(Append(block, make_run(12, 2), sync=True))
    found = suite.reopen(block)
    assert (found.end, found.snapshot) == (18, b"second")
    assert [header.base_offset for header in found.headers] == [12, 15]
    suite.write(Truncate(block, 15))
    assert suite.reopen(block).snapshot == b"second", "it is valid: the cut was behind it"
    suite.write(Truncate(block, 9))
    found = suite.reopen(block)
    assert found.snapshot is None, "a checkpoint beyond the end must not come back"
    assert [header.base_offset for header in found.headers] == [0, 3, 6]


def check_truncate(suite: StoreSuite) -> None:
    """After a truncation, the records behind it are gone, and the log continues there."""
    block = suite.block(start=3)
    suite.write(Append(block, make_run(3, 4), sync=True))
    suite.refused(Truncate(block, 2))
    suite.refused(Truncate(block, 7))
    suite.write(Truncate(block, 15), Truncate(block, 99))
    assert suite.recovered(block, 3).end == 15, "there was nothing to cut"
    suite.write(Truncate(block, 9))
    assert suite.reopen(block, 3).end == 9
    suite.write(Append(block, make_run(9, 1, epoch=2), sync=True))
    assert suite.content(block, 3, 12) == [3, 6, 9]
    suite.write(Truncate(block, 6), Append(block, make_run(6, 4, epoch=3, size=99), sync=True))
    assert suite.content(block, 12, 18) == [12, 15], "the end of the last read lies elsewhere now"
    suite.write(Truncate(block, 3), Append(block, make_run(3, 1), sync=True))
    assert suite.content(block, 3, suite.reopen(block, 3).end) == [3]


def check_a_follower_cuts_its_log(suite: StoreSuite) -> None:
    """Truncate by epoch and append the new leader's batches, repeatedly."""
    block = suite.block()
    model: list[EncodedBatch] = []
    dice = random.Random(2)
    for epoch in range(1, 60):
        kept = dice.randint(max(len(model) - 6, 0), len(model))
        del model[kept:]
        end = model[-1].end_offset if model else 0
        new = make_run(end, dice.randint(1, 5), epoch=epoch, size=dice.choice((0, 500, 9_000)))
        model += new
        suite.write(Truncate(block, end), Append(block, new, sync=dice.random() < 0.5))
        if dice.random() < 0.5:
            found = suite.recovered(block) if dice.random() < 0.7 else suite.reopen(block)
            assert found.headers == [one.header for one in model], f"epoch {epoch}"
            assert found.cut_bytes == 0, "a cut must be durable"
        suite.refused(
            Truncate(block, model[-1].base_offset + 1), Append(block, make_run(end, 1), True)
        )
        end = model[-1].end_offset
        data = b"".join(bytes(one.head) + bytes(one.body) for one in model)
        assert suite.store.read(block, 0, end, 1 << 24) == data, f"epoch {epoch}"
    suite.write(Checkpoint(block, b"state"))
    suite.write(
        Truncate(block, 0), Append(block, make_run(0, 2, epoch=99), sync=False), Sync(block)
    )
    found = suite.reopen(block)
    assert (found.end, found.snapshot) == (6, None)
    suite.write(Truncate(block, 0))
    found = suite.reopen(block)
    assert (found.end, found.size, found.headers) == (0, 0, []), "all of it can be cut"
    suite.write(Append(block, make_run(0, 1, epoch=100), sync=True))
    assert suite.content(block, 0, suite.reopen(block).end) == [0]
