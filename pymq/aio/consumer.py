"""The asyncio consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never

from pymq.aio.bridge import AsyncHandle, Bridge, called
from pymq.client.base import ClientLoop, Waitable, check_timeout
from pymq.client.consumer.consumer import CHUNK, MOST, Consumer
from pymq.client.consumer.polling import STUCK_S
from pymq.client.consumer.push import give_back
from pymq.client.consumer.status import ConsumerStatus
from pymq.client.consumer.until_end import UntilEnd
from pymq.client.fetching.offset_spans import Records
from pymq.client.group.acknowledgements import Settling
from pymq.client.options import REQUEST_S, check_commit, check_range
from pymq.core.batch.record import Record
from pymq.core.batch.view import RecordBatch
from pymq.errors import Closed, PymqError

if TYPE_CHECKING:
    from pymq.aio.client import AsyncClient

UNTIL_END_S = 0.05  # interval at which ``until_end`` checks the group's other members


class AsyncConsumer(AsyncHandle):
    """Consumes records; created by :meth:`AsyncClient.consumer`. See :class:`pymq.Consumer`.

    One task at a time may poll a consumer. A cancelled poll has taken no record.
    """

    def __init__(
        self,
        client: AsyncClient,
        bridge: Bridge,
        consumer: Consumer,
        changes: deque[Callable[[], Awaitable[object]]],
    ) -> None:
        self.topic = consumer.topic
        self.group = consumer.group
        self._client = client
        self._bridge = bridge
        self._consumer = consumer
        self._intake = consumer._intake
        self._changes = changes  # callbacks to run, in order
        self._burial: asyncio.Future[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._pump_is_idle = False
        self._is_closing = False
        self._closing: asyncio.Future[None] | None = None

    # --- polling --------------------------------------------------------------------------------

    async def poll(self, max_records: int = 500, timeout: float | None = 1.0) -> list[Record]:
        """Return up to *max_records*, as soon as there is one; none after *timeout* seconds.

        Raises as :meth:`pymq.Consumer.poll`.
        """
        check_timeout(timeout)
        check_range("max_records", max_records, 1, MOST)
        consumer, unread = self._consumer, self._consumer._unread
        if unread.records:
            await self._prove(timeout)
        if not unread.records:
            consumer._ack_last()
            if not (await self._arrive(max_records, timeout) or self._intake.stuck()):
                return []
        return consumer.poll(max_records, 0)

    async def poll_batches(
        self, max_bytes: int = 4 << 20, timeout: float | None = 1.0
    ) -> list[RecordBatch]:
        """Return record batches with their columns; the fastest way to read many records."""
        check_timeout(timeout)
        consumer = self._consumer
        consumer._ack_last()
        wanted = consumer._records_in(max_bytes)
        if not (await self._arrive(wanted, timeout) or self._intake.stuck()):
            return []
        return consumer.poll_batches(max_bytes, 0)

    async def _arrive(self, records: int, timeout: float | None) -> bool:
        """Wait until a poll has records or an error; it takes no records, so it may be
        cancelled.
        """
        self._consumer._polling.measure()
        intake, loop = self._intake, self._bridge.loop
        until = None if timeout is None else loop.time() + timeout

        def ask(turning: ClientLoop) -> Waitable:
            if self._consumer._polling.is_closed:
                raise Closed("the consumer was closed")
            intake.want(records, turning.clock())
            turning.touch(intake.name)
            return intake.arrival()

        await asyncio.sleep(0)  # let other tasks run, even if records are always there
        is_last = False
        while True:
            intake.is_awaited = False
            await self._tell_changes()
            await self._bury_dead()
            left = None if until is None else until - loop.time()
            if intake.stuck():
                left = STUCK_S if left is None else min(left, STUCK_S)
            if intake.has_readable():
                await self._prove(left)
            if (
                intake.has_readable()
                or intake.problem is not None
                or self._consumer._polling.is_closed
            ):
                return True
            if is_last:
                return False
            if left is not None and left <= 0:
                # A poll without waiting returns at least the records that existed at the call.
                await self._bridge.turn(partial(_quietly, ask))
                is_last = True
            else:
                intake.is_awaited = True
                try:
                    is_last = not await self._bridge.wait(ask, left)
                finally:
                    intake.is_awaited = False

    async def _prove(self, timeout: float | None) -> None:
        """Wait until the group confirms that the fetched records are still leased; drop records
        whose lease is lost.

        Without a confirmation within *timeout* seconds, the poll returns none of the records.
        """
        worker = self._consumer._worker
        if worker is None:
            return

        def ask(turning: ClientLoop) -> Waitable:
            turning.touch(worker.name)
            return worker.standing.prove(turning.clock())

        if not worker.standing.is_sure():
            await self._bridge.wait(ask, None if timeout is None else max(0.0, timeout))
        self._consumer._polling.has_dropped()

    async def _bury_dead(self) -> None:
        worker = self._consumer._worker
        if worker is None or not worker.dead:
            return
        if self._burial is None or self._burial.done():
            bury = self._consumer._polling.bury_dead
            self._burial = self._bridge.loop.run_in_executor(None, bury)
        await asyncio.shield(self._burial)

    async def _tell_changes(self) -> None:
        self._consumer._polling.tell_changes()
        while self._changes:
            await self._changes.popleft()()

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate over records until the consumer is closed."""
        consumer = self._consumer
        while not self._is_closing:
            try:
                if consumer._unread.records:
                    await self._prove(None)
                else:
                    consumer._ack_previous()
                    await self._arrive(CHUNK, None)
                for record in consumer._chunk(0):
                    yield record
            except Closed:
                if not self._has_left():
                    raise

    async def until_end(self) -> AsyncIterator[Record]:
        """Iterate up to the present end of the log; see :meth:`pymq.Consumer.until_end`."""
        consumer = self._consumer
        ending = UntilEnd(consumer, await self._bridge.call(consumer._last_offsets))
        try:
            while not await self._is_reached(ending):
                if consumer._unread.records:
                    await self._prove(UNTIL_END_S)
                else:
                    consumer._ack_previous()
                    if not await self._arrive(CHUNK, UNTIL_END_S):
                        ending.stall()
                        continue
                for record in ending.before(consumer._chunk(0)):
                    yield record
            consumer._ack_previous()
        finally:
            consumer._unread.bring_back()

    async def _is_reached(self, ending: UntilEnd) -> bool:
        consumer = self._consumer
        if consumer._reader is not None or consumer._unread.records or self._intake.chunks:
            return ending.is_reached()  # this sends no request
        return await self._bridge.call(ending.is_reached)

    # --- acknowledging (PTP) --------------------------------------------------------------------

    def ack(self, records: Records) -> None:
        """Acknowledge records.

        The consumer sends the acknowledgement soon; :meth:`commit` waits until it is synced.
        """
        self._consumer.ack(records)

    def nack(
        self,
        records: Records,
        delay: float | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        """Return records to the group; see :meth:`pymq.Consumer.nack`."""
        self._consumer.nack(records, delay, error)

    async def reject(
        self, records: Record | Iterable[Record], error: BaseException | str | None = None
    ) -> None:
        """See :meth:`pymq.Consumer.reject`."""
        await self._bridge.call(self._consumer.reject, records, error)

    async def commit(self, *nothing: Never, timeout: float | None = REQUEST_S) -> None:
        """Wait until all acknowledgements so far are on the disk; see :class:`pymq.Consumer`.

        Raises:
            RequestTimeout: the group coordinator did not answer in time.
            FencedMember: the group had removed this consumer; other members get its records.
            StoreFull, StoreError: the offsets could not be written; the consumer retries.
            ConfigError: *timeout* is not a number of seconds, or was passed by position. Pass
                records to :meth:`ack`.
        """
        check_commit(nothing)
        check_timeout(timeout)
        worker, hold = self._consumer._member(), self._consumer._held()
        settling: list[Settling | None] = []

        def settle(loop: ClientLoop) -> Waitable | None:
            done = worker.settler.settle(wait=True, durable=True)
            settling.append(done)
            loop.touch(worker.name)
            return done

        if not await self._bridge.wait(settle, timeout):
            raise hold.unanswered(timeout)
        if settling[0] is not None and settling[0].error is not None:
            raise settling[0].error

    # --- positions ------------------------------------------------------------------------------

    async def skip(self, error: PymqError) -> None:
        """See :meth:`pymq.Consumer.skip`."""
        await self._bridge.call(self._consumer.skip, error)

    async def seek(self, partition: str, offset: int | str) -> None:
        """See :meth:`pymq.Consumer.seek`."""
        await self._bridge.call(self._consumer.seek, partition, offset)

    async def seek_to_time(self, partition: str, timestamp_ms: int) -> None:
        """See :meth:`pymq.Consumer.seek_to_time`."""
        await self._bridge.call(self._consumer.seek_to_time, partition, timestamp_ms)

    async def position(self, partition: str) -> int:
        """See :meth:`pymq.Consumer.position`."""
        return await self._bridge.call(self._consumer.position, partition)

    async def end_offsets(self) -> dict[str, int]:
        """See :meth:`pymq.Consumer.end_offsets`."""
        return await self._bridge.call(self._consumer.end_offsets)

    async def begin_offsets(self) -> dict[str, int]:
        """See :meth:`pymq.Consumer.begin_offsets`."""
        return await self._bridge.call(self._consumer.begin_offsets)

    async def offset_at(self, partition: str, timestamp_ms: int) -> int:
        """See :meth:`pymq.Consumer.offset_at`."""
        return await self._bridge.call(self._consumer.offset_at, partition, timestamp_ms)

    def assignment(self) -> tuple[str, ...]:
        """The partitions that this consumer reads; see :meth:`pymq.Consumer.assignment`."""
        return self._consumer.assignment()

    async def committed(self) -> dict[str, int]:
        """See :meth:`pymq.Consumer.committed`."""
        return await self._bridge.call(self._consumer.committed)

    async def lag(self) -> dict[str, int]:
        """See :meth:`pymq.Consumer.lag`."""
        return await self._bridge.call(self._consumer.lag)

    # --- pausing --------------------------------------------------------------------------------

    async def pause(self, *partitions: str) -> None:
        """See :meth:`pymq.Consumer.pause`."""
        await self._bridge.call(self._consumer.pause, *partitions)

    async def resume(self, *partitions: str) -> None:
        """See :meth:`pymq.Consumer.resume`."""
        await self._bridge.call(self._consumer.resume, *partitions)

    async def status(self) -> ConsumerStatus:
        """See :meth:`pymq.Consumer.status`."""
        return await self._bridge.call(self._consumer.status)

    # --- push delivery --------------------------------------------------------------------------

    def _start_push(self, on_record: Callable[[Record], object], credit: int) -> None:
        self._pump = self._bridge.loop.create_task(self._push(on_record, credit), name="pymq-push")

    async def _push(self, on_record: Callable[[Record], object], credit: int) -> None:
        consumer, unread = self._consumer, self._consumer._unread
        try:
            while not self._is_closing:
                self._pump_is_idle = True
                try:
                    await (self._prove(None) if unread.records else self._arrive(credit, None))
                finally:
                    self._pump_is_idle = False
                if not unread.records:
                    consumer._fill(credit, 0)
                while unread.records and not self._has_left() and consumer._polling.is_ours(0):
                    await self._hand_over(unread.show(), on_record)
        except Closed:
            return

    async def _hand_over(self, record: Record, on_record: Callable[[Record], object]) -> None:
        """Call ``on_record``; if it raises, the group redelivers the record."""
        consumer = self._consumer
        if consumer._worker is None:
            await called(on_record, record)
            return
        try:
            await called(on_record, record)
            if consumer._auto_ack:
                consumer.ack(record)
        except Closed:
            raise
        except Exception as error:
            give_back(consumer, record, error)

    # --- closing --------------------------------------------------------------------------------

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._consumer._forgo()
        await super().__aexit__(kind, error, trace)

    def _has_left(self) -> bool:
        # Another task may close the consumer during any await, which a type checker cannot know.
        return self._is_closing

    async def close(self) -> None:
        """Commit acknowledgements, return undelivered records, and leave the group.

        This method waits for a running ``on_record``; without a group, it raises the error of
        ``on_record``.
        """
        if self._closing is None:
            self._is_closing = True
            self._client._forget(self)
            self._closing = asyncio.ensure_future(self._close(asyncio.current_task()))
        elif self._closing.done():
            return
        await asyncio.shield(self._closing)  # if the caller is cancelled, closing continues

    async def _close(self, caller: asyncio.Task[Any] | None) -> None:
        pump = self._pump
        if pump is not None and pump is not caller:
            if self._pump_is_idle:
                pump.cancel()
            await asyncio.wait([pump])
        while self._changes:
            await self._changes.popleft()()
        await self._bridge.call(self._consumer.close)
        if pump is not None and pump is not caller and not pump.cancelled():
            problem = pump.exception()
            if problem is not None:
                raise problem


def _quietly(ask: Callable[[ClientLoop], object], loop: ClientLoop) -> None:
    """Run an errand and ignore its errors, because the caller gets the errors elsewhere."""
    try:
        ask(loop)
    except Closed:
        pass  # the caller's next check finds that the consumer is closed
