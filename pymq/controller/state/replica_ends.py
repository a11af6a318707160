"""Log ends of the replicas of open blocks, as brokers report them.

The ends are stored in memory only.
"""

from __future__ import annotations

from pymq.controller.state.image import Image
from pymq.core.message import ReplicaEnds
from pymq.core.types import TopicPartition

Reach = tuple[int, int, int]  # number of the block, end of the log, high watermark
TOLD_MAX = 1_000  # replicas in one report; the next report has the others


class KnownEnds:
    """The reported log ends and high watermarks of the replicas of open blocks."""

    def __init__(self) -> None:
        self._reaches: dict[TopicPartition, dict[str, Reach]] = {}

    def clear(self) -> None:
        """Drop all reports, after a take-over."""
        self._reaches.clear()

    def note(self, image: Image, m: ReplicaEnds) -> None:
        """Handle a report; entries of blocks that are no longer open are ignored."""
        for topic, partition, block, end, high in m.ends:
            name = TopicPartition(topic, partition)
            found = image.find(name)
            if found is None or m.broker not in found.open_block.replicas:
                continue
            if block == found.open_block.number:
                self._reaches.setdefault(name, {})[m.broker] = (block, end, high)
        if len(self._reaches) > 2 * len(m.ends) + TOLD_MAX:
            gone = [name for name in self._reaches if image.find(name) is None]
            for name in gone:
                del self._reaches[name]

    def of(self, name: TopicPartition, block: int, broker: str) -> tuple[int, int]:
        """High watermark and end of a broker's replica of an open block; -1 if not reported."""
        number, end, high = self._reaches.get(name, {}).get(broker, (-1, -1, -1))
        return (high, end) if number == block else (-1, -1)
