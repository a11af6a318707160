"""The log of one block on one broker, with a disk that carries out each write at once, or fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.log import CHECKPOINT_BYTES, BlockLog
from pymq.core.ready import Append, Checkpoint, CreateBlock, Ready, Recover, Recovered, Truncate
from pymq.core.types import BlockId
from pymq.errors import CorruptBatch

# not the first block of its partition, which starts without a checkpoint
NAME = BlockId("id", 0, 1)
MOST = 1 << 20


class Host:
    """A host that records the log's requests."""

    def __init__(self) -> None:
        self.out = Ready()

    def wall_ms(self, now: int) -> int:
        return now


@pytest.fixture
def log() -> BlockLog:
    made = BlockLog(Host(), NAME, 0, is_shared=True)
    made.create("t", "0", ProducerTable())
    return made


def batch(sequence: int = -1, size: int = 1) -> EncodedBatch:
    producer = 7 if sequence >= 0 else -1
    return EncodedBatch.encode(
        [bytes(size)], timestamp_ms=0, producer_id=producer, base_sequence=sequence
    )


def run(*batches: tuple[int, int]) -> bytes:
    """Return the batches that a leader sends, given as (offset, epoch)."""

    def parts() -> Iterator[bytes]:
        for offset, epoch in batches:
            stamped = batch().stamp(offset, epoch, 0)
            yield bytes(stamped.head) + bytes(stamped.body)

    return b"".join(parts())


def write(log: BlockLog, *, is_done: bool = True) -> None:
    log.flush(Ready(), sync=True)
    if is_done:
        log.advance()
    else:
        log.fail()


def asked(log: BlockLog, kind: type) -> list[object]:
    out = log._host.out
    return [what for what in (*out.write, *out.ask) if isinstance(what, kind)]


@pytest.mark.parametrize("data", [run((1, 3)), run((0, 3)), run((3, 3)), run((2, 3), (4, 3))])
def test_a_follower_takes_what_follows_or_nothing(log: BlockLog, data: bytes) -> None:
    log.extend(run((0, 3), (1, 4)))
    with pytest.raises(CorruptBatch):
        log.extend(data)
    assert (log.end, log.epochs) == (2, [(3, 0), (4, 1)])


def test_no_epoch_follows_a_later_one(log: BlockLog) -> None:
    log.extend(run((0, 3), (1, 4)))
    with pytest.raises(CorruptBatch):
        log.extend(run((2, 3)))
    assert log.end == 2
    log.extend(run((2, 4)))
    assert log.end == 3


def seal(log: BlockLog) -> int | None:
    """Return the current seal; a type checker would assume its earlier value."""
    return log.seal_end


def test_a_seal_goes_with_the_tail_that_held_it(log: BlockLog) -> None:
    """Another leader may lack the seal, so the replica drops it with the tail and accepts records
    again.
    """
    log.append(batch(), 1)
    write(log)
    log.seal(1)
    assert seal(log) == 2
    write(log, is_done=False)
    assert seal(log) is None
    log.seal(1)
    write(log)
    log.truncate(1)
    assert asked(log, Truncate) == [Truncate(NAME, 1)]
    assert asked(log, Recover)
    log.restore(Recovered(NAME, 0, 1, 100, None, [], 0), ProducerTable())
    assert seal(log) is None


def test_a_seal_behind_the_cut_stays(log: BlockLog) -> None:
    log.seal(1)
    write(log)
    log.append(batch(), 2)
    write(log, is_done=False)
    assert seal(log) == 1


def test_what_failed_to_be_written_never_was(log: BlockLog) -> None:
    """A failed write leaves no offset, byte, epoch or producer sequence in the log."""
    log.append(batch(0), 1)
    write(log)
    before = log.end, log.size, list(log.epochs), log.producers.next_sequence(7)
    log.append(batch(1), 2)
    log.flush(Ready(), sync=True)
    log.append(batch(2), 2)
    log.fail()
    after = log.end, log.size, list(log.epochs), log.producers.next_sequence(7)
    assert after == before
    assert not log.unwritten
    again = log.append(batch(1), 2)
    assert again.base_offset == 1


