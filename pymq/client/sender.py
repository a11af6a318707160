"""The machine behind a producer: seals batches, sends them in order, resends what was not answered.

``send`` runs in the user's threads and takes no lock: it appends to the queue of a partition, which
only this machine empties, under the driver's lock. What makes that safe is the order of two steps
on each side. The sender appends, then looks whether the queue is armed; the machine disarms it,
then empties it. So a record is either taken, or its sender arms the queue again.

Batches of a partition are sent in the order of their sequence numbers, several at a time. If one is
refused for a reason that passes, nothing more is sent until all in flight are answered; then the
rest goes again from the first. If one is refused for good, those after it are given the numbers
that follow the last written one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from pymq.client.base import NEVER, Driver, Outbox, Waitable
from pymq.client.delivery import (
    RECORD_BYTES,
    Batch,
    Columns,
    Delivery,
    FullDelivery,
    Part,
)
from pymq.client.router import Router
from pymq.core.message import GetSequence, Message, Produce, Produced
from pymq.core.message import Sequence as SequenceFound
from pymq.core.ready import Ready
from pymq.core.record import NO_PRODUCER, RecordBatch
from pymq.core.types import AckMode
from pymq.core.values import define
from pymq.errors import (
    Closed,
    DeliveryTimeout,
    NotLeader,
    OutOfOrderSequence,
    PymqError,
    UnknownPartition,
)

RETRY_MS = 20
RETRY_MAX_MS = 1_000
REQUEST_MS = 10_000  # a request that is not answered in this time is sent again
COUNT_MAX = 100_000  # records a batch


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


class Queue:
    """One partition's records on their way."""

    __slots__ = (
        "bytes",
        "callbacks",
        "epoch",
        "has_extras",
        "has_keys",
        "in_flight",
        "is_armed",
        "is_asking",
        "is_due",
        "is_renumbering",
        "items",
        "known",
        "must_ask",
        "must_resend",
        "next_sequence",
        "partition",
        "retry_at",
        "sealed",
        "sender",
        "topic",
        "topic_id",
        "tries",
        "waiters",
    )

    def __init__(self, sender: Sender, topic: str, partition: str) -> None:
        self.sender = sender
        self.topic = topic
        self.partition = partition
        self.topic_id = ""  # of the topic that the numbers below are for
        self.items: deque[Delivery | Part] = deque()  # appended to by any thread
        self.bytes = 0  # about what is in ``items``
        self.has_keys = self.has_extras = False
        self.is_armed = False
        self.is_due = False  # somebody waits, and has seen to it that it is sealed
        self.callbacks: deque[tuple[Delivery, Callable[[], None]]] = deque()
        self.waiters: deque[threading.Lock] = deque()  # of threads that want it all answered
        # Below is the machine's alone.
        self.sealed: deque[Batch] = deque()  # not sent yet
        self.in_flight: deque[Batch] = deque()  # sent and not answered, in order
        self.epoch = sender.config.producer_epoch  # rises when a batch is lost for good
        self.next_sequence = -1 if sender.config.is_named else 0  # -1: to be asked for
        self.is_asking = False
        self.known = Waitable()  # done once the next sequence is known
        self.must_resend = self.must_ask = self.is_renumbering = False
        self.retry_at = 0
        self.tries = 0


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
        self.buffered = 0  # bytes sent by the user and not yet answered; about right
        self.failed: dict[int, Delivery] = {}  # failures that nobody has looked at, by id
        self.armed: deque[tuple[int, Queue]] = deque()  # (when it is to be sealed, queue)
        self.full: deque[Queue] = deque()  # to be sealed now
        self._router = router
        self._driver = driver
        self._wall_ms = wall_ms
        self._requests = 0
        self._sent: dict[int, tuple[Batch, int]] = {}  # by request: what, and until when
        self._asked: dict[int, Queue] = {}
        self._live: dict[Queue, None] = {}  # queues with sealed or sent batches
        self._space: deque[Waitable] = deque()  # of threads that wait for room in the buffer
        self._is_closed = False
        router.listen(name, self._on_metadata)

    # --- called by handles, from any thread -----------------------------------------------------

    def settle(self, delivery: Delivery, timeout: float | None) -> Batch:
        """Wait until a delivery is done.

        Raises:
            DeliveryTimeout: *timeout* seconds are over.
        """
        until = None if timeout is None else time.monotonic() + timeout
        owner = delivery.owner
        while not isinstance(owner, Batch):
            self._wait_sealed(delivery, owner, until)
            owner = delivery.owner
        if not owner.is_done:
            left = None if until is None else until - time.monotonic()
            if not self._driver.wait(owner, left):
                raise _timeout(timeout)
        return owner

    def _wait_sealed(self, delivery: Delivery, queue: Queue, until: float | None) -> None:
        """Have a delivery sealed, by turning the loop or by whoever turns it.

        He may be in the middle of a sync. To wait for the loop itself would be unfair, since a
        thread that lets go of a lock and wants it again gets it before those who sleep; so we wait
        for what we want, and those who do so together are served together.
        """
        is_first = not queue.is_due
        if is_first:
            queue.is_due = True
            self.full.append(queue)
            if self._driver.turn(self.name):
                return
        waiter = threading.Lock()
        waiter.acquire()
        queue.waiters.append(waiter)
        if is_first:
            self._driver.poke(self.name)
        # The machine makes it a batch's first, and then takes the waiters: one sees the other.
        if not isinstance(delivery.owner, Batch):
            left = None if until is None else until - time.monotonic()
            if not self._driver.sleep(waiter, left):
                raise _timeout(None)

    def seal(self) -> None:
        """Have what is full sealed before this returns."""
        with self._driver as loop:
            self._seal_due(loop.clock())
            loop.touch(self.name)

    def push(self) -> None:
        """Have sealed and sent what is full."""
        self._driver.push(self.name)

    def on_done(self, delivery: Delivery, callback: Callable[[], None]) -> None:
        """Call *callback* once a delivery is done; never waits, so that a callback may do it."""
        owner = delivery.owner
        if not isinstance(owner, Batch):
            entry = (delivery, callback)
            owner.callbacks.append(entry)
            queue, owner = owner, delivery.owner
            if not isinstance(owner, Batch):
                return  # The machine finds it when it seals the queue.
            try:
                queue.callbacks.remove(entry)
            except ValueError:
                return  # It has found it.
        owner.then(callback)

    def looked_at(self, delivery: Delivery) -> None:
        """The user knows of this failure."""
        self.failed.pop(id(delivery), None)

    def looked_at_batch(self, batch: Batch) -> None:
        """The user knows of these failures."""
        for delivery in batch.deliveries or ():
            self.failed.pop(id(delivery), None)

    def wait_for_space(self, timeout: float) -> bool:
        """Wait until the buffer has room; returns whether it has.

        It does not wait for the right to turn the loop: whoever has it may be at a disk that hangs.
        """
        space = Waitable()
        self._space.append(space)
        self._offer_space()  # Whoever made room just now may not have seen it.
        self._driver.push(self.name)
        if self._driver.wait(space, timeout):
            return True
        try:
            self._space.remove(space)
        except ValueError:
            return True  # It came just now.
        return False

    def flush(self) -> list[Batch]:
        """Seal everything and return what is not answered yet."""
        with self._driver as loop:
            self._seal_due(loop.clock(), everything=True)
            loop.touch(self.name)
            return [batch for queue in self._live for batch in (*queue.in_flight, *queue.sealed)]

    def ask_sequence(self, queue: Queue) -> None:
        """Find out how far this producer has got in a partition."""
        with self._driver as loop:
            self._live[queue] = None
            loop.touch(self.name)

    def close(self, now: int) -> None:
        """Fail what is left; the caller holds the driver."""
        self._is_closed = True
        self._router.ignore(self.name)
        for queue in list(self._live):
            for batch in (*queue.in_flight, *queue.sealed):
                self._fail(batch, Closed("the producer was closed before the record was answered"))
            queue.in_flight.clear()
            queue.sealed.clear()

    # --- sealing --------------------------------------------------------------------------------

    def _seal_due(self, now: int, *, everything: bool = False) -> None:
        while self.full:
            self._seal(self.full.popleft(), now)
        while self.armed and (everything or self.armed[0][0] <= now):
            queue = self.armed.popleft()[1]
            if queue.is_armed:
                self._seal(queue, now)

    def _seal(self, queue: Queue, now: int) -> None:
        """Make batches of everything in a queue."""
        queue.is_armed = queue.is_due = False  # First this, then empty it: see the module's top.
        popleft = queue.items.popleft
        taken = [popleft() for _ in range(len(queue.items))]
        queue.bytes = 0
        if not {Delivery, FullDelivery}.issuperset(map(type, taken)):
            run: list[Delivery] = []
            for item in taken:
                if isinstance(item, Part):
                    self._seal_run(queue, run, now)
                    self._seal_part(queue, item, now)
                    run = []
                else:
                    run.append(item)
            self._seal_run(queue, run, now)
        else:
            self._seal_run(queue, taken, now)  # type: ignore[arg-type] # no parts among them
        if queue.sealed:
            self._live[queue] = None
            while queue.waiters:
                queue.sealed[-1].wake(queue.waiters.popleft())
            while queue.callbacks:
                self._attach(*queue.callbacks.popleft())

    def _attach(self, delivery: Delivery, callback: Callable[[], None]) -> None:
        if isinstance(delivery.owner, Batch):
            delivery.owner.then(callback)
        else:
            delivery.owner.callbacks.append(
                (delivery, callback)
            )  # Its record came after this seal.

    def _seal_run(self, queue: Queue, run: list[Delivery], now: int) -> None:
        """Make batches of deliveries that follow each other; as a rule it is one."""
        if not run:
            return
        wall_ms = self._wall_ms()
        columns = Columns([delivery.value for delivery in run])
        if queue.has_keys:
            columns.keys = [delivery.key for delivery in run]
        if queue.has_extras:
            columns.headers = [delivery.headers for delivery in run]
            times = [delivery.timestamp_ms for delivery in run]
            if any(time is not None for time in times):
                columns.timestamps = [wall_ms if time is None else time for time in times]
        limit, size = self.config.batch_bytes, columns.size
        if len(run) <= COUNT_MAX and size <= limit + (limit >> 1):
            self._seal_one(queue, run, columns, size, wall_ms, now)
            return
        start = 0
        for end in _cuts(columns, limit):
            part = columns.cut(start, end)
            self._seal_one(queue, run[start:end], part, part.size, wall_ms, now)
            start = end

    def _seal_one(
        self,
        queue: Queue,
        run: list[Delivery],
        columns: Columns,
        size: int,
        wall_ms: int,
        now: int,
    ) -> None:
        until = now + self.config.delivery_timeout_ms
        batch = Batch(queue, columns, size, wall_ms, until)
        batch.deliveries = run
        for index, delivery in enumerate(run):
            delivery.owner = batch
            delivery.index = index
        queue.sealed.append(batch)

    def _seal_part(self, queue: Queue, part: Part, now: int) -> None:
        """Cut a bulk send into batches."""
        until, wall_ms = now + self.config.delivery_timeout_ms, self._wall_ms()
        start = 0
        for end in _cuts(part.columns, self.config.batch_bytes):
            columns = part.columns.cut(start, end)
            batch = Batch(queue, columns, columns.size, wall_ms, until)
            part.batches.append(batch)
            queue.sealed.append(batch)
            start = end

    # --- the four verbs -------------------------------------------------------------------------

    def ready(self, now: int) -> Ready | None:
        """Seal what is due and send what may be sent."""
        if self.full or (self.armed and self.armed[0][0] <= now):
            self._seal_due(now)
        if self._space:
            self._seal_due(now, everything=True)  # What lingers would keep the buffer full.
        if self._live:
            for queue in list(self._live):
                self._send(queue, now)
        self._rearm()
        if not self.out.send:
            return None
        out, self.out = self.out, Ready()
        return out

    def tick(self, now: int) -> None:
        """Give up what has taken too long; send again what was not answered."""
        for request in [r for r, (_, until) in self._sent.items() if until <= now]:
            batch, _ = self._sent.pop(request)
            batch.request = 0
            self._retry(batch.queue, now)
        for queue in list(self._live):
            self._expire(queue, now)
            self._resume(queue, now)

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in an answer."""
        if isinstance(message, SequenceFound):
            self._sequence_found(message, now)
        elif isinstance(message, Produced):
            sent = self._sent.pop(message.id, None)
            if sent is not None:
                self._answered(sent[0], message, now)

    def _rearm(self) -> None:
        while self.armed and not self.armed[0][1].is_armed:
            self.armed.popleft()  # It was sealed because it was full, or somebody waited for it.
        due = NEVER
        for queue in self._live:
            waiting = queue.in_flight or queue.sealed
            if waiting:
                due = min(due, waiting[0].until)
                if queue.retry_at and not queue.must_resend:
                    due = min(due, queue.retry_at)
        if self._sent:
            due = min(due, next(iter(self._sent.values()))[1])
        self.due = due

    @property
    def deadline(self) -> int:
        """When something is due; senders arm queues at any time, so it is looked up when asked."""
        try:
            return min(self.due, self.armed[0][0])
        except IndexError:
            return self.due

    # --- sending --------------------------------------------------------------------------------

    def _send(self, queue: Queue, now: int) -> None:
        if not queue.sealed:
            if not queue.in_flight and queue.next_sequence >= 0:
                del self._live[queue]
            elif queue.next_sequence < 0:
                self._ask(queue)
            return
        if queue.must_resend or now < queue.retry_at or self._is_closed:
            return
        leader = self._router.leader(queue.topic, queue.partition)
        known = self._router.topics.get(queue.topic)
        if leader is None or leader.leader is None or known is None:
            self._give_up_if_gone(queue)
            self._router.refresh(queue.topic)  # It tells when it has found one.
            return
        self._meet(queue, known.topic_id)
        if queue.next_sequence < 0:
            self._ask(queue)
            return
        queue.retry_at = 0
        acks = self.config.acks if self.config.acks is not None else leader.acks
        unanswered = 0
        while queue.sealed and len(queue.in_flight) + unanswered < self.config.max_in_flight:
            batch = queue.sealed.popleft()
            self._number(queue, batch, acks)
            self._requests += 1
            assert batch.encoded is not None
            produce = Produce(self._requests, queue.topic, queue.partition, acks, batch.encoded)
            self.out.send.append((leader.leader, produce))
            if acks is AckMode.NONE:
                self._finish(batch)
                unanswered += 1
                continue
            batch.request = self._requests
            queue.in_flight.append(batch)
            self._sent[self._requests] = (batch, now + REQUEST_MS)
        if unanswered and queue.sealed:
            # Nobody answers, so the rest waits for the next turn: else the broker has no say.
            self._driver.loop.touch(self.name)

    def _give_up_if_gone(self, queue: Queue) -> None:
        error = self._router.gone.get(queue.topic)
        known = self._router.topics.get(queue.topic)
        if known is not None and all(p.partition != queue.partition for p in known.partitions):
            error = UnknownPartition(f"{queue.topic!r} has no partition {queue.partition!r}")
        if error is not None:
            while queue.sealed:
                self._fail(queue.sealed.popleft(), error)

    def _meet(self, queue: Queue, topic_id: str) -> None:
        """A topic that was deleted and made anew knows nothing of the numbers of the old one."""
        if queue.topic_id and queue.topic_id != topic_id:
            queue.next_sequence = -1 if self.config.is_named else 0
            for batch in queue.sealed:
                batch.sequence = -1
        queue.topic_id = topic_id

    def _number(self, queue: Queue, batch: Batch, acks: AckMode) -> None:
        """Encode a batch with the numbers that it has in its partition.

        What is not answered has none: its loss could not be told from its repetition.
        """
        config = self.config
        named = config.producer_id != NO_PRODUCER and acks is not AckMode.NONE
        columns = batch.columns
        if columns is not None:
            batch.sequence = queue.next_sequence if named else -1
            batch.encoded = RecordBatch.encode(
                columns.values,
                timestamp_ms=batch.timestamp_ms,
                keys=columns.keys,
                headers=columns.headers,
                timestamps=columns.timestamps,
                producer_id=config.producer_id if named else NO_PRODUCER,
                producer_epoch=queue.epoch,
                base_sequence=batch.sequence,
                codec=config.codec,
            )
            batch.columns = None
        elif named and 0 <= batch.sequence < queue.next_sequence:
            return  # It is written, as the broker has told, and is asked for its offset again.
        elif named and batch.sequence != queue.next_sequence:
            assert batch.encoded is not None
            batch.sequence = queue.next_sequence
            batch.encoded = batch.encoded.numbered(queue.epoch, batch.sequence)
        if named:
            queue.next_sequence += batch.count

    def _ask(self, queue: Queue) -> None:
        leader = self._router.leader(queue.topic, queue.partition)
        if queue.is_asking or leader is None or leader.leader is None:
            return
        queue.is_asking = True
        self._requests += 1
        self._asked[self._requests] = queue
        ask = GetSequence(self._requests, queue.topic, queue.partition, self.config.producer_id)
        self.out.send.append((leader.leader, ask))

    def _sequence_found(self, m: SequenceFound, now: int) -> None:
        queue = self._asked.pop(m.id, None)
        if queue is None:
            return
        queue.is_asking = False
        if m.error is None:
            queue.next_sequence = m.next_sequence
            queue.known.finish()
            self._live[queue] = None
        else:
            self._router.refresh(queue.topic)

    # --- answers --------------------------------------------------------------------------------

    def _answered(self, batch: Batch, m: Produced, now: int) -> None:
        queue, batch.request = batch.queue, 0
        error = m.error
        if error is None:
            queue.tries = 0
            queue.in_flight.remove(batch)
            batch.base_offset = m.base_offset
            self._finish(batch)
        elif error.retriable:
            if isinstance(error, NotLeader):
                self._router.refresh(queue.topic)
            self._retry(queue, now)
        elif isinstance(error, OutOfOrderSequence) and queue.must_resend:
            pass  # One before it was refused; both go again, in their order.
        else:
            expected = error.details.get("expected")
            queue.in_flight.remove(batch)
            self._fail(batch, error)
            sequence = expected if isinstance(expected, int) else batch.sequence
            self._renumber(queue, batch, sequence, now)
        self._resume(queue, now)

    def _retry(self, queue: Queue, now: int) -> None:
        """Send nothing more until everything in flight is answered; then begin again."""
        if not queue.must_resend:
            queue.must_resend = True
            queue.retry_at = now + min(RETRY_MS << min(queue.tries, 10), RETRY_MAX_MS)
            queue.tries += 1

    def _renumber(self, queue: Queue, batch: Batch, sequence: int, now: int) -> None:
        """A batch is lost for good: those after it take its place, under a new epoch.

        The new epoch fences the lost batch, should it turn up at the broker after all.
        """
        if batch.sequence < 0:
            return
        if not queue.is_renumbering:
            queue.is_renumbering = True
            queue.epoch += 1
        queue.next_sequence = min(queue.next_sequence, sequence)
        queue.must_resend = True
        queue.retry_at = now

    def _resume(self, queue: Queue, now: int) -> None:
        if not queue.must_resend or any(batch.request for batch in queue.in_flight):
            return
        queue.must_resend = queue.is_renumbering = False
        if queue.must_ask:
            queue.must_ask = False
            queue.next_sequence = -1  # only the broker knows what became of what was given up
        elif queue.in_flight and queue.in_flight[0].sequence >= 0:
            # They keep their numbers, unless one before them was lost for good.
            queue.next_sequence = min(queue.next_sequence, queue.in_flight[0].sequence)
        queue.sealed.extendleft(reversed(queue.in_flight))
        queue.in_flight.clear()
        self._live[queue] = None

    def _expire(self, queue: Queue, now: int) -> None:
        for waiting in (queue.in_flight, queue.sealed):
            while waiting and waiting[0].until <= now:
                batch = waiting.popleft()
                self._sent.pop(batch.request, None)
                seconds = self.config.delivery_timeout_ms / 1000
                self._fail(
                    batch,
                    DeliveryTimeout(
                        f"{batch.count} records for {queue.topic}/{queue.partition} were not "
                        f"answered within {seconds:g} s; they may or may not have been written"
                    ),
                )
                if batch.sequence >= 0:
                    self._renumber(queue, batch, batch.sequence, now)
                    queue.must_ask = True

    def _finish(self, batch: Batch) -> None:
        self.buffered -= batch.size
        batch.encoded = batch.columns = None
        batch.finish()
        self._offer_space()

    def _fail(self, batch: Batch, error: PymqError) -> None:
        batch.error = error
        if batch.deliveries is None:
            batch.deliveries = _deliveries(batch)
        self.failed.update((id(delivery), delivery) for delivery in batch.deliveries)
        self._finish(batch)

    def _offer_space(self) -> None:
        while self._space and self.buffered < self.config.buffer_bytes:
            try:
                space = self._space.popleft()
            except IndexError:
                return  # Another thread took it.
            space.finish()

    def _on_metadata(self) -> None:
        self._driver.loop.touch(self.name)


def _deliveries(batch: Batch) -> list[Delivery]:
    """The records of a bulk send, one by one."""
    source = batch.columns or batch.encoded
    assert source is not None, "an unanswered batch has its records"
    keys = source.keys or [None] * batch.count
    made = []
    for index, (item, key) in enumerate(zip(source.values, keys, strict=True)):
        delivery = Delivery(batch, item, key)
        delivery.index = index
        made.append(delivery)
    return made


def _timeout(timeout: float | None) -> DeliveryTimeout:
    within = "in time" if timeout is None else f"within {timeout:g} s"
    return DeliveryTimeout(f"no answer {within}; the record is still being sent")


def _cuts(columns: Columns, limit: int) -> Sequence[int]:
    """Where to cut records so that each batch has about *limit* bytes: the end of each."""
    count = len(columns)
    sizes = set(map(len, columns.values))
    if columns.keys is None and columns.headers is None and len(sizes) == 1:
        step = min(max(1, limit // (sizes.pop() + RECORD_BYTES)), COUNT_MAX)
        return [*range(step, count, step), count]
    ends: list[int] = []
    total = 0
    for index, size in enumerate(columns.sizes()):
        total += size
        if total >= limit or index + 1 - (ends[-1] if ends else 0) >= COUNT_MAX:
            ends.append(index + 1)
            total = 0
    if not ends or ends[-1] != count:
        ends.append(count)
    return ends
