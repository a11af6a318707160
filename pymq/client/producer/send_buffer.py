"""What the threads of a producer have sent, and what they wait for.

Threads put records into queues and queues into the backlog, without a lock; the producer's machine
takes them out. A thread that wants its record answered, or room for the next one, waits here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pymq.client.base import Driver, Waitable, check_timeout
from pymq.client.producer.delivery import Batch, Delivery, batch_of
from pymq.errors import DeliveryTimeout

if TYPE_CHECKING:
    from pymq.client.producer.partition_queue import PartitionQueue

__all__ = ["SendBuffer"]


class SendBuffer:
    """What is still to be sealed for the machine *name*, and who waits for that."""

    def __init__(self, name: str, driver: Driver, buffer_bytes: int) -> None:
        self.buffered = 0  # bytes sent by the user and not yet answered; about right
        # Failures that nobody has looked at, by batch and place ...
        self.failed: dict[tuple[Batch, int], Delivery] = {}
        self.uncounted = 0  # ... and how many more there are, that were too many to be kept
        self.armed: deque[tuple[int, PartitionQueue]] = deque()  # (when it is to be sealed, queue)
        self.full: deque[PartitionQueue] = deque()  # to be sealed now
        self._name = name
        self._driver = driver
        self._buffer_bytes = buffer_bytes
        self._failed_bytes = 0  # about what is in ``failed``
        self._space: deque[Waitable] = deque()  # of threads that wait for room in the buffer

    # --- for threads that wait ------------------------------------------------------------------

    def settle(self, delivery: Delivery, timeout: float | None) -> Batch:
        """Wait until a delivery is done.

        Raises:
            DeliveryTimeout: *timeout* seconds are over.
            ConfigError: *timeout* is no number of seconds.
        """
        if timeout is not None:
            check_timeout(timeout)
        until = None if timeout is None else self._driver.monotonic() + timeout
        while (batch := batch_of(delivery)) is None:
            self._wait_sealed(delivery, delivery.owner.queue, until)
        if not batch.is_done:
            left = None if until is None else until - self._driver.monotonic()
            if not self._driver.wait(batch, left):
                raise _timeout(timeout)
        return batch

    def _wait_sealed(self, delivery: Delivery, queue: PartitionQueue, until: float | None) -> None:
        """Have a delivery sealed, by turning the loop or by whoever turns it.

        He may be in the middle of a sync. To wait for the loop itself would be unfair, since a
        thread that lets go of a lock and wants it again gets it before those who sleep; so we wait
        for what we want, and those who do so together are served together.
        """
        is_first = not queue.is_due
        if is_first:
            queue.is_due = True
            self.full.append(queue)
            if self._driver.turn(self._name):
                return
        waiter = threading.Lock()
        waiter.acquire()
        queue.waiters.append(waiter)
        if is_first:
            self._driver.poke(self._name)
        # The machine makes it a batch's first, and then takes the waiters: one sees the other.
        if batch_of(delivery) is None:
            left = None if until is None else until - self._driver.monotonic()
            if not self._driver.sleep(waiter, left):
                raise _timeout(None)

    def on_done(self, delivery: Delivery, callback: Callable[[], None]) -> None:
        """Call *callback* once a delivery is done; never waits, so that a callback may do it."""
        batch = batch_of(delivery)
        if batch is None:
            queue, entry = delivery.owner.queue, (delivery, callback)
            queue.callbacks.append(entry)
            batch = batch_of(delivery)
            if batch is None:
                return  # The machine finds it when it seals the queue.
            try:
                queue.callbacks.remove(entry)
            except ValueError:
                return  # It has found it.
        batch.then(callback)

    def wait_for_space(self, timeout: float) -> bool:
        """Wait until the buffer has room; returns whether it has.

        It does not wait for the right to turn the loop: whoever has it may be at a disk that hangs.
        """
        space = Waitable()
        self._space.append(space)
        self.offer_space()  # Whoever made room just now may not have seen it.
        self._driver.push(self._name)
        if self._driver.wait(space, timeout):
            return True
        try:
            self._space.remove(space)
        except ValueError:
            return True  # It came just now.
        return False

    # --- failures -------------------------------------------------------------------------------

    def take_failed(self) -> tuple[list[Delivery], int]:
        """The failures that nobody has looked at, and how many more; after this somebody has."""
        failed, self.failed = self.failed, {}
        more, self.uncounted = self.uncounted, 0
        return list(failed.values()), more

    def looked_at(self, batch: Batch, index: int) -> None:
        """The user knows of this failure."""
        self.failed.pop((batch, index), None)

    def looked_at_batch(self, batch: Batch, start: int, end: int) -> None:
        """The user knows of the failures of these records."""
        for index in range(start, end):
            self.failed.pop((batch, index), None)

    # --- for the machine ------------------------------------------------------------------------

    @property
    def is_crowded(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._space)

    def finish(self, batch: Batch) -> None:
        """A batch is answered, or has failed: whoever waits for it or for its room is woken."""
        self.buffered -= batch.size
        if batch.error is not None:
            self._keep_failed(batch)
        batch.encoded = batch.columns = None
        batch.finish()
        self.offer_space()

    def _keep_failed(self, batch: Batch) -> None:
        """Keep what has failed until somebody looks, as much as would fit the buffer."""
        if not self.failed:
            self._failed_bytes = 0
        if self._failed_bytes >= self._buffer_bytes:
            self.uncounted += batch.count  # Perhaps nobody ever looks, and a broker is away.
            return
        self._failed_bytes += batch.size
        self.failed.update(((batch, each.index), each) for each in batch.apart())

    def offer_space(self) -> None:
        """Wake those who wait for room, as far as there is some."""
        while self._space and self.buffered < self._buffer_bytes:
            try:
                space = self._space.popleft()
            except IndexError:
                return  # Another thread took it.
            space.finish()


def _timeout(timeout: float | None) -> DeliveryTimeout:
    within = "in time" if timeout is None else f"within {timeout:g} s"
    return DeliveryTimeout(f"no answer {within}; the record is still being sent")
