"""The state machine of a producer: closes batches, sends them, resends those without an answer.

Threads add records to the queues (:mod:`pymq.client.producer.partition_queue`), without a lock. The
producer sends the batches of a partition in the order of their sequences, several at a time.

| event of a batch | action of the producer |
|---|---|
| a transient error, or no answer | resends it and all later ones in order; brokers drop repeats
|
| the same, without sequences | resends it when all batches in flight are answered or given up |
| a final error | gives later batches the sequences after the last written batch |
| no answer for a while | refreshes the leader; a new leader gets all batches at once |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pymq.client.base import ClientDriver, ClientLoop, Outbox
from pymq.client.counters import Counters
from pymq.client.producer.batch_sealer import BatchSealer, is_stuck
from pymq.client.producer.delivery import Batch
from pymq.client.producer.delivery_failure import overdue, silence, told_by
from pymq.client.producer.in_flight_requests import InFlightRequests
from pymq.client.producer.partition_queue import PartitionQueue
from pymq.client.producer.queue_schedule import PROBE_MS, QueueSchedule
from pymq.client.producer.send_buffer import SendBuffer
from pymq.client.producer.sequences import Sequences
from pymq.client.router import Router
from pymq.core.message import Message, Produce, Produced, Sequence
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.ready import Ready
from pymq.core.types import AckMode
from pymq.core.values import define
from pymq.errors import (
    Closed,
    NotLeader,
    OutOfOrderSequence,
    PymqError,
    QuotaExceeded,
    UnknownPartition,
    is_not_written,
)

__all__ = ["PartitionQueue", "Sender", "SenderConfig"]

# A batch without an answer is resent after this time, which then doubles each time, up to ...
REQUEST_MS = 2_000
REQUEST_MAX_MS = 16_000
# 1/16 of the requests in flight; fewer new requests than that wait, so that they share a packet
SHARE = 16


@define
class SenderConfig:
    """A producer's configuration; times in milliseconds, sizes in bytes."""

    acks: AckMode | None
    linger_ms: int
    batch_bytes: int
    buffer_bytes: int
    codec: int
    producer_id: int
    producer_epoch: int
    delivery_timeout_ms: int
    max_in_flight: int
    # whether the producer continues the sequences of an earlier producer with its name
    is_named: bool = False
    grant: bytes = b""  # proof that the producer owns its id, in a cluster with keys


def _nothing(topics: Mapping[str, TopicMetadata]) -> None:
    """Ignore the result."""


