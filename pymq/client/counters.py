"""The counters of one client, over all of its producers and consumers; updated once per batch."""

from __future__ import annotations

from pymq.core.observe.metrics import Histogram, Metrics
from pymq.core.values import Factory, define


@define
class Counters:
    """Counters that only rise; the threads that run the loop or poll update them."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    errors: int = 0
    retries: int = 0
    times: Histogram = Factory(Histogram.new)
    consumed: int = 0
    expired: int = 0  # records that consumers did not get because of their expiry
    undecodable: int = 0  # records whose values typed consumers could not decode

    def collect(self, out: Metrics) -> None:
        """Add the counters to the metrics."""
        out.add("pymq_producer_records_total", self.records)
        out.add("pymq_producer_bytes_total", self.bytes)
        out.add("pymq_producer_batches_total", self.batches)
        out.add("pymq_producer_errors_total", self.errors)
        out.add("pymq_producer_retries_total", self.retries)
        out.add("pymq_producer_batch_seconds", self.times.copy())
        out.add("pymq_consumer_records_total", self.consumed)
        out.add("pymq_consumer_expired_total", self.expired)
        out.add("pymq_consumer_undecodable_total", self.undecodable)
