"""The machine behind a producer: has queues sealed, sends their batches, resends the unanswered.

Records come in through the queues (:mod:`pymq.client.producer.partition_queue`), without a lock.
The batches of a partition are sent in the order of their sequence numbers, several at a time. If
one is refused for a reason that passes, or is not answered, all go again from the first one, in
their order: what was written already is known by its numbers. Without numbers nothing goes again
before everything in flight is answered or given up. If one is refused for good, those after it are
given the numbers that follow the last written one.

Nobody says that a broker has died. So whoever does not answer for a while has his leadership looked
up; if another leads by now, it gets everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pymq.client.base import Driver, Loop, Outbox
from pymq.client.counters import Counters
from pymq.client.producer.delivery import Batch
from pymq.client.producer.delivery_failure import overdue, silence, told_by
from pymq.client.producer.partition_queue import PartitionQueue
from pymq.client.producer.send_buffer import SendBuffer
from pymq.client.producer.sequences import Sequences
from pymq.client.router import Router
from pymq.core.message import Message, Produce, Produced, Sequence
from pymq.core.metadata.nodes import TopicMetadata
from pymq.core.ready import Ready
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER, AckMode
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

PROBE_MS = 500  # what is not answered in this time makes us ask who leads, ...
PROBE_AGAIN_MS = 150  # ... again and again; after ...
REQUEST_MS = 2_000  # ... it is sent again, and then after twice as long each time, up to ...
REQUEST_MAX_MS = 16_000
UNANSWERED_MAX = 256  # requests without an answer that are remembered; more are not looked at
SHARE = 16  # of the requests under way: so few new ones more are left to gather into a packet


@define
class SenderConfig:
    """How a producer behaves; times in milliseconds, sizes in bytes."""

    acks: AckMode | None
    linger_ms: int
    batch_bytes: int
    buffer_bytes: int
    codec: int
    producer_id: int
    producer_epoch: int
    delivery_timeout_ms: int
    max_in_flight: int
    is_named: bool = False  # its sequences go on where an earlier producer of this name stopped
    grant: bytes = b""  # that its id is its own, where the cluster has keys


def _nothing(topics: Mapping[str, TopicMetadata]) -> None:
    """Nobody wants to know."""


class Sender(Outbox):
    """All queues of one producer, as a machine."""

    def __init__(
        self,
        name: str,
        router: Router,
        driver: Driver,
        config: SenderConfig,
        wall_ms: Callable[[], int],
    ) -> None:
        super().__init__()
        self.name = name
        self.config = config
        self.tally = Counters()  # its client's, once that has made it
        self.on_metadata: Callable[[Mapping[str, TopicMetadata]], None] = _nothing
        self.backlog = SendBuffer(name, driver, config.buffer_bytes)
        self._router = router
        self._driver = driver
        self._wall_ms = wall_ms
        self._sent: dict[int, Batch] = {}  # by request
        self._dropped: dict[int, Batch] = {}  # requests whose answers come too late, if at all
        self._unanswered: dict[
            int, PartitionQueue
        ] = {}  # the last requests that are not answered as a rule
        self._live: dict[PartitionQueue, None] = {}  # queues with sealed or sent batches
        self._dirty: dict[
            PartitionQueue, None
        ] = {}  # those of them that may have something to send
        self._timers: TimerHeap[PartitionQueue] = TimerHeap()
        self._sequences = Sequences(router, self, self._timers)
        self._has_news = False  # of leaders, and of partitions
        self._is_closed = False
        router.listen(name, self._on_metadata)

    # --- called by handles, from any thread -----------------------------------------------------

    def seal(self) -> None:
        """Have what was sent sealed before this returns."""
        with self._driver as loop:
            self.seal_by(loop)

    def seal_by(self, loop: Loop) -> None:
        """Seal what was sent; the caller holds the driver, and turns the loop."""
        self._seal_due(loop.clock(), everything=True)
        loop.touch(self.name)

    def push(self) -> None:
        """Have sealed and sent what is due: now, or with the answers to some of many requests."""
        if (len(self.backlog.full) + 1) * SHARE >= len(self._sent):
            self._driver.push(self.name)

    def flush(self) -> list[Batch]:
        """Seal everything and return what is not answered yet."""
        with self._driver as loop:
            self._seal_due(loop.clock(), everything=True)
            loop.touch(self.name)
            return [
                batch
                for queue in self._live
                for batch in (*queue.in_flight, *queue.sealed)
                if not batch.is_done
            ]

    def ask_sequence(self, queue: PartitionQueue) -> None:
        """Find out how far this producer has got in a partition, unless that is known."""
        with self._driver as loop:
            self._meet(queue, loop.clock())
            self._live[queue] = self._dirty[queue] = None
            loop.touch(self.name)

    def close(self, now: int) -> None:
        """Fail what is left; the caller holds the driver."""
        self._is_closed = True
        self._router.ignore(self.name)
        for queue in list(self._live):
            for batch in (*queue.in_flight, *queue.sealed):
                if not batch.is_done:
                    error = Closed("the producer was closed before the record was answered")
                    self._fail(batch, error)
            queue.in_flight.clear()
            queue.sealed.clear()

    # --- sealing --------------------------------------------------------------------------------

    def _seal_due(self, now: int, *, everything: bool = False) -> None:
        full, armed = self.backlog.full, self.backlog.armed
        while full:
            self._seal(full.popleft(), now)
        while armed and (everything or armed[0][0] <= now):
            queue = armed.popleft()[1]
            if not queue.is_armed:
                continue
            if everything or not self._is_stuck(queue, now):
                self._seal(queue, now)
            else:
                queue.held_at = now  # First this: who sees it unarmed finds it held.
                queue.is_armed = False
        if everything:
            for queue in [queue for queue in self._live if queue.held_at >= 0]:
                self._seal(queue, now)

    def _is_stuck(self, queue: PartitionQueue, now: int) -> bool:
        """Whether nothing more can leave before an answer comes: better one batch then than many.

        If none comes for long, it is sealed all the same, so that its time runs.
        """
        in_flight = queue.in_flight
        return len(in_flight) >= self.config.max_in_flight and now - in_flight[0].sent_at < PROBE_MS

    def _seal(self, queue: PartitionQueue, now: int) -> None:
        queue.seal(now, self._wall_ms())
        if queue.sealed:
            self._live[queue] = self._dirty[queue] = None
            if queue not in self._timers:
                self._timers.set(queue, queue.sealed[0].until)

    # --- the four verbs -------------------------------------------------------------------------

    def ready(self, now: int) -> Ready | None:
        """Seal what is due and send what may be sent."""
        backlog = self.backlog
        armed, is_crowded = backlog.armed, backlog.is_crowded
        if backlog.full or is_crowded or (armed and armed[0][0] <= now):
            self._seal_due(now, everything=is_crowded)  # What lingers keeps a buffer full.
        if self._has_news:
            self._has_news = False
            self.on_metadata(self._router.topics)
            for queue in self._live:
                self._look_at_leader(queue, now)
            self._dirty.update(self._live)
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for queue in dirty:
                if queue.held_at >= 0 and not self._is_stuck(queue, now):
                    self._seal(queue, now)
                if queue.sealed:
                    self._send(queue, now)
                elif queue.next_sequence < 0:
                    self._ask(queue, now)
                elif not queue.in_flight:
                    self._live.pop(queue, None)
                    self._timers.drop(queue)
        while armed and not armed[0][1].is_armed:
            armed.popleft()  # It was sealed because it was full, or somebody waited for it.
        if not self.out.send:
            return None
        out, self.out = self.out, Ready()
        return out

    def tick(self, now: int) -> None:
        """Give up what has taken too long; ask about and send again what was not answered."""
        for queue in self._timers.over(now):
            self._expire(queue, now)
            if queue.in_flight:
                self._look_at_silence(queue, now)
            self._sequences.look(queue, now)
            if queue in self._live:
                self._dirty[queue] = None
                self._rearm(queue, now)

    def _rearm(self, queue: PartitionQueue, now: int) -> None:
        """See to it that ``tick`` looks at a queue when something of it is due."""
        due = NEVER
        if queue.in_flight:
            first = queue.in_flight[0]
            due = min(first.until, max(first.sent_at + PROBE_MS, now + PROBE_AGAIN_MS))
        if queue.sealed:
            due = min(due, queue.sealed[0].until)
        if queue.retry_at > now:
            due = min(due, queue.retry_at)
        if due < NEVER:
            self._timers.set(queue, due)

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in an answer."""
        if isinstance(message, Sequence):
            queue = self._sequences.answered(source, message, now)
            if queue is not None:
                self._live[queue] = self._dirty[queue] = None
                self._rearm(queue, now)
        elif isinstance(message, Produced):
            batch = self._sent.pop(message.id, None)
            if batch is not None:
                self._answered(source, batch, message, now)
            elif message.id in self._unanswered:
                self._turned_away(source, message)
            elif self._dropped:
                self._answered_late(message)

    @property
    def deadline(self) -> int:
        """When something may be due; senders arm queues at any time, so it is looked up when asked.

        An answer does not put it off, which would cost more than a tick in vain now and then.
        """
        armed = self.backlog.armed
        if armed:
            try:
                return min(self._timers.due, armed[0][0])
            except IndexError:
                pass  # The thread that turns the loop has sealed it just now.
        return self._timers.due

    # --- sending --------------------------------------------------------------------------------

    def _send(self, queue: PartitionQueue, now: int) -> None:
        if queue.must_resend or now < queue.retry_at or self._is_closed:
            return
        queue.retry_at = 0  # Whatever it waits for from here on is not time.
        leader = self._router.leader(queue.topic, queue.partition)
        if leader is None or leader.leader is None or queue.topic not in self._router.topics:
            self._give_up_if_gone(queue)
            self._router.refresh(queue.topic)  # It tells when it has found one.
            return
        self._router.renew(queue.topic, now)
        self._meet(queue, now)
        if queue.next_sequence < 0:
            self._ask(queue, now)
            return
        if queue.target is None or not queue.in_flight:
            if queue.target is not None and queue.target.leader != leader.leader:
                queue.is_sure = False  # It may have less than the one before.
            queue.target = leader
        elif queue.target.leader != leader.leader:
            return  # What is in flight goes first.
        acks = self.config.acks if self.config.acks is not None else leader.acks
        unanswered, in_flight, is_first = 0, queue.in_flight, not queue.in_flight
        while (batch := queue.next_batch(unanswered)) is not None:
            self._requests += 1
            request, encoded = self._requests, queue.number(batch, acks)
            # Who is not answered is not told that it is another topic by now: any will do.
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
                self._note_unanswered(request, queue)
                self._finish(batch)
                unanswered += 1
                continue
            batch.request, batch.sent_at = request, now
            in_flight.append(batch)
            self._sent[request] = batch
        if is_first and in_flight:
            self._timers.set(queue, now + PROBE_MS)
        if unanswered and queue.sealed:
            # Nobody answers, so the rest waits for the next turn: else the broker has no say.
            self._dirty[queue] = None
            self._driver.loop.touch(self.name)

    def _meet(self, queue: PartitionQueue, now: int) -> None:
        """Number anew for a topic that was made again: what is in flight is for the one before."""
        known = self._router.topics.get(queue.topic)
        if known is None:
            return
        if queue.is_for_another(known.topic_id):
            if queue.in_flight and queue.in_flight[0].sequence >= 0:
                self._send_again(queue, now)
            self._sequences.forget(queue)
            queue.retry_at = 0
        queue.meet(known.topic_id)

    def _give_up_if_gone(self, queue: PartitionQueue) -> None:
        error = self._router.gone.get(queue.topic)
        known = self._router.topics.get(queue.topic)
        if known is not None and all(p.partition != queue.partition for p in known.partitions):
            error = UnknownPartition(f"{queue.topic!r} has no partition {queue.partition!r}")
        if error is not None:
            while queue.sealed:
                self._fail(queue.sealed.popleft(), error)

    def _ask(self, queue: PartitionQueue, now: int) -> None:
        leader = self._sequences.whom(queue, now)
        if leader is not None:
            self._meet(queue, now)
            self._sequences.ask(queue, leader, now)

    # --- silence --------------------------------------------------------------------------------

    def _look_at_leader(self, queue: PartitionQueue, now: int) -> None:
        """Metadata has changed: what is in flight may be at a broker that does not lead any more.

        Without numbers it is waited for, since it may still be answered.
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
        """Wait for nothing in flight any more, and send it again after *pause*."""
        self.tally.retries += 1
        for batch in queue.in_flight:
            if self._sent.pop(batch.request, None) is not None:
                self._dropped[batch.request] = batch
                batch.dropped = (*batch.dropped, batch.request)
            batch.request = 0
        queue.must_resend, queue.retry_at = True, now + pause
        self._resume(queue, now)

    # --- answers --------------------------------------------------------------------------------

    def _note_unanswered(self, request: int, queue: PartitionQueue) -> None:
        """Remember for a while what only a broker that does not lead answers."""
        self._unanswered[request] = queue
        if len(self._unanswered) > UNANSWERED_MAX:
            del self._unanswered[next(iter(self._unanswered))]

    def _turned_away(self, source: str, m: Produced) -> None:
        """A batch that needs no answer has come to a broker that does not lead, and is lost."""
        queue = self._unanswered.pop(m.id)
        if isinstance(m.error, NotLeader):
            self._router.refused(queue.topic, queue.partition, source, m.error)
        elif m.error is not None and m.error.retriable:
            self._router.refresh(queue.topic)

    def _answered_late(self, m: Produced) -> None:
        """It was sent again since: what the answer says matters if it says what became of it."""
        batch = self._dropped.get(m.id)
        if batch is not None and m.error is not None and is_not_written(m.error):
            del self._dropped[m.id]
            batch.dropped = tuple(request for request in batch.dropped if request != m.id)

    def _answered(self, source: str, batch: Batch, m: Produced, now: int) -> None:
        queue, batch.request = batch.queue, 0
        self._dirty[queue] = None
        error = m.error
        if error is not None:
            queue.trouble = told_by(source, error)
            batch.is_unsure = batch.is_unsure or not is_not_written(error)
        if error is None:
            queue.tries, queue.trouble = 0, None
            if batch.encoded is not None:
                queue.taken(batch, batch.encoded.header.producer_epoch)
            batch.base_offset = m.base_offset
            self.tally.times.observe((now - batch.sent_at) / 1000)
            self._finish(batch)
            queue.shift()
        elif error.retriable:
            self._refused(source, batch, error, now)
        elif isinstance(error, OutOfOrderSequence) and batch.sequence >= 0:
            self._send_again(queue, now, self._sequences.out_of_order(batch, error))
        else:
            queue.in_flight.remove(batch)
            queue.shift()
            self._fail(batch, error)
            queue.renumber(batch, now)
            if batch.sequence >= 0:
                self._send_again(queue, now)
        if queue.must_resend:
            self._resume(queue, now)

    def _refused(self, source: str, batch: Batch, error: PymqError, now: int) -> None:
        """A batch was refused for a reason that passes."""
        queue = batch.queue
        if isinstance(error, NotLeader):
            is_known = self._router.refused(queue.topic, queue.partition, source, error)
        else:
            is_known = False
            if not isinstance(error, QuotaExceeded):
                self._router.refresh(queue.topic)
        # Two brokers may take each other for the leader, so even a hint is not followed for ever.
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
            self._live[queue] = self._dirty[queue] = None
            self._rearm(queue, now)

    def _expire(self, queue: PartitionQueue, now: int) -> None:
        is_lost = False
        for waiting in (queue.in_flight, queue.sealed):
            while waiting and (waiting[0].is_done or waiting[0].until <= now):
                batch = waiting.popleft()
                if batch.is_done:
                    continue
                error = overdue(self._router, batch, self.config.delivery_timeout_ms)
                self._sent.pop(batch.request, None)
                self._fail(batch, error)
                if batch.sequence >= 0:
                    queue.renumber(batch, now)
                    queue.must_ask = is_lost = True
        if is_lost:
            self._send_again(queue, now)

    def _finish(self, batch: Batch) -> None:
        tally = self.tally
        if batch.error is None:
            tally.records += batch.count
            tally.bytes += batch.size
            tally.batches += 1
        else:
            tally.errors += batch.count
        for request in batch.dropped:
            self._dropped.pop(request, None)
        self.backlog.finish(batch)

    def _fail(self, batch: Batch, error: PymqError) -> None:
        batch.error = error
        self._finish(batch)

    def _on_metadata(self) -> None:
        self._has_news = True
        self._driver.loop.touch(self.name)
