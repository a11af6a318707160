"""The interface of the logs that a source reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from pymq.core.batch.record import EncodedBatch
from pymq.core.values import value
from pymq.spark.backfill import BlockSpan
from pymq.spark.planning import Range


@value
class Topic:
    """A topic in its present state."""

    id: str
    partitions: tuple[str, ...]


class TopicLog(Protocol):
    """The log that a source reads."""

    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones."""
        ...

    def topic(self, name: str) -> Topic:
        """Describe a topic.

        Raises:
            UnknownTopic: no topic has that name.
        """
        ...

    def bounds(
        self, topic: str, partitions: Sequence[str], topic_id: str = ""
    ) -> Mapping[str, tuple[int, int]]:
        """Return the present start and end offsets of the partitions.

        Raises:
            UnknownTopic: no topic has that name, or it now has another id.
        """
        ...

    def at_time(
        self, topic: str, partitions: Sequence[str], timestamp_ms: int, topic_id: str = ""
    ) -> Mapping[str, int]:
        """Return the first offset at or after a time; the end if all records are older."""
        ...

    def blocks(
        self, topic: str, partitions: Sequence[str], topic_id: str = ""
    ) -> Mapping[str, Sequence[BlockSpan]]:
        """Return the sealed blocks of the partitions, in order.

        Raises:
            UnknownTopic: no topic has that name.
        """
        ...

    def read(self, wanted: Range, fetch_bytes: int) -> Iterator[EncodedBatch]:
        """Yield all batches that overlap a range, CRC checked, in order.

        Raises:
            OffsetOutOfRange: the start of the range has been removed.
            UnknownTopic: the topic was deleted; a topic of the same name may exist now.
        """
        ...
