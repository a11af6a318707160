"""The records of a batch one by one, and the records that are kept because they are due soon."""

from __future__ import annotations

from random import Random

from pymq.core.batch.columns import Headers
from pymq.core.batch.header import DELAYED
from pymq.core.batch.record import EncodedBatch
from pymq.core.delay import row_buffer
from pymq.core.delay.record_times import DELIVER_AT
from pymq.core.delay.row_buffer import BatchRecords, Row, SoonDue


def batch_of(rows: list[Row], base_offset: int = 0) -> EncodedBatch:
    return EncodedBatch.encode(
        [value for value, _, _ in rows],
        timestamp_ms=1,
        keys=[key for _, key, _ in rows],
        headers=[headers for _, _, headers in rows],
        attributes=DELAYED,
    ).stamp(base_offset, 1, 0)


def row_due(due: int, value: bytes = b"") -> Row:
    return value, None, ((DELIVER_AT, b"%d" % due),)


def random_row(rng: Random) -> tuple[Row, int | None]:
    """Return a record with up to four headers in any order, and when it is due."""
    headers = [(f"h{index}", rng.randbytes(rng.randrange(4))) for index in range(rng.randrange(4))]
    due = rng.choice((None, rng.randrange(1_000)))
    if due is not None:
        headers.insert(rng.randint(0, len(headers)), (DELIVER_AT, b"%d" % due))
    row = rng.randbytes(rng.randrange(5)), rng.choice((None, b"", b"key")), tuple(headers)
    return row, due


def test_each_record_is_found_by_its_offset_and_by_its_time() -> None:
    rng = Random(1)
    for _ in range(200):
        made = [random_row(rng) for _ in range(rng.randint(1, 12))]
        rows = [row for row, _ in made]
        records = BatchRecords(batch_of(rows, base_offset=70))
        assert list(records.rows()) == list(enumerate(rows, 70))
        assert [records.at(70 + index) for index in range(len(rows))] == rows
        assert records.at(69) is None
        assert records.at(70 + len(rows)) is None
        first, last = sorted((rng.randrange(1_000), rng.randrange(1_000)))
        due = [(at, due) for at, (_, due) in enumerate(made) if due is not None]
        assert list(records.due_in(first, last)) == [e for e in due if first <= e[1] <= last]


def test_a_record_that_compaction_removed_is_not_found() -> None:
    rows = [row_due(5, b"%d" % number) for number in range(4)]
    records = BatchRecords(batch_of(rows, base_offset=10).keep([1, 3]))
    assert [records.at(offset) for offset in range(10, 14)] == [None, rows[1], None, rows[3]]
    assert list(records.due_in(5, 5)) == [(0, 5), (1, 5)]


def test_a_time_that_is_no_number_is_never_due() -> None:
    headers: Headers = ((DELIVER_AT, b"soon"),)
    records = BatchRecords(batch_of([(b"", None, headers), row_due(10**15), row_due(3)]))
    assert list(records.due_in(0, 10**16)) == [(2, 3)]


def test_records_that_are_due_within_a_minute_are_kept_until_they_are_taken() -> None:
    soon = SoonDue()
    times = [999, 1_000, 1_001, 61_000, 61_001]
    soon.keep(BatchRecords(batch_of([row_due(due) for due in times])), wall_ms=1_000)
    assert [soon.take(offset) for offset in range(5)] == [
        None,  # due by now: the scheduler has just used it
        None,
        row_due(1_001),
        row_due(61_000),
        None,
    ]
    assert soon.take(2) is None


def test_memory_is_bounded_and_the_earliest_records_stay() -> None:
    soon, wall, value = SoonDue(), 1_000, b"v" * 1_000
    most = row_buffer.AHEAD_BYTES // (len(value) + row_buffer.ROW_BYTES)
    for first in range(0, 2 * most, 100):
        rows = [row_due(wall + 1 + 59_999 * (first + n) // (2 * most), value) for n in range(100)]
        soon.keep(BatchRecords(batch_of(rows, base_offset=first)), wall)
        assert len(soon) <= most
    assert len(soon) > most // 4
    assert soon.take(0) is not None
    assert soon.take(2 * most - 100) is None


def test_the_span_grows_again_when_there_is_room() -> None:
    soon, value = SoonDue(), b"v" * row_buffer.AHEAD_BYTES
    soon.keep(BatchRecords(batch_of([row_due(40_000, value), row_due(20_000)])), wall_ms=0)
    assert soon.take(0) is None
    assert soon.take(1) is not None
    for offset in (10, 20):
        soon.keep(BatchRecords(batch_of([row_due(50_000)], base_offset=offset)), wall_ms=0)
    assert soon.take(20) is not None


def test_the_same_batch_read_twice_takes_memory_once() -> None:
    soon = SoonDue()
    value = b"v" * (row_buffer.AHEAD_BYTES // 2)
    for _ in range(10):
        soon.keep(BatchRecords(batch_of([row_due(50_000, value)])), wall_ms=0)
    assert soon.take(0) is not None
