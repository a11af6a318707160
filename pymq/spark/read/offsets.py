"""Positions of a query as canonical JSON: equal positions give equal text.

Spark compares the text. The shape is Kafka's, plus the id of each topic under the key ``@``: a
topic that was deleted and created again is another topic, even with equal offsets::

    {"@": {"orders": "3f2a9c10..."}, "orders": {"0": 123, "1": 456}}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pymq.core.values import value
from pymq.errors import InvalidRequest

IDS = "@"  # a key that cannot be the name of a topic


def order(partition: str) -> tuple[int, int | str]:
    """Return the sort key of a partition: numbers by value, then names."""
    return (0, int(partition)) if partition.isdecimal() else (1, partition)


@value
class Position:
    """The next offset to read of each partition, and the id of each topic."""

    ids: Mapping[str, str]  # by topic
    offsets: Mapping[tuple[str, str], int]  # by (topic, partition)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for Spark's checkpoint, in canonical order."""
        found: dict[str, Any] = {IDS: {topic: self.ids[topic] for topic in sorted(self.ids)}}
        for topic in sorted({topic for topic, _ in self.offsets}):
            partitions = sorted((p for t, p in self.offsets if t == topic), key=order)
            found[topic] = {p: self.offsets[topic, p] for p in partitions}
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Position:
        """Parse JSON from Spark's checkpoint.

        Raises:
            InvalidRequest: this source did not write it.
        """
        try:
            ids = {str(topic): str(id) for topic, id in found[IDS].items()}
            offsets = {
                (str(topic), str(partition)): int(offset)
                for topic, partitions in found.items()
                if topic != IDS
                for partition, offset in partitions.items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"the checkpoint holds {found!r}, which is no position of a pymq source ({error}); "
                "was it made by another source?"
            ) from error
        return cls(ids, offsets)

    def sorted(self) -> Iterable[tuple[tuple[str, str], int]]:
        """Return the partitions with their offsets, in canonical order."""
        return sorted(self.offsets.items(), key=lambda item: (item[0][0], order(item[0][1])))
