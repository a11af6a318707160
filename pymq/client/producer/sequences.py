"""Requests for the next sequence that a partition expects from a producer.

The producer asks a partition in two cases: an earlier producer of the same name may have written,
or the producer has given up a batch that may have been written.
"""

from __future__ import annotations

from pymq.client.base import Outbox
from pymq.client.producer.delivery import Batch
from pymq.client.producer.delivery_failure import silence, told_by
from pymq.client.producer.partition_queue import PartitionQueue
from pymq.client.router import Router
from pymq.core.message import GetSequence, Sequence
from pymq.core.time.timer_heap import TimerHeap
from pymq.errors import OutOfOrderSequence

ANSWER_MS = 500  # after this long without an answer, the broker may have lost its leadership
DOUBTS = 2  # number of reports of a gap after which records count as lost


class Sequences:
    """The requests of one producer for its next sequences.

    Each queue has at most one request in flight, :attr:`PartitionQueue.is_asking`; answers to
    earlier requests are ignored.
    """

    def __init__(self, router: Router, outbox: Outbox, timers: TimerHeap[PartitionQueue]) -> None:
        self._router = router
        self._outbox = outbox
        self._timers = timers
        self._asked: dict[int, PartitionQueue] = {}  # by request

    def whom(self, queue: PartitionQueue, now: int) -> str | None:
        """Return the leader to ask now; None before the retry time, or if no leader is known."""
        if queue.is_asking or now < queue.retry_at:
            return None
        leader = self._router.leader(queue.topic, queue.partition)
        return leader.leader if leader is not None else None

    def ask(self, queue: PartitionQueue, leader: str, now: int) -> None:
        """Ask *leader* for the next sequence."""
        request = queue.is_asking = self._outbox.number()
        self._asked[request] = queue
        producer_id, topic_id = queue.config.producer_id, queue.topic_id
        ask = GetSequence(request, queue.topic, queue.partition, producer_id, topic_id)
        self._outbox.post(leader, ask)
        queue.retry_at = now + ANSWER_MS
        self._timers.set(queue, queue.retry_at)

    def forget(self, queue: PartitionQueue) -> None:
        """Ignore the answer to the request in flight."""
        self._asked.pop(queue.is_asking, None)
        queue.is_asking = 0

    def look(self, queue: PartitionQueue, now: int) -> None:
        """Send the request again after its timeout."""
        if queue.is_asking and queue.retry_at <= now:
            self.forget(queue)
            if (leader := self._router.metadata.find(queue.topic, queue.partition)) is not None:
                queue.trouble = silence(self._router, leader)
            self._router.distrust(queue.topic, queue.partition)

    def answered(self, source: str, m: Sequence, now: int) -> PartitionQueue | None:
        """Handle an answer; returns its queue, or None if the answer is no longer awaited."""
        queue = self._asked.pop(m.id, None)
        if queue is None:
            return None
        queue.is_asking = 0
        if m.error is None:
            queue.next_sequence = m.next_sequence
            queue.retry_at = 0
            queue.known.finish()
        else:
            queue.trouble = told_by(source, m.error)
            self._router.refresh(queue.topic)
            queue.retry_at = now + queue.pause_ms
        return queue

    def out_of_order(self, batch: Batch, error: OutOfOrderSequence) -> int:
        """Handle a gap before a batch: earlier batches are still on their way, or the log has lost
        them.

        Returns the milliseconds to wait before all batches in flight are sent again.
        """
        queue = batch.queue
        expected = error.details.get("expected")
        pause = queue.pause_ms if queue.tries else 0
        queue.tries += 1
        if batch is queue.in_flight[0] and isinstance(expected, int):
            if expected < batch.sequence and queue.tries <= DOUBTS:
                # The broker has lost acknowledged records, or it is a former leader that does not
                # know its successor.
                self._router.refresh(queue.topic)
                pause = queue.pause_ms
            else:
                queue.void(expected)
        return pause
