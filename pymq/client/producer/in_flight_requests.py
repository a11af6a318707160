"""The produce requests of a producer that a broker may still answer."""

from __future__ import annotations

from pymq.client.producer.delivery import Batch
from pymq.client.producer.partition_queue import PartitionQueue
from pymq.core.message import Produced
from pymq.errors import is_not_written

UNANSWERED_MAX = 256  # number of requests without acks that are remembered


class InFlightRequests:
    """Produce requests by id: awaited ones, abandoned ones, and the last ones without acks."""

    def __init__(self) -> None:
        self.awaited: dict[int, Batch] = {}
        self.given_up: dict[int, Batch] = {}  # requests whose batches were or will be sent again
        self.without_acks: dict[int, PartitionQueue] = {}

    def give_up(self, batch: Batch) -> None:
        """Stop waiting for the answer to the last request of *batch*."""
        if self.awaited.pop(batch.request, None) is not None:
            self.given_up[batch.request] = batch
            batch.dropped = (*batch.dropped, batch.request)
        batch.request = 0

    def answered_late(self, m: Produced) -> None:
        """Handle an answer to a request that was given up; only a final result counts."""
        batch = self.given_up.get(m.id)
        if batch is not None and m.error is not None and is_not_written(m.error):
            del self.given_up[m.id]
            batch.dropped = tuple(request for request in batch.dropped if request != m.id)

    def sent_without_acks(self, request: int, queue: PartitionQueue) -> None:
        """Remember a request without acks, because a broker that does not lead answers with an
        error.
        """
        self.without_acks[request] = queue
        if len(self.without_acks) > UNANSWERED_MAX:
            del self.without_acks[next(iter(self.without_acks))]

    def finish(self, batch: Batch) -> None:
        """Forget the requests of a finished batch."""
        for request in batch.dropped:
            self.given_up.pop(request, None)
