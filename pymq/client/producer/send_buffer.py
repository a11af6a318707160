"""A producer's buffer: queues to close, failures, and the threads that wait.

Threads put records into queues and queues into the buffer, without a lock; the producer's machine
takes them out. A thread waits here for its record's answer, or for room.
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
    """The queues that machine *name* has to close, and the threads that wait for it."""

    def __init__(self, name: str, driver: ClientDriver, buffer_bytes: int) -> None:
        self.buffered = 0  # bytes of records without an answer, roughly
        # failures that the application has not seen, by batch and index ...
        self.failed: dict[tuple[Batch, int], Delivery] = {}
        self.uncounted = 0  # ... and how many more there are than are kept
        self.armed: deque[tuple[int, PartitionQueue]] = deque()  # (when it is due, queue)
        self.full: deque[PartitionQueue] = deque()  # queues to close now
        self.has_times = False  # a record had a delay or an expiry, at any time
        self.has_priorities = False
        self._name = name
        self._driver = driver
        self._buffer_bytes = buffer_bytes
        self._failed_bytes = 0  # size of ``failed``, roughly
        self.space: deque[Waitable] = deque()  # locks of threads that wait for room

    # --- for threads that wait ------------------------------------------------------------------

    def settle(self, delivery: Delivery, timeout: float | None) -> Batch:
        """Wait until a delivery is done, and note that the application sees its failure.

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
        """Close a delivery's batch, in this thread or in the one that turns the loop.

        That thread may be in the middle of a sync. To wait for its lock would be unfair: a thread
        that releases a lock gets it again before those that sleep. So a thread waits for the
        batch, and threads that wait for one batch are woken together.
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
        # The machine first closes the batch and then takes the waiters, so none is missed.
        if batch_of(delivery) is None:
            left = None if until is None else until - self._driver.monotonic()
            if not self._driver.sleep(waiter, left):
                raise _timeout(None)

    def on_done(self, delivery: Delivery, callback: Callable[[], None]) -> None:
        """Call *callback* once a delivery is done. This never waits, so callbacks may call it."""
        batch = batch_of(delivery)
        if batch is None:
            queue, entry = delivery.owner.queue, (delivery, callback)
            queue.callbacks.append(entry)
            batch = batch_of(delivery)
            if batch is None:
                return  # The machine finds it when it closes the queue.
            try:
                queue.callbacks.remove(entry)
            except ValueError:
                return  # The machine has found it.
        batch.then(callback)

    def wait_for_space(self, timeout: float) -> bool:
        """Wait until the buffer has room; returns whether it has.

        It does not wait for the driver's lock: the thread that holds it may wait for a hung disk.
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
            return True  # The room came just now.
        return False

    # --- failures -------------------------------------------------------------------------------

    def take_failed(self) -> tuple[list[Delivery], int]:
        """Take out the failures that the application has not seen, and the count of those not
        kept.
        """
        failed, self.failed = self.failed, {}
        more, self.uncounted = self.uncounted, 0
        return list(failed.values()), more

    def looked_at_batch(self, batch: Batch, start: int, end: int) -> None:
        """Note that the application has seen the failures of these records."""
        for index in range(start, end):
            self.failed.pop((batch, index), None)

    # --- for the machine ------------------------------------------------------------------------

    def finish(self, batch: Batch) -> None:
        """Take in that a batch is done: wake the threads that wait for it or for room."""
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
            self.uncounted += batch.count  # The application may never look while a broker is away.
            return
        self._failed_bytes += batch.size
        self.failed.update(((batch, each.index), each) for each in batch.apart())

    def offer_space(self) -> None:
        """Wake threads that wait for room, as far as there is room."""
        while self.space and self.buffered < self._buffer_bytes:
            try:
                space = self.space.popleft()
            except IndexError:
                return  # Another thread took the waiter.
            space.finish()


def _timeout(timeout: float | None) -> DeliveryTimeout:
    within = "in time" if timeout is None else f"within {timeout:g} s"
    return DeliveryTimeout(f"no answer {within}; the record is still being sent")
