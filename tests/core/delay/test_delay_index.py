"""The index of delayed records, compared with a plain dictionary, and rebuilt at any point."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from pymq.core.batch.columns import Headers
from pymq.core.batch.header import DELAYED, DELAYED_COPY, NOTE
from pymq.core.batch.record import EncodedBatch
from pymq.core.delay import delay_index
from pymq.core.delay.delay_index import DelayIndex
from pymq.core.delay.record_times import CANCELLED, DELAYED_ID, DELIVER_AT
from pymq.core.types import NEVER


def number(value: int) -> bytes:
    return str(value).encode()


class Log:
    """A log with delayed records, and the records that must be pending."""

    def __init__(self) -> None:
        self.batches: list[EncodedBatch] = []
        self.end = 0
        self.due: dict[int, int] = {}  # due times by id
        self.at: dict[int, int] = {}  # offsets by id

    def append(self, attributes: int, headers: Sequence[Headers]) -> EncodedBatch:
        batch = EncodedBatch.encode(
            [b""] * len(headers), timestamp_ms=1, headers=headers, attributes=attributes
        ).stamp(self.end, 1, 0)
        self.batches.append(batch)
        self.end = batch.end_offset
        return batch

    def step(self, rng: Random) -> EncodedBatch:
        """Append one batch of any kind."""
        kind, ids = rng.randrange(5), sorted(self.due)
        some = rng.sample(ids, min(len(ids), rng.randint(1, 3)))
        if kind == 0 and some:
            for id in some:
                del self.due[id], self.at[id]
            return self.append(DELAYED_COPY, [((DELAYED_ID, number(id)),) for id in some])
        if kind == 1 and some:
            headers = [((DELIVER_AT, number(self.due[i])), (DELAYED_ID, number(i))) for i in some]
            self.at.update((id, self.end + index) for index, id in enumerate(some))
            return self.append(NOTE, headers)
        if kind == 2 and some:
            for id in some:
                del self.due[id], self.at[id]
            return self.append(NOTE, [((CANCELLED, number(id)),) for id in some])
        found: list[Headers] = []
        for _ in range(rng.randint(1, 4)):
            due = rng.randrange(1_000) if rng.random() < 0.8 else None
            if due is not None:
                id = self.end + len(found)
                self.due[id], self.at[id] = due, id
            found.append(((DELIVER_AT, number(due)),) if due is not None else ())
        return self.append(DELAYED, found)

    def check(self, index: DelayIndex) -> None:
        assert index.pending_from == min(self.at.values(), default=NEVER)
        for id, offset in self.at.items():
            assert index.offset(id) == offset
            assert index.is_pending(id, offset)
            assert not index.is_pending(id, offset + 1_000)

    def read(self, start: int) -> DelayIndex:
        """Read the log from an offset on."""
        index = DelayIndex()
        for batch in self.batches:
            if batch.end_offset > start:
                index.take_in(batch)
        index.loaded()
        return index


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_the_log_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, log, index = Random(seed), Log(), DelayIndex()
    monkeypatch.setattr(delay_index, "SEGMENT", rng.choice([1, 7, 256]))
    index.loaded()
    for _ in range(100):
        index.take_in(log.step(rng))
        log.check(index)
    for again in (log.read(0), log.read(index.pending_from)):
        log.check(again)
        assert len(again) == len(log.due)
        order = [id for _, id in again.take_due(NEVER, 10_000)]
        assert sorted(order) == sorted(log.due)


def test_what_is_due_comes_by_time_and_once() -> None:
    log, index = Log(), DelayIndex()
    times = [30, 10, 20, 10, 40]
    index.take_in(log.append(DELAYED, [((DELIVER_AT, number(due)),) for due in times]))
    index.loaded()
    assert index.next_due == 10
    assert index.take_due(9, 10) == []
    assert index.take_due(100, 2) == [(1, 1), (3, 3)]
    assert index.take_due(20, 10) == [(2, 2)]
    index.put_back([2], 25)
    assert index.take_due(35, 10) == [(0, 0), (2, 2)]
    assert index.pending_from == 0  # the records are pending until their copies are in the log
    index.take_in(log.append(DELAYED_COPY, [((DELAYED_ID, number(i)),) for i in range(4)]))
    assert index.pending_from == 4


def test_records_take_little_memory() -> None:
    """A million pending records in one partition take less than 100 bytes each."""
    import tracemalloc

    count = 20_000
    log, index = Log(), DelayIndex()
    index.loaded()
    batch = log.append(
        DELAYED, [((DELIVER_AT, number(10**12 + i * 7919 % count)),) for i in range(count)]
    )
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index.take_in(batch)
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(index) == count
    assert took / count < 100


def test_what_was_cancelled_is_remembered_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may repeat a cancellation for a minute; at most `CANCELLED_MAX` are remembered."""
    monkeypatch.setattr(delay_index, "CANCELLED_MAX", 3)
    index = DelayIndex()
    assert index.cancelled_from(0) == NEVER

    def cancel(id: int, offset: int, at_ms: int) -> None:
        headers: list[Headers] = [((CANCELLED, number(id)),)]
        batch = EncodedBatch.encode([b""], timestamp_ms=at_ms, headers=headers, attributes=NOTE)
        index.take_in(batch.stamp(offset, 1, 0))

    cancel(1, 10, 1_000)
    cancel(2, 20, 2_000)
    assert index.was_cancelled(1)
    assert not index.was_cancelled(3)
    assert index.cancelled_from(60_999) == 10
    assert index.cancelled_from(61_000) == 20
    assert not index.was_cancelled(1)
    for id in range(3, 7):
        cancel(id, 10 * id, 3_000)
    assert [id for id in range(1, 8) if index.was_cancelled(id)] == [4, 5, 6]
    assert index.cancelled_from(3_000) == 40
