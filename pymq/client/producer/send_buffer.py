"""A producer's buffer: queues to close, failures, and waiting threads.

Threads put records into queues, and queues into the buffer, without a lock; the producer's state
machine takes them out. A thread waits here for the answer to its record, or for room in the buffer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pymq.client.base import ClientDriver, Waitable, check_timeout
from pymq.client.producer.delivery import Batch, Delivery, batch_of
from pymq.errors import DeliveryTimeout

if TYPE_CHECKING:
    from pymq.client.producer.partition_queue import PartitionQueue

__all__ = ["SendBuffer"]


class SendBuffer:
    """The queues that the state machine *name* has to close, and the threads that wait for it."""

    def __init__(self, name: str, driver: ClientDriver, buffer_bytes: int) -> None:
        self.buffered = 0  # approximate bytes of records without an answer
        # failures that the application has not seen, by batch and index ...
        self.failed: dict[tuple[Batch, int], Delivery] = {}
        self.uncounted = 0  # ... and the number of further ones, which are not kept
        # queues to close later, as pairs (due time, queue)
        self.armed: deque[tuple[int, PartitionQueue]] = deque()
        self.full: deque[PartitionQueue] = deque()  # queues to close now
        self.has_times = False  # whether any record so far had a delay or an expiry
        self.has_priorities = False
        self._name = name
        self._driver = driver
        self._buffer_bytes = buffer_bytes
        self._failed_bytes = 0  # approximate size of ``failed``
        self.space: deque[Waitable] = deque()  # locks of threads that wait for room

    # --- for waiting threads ----------------------------------------------------------------------

    def settle(self, delivery: Delivery, timeout: float | None) -> Batch:
        """Wait until a delivery is done, and note that the application has seen its failure, if
        any.

        Raises:
            DeliveryTimeout: *timeout* seconds are over.
            ConfigError: *timeout* is not a number of seconds.
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
        if batch.error is not None:
            self.failed.pop((batch, delivery.index), None)
        return batch

    def _wait_sealed(self, delivery: Delivery, queue: PartitionQueue, until: float | None) -> None:
        """Close a delivery's batch, in this thread or in the thread that runs the loop.

        The thread that runs the loop may be in the middle of a sync. Waiting for the loop's lock
        would be unfair: a thread that releases a lock often gets it again before sleeping threads
        do. So a thread waits for the batch instead, and all threads that wait for one batch are
        woken together.
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
        # The machine first closes the batch and then takes the waiters, so it misses no waiter.
        if batch_of(delivery) is None:
            left = None if until is None else until - self._driver.monotonic()
            if not self._driver.sleep(waiter, left):
                raise _timeout(None)

    def on_done(self, delivery: Delivery, callback: Callable[[], None]) -> None:
        """Call *callback* when a delivery is done.

        This method never waits, so callbacks may call it.
        """
        batch = batch_of(delivery)
        if batch is None:
            queue, entry = delivery.owner.queue, (delivery, callback)
            queue.callbacks.append(entry)
            batch = batch_of(delivery)
            if batch is None:
                return  # The machine finds the callback when it closes the queue's batch.
            try:
                queue.callbacks.remove(entry)
            except ValueError:
                return  # The producer's machine has taken the callback and will call it.
        batch.then(callback)

    def wait_for_space(self, timeout: float) -> bool:
        """Wait until the buffer has room; returns False if it has none in time.

        This method does not wait for the driver's lock, because the thread that holds the lock may
        wait for a hung disk.
        """
        space = Waitable()
        self.space.append(space)
        self.offer_space()  # The thread that made room may have missed this waiter.
        self._driver.push(self._name)
        if self._driver.wait(space, timeout):
            return True
        try:
            self.space.remove(space)
        except ValueError:
            return True  # There is room in the buffer now.
        return False

    # --- failures -------------------------------------------------------------------------------

    def take_failed(self) -> tuple[list[Delivery], int]:
        """Take out failures that the application has not seen, and the number of further ones."""
        failed, self.failed = self.failed, {}
        more, self.uncounted = self.uncounted, 0
        return list(failed.values()), more

    def looked_at_batch(self, batch: Batch, start: int, end: int) -> None:
        """Note that the application has seen the failures of these records."""
        for index in range(start, end):
            self.failed.pop((batch, index), None)

    # --- for the machine ------------------------------------------------------------------------

    def finish(self, batch: Batch) -> None:
        """Note that a batch is done, and wake the threads that wait for the batch or for room."""
        self.buffered -= batch.size
        if batch.error is not None:
            self._keep_failed(batch)
        batch.encoded = batch.columns = None
        batch.finish()
        if self.space:
            self.offer_space()

    def _keep_failed(self, batch: Batch) -> None:
        """Keep a failure until the application sees it, if the buffer has room for it."""
        if not self.failed:
            self._failed_bytes = 0
        if self._failed_bytes >= self._buffer_bytes:
            # The application may never check failures while a broker is down, so the rest is only
            # counted.
            self.uncounted += batch.count
            return
        self._failed_bytes += batch.size
        self.failed.update(((batch, each.index), each) for each in batch.apart())

    def offer_space(self) -> None:
        """Wake as many waiting threads as there is room for."""
        while self.space and self.buffered < self._buffer_bytes:
            try:
                space = self.space.popleft()
            except IndexError:
                return  # Another thread has taken the waiter.
            space.finish()


def _timeout(timeout: float | None) -> DeliveryTimeout:
    within = "in time" if timeout is None else f"within {timeout:g} s"
    return DeliveryTimeout(f"no answer {within}; the record is still being sent")
