"""What the journal says together with a sequence: a small model of crashes at any moment."""

from __future__ import annotations

import random

import pytest

from pymq.core import cbor
from pymq.errors import CorruptMetadata, OutOfOrderSequence
from pymq.mirror.journal import MirrorEntry, skip, spans_of, take, total


def test_spans() -> None:
    assert spans_of([4, 5, 6]) == [(4, 3)]
    assert spans_of([1, 2, 5, 7, 8]) == [(1, 2), (5, 1), (7, 2)]
    spans = [(1, 2), (5, 1), (7, 2)]
    for count in range(7):
        offsets = [at for first, length in spans for at in range(first, first + length)]
        kept = [at for first, n in take(spans, count) for at in range(first, first + n)]
        rest = [at for first, n in skip(spans, count) for at in range(first, first + n)]
        assert (kept, rest) == (offsets[:count], offsets[count:])
        assert total(take(spans, count)) == len(kept)


@pytest.mark.parametrize("seed", range(200))
def test_a_crash_at_any_moment_neither_loses_nor_doubles(seed: int) -> None:
    """A mirror that may die between any two steps, whose late batches may arrive after it.

    The partition refuses a batch whose sequence does not follow, as a broker does.
    """
    rng = random.Random(seed)
    source = sorted(rng.sample(range(200), 100))
    log: list[int] = []  # the copy: source offsets
    stored = MirrorEntry("id").encode()
    late: list[tuple[int, list[int]]] = []  # of a mirror that died: sequence, records
    while len(log) < len(source):
        entry = MirrorEntry.decode(stored)
        assert entry is not None
        entry.recover(len(log), len(log))
        for _ in range(rng.randrange(1, 6)):
            rows = [at for at in source if at >= entry.next][: rng.randrange(1, 12)]
            if not rows:
                break
            if entry.declare(rows):
                stored = entry.encode()
            if rng.random() < 0.2:
                late = [(entry.first + entry.sent, rows)]
                break  # it dies; its batch may still arrive
            if late and rng.random() < 0.5:
                sequence, batch = late.pop()
                if sequence == len(log):
                    log += batch
            if entry.first + entry.sent != len(log):
                entry.recover(len(log), len(log))  # the batch is refused: ask again
                continue
            base = len(log)
            log += rows
            if rng.random() < 0.2:
                break  # it dies before it gets the answer
            entry.wrote(rows, base)
            if rng.random() < 0.3 and entry.settle():
                stored = entry.encode()
    assert log == source
    final = MirrorEntry.decode(stored)
    assert final is not None
    final.recover(len(log), len(log))
    for place, at in enumerate(source):
        assert final.offsets.find(at) == place
    assert final.next == source[-1] + 1


def test_records_of_others_make_a_map_less_exact_but_never_ahead() -> None:
    entry = MirrorEntry("id", end=10)
    entry.declare([1, 2, 3])
    assert entry.recover(2, 15) == 2
    assert (entry.next, entry.end) == (3, 15)
    assert entry.offsets.find(2) == 10
    assert entry.offsets.find(3) == 10
    entry.wrote([3], 15)
    assert entry.offsets.find(4) == 16


@pytest.mark.parametrize("sequence", [4, 8])
def test_a_partition_that_contradicts_the_journal_is_an_error(sequence: int) -> None:
    entry = MirrorEntry("id", first=5)
    entry.declare([1, 2])
    with pytest.raises(OutOfOrderSequence, match="5 to 7"):
        entry.recover(sequence, 100)


@pytest.mark.parametrize("data", [b"\xff", cbor.dumps([1]), cbor.dumps([2, "in", "id"])])
def test_damaged_and_newer_entries_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        MirrorEntry.decode(data)
