"""Closes the records of a producer's queues into batches when their linger time is over."""

from __future__ import annotations

from collections.abc import Callable

from pymq.client.producer.partition_queue import PartitionQueue
from pymq.client.producer.queue_schedule import PROBE_MS, QueueSchedule
from pymq.client.producer.send_buffer import SendBuffer


class BatchSealer:
    """Closes the records of a producer's queues into batches; only the producer's machine calls
    this.
    """

    def __init__(
        self, backlog: SendBuffer, schedule: QueueSchedule, wall_ms: Callable[[], int]
    ) -> None:
        self._backlog = backlog
        self._schedule = schedule
        self._wall_ms = wall_ms

    def seal_due(self, now: int, *, everything: bool = False) -> None:
        """Close full batches and those whose linger time is over; with *everything*, all."""
        full, armed = self._backlog.full, self._backlog.armed
        while full:
            self.seal(full.popleft(), now)
        while armed and (everything or armed[0][0] <= now):
            queue = armed.popleft()[1]
            if not queue.is_armed:
                continue
            if everything or not is_stuck(queue, now):
                self.seal(queue, now)
            else:
                # Lock before the timer is reset, because a thread that finds no timer must also
                # find the queue locked.
                queue.held_at = now
                queue.is_armed = False
        if everything:
            for queue in [queue for queue in self._schedule.live if queue.held_at >= 0]:
                self.seal(queue, now)

    def seal(self, queue: PartitionQueue, now: int) -> None:
        """Close all records of *queue* into batches."""
        queue.seal(now, self._wall_ms())
        if queue.sealed:
            schedule = self._schedule
            schedule.live[queue] = schedule.dirty[queue] = None
            schedule.timers.add(queue, queue.sealed[0].until)


def is_stuck(queue: PartitionQueue, now: int) -> bool:
    """Whether *queue* must wait for an answer, so that new records join a later batch.

    If no answer arrives for a long time, the batch is closed nevertheless, and its delivery timeout
    begins.
    """
    sent = queue.in_flight
    return len(sent) >= queue.config.max_in_flight and now - sent[0].sent_at < PROBE_MS
