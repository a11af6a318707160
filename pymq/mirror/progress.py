"""The progress of a mirror: counts, lag and rate, also as metrics."""

from __future__ import annotations

from pymq.core.observe.metrics import Metrics
from pymq.core.values import Factory, define


@define
class TopicProgress:
    """The progress of one topic, since this process has begun."""

    records: int = 0  # written
    size: int = 0  # of them, in bytes
    skipped: int = 0  # records that the target refuses, with --on-error skip
    lag: int = 0  # offsets from the last written record to the source's end


@define
class MirrorProgress:
    """The progress of a mirror since this process has begun."""

    topics: dict[str, TopicProgress] = Factory(dict)
    groups: dict[str, int] = Factory(dict)  # number of offsets that were set, by group
    busy_groups: set[str] = Factory(set)  # groups whose target has members: not touched
    trouble: str = ""  # the last problem of the connection to Kafka, while it lasts
    seconds: float = 0.0  # since the beginning

    @property
    def records(self) -> int:
        """The number of records that were written."""
        return sum(topic.records for topic in self.topics.values())

    @property
    def skipped(self) -> int:
        """The number of records that were skipped."""
        return sum(topic.skipped for topic in self.topics.values())

    @property
    def lag(self) -> int:
        """Offsets from the last written records to the ends of the source."""
        return sum(topic.lag for topic in self.topics.values())

    @property
    def rate(self) -> float:
        """Records a second, on average."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at this rate; None while nothing was written."""
        return self.lag / self.rate if self.rate else None

    def metrics(self) -> Metrics:
        """Return the metrics of the mirror."""
        found = Metrics()
        for name, topic in self.topics.items():
            found.add("pymq_mirror_records_total", topic.records, name)
            found.add("pymq_mirror_bytes_total", topic.size, name)
            found.add("pymq_mirror_skipped_total", topic.skipped, name)
            found.add("pymq_mirror_lag", topic.lag, name)
        return found