class Sender(Outbox):
    """The state machine of one producer, with all of its queues."""

    def __init__(
        self,
        name: str,
        router: Router,
        driver: ClientDriver,
        config: SenderConfig,
        wall_ms: Callable[[], int],
    ) -> None:
        super().__init__()
        self.name = name
        self.config = config
        self.tally = Counters()  # counters of the client, which sets this attribute
        self.on_metadata: Callable[[Mapping[str, TopicMetadata]], None] = _nothing
        self.backlog = SendBuffer(name, driver, config.buffer_bytes)
        self._router = router
        self._driver = driver
        self._in_flight = InFlightRequests()
        self._schedule = QueueSchedule()
        self.sealer = BatchSealer(self.backlog, self._schedule, wall_ms)
        self._sequences = Sequences(router, self, self._schedule.timers)
        self._has_news = False  # whether leaders' or partitions' errors wait to be handled
        self._is_closed = False
        router.metadata.listen(name, self._on_metadata)

    # --- called by handles, from any thread -----------------------------------------------------

    def seal(self) -> None:
        """Close the records sent so far into batches."""
        with self._driver as loop:
            self.seal_by(loop)

    def seal_by(self, loop: ClientLoop) -> None:
        """Close the records sent so far; the caller holds the driver and runs the loop."""
        self.sealer.seal_due(loop.clock(), everything=True)
        loop.touch(self.name)

    def push(self) -> None:
        """Send the batches that are due: now, or later if many requests are in flight."""
        if (len(self.backlog.full) + 1) * SHARE >= len(self._in_flight.awaited):
            self._driver.push(self.name)

    def flush(self) -> list[Batch]:
        """Close all records into batches, and return the batches without an answer."""
        with self._driver as loop:
            self.sealer.seal_due(loop.clock(), everything=True)
            loop.touch(self.name)
            return [
                batch
                for queue in self._schedule.live
                for batch in (*queue.in_flight, *queue.sealed)
                if not batch.is_done
            ]

    def ask_sequence(self, queue: PartitionQueue) -> None:
        """Ask a partition for the next sequence of this producer, unless it is known."""
        with self._driver as loop:
            self._meet(queue, loop.clock())
            self._schedule.wake(queue)
            loop.touch(self.name)

    def close(self, now: int) -> None:
        """Fail the remaining batches; the caller holds the driver."""
        self._is_closed = True
        self._router.metadata.ignore(self.name)
        for queue in list(self._schedule.live):
            for batch in (*queue.in_flight, *queue.sealed):
                if not batch.is_done:
                    error = Closed("the producer was closed before the record was answered")
                    self._finish(batch, error)
            queue.in_flight.clear()
            queue.sealed.clear()

    # --- the machine ------------------------------------------------------------------------------

    def ready(self, now: int) -> Ready | None:
        """Close batches that are due, and send those that may leave."""
        backlog, schedule = self.backlog, self._schedule
        armed = backlog.armed
        if backlog.full or backlog.space or (armed and armed[0][0] <= now):
            # If a thread waits for room, close all open batches: lingering records occupy the
            # buffer.
            self.sealer.seal_due(now, everything=bool(backlog.space))
        if self._has_news:
            self._has_news = False
            self.on_metadata(self._router.metadata.topics)
            for queue in schedule.live:
                self._look_at_leader(queue, now)
            schedule.dirty.update(schedule.live)
        if schedule.dirty:
            dirty, schedule.dirty = schedule.dirty, {}
            for queue in dirty:
                if queue.held_at >= 0 and not is_stuck(queue, now):
                    self.sealer.seal(queue, now)
                if queue.sealed:
                    self._send(queue, now)
                elif queue.next_sequence < 0:
                    self._ask(queue, now)
                elif not queue.in_flight:
                    schedule.rest(queue)
        while armed and not armed[0][1].is_armed:
            # The batch was already closed, because it was full or a thread waited for it.
            armed.popleft()
        if not self.out.send:
            return None
        out, self.out = self.out, Ready()
        return out

    def tick(self, now: int) -> None:
        """Fail batches whose time is over; resend batches without an answer."""
        for queue in self._schedule.timers.over(now):
            self._expire(queue, now)
            if queue.in_flight:
                self._look_at_silence(queue, now)
            self._sequences.look(queue, now)
            if queue in self._schedule.live:
                self._schedule.dirty[queue] = None
                self._schedule.rearm(queue, now)

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle an answer."""
        if isinstance(message, Sequence):
            queue = self._sequences.answered(source, message, now)
            if queue is not None:
                self._schedule.wake(queue)
                self._schedule.rearm(queue, now)
        elif isinstance(message, Produced):
            batch = self._in_flight.awaited.pop(message.id, None)
            if batch is not None:
                self._answered(source, batch, message, now)
            elif message.id in self._in_flight.without_acks:
                self._turned_away(source, message)
            else:
                self._in_flight.answered_late(message)

    @property
    def deadline(self) -> int:
        """A time at which something may be due.

        Threads arm queues at any time, so this deadline is computed on request.

        An answer does not postpone the deadline, because an unnecessary tick costs less than a new
        computation.
        """
        armed = self.backlog.armed
        if armed:
            try:
                return min(self._schedule.timers.due, armed[0][0])
            except IndexError:
                pass  # The thread that runs the loop has just closed the batch.
        return self._schedule.timers.due

    # --- sending --------------------------------------------------------------------------------

    def _send(self, queue: PartitionQueue, now: int) -> None:
        if queue.must_resend or now < queue.retry_at or self._is_closed:
            return
        queue.retry_at = 0  # The queue no longer waits for a retry time.
        metadata = self._router.metadata
        leader = metadata.leaders.get((queue.topic, queue.partition))
        known = metadata.topics.get(queue.topic)
        if leader is None or leader.leader is None or known is None:
            self._give_up_if_gone(queue)
            # The router notifies the producer when the router has found a leader.
            self._router.refresh(queue.topic)
            return
        self._router.renew(queue.topic, now)
        if known.topic_id != queue.topic_id:
            self._meet(queue, now)
        if queue.next_sequence < 0:
            self._ask(queue, now)
            return
        if queue.target is None or not queue.in_flight:
            if queue.target is not None and queue.target.leader != leader.leader:
                queue.is_sure = False  # The new leader may have fewer records than the former one.
            queue.target = leader
        elif queue.target.leader != leader.leader:
            return  # Batches in flight must be answered first.
        acks = self.config.acks if self.config.acks is not None else leader.acks
        unanswered, in_flight, is_first = 0, queue.in_flight, not queue.in_flight
        while queue.sealed and (batch := queue.next_batch(unanswered)) is not None:
            self._requests += 1
            request, encoded = self._requests, queue.number(batch, acks)
            # Without acks no error could report a new topic of that name, so send no topic id.
            topic_id = queue.topic_id if acks is not AckMode.NONE else ""
            produce = Produce(
                request,
                queue.topic,
                queue.partition,
                acks,
                encoded,
                topic_id=topic_id,
                grant=self.config.grant,
            )
            self.out.send.append((leader.leader, produce))
            if acks is AckMode.NONE:
                self._in_flight.sent_without_acks(request, queue)
                self._finish(batch)
                unanswered += 1
                continue
            batch.request, batch.sent_at = request, now
            in_flight.append(batch)
            self._in_flight.awaited[request] = batch
        if is_first and in_flight:
            self._schedule.timers.set(queue, now + PROBE_MS)
        if unanswered and queue.sealed:
            # Without acks, send the rest in the next turn, so that a refusal by the broker can
            # arrive first.
            self._schedule.dirty[queue] = None
            self._driver.loop.touch(self.name)

    def _meet(self, queue: PartitionQueue, now: int) -> None:
        """Renumber batches for a topic that was created again, but not those in flight."""
        known = self._router.metadata.topics.get(queue.topic)
        if known is None or known.topic_id == queue.topic_id:
            return
        if queue.topic_id:
            if queue.in_flight and queue.in_flight[0].sequence >= 0:
                self._send_again(queue, now)
            self._sequences.forget(queue)
            queue.retry_at = 0
        queue.meet(known.topic_id)

    def _give_up_if_gone(self, queue: PartitionQueue) -> None:
        error = self._router.metadata.gone.get(queue.topic)
        known = self._router.metadata.topics.get(queue.topic)
        if known is not None and all(p.partition != queue.partition for p in known.partitions):
            error = UnknownPartition(f"{queue.topic!r} has no partition {queue.partition!r}")
        if error is not None:
            while queue.sealed:
                self._finish(queue.sealed.popleft(), error)

    def _ask(self, queue: PartitionQueue, now: int) -> None:
        leader = self._sequences.whom(queue, now)
        if leader is not None:
            self._meet(queue, now)
            self._sequences.ask(queue, leader, now)

    # --- missing answers --------------------------------------------------------------------------

    def _look_at_leader(self, queue: PartitionQueue, now: int) -> None:
        """Compare batches in flight with new metadata, since their broker may no longer lead.

        Batches without sequences are not resent yet, since they may still be answered.
        """
        target = queue.target
        if target is None or not queue.in_flight:
            return
        leader = self._router.leader(queue.topic, queue.partition)
        if leader is None or leader.leader is None:
            return
        silent_ms = now - queue.in_flight[0].sent_at
        is_other = leader.leader != target.leader
        if (silent_ms >= PROBE_MS and (is_other or leader.epoch != target.epoch)) or (
            is_other and queue.in_flight[0].sequence >= 0
        ):
            self._send_again(queue, now)

    def _look_at_silence(self, queue: PartitionQueue, now: int) -> None:
        silent_ms = now - queue.in_flight[0].sent_at
        if silent_ms < PROBE_MS:
            return
        if queue.target is not None:
            queue.trouble = silence(self._router, queue.target.leader or "")
        if silent_ms >= min(REQUEST_MS << min(queue.tries, 10), REQUEST_MAX_MS):
            queue.tries += 1
            self._send_again(queue, now)
        self._router.distrust(queue.topic, queue.partition)
        self._look_at_leader(queue, now)

    def _send_again(self, queue: PartitionQueue, now: int, pause: int = 0) -> None:
        """Stop waiting for the batches in flight, and resend them after *pause*."""
        self.tally.retries += 1
        for batch in queue.in_flight:
            self._in_flight.give_up(batch)
        queue.must_resend, queue.retry_at = True, now + pause
        self._resume(queue, now)

    # --- answers --------------------------------------------------------------------------------

    def _turned_away(self, source: str, m: Produced) -> None:
        """Note that a batch without acks is lost, because its broker does not lead."""
        queue = self._in_flight.without_acks.pop(m.id)
        if isinstance(m.error, NotLeader):
            self._router.refused(queue.topic, queue.partition, source, m.error)
        elif m.error is not None and m.error.retriable:
            self._router.refresh(queue.topic)

    def _answered(self, source: str, batch: Batch, m: Produced, now: int) -> None:
        queue, batch.request = batch.queue, 0
        self._schedule.dirty[queue] = None
        error = m.error
        if error is not None:
            queue.trouble = told_by(source, error)
            batch.is_unsure = batch.is_unsure or not is_not_written(error)
        if error is None:
            queue.tries, queue.trouble = 0, None
            if not queue.is_sure and batch.encoded is not None:
                queue.taken(batch, batch.encoded.header.producer_epoch)
            batch.base_offset = m.base_offset
            self.tally.times.observe((now - batch.sent_at) / 1000)
            self._finish(batch)
            if queue.in_flight and queue.in_flight[0] is batch:
                queue.in_flight.popleft()
            if queue.in_flight:
                queue.shift()
        elif error.retriable:
            self._refused(source, batch, error, now)
        elif isinstance(error, OutOfOrderSequence) and batch.sequence >= 0:
            self._send_again(queue, now, self._sequences.out_of_order(batch, error))
        else:
            queue.in_flight.remove(batch)
            queue.shift()
            self._finish(batch, error)
            queue.renumber(batch, now)
            if batch.sequence >= 0:
                self._send_again(queue, now)
        if queue.must_resend:
            self._resume(queue, now)

    def _refused(self, source: str, batch: Batch, error: PymqError, now: int) -> None:
        """Handle a transient error of a batch."""
        queue = batch.queue
        if isinstance(error, NotLeader):
            is_known = self._router.refused(queue.topic, queue.partition, source, error)
        else:
            is_known = False
            if not isinstance(error, QuotaExceeded):
                self._router.refresh(queue.topic)
        # Follow only the first hint at once, since two brokers may name each other as the leader.
        pause = 0 if is_known and queue.tries == 0 else queue.pause_ms
        if isinstance(error, QuotaExceeded):
            pause = max(pause, error.retry_ms)
        queue.tries += 1
        if batch.sequence >= 0:
            self._send_again(queue, now, pause)
        elif not queue.must_resend:
            queue.must_resend, queue.retry_at = True, now + pause

    def _resume(self, queue: PartitionQueue, now: int) -> None:
        if queue.must_resend and queue.resume():
            self._schedule.wake(queue)
            self._schedule.rearm(queue, now)

    def _expire(self, queue: PartitionQueue, now: int) -> None:
        is_lost = False
        for waiting in (queue.in_flight, queue.sealed):
            while waiting and (waiting[0].is_done or waiting[0].until <= now):
                batch = waiting.popleft()
                if batch.is_done:
                    continue
                error = overdue(self._router, batch, self.config.delivery_timeout_ms)
                self._in_flight.awaited.pop(batch.request, None)
                self._finish(batch, error)
                if batch.sequence >= 0:
                    queue.renumber(batch, now)
                    queue.must_ask = is_lost = True
        if is_lost:
            self._send_again(queue, now)

    def _finish(self, batch: Batch, error: PymqError | None = None) -> None:
        batch.error, tally = error, self.tally
        if error is None:
            tally.records += batch.count
            tally.bytes += batch.size
            tally.batches += 1
        else:
            tally.errors += batch.count
        if batch.dropped:
            self._in_flight.finish(batch)
        self.backlog.finish(batch)

    def _on_metadata(self) -> None:
        self._has_news = True
        self._driver.loop.touch(self.name)
