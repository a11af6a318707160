"""The queues of a producer that have batches, each with a timer."""

from __future__ import annotations

from pymq.client.producer.partition_queue import PartitionQueue
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER

PROBE_MS = 500  # after this long without an answer the producer refreshes the leader, ...
PROBE_AGAIN_MS = 150  # ... and then at this interval


class QueueSchedule:
    """The queues of one producer with unfinished batches."""

    def __init__(self) -> None:
        self.live: dict[PartitionQueue, None] = {}  # queues with sealed or sent batches
        self.dirty: dict[PartitionQueue, None] = {}  # queues that may have batches to send
        self.timers: TimerHeap[PartitionQueue] = TimerHeap()

    def wake(self, queue: PartitionQueue) -> None:
        """Note that *queue* has batches, some of which may be sent."""
        self.live[queue] = self.dirty[queue] = None

    def rest(self, queue: PartitionQueue) -> None:
        """Note that all batches of *queue* are answered."""
        self.live.pop(queue, None)
        self.timers.drop(queue)

    def rearm(self, queue: PartitionQueue, now: int) -> None:
        """Set the timer of *queue* to its next deadline."""
        due = NEVER
        if queue.in_flight:
            first = queue.in_flight[0]
            due = min(first.until, max(first.sent_at + PROBE_MS, now + PROBE_AGAIN_MS))
        if queue.sealed:
            due = min(due, queue.sealed[0].until)
        if queue.retry_at > now:
            due = min(due, queue.retry_at)
        if due < NEVER:
            self.timers.set(queue, due)
