"""What a source reads from, whatever that is: the protocol of :mod:`~.logs` and :mod:`~.folder`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from pymq.core.batch.record import EncodedBatch
from pymq.core.values import value
from pymq.spark.planning import Range


@value
class Topic:
    """A topic as of now."""

    id: str
    partitions: tuple[str, ...]


class TopicLog(Protocol):
    """Where records come from."""

    def topics(self) -> list[str]:
        """The names of all topics but the internal ones."""
        ...

    def topic(self, name: str) -> Topic:
        """A topic.

        Raises:
            UnknownTopic: there is none of that name.
        """
        ...

    def bounds(
        self, topic: str, partitions: Sequence[str], topic_id: str = ""
    ) -> Mapping[str, tuple[int, int]]:
        """Where the partitions start and end now.

        Raises:
            UnknownTopic: there is none of that name, or not the one with that id any more.
        """
        ...

    def at_time(
        self, topic: str, partitions: Sequence[str], timestamp_ms: int, topic_id: str = ""
    ) -> Mapping[str, int]:
        """The first offset that is not older than a time; the end when all are."""
        ...

    def read(self, wanted: Range, fetch_bytes: int) -> Iterator[EncodedBatch]:
        """All batches that have something of a range, checked, in order.

        Raises:
            OffsetOutOfRange: what the range begins with is not there any more.
            UnknownTopic: nor is its topic; it may have been made again.
        """
        ...
