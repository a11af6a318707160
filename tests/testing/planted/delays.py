"""Bugs of delayed and expiring records."""

from __future__ import annotations

from typing import Any

from pymq.broker.delay_schedulers import DelaySchedulers
from pymq.client.group.group_member import GroupConsumer
from pymq.client.group.undelivered_records import UndeliveredRecords
from pymq.client.producer.delivery import ColumnBuffer
from pymq.core.batch.header import DELAYED_COPY, NOTE
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.core.block.idempotence import ProducerTable
from pymq.core.delay.delay_index import DelayIndex
from pymq.core.delay.delay_scheduler import DelayScheduler
from pymq.core.delay.row_buffer import Row, SoonDue
from pymq.core.partition.produce import ProduceHandler
from pymq.core.types import NEVER
from tests.testing.planted.bug import bug, plant

AREA = "delays"
TESTS = "tests/client/test_delays.py::"

bug(
    "delayed-at-once",
    AREA,
    "a group gets a delayed record where it was sent",
    "own",
    "calm crash",
)


@plant("delayed-at-once", UndeliveredRecords, "due_now")
def all_is_due(due_now: Any, self: UndeliveredRecords, view: RecordBatch) -> RecordBatch:
    return view


bug(
    "expired-in-the-buffer",
    AREA,
    "a record that expires while it waits for the application is delivered",
    "own",
    test="tests/client/fetching/test_consumer_machine.py::"
    "test_what_expires_while_it_waits_is_acknowledged_and_not_delivered",
)


@plant("expired-in-the-buffer", UndeliveredRecords, "unexpired")
def nothing_expires(unexpired: Any, self: UndeliveredRecords, view: RecordBatch) -> RecordBatch:
    return view


bug(
    "expired-with-its-batch",
    AREA,
    "a record that expires in the consumer is acknowledged with its batch before its dead letter is"
    " written",
    "own, found while it was built",
    test="tests/client/fetching/test_consumer_machine.py::"
    "test_what_expires_while_it_waits_is_not_acknowledged_with_its_batch",
)


@plant("expired-with-its-batch", GroupConsumer, "handed_out")
def all_is_handed_out(handed_out: Any, self: GroupConsumer, chunk: RecordBatch) -> RecordBatch:
    self.settler.handed.out(chunk)
    view = handed_out(self, chunk)
    assert isinstance(view, RecordBatch)
    return view


bug(
    "early-by-half-a-second",
    AREA,
    "the leader delivers what is due soon, too",
    "own",
    "calm crash",
)


@plant("early-by-half-a-second", DelayIndex, "take_due")
def take_early(take_due: Any, self: DelayIndex, wall_ms: int, most: int) -> list[tuple[int, int]]:
    return list(take_due(self, wall_ms + 500, most))


bug(
    "known-records-mixed-up",
    AREA,
    "the leader delivers another record that is due soon, in place of the one that is due",
    "own",
    "calm crash",
)


@plant("known-records-mixed-up", SoonDue, "take")
def take_any(take: Any, self: SoonDue, offset: int) -> Row | None:
    row: Row | None = take(self, max(self._rows, default=offset))
    return row


bug(
    "copies-not-read",
    AREA,
    "a leader that takes over does not read which records were delivered",
    "own, found while it was built",
    "crash crash-3 network-3",
)


@plant("copies-not-read", DelayIndex, "take_in")
def take_no_copies(take_in: Any, self: DelayIndex, batch: EncodedBatch) -> None:
    if not self._is_loading or batch.header.attributes & NOTE != DELAYED_COPY:
        take_in(self, batch)


bug(
    "copies-are-parked",
    AREA,
    "a copy waits while the block is sealed, and is appended after the next leader has read the "
    "log",
    "own, found by seeds",
    "rolls-3 crash-3 network-3",
    is_slow=True,
)


@plant("copies-are-parked", ProduceHandler, "would_park")
def never_parks(would_park: Any, self: ProduceHandler) -> bool:
    return False


bug(
    "retention-takes-delayed",
    AREA,
    "retention removes a block with a record that is due later",
    "RabbitMQ's delayed message plugin and NATS lose such messages with their stream",
    test=f"{TESTS}test_retention_keeps_what_is_due_later",
)


@plant("retention-takes-delayed", DelaySchedulers, "keep_from")
def keep_nothing(keep_from: Any, self: DelaySchedulers, name: Any, offset: int, **_: Any) -> int:
    keep_from(self, name, NEVER)
    return 0


bug(
    "cancelled-is-delivered",
    AREA,
    "a record is delivered that was cancelled",
    "own",
    "calm crash calm-3",
    is_slow=True,
)


@plant("cancelled-is-delivered", DelayIndex, "take_in")
def take_no_notes(take_in: Any, self: DelayIndex, batch: EncodedBatch) -> None:
    if batch.header.attributes & NOTE != NOTE:
        take_in(self, batch)


bug(
    "cancelled-long-ago",
    AREA,
    "a note lets the next leader begin behind the notes of records that were just cancelled",
    "own",
    test=f"{TESTS}test_a_cancel_that_is_repeated_says_the_same_though_another_leads",
)


@plant("cancelled-long-ago", DelayIndex, "cancelled_from")
def none_was_cancelled(cancelled_from: Any, self: DelayIndex, wall_ms: int) -> int:
    return NEVER


bug(
    "first-delayed-forgotten",
    AREA,
    "a leader that takes over does not know that the partition has delayed records",
    "own",
    test=f"{TESTS}test_a_leader_that_takes_over_delivers_each_once",
)


@plant("first-delayed-forgotten", ProducerTable, "last_note")
def note_only(last_note: Any, self: ProducerTable) -> tuple[int, int] | None:
    found = last_note(self)
    return found if found is None or found[1] or self._proposed else None


bug(
    "mark-lost-in-a-cut",
    AREA,
    "of records that fill several batches, the batches do not say that they have delays",
    "own, found by seeds",
    "calm crash",
)


@plant("mark-lost-in-a-cut", ColumnBuffer, "cut")
def cut_without_marks(cut: Any, self: ColumnBuffer, start: int, end: int) -> ColumnBuffer:
    part = cut(self, start, end)
    part.attributes = self.attributes if part is self else 0
    assert isinstance(part, ColumnBuffer)
    return part


bug(
    "note-skips-uncommitted",
    AREA,
    "a note tells the next leader to read from the end of the log, where the index does not have "
    "the last records yet",
    "own, before seeds 2010104, 2010223 and 2010656",
    test=f"{TESTS}test_a_note_leaves_out_no_record_that_is_not_committed",
)


@plant("note-skips-uncommitted", DelayScheduler, "_append")
def note_the_end(append: Any, self: DelayScheduler, *args: Any, **options: Any) -> None:
    known, self._known_to = self._known_to, self._host.end(self.name)
    append(self, *args, **options)
    self._known_to = known


bug(
    "begins-at-the-note",
    AREA,
    "a leader that takes over reads from the last note on, not from where that says",
    "own",
    test=f"{TESTS}test_a_note_says_where_to_begin",
)


@plant("begins-at-the-note", DelayScheduler, "_found")
def begin_at_the_note(
    found: Any, self: DelayScheduler, batches: list[EncodedBatch], now: int
) -> None:
    found(self, [batches[0].keep([])] if batches else [], now)
    self._fetch(batches[0].end_offset, 1 << 20, now)
