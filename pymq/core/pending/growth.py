"""The growth of a partition, for the group coordinators on the broker that leads it."""

from __future__ import annotations

from pymq.core.batch.priority import Run
from pymq.core.message import Range
from pymq.core.types import TopicPartition
from pymq.core.values import value


@value
class Growth:
    """A partition has more committed records than before."""

    name: TopicPartition
    topic_id: str
    end: int  # the high watermark
    unkeyed: tuple[Range, ...]  # the last known ranges of records without a key
    priorities: tuple[Run, ...]  # of the new records