def test_a_checkpoint_is_of_what_is_written(log: BlockLog) -> None:
    """A checkpoint contains the producers and epochs of the batches before the end that the store
    saves with it.
    """
    (first,) = asked(log, Checkpoint)
    log.append(batch(0), 1)
    write(log)
    log.append(batch(1), 1)
    log.checkpoint()
    log.flush(Ready(), sync=True)
    log.checkpoint()
    assert asked(log, Checkpoint) == [first]
    log.advance()
    log.checkpoint()
    log.checkpoint()
    assert len(asked(log, Checkpoint)) == 2


def test_checkpoints_bound_what_a_recovery_reads(log: BlockLog) -> None:
    count = len(asked(log, Checkpoint))
    for sequence in range(5):
        log.append(batch(sequence, CHECKPOINT_BYTES // 2), 1)
        write(log)
    assert len(asked(log, Checkpoint)) == count + 2


def test_checkpoints_bound_how_many_batches_a_recovery_reads(
    log: BlockLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints bound the number of batches that recovery reads, because a small batch takes as
    long as a large one.
    """
    monkeypatch.setattr("pymq.core.block.log.CHECKPOINT_BATCHES", 4)
    count = len(asked(log, Checkpoint))
    for sequence in range(10):
        log.append(batch(sequence), 1)
        write(log)
    assert len(asked(log, Checkpoint)) == count + 2


def test_epochs_are_told_by_where_they_end(log: BlockLog) -> None:
    for epoch in (1, 1, 4, 6, 6):
        log.append(batch(), epoch)
    assert [log.epoch_at(end) for end in range(6)] == [0, 1, 1, 4, 6, 6]
    assert [log.end_of(epoch) for epoch in (0, 1, 3, 4, 5, 6, 9)] == [
        (0, 0), (1, 2), (1, 2), (4, 3), (4, 3), (6, 5), (6, 5),
    ]  # fmt: skip
    assert log.seal_end is None
    log.begin(7)
    assert log.end_of(7) == (7, 6)


def sent_epochs(data: bytes | None) -> list[int]:
    assert data is not None
    return [batch.header.leader_epoch for batch in split(data)]


def test_what_was_sent_is_not_sent_again_in_place_of_what_replaced_it(log: BlockLog) -> None:
    """Bytes for one follower are cached for the next follower, but only while their batches are in
    the log.
    """
    log.append(batch(), 1)
    sent = log.recent(0, MOST)
    assert log.recent(0, MOST) is sent
    log.truncate(0)
    log.append(batch(), 2)
    assert sent_epochs(log.recent(0, MOST)) == [2]
    log.append(batch(), 2)
    assert sent_epochs(log.recent(0, MOST)) == [2, 2]
    assert sent_epochs(log.recent(0, 1)) == [2]


def test_what_is_released_is_read_from_the_disk() -> None:
    """Released bytes are read from the disk.

    Bytes that are not on disk yet stay cached for followers.
    """
    log = BlockLog(Host(), NAME, 0, is_shared=True)
    log.append(batch(), 1)
    log.release()
    assert sent_epochs(log.recent(0, MOST)) == [1]
    log.flush(Ready(), sync=True)
    log.release()
    assert sent_epochs(log.recent(0, MOST)) == [1]
    log.advance()
    log.release()
    assert log.recent(0, MOST) is None
    log.append(batch(), 1)
    assert log.recent(0, MOST) is None
    assert sent_epochs(log.recent(1, MOST)) == [1]


def test_a_follower_takes_no_damaged_body(log: BlockLog) -> None:
    """A follower checks the body of each batch before it confirms it, even from its own leader."""
    sound = EncodedBatch.encode([b"value"], timestamp_ms=1).stamp(0, 1, 0)
    data = bytes(sound.head) + bytes(sound.body)
    for at in range(len(sound.head), len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(CorruptBatch):
            log.extend(bytes(damaged))
        assert log.end == 0
    log.extend(data)
    assert log.end == 1


def test_how_far_it_is_committed_is_kept_and_never_above_what_is_there(log: BlockLog) -> None:
    log.extend(run((0, 3), (1, 3), (2, 3)))
    write(log)
    log.committed = 2
    log.checkpoint()
    (*_, kept) = asked(log, Checkpoint)
    assert isinstance(kept, Checkpoint)
    log.checkpoint()
    assert len(asked(log, Checkpoint)) == 2  # the first one is at the block's beginning
    for end, expected in ((3, 2), (1, 1)):
        again = BlockLog(Host(), NAME, 0, is_shared=True)
        again.restore(Recovered(NAME, 0, end, end, kept.snapshot, [], 0), None)
        assert again.committed == expected


def test_what_is_cut_off_is_not_committed_nor_readable(log: BlockLog) -> None:
    """Truncated batches are neither committed nor readable, until a new leader sends its
    watermark.
    """
    log.extend(run((0, 3), (1, 3), (2, 3)))
    write(log)
    log.committed = 3
    log.truncate(1)
    assert log.committed == 1
    assert log.stable_end == 1


def test_which_records_have_no_key_is_kept_and_never_told_of_what_is_not_there(
    log: BlockLog,
) -> None:
    log.extend(run((0, 3), (1, 3), (2, 3)))
    write(log)
    log.checkpoint()
    (*_, kept) = asked(log, Checkpoint)
    assert isinstance(kept, Checkpoint)
    for end in (3, 1):
        again = BlockLog(Host(), NAME, 0, is_shared=True)
        again.restore(Recovered(NAME, 0, end, end, kept.snapshot, [], 0), None)
        assert list(again.unkeyed) == [(0, end)]
    log.truncate(2)
    assert list(log.unkeyed) == [(0, 2)]


@pytest.mark.parametrize(("number", "count"), [(0, 0), (1, 1)])
def test_a_new_partition_waits_for_no_disk(number: int, count: int) -> None:
    """A new partition's first block needs no checkpoint; a later block does, so that recovery need
    not read the blocks before it.
    """
    log = BlockLog(Host(), BlockId("id", 0, number), 0, is_shared=True)
    log.create("t", "0", ProducerTable())
    assert len(asked(log, Checkpoint)) == count
    log.append(batch(0), 1)
    write(log, is_done=False)
    log.fail()
    log.append(batch(0), 1)
    log.flush(ready := Ready(), sync=True)
    again = [CreateBlock, *[Checkpoint] * count, Append]
    assert [type(each) for each in ready.write] == again


def test_a_block_that_was_begun_after_all_is_not_begun_again(log: BlockLog) -> None:
    """A first checkpoint that comes late is not written, since it would hide later batches."""
    (first,) = asked(log, Checkpoint)
    assert isinstance(first, Checkpoint)
    stamped = log.append(batch(0), 1)
    write(log, is_done=False)
    log.recover()
    log.restore(Recovered(NAME, 0, 1, stamped.size, first.snapshot, [stamped.header], 0), None)
    log.append(batch(1), 1)
    log.flush(ready := Ready(), sync=True)
    assert [type(each) for each in ready.write] == [Append]
    log.advance()
    log.checkpoint()
    (*_, kept) = asked(log, Checkpoint)
    assert isinstance(kept, Checkpoint)
    again = BlockLog(Host(), NAME, 0, is_shared=True)
    again.restore(Recovered(NAME, 0, 2, log.size, kept.snapshot, [], 0), None)
    assert (again.epochs, again.producers.next_sequence(7)) == ([(1, 0)], 2)
