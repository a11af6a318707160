"""The public consumer: poll, iterate, acknowledge, seek."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Never

from pymq.client.admin.record_counts import records_between
from pymq.client.backoff import Backoff, delays, error_text
from pymq.client.base import Handle, check_timeout, weakly
from pymq.client.consumer.dead_letters import DeadLetters
from pymq.client.consumer.iteration_buffer import IterationBuffer
from pymq.client.consumer.lease_guard import LeaseGuard
from pymq.client.consumer.polling import OnChange, Polling
from pymq.client.consumer.positions import Positions
from pymq.client.consumer.push import PushDelivery
from pymq.client.consumer.reader import Reader
from pymq.client.consumer.status import ConsumerStatus, status_of
from pymq.client.consumer.until_end import UntilEnd
from pymq.client.fetching.consumer_machine import ConsumerMachine, abandon
from pymq.client.fetching.offset_spans import Records
from pymq.client.group.acknowledgements import Acknowledger
from pymq.client.group.group_member import GroupConsumer
from pymq.client.options import REQUEST_S, check_commit, check_range
from pymq.core.batch.record import Record
from pymq.core.batch.view import RecordBatch
from pymq.errors import Closed, InvalidRequest, PymqError

if TYPE_CHECKING:
    from pymq.client.client import Client

CHUNK = 500  # records that an iteration polls at a time
MOST = 1 << 62  # records or bytes of a poll


class Consumer(Handle):
    """Gets records; made by :meth:`pymq.Client.consumer`.

    One thread at a time may poll a consumer.
    """

    def __init__(
        self,
        client: Client,
        intake: ConsumerMachine,
        *,
        auto_ack: bool,
        undertaker: DeadLetters,
        on_assigned: OnChange | None,
        on_revoked: OnChange | None,
        retry: Backoff | None,
    ) -> None:
        self.name = intake.name
        self.topic = intake.topic
        self.group = intake.group
        self._client = client
        self._driver = client.driver
        self._intake = intake
        self._worker = intake if isinstance(intake, GroupConsumer) else None
        self._reader = intake if isinstance(intake, Reader) else None
        self._positions = Positions(intake, client.questions, client.driver)
        self._auto_ack = auto_ack and self._worker is not None
        self._unread = IterationBuffer(intake)
        self._undertaker = undertaker
        self._retry = retry
        self._polling = Polling(
            client,
            intake,
            self._unread,
            undertaker,
            on_assigned,
            on_revoked,
            auto_ack=self._auto_ack,
        )
        self._hold = self._polling.guard
        self._last: list[Record | RecordBatch] = []  # records of the last poll, for auto_ack
        self._record_bytes = 1024  # approximate bytes of a record, from the last poll
        self._previous: Record | None = None  # the last record of an iteration, for auto_ack
        self._pump: PushDelivery | None = None
        if self._worker is not None:
            self._worker.settler.buffered = weakly(weakref.WeakMethod(self._unread.spans))
        # Close a consumer that is garbage-collected, so that it does not keep its partitions.
        self._finalizer = weakref.finalize(self, abandon, weakref.ref(intake))
        self._finalizer.atexit = False

    # --- getting records ------------------------------------------------------------------------

    def poll(self, max_records: int = 500, timeout: float | None = 1.0) -> list[Record]:
        """Return up to *max_records* records as soon as there is one, or none after *timeout*
        seconds.

        Raises:
            OffsetOutOfRange: retention has removed the records at this reader's position, or the
                topic was deleted and created again; seek to a valid offset. ``details`` hold
                ``topic``, ``partition`` and ``offset``.
            CorruptBlock, CorruptBatch: the next record of a partition is damaged or cannot be
                decoded; ``details`` hold ``topic``, ``partition`` and ``offset``. All earlier
                records were returned. The consumer returns records of other partitions and raises
                the error again, until the application skips the record (:meth:`skip`,
                :meth:`seek`).
            UnknownTopic: the topic was deleted.
            ConfigError: *max_records* is not a number from 1, or *timeout* not a number of seconds.
            Closed: the consumer was closed.
        """
        check_timeout(timeout)
        check_range("max_records", max_records, 1, MOST)
        time = self._polling.timeout(timeout)
        while self._unread.records:
            if self._polling.is_ours(time.left):
                return self._poll_unread(max_records)
            if time.is_over:
                return []
        records: list[Record] = []
        for view in self._poll(max_records, time.left):
            records += view.records()
        return records

    def _poll_unread(self, max_records: int) -> list[Record]:
        """Return records that an iteration has polled but not returned."""
        self._polling.check()
        self._ack_last()
        self._ack_previous()
        unread = self._unread
        shown = [unread.show() for _ in range(min(max_records, len(unread.records)))]
        if self._auto_ack:
            self._last = list(shown)
        return shown

    def poll_batches(
        self, max_bytes: int = 4 << 20, timeout: float | None = 1.0
    ) -> list[RecordBatch]:
        """Return record batches with their columns: the fast way to read in bulk.

        The call returns whole batches of about *max_bytes* together. Errors are those of
        :meth:`poll`.
        """
        check_timeout(timeout)
        check_range("max_bytes", max_bytes, 1, MOST)
        views = self._poll(self._records_in(max_bytes), timeout, max_bytes)
        if views:
            self._record_bytes = max(1, views[-1].size // max(1, views[-1].batch_count))
        return views

    def _records_in(self, size: int) -> int:
        # A group leases records by number, so estimate the number from the size of earlier records.
        return 1 << 20 if self._worker is None else max(1, size // self._record_bytes)

    def _poll(
        self, max_records: int, timeout: float | None, max_bytes: int = 1 << 62
    ) -> list[RecordBatch]:
        self._polling.measure()
        self._ack_last()
        self._ack_previous()
        views = self._polling.poll(max_records, timeout, max_bytes)
        if self._auto_ack:
            self._last = list(views)
        return views

    def skip(self, error: PymqError) -> None:
        """Skip records that a poll could not read; *error* is the error that the poll has raised.

        A reader continues at ``error.details["end"]``. In a group these records are acknowledged.
        If the consumer has a dead-letter topic, it first writes a record with their offsets to that
        topic.

        Raises:
            InvalidRequest: *error* does not say where the unreadable records end.
        """
        self._polling.check()
        if not isinstance(error, PymqError):
            raise InvalidRequest(f"{error!r} is not an error of a poll")
        partition, end = error.details.get("partition"), error.details.get("end")
        if not isinstance(partition, str) or type(end) is not int:
            raise InvalidRequest(f"{error.code} does not say which records to skip") from error
        if self._reader is not None:
            self.seek(partition, end)
            return
        for view in self._intake.unreadable(partition, end):
            self._undertaker.bury(view)
            with self._driver:
                self._intake.pass_over(view)
            self.ack(view)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over records without end, or until the consumer is closed."""
        while not self._has_closed():
            try:
                yield from self._chunk(None)
            except Closed:
                if self._has_closed():
                    return
                raise

    def _has_closed(self) -> bool:
        return self._polling.is_closed  # another thread may have closed it

    def _chunk(self, timeout: float | None) -> Iterator[Record]:
        self._polling.check()
        unread = self._unread
        if not unread.records:
            self._fill(CHUNK, timeout)
        hold, monotonic = self._hold, self._driver.monotonic
        while unread.records and (
            hold is None
            or (hold.standing.drops == hold.drops and monotonic() < hold.sure_until)
            or self._polling.is_ours(timeout)
        ):
            record = unread.show()
            self._ack_previous()
            self._previous = record if self._auto_ack else None
            yield record

    def _fill(self, max_records: int, timeout: float | None) -> None:
        """Poll records for an iterator that returns them one at a time and acknowledges each."""
        self._unread.take(self._poll(max_records, timeout))
        self._last = []

    def until_end(self) -> Iterator[Record]:
        """Iterate up to the current end of the topic; for tests and batch jobs.

        In a group the iteration ends when no records are left for this consumer. The iteration
        waits for records that this consumer has returned with ``nack``, but not for records that
        are leased to other consumers.

        Raises:
            RequestTimeout: there was no progress for half a minute; the message says why.
        """
        ending = UntilEnd(self, self._last_offsets())
        try:
            while not ending.is_reached():
                yield from ending.before(self._chunk(0.05))
                ending.stall()
            self._ack_previous()
        finally:
            self._unread.bring_back()

    def _set_aside(self, record: Record) -> None:
        """Keep records that the iteration has not returned for the next call."""
        self._unread.set_aside(record)
        self._previous = None  # The application has not seen this record.

    # --- settling (PTP) -------------------------------------------------------------------------

    def ack(self, records: Records) -> None:
        """Acknowledge records.

        The call returns at once; :meth:`commit` waits until the acknowledgement is durable.
        """
        settler = self._settler()
        if type(records) is Record:
            queue = settler.acks.get(records.partition)
            if queue is None:
                queue = settler.acks.setdefault(records.partition, deque())
            queue.append(records.offset)
            if not settler.is_armed:
                settler.arm(self._driver.loop.clock())
        else:
            settler.acknowledge(records, self._driver.loop.clock())

    def nack(
        self,
        records: Records,
        delay: float | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        """Return records to the group, to be delivered again after *delay* seconds.

        Without *delay* the records are delivered again after the backoff in the option ``retry`` of
        :meth:`pymq.Client.consumer`, or at once if there is none. *error* is the reason. The next
        delivery has *error* in the header ``pymq.error``, up to 200 bytes; if the record becomes a
        dead letter, the dead letter has this header, too.

        Raises:
            ConfigError: *delay* is not a number of seconds from 0 on, or *error* is neither an
                exception nor a text.
        """
        settler = self._settler()
        found = delays(records, self._retry, delay)
        why = error_text(error)
        settler.nacks.extend((*span, delay_ms, why) for span, delay_ms in found)
        previous = self._previous
        if previous is not None and any(
            partition == previous.partition and start <= previous.offset < end
            for (partition, (start, end)), _ in found
        ):
            # The iteration must not acknowledge this record with the next one.
            self._previous = None
        if not settler.is_armed:
            settler.arm(self._driver.loop.clock())

    def reject(
        self, records: Record | Iterable[Record], error: BaseException | str | None = None
    ) -> None:
        """Give records up: write the records to the dead-letter topic now, and acknowledge them.

        Use this method for a record that would fail at every delivery. *error* is the reason; it is
        in the header ``pymq.error`` of the dead letter. The call returns when the dead letters are
        written. Without a dead-letter topic (``dead_letter=None``) the records are only
        acknowledged.

        Raises:
            InvalidRequest: the consumer is a reader.
            PymqError: a dead letter could not be written; the record is not acknowledged.
        """
        self._member()
        rejected = [records] if isinstance(records, Record) else list(records)
        why = error_text(error)
        self._undertaker.bury_records(rejected, why.encode() if why else None)
        if self._previous in rejected:
            self._previous = None
        self.ack(rejected)

    def commit(self, *nothing: Never, timeout: float | None = REQUEST_S) -> None:
        """Wait until all acknowledgements so far are durable, so that they survive a power cut.

        A commit costs a sync of the broker's disk; simultaneous commits share one sync. Without a
        commit, acknowledgements are sent after some milliseconds and synced within a second.

        Raises:
            RequestTimeout: the group coordinator did not answer in time.
            CommitFailed: leases of acknowledged records had expired; these records are delivered
                again.
            FencedMember: the group has removed this consumer, or a new coordinator does not know
                its leases. Some records are delivered again, to this or other consumers. The
                consumer joins the group again.
            StoreFull, StoreError: the offsets could not be written; the coordinator retries.
            ConfigError: *timeout* is not a number of seconds, or was given without its name.
                (:meth:`ack` takes records, ``commit`` does not.)
        """
        check_commit(nothing)
        check_timeout(timeout)
        self._held().settle(timeout, durable=True)

    def _settle_soon(self) -> None:
        """Wait until all acknowledgements are written, but not until they are synced."""
        self._held().settle(REQUEST_S, durable=False)

    def _held(self) -> LeaseGuard:
        self._member()
        assert self._hold is not None
        return self._hold

    def _member(self) -> GroupConsumer:
        if self._worker is None:
            raise InvalidRequest("a PSB consumer has no group: there is nothing to acknowledge")
        if self._polling.is_closed:
            raise Closed("the consumer was closed")
        return self._worker

    def _settler(self) -> Acknowledger:
        return self._member().settler

    def _ack_last(self) -> None:
        for view in self._last:
            self.ack(view)
        self._last = []

    def _ack_previous(self) -> None:
        if self._previous is not None:
            previous, self._previous = self._previous, None
            self.ack(previous)

    # --- positions ------------------------------------------------------------------------------

    def seek(self, partition: str, offset: int | str) -> None:
        """Continue at *offset*: an integer, ``"begin"`` or ``"end"`` (readers only)."""
        self._polling.check()
        self._unread.drop({self._positions.seek(partition, offset)})

    def seek_to_time(self, partition: str, timestamp_ms: int) -> None:
        """Continue at the first record that is not older than a time (readers only)."""
        self._polling.check()
        self._unread.drop({self._positions.seek_to_time(partition, timestamp_ms)})

    def position(self, partition: str) -> int:
        """The offset of the next record of a partition."""
        name = self._positions.name(partition)
        if self._reader is not None:
            return self._read_so_far()[name]
        return self.committed().get(name, 0)

    def _read_so_far(self) -> dict[str, int]:
        """The offset of the next record of each partition from which a reader has read."""
        return self._positions.read(self._unread.partitions())

    def end_offsets(self) -> dict[str, int]:
        """The current end of each partition of the topic.

        If a partition has no leader for 5 s, its end is the highest offset that a replica knows to
        be committed.
        """
        return {p: end for p, (_, end) in self._positions.bounds(any_replica=True).items()}

    def _last_offsets(self) -> dict[str, int]:
        """The end of each partition by its leader; all acknowledged records are before it."""
        return {p: end for p, (_, end) in self._positions.bounds().items()}

    def begin_offsets(self) -> dict[str, int]:
        """The current first offset of each partition of the topic."""
        return {p: start for p, (start, _) in self._positions.bounds(any_replica=True).items()}

    def offset_at(self, partition: str, timestamp_ms: int) -> int:
        """The offset of the first record that is not older than a time.

        The result is the end if all records are older.
        """
        return self._positions.offset_at(partition, timestamp_ms)

    def assignment(self) -> tuple[str, ...]:
        """The partitions that this consumer reads.

        Raises:
            Closed: the consumer was closed.
        """
        self._polling.check()
        return (
            self._worker.membership.assigned
            if self._worker is not None
            else tuple(self._positions.names())
        )

    def committed(self) -> dict[str, int]:
        """The group's committed offset in each partition; all records before this offset are
        acknowledged.
        """
        self._member()
        return self._positions.committed()

    def lag(self) -> dict[str, int]:
        """The number of records in each partition that are not acknowledged (groups) or not read
        (readers).
        """
        bounds = self._positions.bounds(any_replica=True)
        done = self._read_so_far() if self._reader is not None else self.committed()
        spans = {p: (max(start, done.get(p, start)), end) for p, (start, end) in bounds.items()}
        return records_between(self._client.questions, self.topic, spans)

    # --- pause and status -------------------------------------------------------------------------

    def pause(self, *partitions: str) -> None:
        """Return no more records of these partitions, or of all if none is named."""
        self._polling.check()
        positions = self._positions
        names = [positions.name(partition) for partition in partitions or positions.names()]
        with self._driver as loop:
            self._intake.pause(names, self._unread.drop(names), loop.clock())
            loop.touch(self._intake.name)

    def resume(self, *partitions: str) -> None:
        """Undo :meth:`pause`."""
        self._polling.check()
        positions = self._positions
        names = [positions.name(partition) for partition in partitions or positions.names()]
        with self._driver as loop:
            self._intake.resume(names, loop.clock())
            loop.touch(self._intake.name)

    def status(self) -> ConsumerStatus:
        """Describe this consumer's position, and the reason if it gets no records.

        If a broker does not answer, the method uses the broker's last known state.
        """
        return status_of(self)

    # --- pushing --------------------------------------------------------------------------------

    def start_push(self, on_record: Callable[[Record], object], credit: int) -> None:
        """Call *on_record* for each record, in a thread of this consumer, *credit* at a time."""
        self._pump = PushDelivery(self, on_record, credit)

    # --- leaving --------------------------------------------------------------------------------

    def close(self) -> None:
        """Send acknowledgements, return records that the application has not got, and leave the
        group.
        """
        if self._polling.is_closed:
            return
        self._ack_last()
        self._ack_previous()
        self._polling.is_closed = True
        self._finalizer.detach()
        try:
            with self._driver as loop:
                self._intake.close(self._unread.spans())
                loop.touch(self._intake.name)
            with self._driver as loop:
                loop.remove(self._intake.name)
                self._intake.fail(Closed("the consumer was closed"))  # ends a waiting poll
        except Closed:
            pass  # The client was closed first.
        if self._reader is not None:
            self._client._unsubscribe(self.topic, self._intake.name)
        self._unread.clear()
        self._client.forget(self)
        self._undertaker.close()
        if self._pump is not None:
            self._pump.join()

    def _forgo(self) -> None:
        """Do not acknowledge the last records, because the application has not finished them."""
        self._last, self._previous = [], None
