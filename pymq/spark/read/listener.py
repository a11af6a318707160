"""Puts the lag of running queries into the metrics of a client."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from pymq.client.client import Client
from pymq.core.observe.metrics import Metrics
from pymq.core.values import value
from pymq.errors import PymqError
from pymq.spark.log.cluster_log import ClusterLog
from pymq.spark.read.admission import SAMPLED, record_sizes
from pymq.spark.read.progress import OffsetsBehind, behind, description

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

TIMEOUT_S = 2.0  # short, because Spark's other listeners wait for this one


@value
class SourceLag:
    """The lag of one source."""

    query: str
    source: str
    least: float
    most: float
    average: float
    size_bytes: float


class ProgressListener(StreamingQueryListener):
    """Puts the lag of all queries of a session into ``mq.metrics()``.

    ::

        spark.streams.addListener(pymq.spark.ProgressListener(mq))
        with pymq.metrics.registered(mq):  # for prometheus_client
            ...

    The lag in bytes is an estimate: the lag in records, times the size of a few records at the
    query's position.
    """

    def __init__(self, mq: Client) -> None:
        self._log = ClusterLog(mq, TIMEOUT_S)
        self._lock = threading.Lock()
        self._lags: dict[str, list[SourceLag]] = {}  # by the id of the query
        mq.sources.append(self.metrics)

    def metrics(self) -> Metrics:
        """Return the lag of each source of each running query, as of its last batch."""
        out = Metrics()
        with self._lock:
            found = [lag for lags in self._lags.values() for lag in lags]
        for lag in found:
            for stat, number in (("min", lag.least), ("max", lag.most), ("avg", lag.average)):
                out.add("pymq_spark_offsets_behind_latest", number, lag.query, lag.source, stat)
            out.add("pymq_spark_bytes_behind_latest", lag.size_bytes, lag.query, lag.source)
        return out

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query that starts has no lag yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Store the lag of a query's sources."""
        progress = event.progress
        query = progress.name or str(progress.id)
        lags, seen = [], Counter[str]()
        for source in progress.sources:
            if (far := behind(source)) is None or not far.records:
                continue
            name = description(source)
            seen[name] += 1
            if seen[name] > 1:  # A query that joins a topic with itself.
                name = f"{name} {seen[name]}"
            numbers = far.records.values()
            average = sum(numbers) / len(numbers)
            size = self._size(far)
            lags.append(SourceLag(query, name, min(numbers), max(numbers), average, size))
        with self._lock:
            self._lags[str(progress.id)] = lags

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the last progress is still valid."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget a query."""
        with self._lock:
            self._lags.pop(str(event.id), None)

    def _size(self, far: OffsetsBehind) -> float:
        """Return about how many bytes a source has not read."""
        waiting = {place: count for place, count in far.records.items() if count}
        size_at = record_sizes(self._log, far.latest)
        sizes = []
        for place in sorted(waiting, key=lambda each: -waiting[each])[:SAMPLED]:
            end = far.latest.offsets[place]
            try:
                sizes.append(size_at(place, end - waiting[place], end))
            except PymqError:
                break  # The cluster does not answer: estimate by the samples so far.
        usual = sum(sizes) / len(sizes) if sizes else 0.0
        rest = sum(waiting.values())
        known = sorted(waiting.values(), reverse=True)[: len(sizes)]
        exact = sum(size * count for size, count in zip(sizes, known, strict=True))
        return exact + usual * (rest - sum(known))
