"""The machine behind a producer: has queues sealed, sends their batches, resends the unanswered.

Records come in through the queues (:mod:`pymq.client.queue`), without a lock. The batches of a
partition are sent in the order of their sequence numbers, several at a time. If one is refused for
a reason that passes, nothing more is sent until all in flight are answered; then the rest goes
again from the first. If one is refused for good, those after it are given the numbers that follow
the last written one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from pymq.client.base import NEVER, Driver, Outbox, Waitable
from pymq.client.delivery import Batch, Delivery
from pymq.client.queue import Queue
from pymq.client.router import Router
from pymq.core.message import GetSequence, Message, Produce, Produced
from pymq.core.message import Sequence as SequenceFound
from pymq.core.ready import Ready
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

__all__ = ["Queue", "Sender", "SenderConfig"]

RETRY_MS = 20
RETRY_MAX_MS = 1_000
REQUEST_MS = 10_000  # a request that is not answered in this time is sent again


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
        queue.seal(now, self._wall_ms())
        if queue.sealed:
            self._live[queue] = None
            self.due = min(self.due, queue.sealed[0].until)

    # --- the four verbs -------------------------------------------------------------------------

    def ready(self, now: int) -> Ready | None:
        """Seal what is due and send what may be sent."""
        armed = self.armed
        if self.full or self._space or (armed and armed[0][0] <= now):
            self._seal_due(now, everything=bool(self._space))  # What lingers keeps a buffer full.
        if self._live:
            for queue in list(self._live):
                if queue.sealed:
                    self._send(queue, now)
                elif queue.next_sequence < 0:
                    self._ask(queue)
                elif not queue.in_flight:
                    del self._live[queue]
        while armed and not armed[0][1].is_armed:
            armed.popleft()  # It was sealed because it was full, or somebody waited for it.
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
            self._resume(queue)
        self.due = NEVER
        for queue in self._live:
            waiting = queue.in_flight or queue.sealed
            if waiting:
                self.due = min(self.due, waiting[0].until)
                if queue.retry_at > now and not queue.must_resend:
                    self.due = min(self.due, queue.retry_at)
        if self._sent:
            self.due = min(self.due, next(iter(self._sent.values()))[1])

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in an answer."""
        if isinstance(message, SequenceFound):
            self._sequence_found(message, now)
        elif isinstance(message, Produced):
            sent = self._sent.pop(message.id, None)
            if sent is not None:
                self._answered(sent[0], message, now)

    @property
    def deadline(self) -> int:
        """When something may be due; senders arm queues at any time, so it is looked up when asked.

        An answer does not put it off, which would cost more than a tick in vain now and then.
        """
        try:
            return min(self.due, self.armed[0][0])
        except IndexError:
            return self.due

    # --- sending --------------------------------------------------------------------------------

    def _send(self, queue: Queue, now: int) -> None:
        if queue.must_resend or now < queue.retry_at or self._is_closed:
            return
        leader = self._router.leader(queue.topic, queue.partition)
        known = self._router.topics.get(queue.topic)
        if leader is None or leader.leader is None or known is None:
            self._give_up_if_gone(queue)
            self._router.refresh(queue.topic)  # It tells when it has found one.
            return
        queue.meet(known.topic_id)
        if queue.next_sequence < 0:
            self._ask(queue)
            return
        queue.retry_at = 0
        acks = self.config.acks if self.config.acks is not None else leader.acks
        unanswered, until = 0, now + REQUEST_MS
        while queue.sealed and len(queue.in_flight) + unanswered < self.config.max_in_flight:
            batch = queue.sealed.popleft()
            self._requests += 1
            request, encoded = self._requests, queue.number(batch, acks)
            produce = Produce(request, queue.topic, queue.partition, acks, encoded)
            self.out.send.append((leader.leader, produce))
            if acks is AckMode.NONE:
                self._finish(batch)
                unanswered += 1
                continue
            batch.request = request
            queue.in_flight.append(batch)
            self._sent[request] = (batch, until)
        self.due = min(self.due, until)
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
            queue.renumber(batch, sequence, now)
        self._resume(queue)

    def _retry(self, queue: Queue, now: int) -> None:
        """Send nothing more until everything in flight is answered; then begin again."""
        if not queue.must_resend:
            queue.must_resend = True
            queue.retry_at = now + min(RETRY_MS << min(queue.tries, 10), RETRY_MAX_MS)
            queue.tries += 1

    def _resume(self, queue: Queue) -> None:
        if queue.must_resend and queue.resume():
            self._live[queue] = None
            self.due = min(self.due, queue.retry_at)

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
                    queue.renumber(batch, batch.sequence, now)
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
