"""Delivers the delayed records of one partition when they are due; runs on the partition's leader.

A delayed record stays where it was sent. When a delayed record is due, the scheduler appends a copy
to the partition; groups get the copy like any other record. So the code for leases, offsets,
retries and dead letters needs no special case for delays. The copies in the log show which records
were delivered. A new leader reads these copies (:mod:`pymq.core.delay.delay_index`), so each record
is delivered once.

Each job of the scheduler reads some records and appends at most one batch:

=========  ==========================================================================
job        appended batch
=========  ==========================================================================
deliver    copies of the records that are due
cancel     a note that a record was cancelled
move       pending records of the oldest blocks, so that retention can remove these blocks
note       a note of the offset from which the next leader has to read
=========  ==========================================================================

The wall clock of the leader decides what is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.header import DELAYED, DELAYED_COPY, EXPIRES, NOTE
from pymq.core.batch.priority import priority_bits
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import DELAYS
from pymq.core.delay.delay_host import DelayHost
from pymq.core.delay.delay_index import PENDING_MAX, DelayIndex
from pymq.core.delay.record_times import (
    CANCELLED,
    DELAYED_ID,
    DELIVER_AT,
    EXPIRES_AT,
    PENDING_FROM,
    offset_of,
    time_of,
)
from pymq.core.delay.row_buffer import COPIES_MAX, BatchRecords, Row, RowBuffer, SoonDue
from pymq.core.message import (
    BEGIN,
    CancelDelayed,
    Cancelled,
    Fetch,
    Fetched,
    Produce,
    Produced,
)
from pymq.core.metadata.route import routed_bit
from pymq.core.observe.coverage import mark
from pymq.core.pending.pending_produces import DelayedAppended
from pymq.core.types import NEVER, AckMode, TopicPartition
from pymq.errors import (
    CorruptBatch,
    InvalidRequest,
    OffsetOutOfRange,
    PymqError,
    QuotaExceeded,
    ReplicaNotAvailable,
    is_not_written,
)

LOAD_BYTES = 1 << 20  # bytes of one fetch while the log is read
READ_BYTES = 64 << 10  # bytes of one fetch of due records
RETRY_MS = 100
LOOK_MS = 1_000  # the wall clock may be changed, so the scheduler reads it at least this often
NOTE_OFFSETS = 20_000  # number of offsets after which the next note is appended
# records are moved only if a new leader would have to read at least this many offsets ...
MOVE_OFFSETS = 100_000
MOVE_SHARE = 4  # ... and at least this many for each pending record
CANCELS_MAX = 10_000  # largest number of waiting cancellations


class Job(Enum):
    """The current job of the scheduler."""

    FIND = auto()  # reading the last note
    LOAD = auto()  # reading the log
    IDLE = auto()
    DELIVER = auto()
    CANCEL = auto()
    MOVE = auto()
    APPEND = auto()  # waiting until a batch is committed


class DelayScheduler:
    """The delayed records of one partition."""

    def __init__(self, name: TopicPartition, host: DelayHost) -> None:
        self.name = name
        self.deadline = NEVER
        self.index = DelayIndex()
        self.delivered = 0  # number of copies, for the metrics
        self._host = host
        self._job = Job.LOAD
        self._request = 0  # id of the request in flight
        self._holder: str | None = None  # the broker that was asked; None: the local replica
        self._tries = 0
        self._position = 0  # the next offset to read
        self._target = 0  # the log must be read at least to this offset
        self._known_to = 0  # all delayed records before this offset are in the index
        self._retry: Callable[[int], None] | None = None
        self._retry_at = NEVER
        self._wanted: deque[tuple[int, int]] = deque()  # offset and id of records to read
        self._read = RowBuffer()
        self._soon = SoonDue()
        self._ids: Sequence[int] = ()  # ids of the records that are being appended
        self._stop = 0  # the offset before which records are moved
        self._cancels: deque[tuple[str, CancelDelayed]] = deque()
        self._noted_at = -1  # the log's end when the last note was appended
        # called with the time once the batch is committed
        self._appended: Callable[[int], None] | None = None

    # --- loading --------------------------------------------------------------------------------

    def begin(self, last: tuple[int, int], now: int) -> None:
        """Begin to read the log; *last* is the offset of the last note and its number of records.

        A note with a count of 0 is not a real note: its offset is that of the first batch with a
        delayed record.
        """
        offset, count = last
        self.index = DelayIndex()
        self._soon.clear()
        self._host.keep_from(self.name, 0)
        self._target = self._host.end(self.name)
        self._position, self._noted_at = offset, offset
        self._job = Job.FIND if count else Job.LOAD
        self._fetch(offset, LOAD_BYTES, now)

    def restart(self, last: tuple[int, int], now: int) -> None:
        """Read the log again, because the scheduler does not know which records were appended."""
        mark("delays.restart")
        self._wanted.clear()
        self._read.take()
        self._ids = ()
        self._retry_at, self._appended = NEVER, None
        self.begin(last, now)

    def resign(self, error: PymqError, now: int) -> None:
        """Refuse waiting requests, because another broker leads."""
        for source, m in self._cancels:
            self._host.reply(source, Cancelled(m.id, error=error), now)
        self._cancels.clear()

    def _fetch(self, offset: int, size: int, now: int, holder: str | None = None) -> None:
        self._request, self._holder = self._host.next_request(), holder
        wait = RETRY_MS if self._job in (Job.FIND, Job.LOAD) and holder is None else 0
        fetch = Fetch(self._request, *self.name, offset, size, wait)
        self._position = offset
        # Repeat the request if no answer comes: a message to another broker may be lost.
        self._again(lambda now: self._fetch(offset, size, now), now, 5 * RETRY_MS)
        self._host.to_partition(self.name, fetch, now, holder)

    def _again(self, step: Callable[[int], None], now: int, delay_ms: int = RETRY_MS) -> None:
        self._retry, self._retry_at = step, now + delay_ms
        self.deadline = min(self.deadline, self._retry_at)

    # --- messages -------------------------------------------------------------------------------

    def step(self, m: Fetched | Produced | DelayedAppended, now: int) -> bool:
        """Handle an answer or a committed batch; returns whether to :meth:`restart`."""
        if isinstance(m, DelayedAppended):
            if m.batch is None:
                return True  # The scheduler does not know whether the batch will be committed.
            if self._job in (Job.FIND, Job.LOAD):
                self._target = max(self._target, m.batch.end_offset)
            elif m.batch.base_offset >= self._known_to:
                self.index.take_in(m.batch)
                self._known_to = m.batch.end_offset
                self._look(now)
            return False
        if m.id != self._request:
            return False
        self._retry_at = NEVER
        if isinstance(m, Produced):
            return self._produced(m, now)
        try:
            self._fetched(m, now)
        except CorruptBatch as error:
            mark("delays.damaged")
            self._failed(Fetched(m.id, *self.name, m.offset, 0, 0, error=error), now)
        self._arm(now)
        return False

    def _fetched(self, m: Fetched, now: int) -> None:
        if m.error is not None or (self._holder is not None and not m.data):
            self._failed(m, now)
            return
        batches = list(split(m.data))
        match self._job:
            case Job.FIND:
                self._found(batches, now)
            case Job.LOAD:
                self._load(batches, m, now)
            case Job.DELIVER:
                self._read_due(batches, now)
            case Job.CANCEL:
                self._read_cancelled(batches, now)
            case Job.MOVE:
                self._read_moved(batches, now)
            case _:
                pass

    def _failed(self, m: Fetched, now: int) -> None:
        error, offset = m.error, self._position
        size = LOAD_BYTES if self._job in (Job.FIND, Job.LOAD, Job.MOVE) else READ_BYTES
        if isinstance(error, ReplicaNotAvailable):
            holders = error.details.get("brokers")
            if isinstance(holders, (list, tuple)) and holders:
                self._tries += 1
                self._fetch(offset, size, now, str(holders[self._tries % len(holders)]))
                return
        if isinstance(error, OffsetOutOfRange):
            if self._job is Job.CANCEL:
                self._answer_cancel(now, is_cancelled=False)
                return
            if self._job is Job.DELIVER and self._wanted:
                mark("delays.retired")
                self.index.remove(self._wanted.popleft()[1])
                self._read_on(now)
                return
            if self._job is not Job.DELIVER:
                self._job = Job.LOAD
                self.index = DelayIndex()
                offset = BEGIN  # retention has removed the note itself
        self._again(lambda now: self._fetch(offset, size, now), now)

    def _found(self, batches: list[EncodedBatch], now: int) -> None:
        """Handle the last note, which holds the offset at which to begin reading."""
        if not batches and self._position < self._host.end(self.name):
            mark("delays.note_not_committed")
            self._fetch(self._position, LOAD_BYTES, now)
            return
        first = batches[0].verify() if batches else None
        headers = first.headers if first is not None else []
        start = offset_of(headers[0], PENDING_FROM) if headers else None
        self._job = Job.LOAD
        self._fetch(BEGIN if start is None else start, LOAD_BYTES, now)

    def _load(self, batches: list[EncodedBatch], m: Fetched, now: int) -> None:
        position = m.offset
        for batch in batches:
            if batch.header.attributes & NOTE:
                self.index.take_in(batch.verify())
            position = batch.end_offset
        # Only the local replica knows the real end of the log.
        if self._holder is not None or position < max(m.high_watermark, self._target):
            self._fetch(position, LOAD_BYTES, now)
            return
        mark("delays.loaded")
        self.index.loaded()
        self._job, self._known_to = Job.IDLE, position
        self._look(now)

    # --- jobs -----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        if now >= self._retry_at:
            retry, self._retry_at = self._retry, NEVER
            assert retry is not None
            retry(now)
        self._look(now)

    def _look(self, now: int) -> None:
        """Begin the next job, if no job is running."""
        if self._job is Job.IDLE and self._retry_at == NEVER:
            wall, end = self._host.wall_ms(now), self._host.end(self.name)
            low = min(self.index.pending_from, end)
            wanted = self._host.keep_from(self.name, low, is_full=len(self.index) >= PENDING_MAX)
            spare = max(MOVE_OFFSETS, MOVE_SHARE * len(self.index))
            if self.index.next_due <= wall:
                self._wanted = deque(self.index.take_due(wall, COPIES_MAX))
                self._job = Job.DELIVER
                self._read_on(now)
            elif self._cancels:
                self._cancel(now)
            elif low < wanted or end - low > spare:
                self._move(low, max(wanted, end - spare // 2), now)
            elif end - self._noted_at >= NOTE_OFFSETS:
                self._append([(b"", None, ())], NOTE, now)
        self._arm(now)

    def _arm(self, now: int) -> None:
        self.deadline = self._retry_at
        if self._job is Job.IDLE:
            wait = self.index.next_due - self._host.wall_ms(now)
            self.deadline = min(self.deadline, now + max(0, min(wait, LOOK_MS)))

    def _append(
        self, rows: list[Row], attributes: int, now: int, ids: Sequence[int] = (), due: int = 0
    ) -> None:
        """Append records, which :meth:`step` adds to the index when they are committed.

        The time of copies is not before *due*, although the clock may have been set back.
        """
        is_note = attributes & NOTE == NOTE
        if is_note:
            # Delayed records that are not committed are in the log, but not yet in the index.
            low = min(self.index.pending_from, self._known_to)
            low = min(low, self.index.cancelled_from(self._host.wall_ms(now)))
            self._noted_at = self._host.end(self.name) + len(rows)
            value, key, headers = rows[0]
            due = self.index.delivered_until
            pending = ((PENDING_FROM, str(low).encode()),)
            rows[0] = value, key, (*(h for h in headers if h[0] != PENDING_FROM), *pending)
        batch = EncodedBatch.encode(
            [value for value, _, _ in rows],
            timestamp_ms=max(self._host.wall_ms(now), due),
            keys=[key for _, key, _ in rows],
            headers=[headers for _, _, headers in rows],
            attributes=attributes,
            producer_id=DELAYS if is_note else -1,
            base_sequence=self._host.sequence(self.name) if is_note else -1,
        )
        self._job, self._ids = Job.APPEND, ids
        self._request = self._host.next_request()
        produce = Produce(self._request, *self.name, AckMode.RAFT, batch, sync=True)
        self._host.to_partition(self.name, produce, now, None)

    def _produced(self, m: Produced, now: int) -> bool:
        if self._job is not Job.APPEND:
            return False
        appended, self._appended = self._appended, None
        ids, self._ids = self._ids, ()
        if m.error is None:
            self.delivered += len(ids)
            self._job = Job.IDLE
            if appended is not None:
                appended(now)
        elif is_not_written(m.error) or isinstance(m.error, QuotaExceeded):
            mark("delays.not_written")
            self.index.put_back(ids, self._host.wall_ms(now))
            self._job = Job.IDLE
            self._again(lambda _: None, now)
        else:
            return True
        self._look(now)
        return False

    # --- delivering -----------------------------------------------------------------------------

    def _read_on(self, now: int) -> None:
        """Read the next wanted record, or append the records that were read."""
        self._use_known()
        if self._wanted and not self._read.is_full:
            self._fetch(self._wanted[0][0], READ_BYTES, now)
            return
        if self._wanted:
            self.index.put_back([id for _, id in self._wanted], self._host.wall_ms(now))
            self._wanted.clear()
        due = self._read.due
        rows, ids, later = self._read.take_most_urgent()
        self._job = Job.IDLE
        if rows:
            self.index.put_back(later, self._host.wall_ms(now))
            expires = any(time_of(headers, EXPIRES_AT) is not None for _, _, headers in rows)
            attributes = DELAYED_COPY | (EXPIRES if expires else 0)
            headers = [row[2] for row in rows]
            attributes |= routed_bit(headers) | priority_bits(headers)
            self._append(rows, attributes, now, ids, due)
        else:
            self._look(now)

    def _use_known(self) -> None:
        """Add copies of the wanted records that are still in memory."""
        wanted, start = self._wanted, self._host.start(self.name)
        while wanted and not self._read.is_full and wanted[0][0] >= start:
            row = self._soon.take(wanted[0][0])
            if row is None:
                return
            mark("delays.known")
            self._read.add_copy(row, wanted.popleft()[1])

    def _read_due(self, batches: list[EncodedBatch], now: int) -> None:
        wanted = self._wanted
        for batch in batches:
            if not wanted:
                break
            if wanted[0][0] >= batch.end_offset or not batch.header.attributes & DELAYED:
                continue
            records = BatchRecords(batch.verify())
            while wanted and wanted[0][0] < batch.end_offset:
                offset, id = wanted[0]
                if (row := records.at(offset)) is None:
                    mark("delays.gone")
                    wanted.popleft()
                    self.index.remove(id)
                else:
                    self._read.add_copy(row, wanted.popleft()[1])
            self._soon.keep(records, self._host.wall_ms(now))
        if wanted and not batches:
            self._again(self._read_on, now)
            return
        self._read_on(now)

    # --- cancelling -----------------------------------------------------------------------------

    def cancel(self, source: str, m: CancelDelayed, now: int) -> None:
        """Cancel a delayed record; the answer is sent when the cancellation is durable."""
        if len(self._cancels) >= CANCELS_MAX:
            error = QuotaExceeded("too many delayed records are being cancelled", retry_ms=RETRY_MS)
            self._host.reply(source, Cancelled(m.id, error=error), now)
            return
        self._cancels.append((source, m))
        self._look(now)

    def _cancel(self, now: int) -> None:
        _, m = self._cancels[0]
        self._job = Job.CANCEL
        self._fetch(self.index.offset(m.offset), READ_BYTES, now)

    def _read_cancelled(self, batches: list[EncodedBatch], now: int) -> None:
        _, m = self._cancels[0]
        at = self.index.offset(m.offset)
        row = None
        for batch in batches:
            if batch.base_offset <= at < batch.end_offset and batch.header.attributes & DELAYED:
                row = BatchRecords(batch.verify()).at(at)
        due = time_of(row[2], DELIVER_AT) if row is not None else None
        if due is None:
            why = f"the record at offset {m.offset} of {self.name} is not delayed"
            self._answer_cancel(now, error=InvalidRequest(why))
        elif self.index.was_cancelled(m.offset):
            self._answer_cancel(now, is_cancelled=True)
        elif not self.index.is_pending(m.offset, at):
            # The record was delivered, or cancelled long before.
            wall = max(self._host.wall_ms(now), self.index.delivered_until)
            self._answer_cancel(now, is_cancelled=due > wall)
        else:
            # This record is not due: the scheduler delivers due records before it begins this job.
            headers = ((CANCELLED, str(m.offset).encode()), (DELIVER_AT, str(due).encode()))
            self._appended = lambda now: self._answer_cancel(now, is_cancelled=True)
            self._append([(b"", None, headers)], NOTE, now)

    def _answer_cancel(
        self, now: int, *, is_cancelled: bool = False, error: PymqError | None = None
    ) -> None:
        source, m = self._cancels.popleft()
        self._job = Job.IDLE
        self._host.reply(source, Cancelled(m.id, is_cancelled, error), now)
        self._look(now)

    # --- moving ---------------------------------------------------------------------------------

    def _move(self, start: int, stop: int, now: int) -> None:
        mark("delays.move")
        self._job, self._stop = Job.MOVE, stop
        self._fetch(start, LOAD_BYTES, now)

    def _read_moved(self, batches: list[EncodedBatch], now: int) -> None:
        position = self._position
        for batch in batches:
            position = batch.end_offset
            if not batch.header.attributes & DELAYED:
                continue
            for offset, (value, key, headers) in BatchRecords(batch.verify()).rows():
                if time_of(headers, DELIVER_AT) is None:
                    continue
                moved = offset_of(headers, DELAYED_ID)
                id = offset if moved is None else moved
                if offset >= self._stop or not self.index.is_pending(id, offset):
                    continue
                own = tuple(each for each in headers if each[0] not in (DELAYED_ID, PENDING_FROM))
                self._read.add((value, key, (*own, (DELAYED_ID, str(id).encode()))))
            if self._read.is_full:
                break
        if not batches:
            self._again(lambda now: self._fetch(position, LOAD_BYTES, now), now)
            return
        if position < self._stop and not self._read.is_full:
            self._fetch(position, LOAD_BYTES, now)
            return
        rows, _ = self._read.take()
        self._job = Job.IDLE
        if rows:
            self._append(rows, NOTE, now)
        else:
            self._look(now)
