"""What a client counts: of all of its producers and consumers together, once a batch."""

from __future__ import annotations

from pymq.core.observe.metrics import Histogram, Metrics
from pymq.core.values import Factory, define


@define
class Counters:
    """Numbers that only rise; written by whoever turns the loop, or polls."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    errors: int = 0
    retries: int = 0
    times: Histogram = Factory(Histogram.new)
    consumed: int = 0

    def collect(self, out: Metrics) -> None:
        """Tell what was counted."""
        out.add("pymq_producer_records_total", self.records)
        out.add("pymq_producer_bytes_total", self.bytes)
        out.add("pymq_producer_batches_total", self.batches)
        out.add("pymq_producer_errors_total", self.errors)
        out.add("pymq_producer_retries_total", self.retries)
        out.add("pymq_producer_batch_seconds", self.times.copy())
        out.add("pymq_consumer_records_total", self.consumed)
