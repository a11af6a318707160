"""A producer's buffer: queues to close, failures, and waiting threads.

Threads put records into queues and queues into the buffer, without a lock; the machine takes them
out. A thread waits here for its record's answer, or for room.
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
    """The queues that the machine *name* has to close, and the threads that wait for it."""

    def __init__(self, name: str, driver: ClientDriver, buffer_bytes: int) -> None:
        self.buffered = 0  # bytes of records without an answer, roughly
        # failures that the application has not seen, by batch and index ...
        self.failed: dict[tuple[Batch, int], Delivery] = {}
        self.uncounted = 0  # ... and how many more there are than are kept
        # pairs (time when it is due, queue)
        self.armed: deque[tuple[int, PartitionQueue]] = deque()
        self.full: deque[PartitionQueue] = deque()  # queues to close now
        self.has_times = False  # whether a record so far had a delay or an expiry
        self.has_priorities = False
        self._name = name
        self._driver = driver
        self._buffer_bytes = buffer_bytes
        self._failed_bytes = 0  # size of ``failed``, roughly
        self.space: deque[Waitable] = deque()  # locks of threads that wait for room

    # --- for waiting threads ----------------------------------------------------------------------

    def settle(self, delivery: Delivery, timeout: float | None) -> Batch:
        """Wait until a delivery is done, and note that its failure was reported to the application.

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
        if batch.error is not None:
            self.failed.pop((batch, delivery.index), None)
        return batch

    def _wait_sealed(self, delivery: Delivery, queue: PartitionQueue, until: float | None) -> None:
        """Close a delivery's batch, in this thread or in the one that runs the loop.

        The thread that runs the loop may be in the middle of a sync. Waiting for its lock would be
        unfair: a thread that releases a lock gets it again before those that sleep. So a thread
        waits for the batch instead, and all threads that wait for one batch are woken together.
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
        # The machine closes the batch first and then takes the waiters, so no waiter is missed.
        if batch_of(delivery) is None:
            left = None if until is None else until - self._driver.monotonic()
            if not self._driver.sleep(waiter, left):
                raise _timeout(None)

    def on_done(self, delivery: Delivery, callback: Callable[[], None]) -> None:
        """Call *callback* once a delivery is done.

        This never waits, so callbacks may call this method.
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
        """Wait until the buffer has room; returns whether it has.

        This does not wait for the driver's lock: the thread that holds it may wait for a hung disk.
        """
        space = Waitable()
        self.space.append(space)
        self.offer_space()  # The thread that made room may not have seen this waiter.
        self._driver.push(self._name)
        if self._driver.wait(space, timeout):
            return True
        try:
            self.space.remove(space)
        except ValueError:
            return True  # By now there is room in the buffer.
        return False

    # --- failures -------------------------------------------------------------------------------

    def take_failed(self) -> tuple[list[Delivery], int]:
        """Take out the failures not reported to the application, and how many more there were."""
        failed, self.failed = self.failed, {}
        more, self.uncounted = self.uncounted, 0
        return list(failed.values()), more

    def looked_at_batch(self, batch: Batch, start: int, end: int) -> None:
        """Note that the failures of these records were reported to the application."""
        for index in range(start, end):
            self.failed.pop((batch, index), None)

    # --- for the machine ------------------------------------------------------------------------

    def finish(self, batch: Batch) -> None:
        """Note that a batch is done: wake the threads that wait for it or for room."""
        self.buffered -= batch.size
        if batch.error is not None:
            self._keep_failed(batch)
        batch.encoded = batch.columns = None
        batch.finish()
        if self.space:
            self.offer_space()

    def _keep_failed(self, batch: Batch) -> None:
        """Keep a failure until the application sees it, as many as fit the buffer."""
        if not self.failed:
            self._failed_bytes = 0
        if self._failed_bytes >= self._buffer_bytes:
            # The application may never look at failures while a broker is down, so the rest is only
            # counted.
            self.uncounted += batch.count
            return
        self._failed_bytes += batch.size
        self.failed.update(((batch, each.index), each) for each in batch.apart())

    def offer_space(self) -> None:
        """Wake as many of the threads that wait for room as there is room for."""
        while self.space and self.buffered < self._buffer_bytes:
            try:
                space = self.space.popleft()
            except IndexError:
                return  # Another thread has taken the waiter.
            space.finish()


def _timeout(timeout: float | None) -> DeliveryTimeout:
    within = "in time" if timeout is None else f"within {timeout:g} s"
    return DeliveryTimeout(f"no answer {within}; the record is still being sent")
