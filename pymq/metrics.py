"""Adds the metrics of a client to a registry of ``prometheus_client``.

::

    import pymq.metrics

    with pymq.open("data/") as mq:
        with pymq.metrics.registered(mq):
            ...

Without the library, ``str(mq.metrics())`` returns the same text, and ``pymq ui`` and brokers serve
it over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pymq.client.client import Client
from pymq.core.observe.metrics import BOUNDS, METRICS, Histogram, Metrics
from pymq.errors import MissingExtra

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

__all__ = ["METRICS", "Histogram", "Metrics", "registered"]


@contextmanager
def registered(client: Client, registry: CollectorRegistry | None = None) -> Iterator[None]:
    """Register the metrics of *client* with *registry* (by default the global one).

    The metrics are unregistered at the end of the ``with`` block. Metrics of the process are left
    out, because ``prometheus_client`` has its own.

    Raises:
        MissingExtra: prometheus_client is not installed.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise MissingExtra.of("prometheus_client is missing", "metrics") from error
    where = REGISTRY if registry is None else registry
    collector = _Collector(client)
    where.register(collector)
    try:
        yield
    finally:
        where.unregister(collector)


class _Collector:
    """A collector of ``prometheus_client``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def describe(self) -> list[Metric]:
        """Return nothing: a registry need not collect before it is scraped."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the current metric families."""
        metrics = self._client.metrics()
        for name in metrics:
            if not name.startswith("process_"):
                yield _family(name, metrics)


def _family(name: str, metrics: Metrics) -> Metric:
    from prometheus_client.core import Metric

    spec = METRICS[name]
    # The library expects counters without "_total", and adds it in its output.
    family = Metric(name.removesuffix("_total"), spec.help, spec.kind)
    for labels, found in metrics.samples(name):
        if not isinstance(found, Histogram):
            family.add_sample(name, dict(labels), found)
            continue
        below = 0
        for bound, count in zip((*map(repr, BOUNDS), "+Inf"), found.counts, strict=True):
            below += count
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, below)
        family.add_sample(f"{name}_sum", dict(labels), found.total)
        family.add_sample(f"{name}_count", dict(labels), below)
    return family
