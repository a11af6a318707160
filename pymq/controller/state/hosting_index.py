"""The image's index of partitions by broker."""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice

from pymq.core.metadata.nodes import BlockNode
from pymq.core.types import TopicPartition

CHANGED_MAX = 1 << 14  # number of block changes that are remembered


class Hosting:
    """Partitions by broker, in the order in which they were added to the image."""

    def __init__(self) -> None:
        self.leads: Counter[str] = Counter()  # number of open blocks by leader
        self.sequence = 0  # number of block changes so far
        self.blocks: Counter[str] = Counter()  # number of blocks by replica
        self._blocks: dict[str, Counter[TopicPartition]] = {}
        self._open: dict[str, dict[TopicPartition, None]] = {}
        self._leaving: dict[str, dict[TopicPartition, None]] = {}
        self._changed: deque[TopicPartition] = deque(maxlen=CHANGED_MAX)  # latest changes

    def hosted(self, broker: str) -> tuple[TopicPartition, ...]:
        """The partitions of which a broker has any block."""
        return tuple(self._blocks.get(broker, ()))

    def opened(self, broker: str) -> tuple[TopicPartition, ...]:
        """The partitions of which a broker has the open block."""
        return tuple(self._open.get(broker, ()))

    def opened_count(self, broker: str) -> int:
        """The number of partitions of which a broker has the open block."""
        return len(self._open.get(broker, ()))

    def leaving(self, broker: str) -> tuple[TopicPartition, ...]:
        """The partitions whose remaining files a broker must remove."""
        return tuple(self._leaving.get(broker, ()))

    def changed(self, broker: str, since: int) -> tuple[TopicPartition, ...] | None:
        """A broker's partitions with a block that was created or changed after sequence *since*.

        The result is None if *since* is too long ago.
        """
        count = self.sequence - since
        if count > len(self._changed):
            return None
        names = dict.fromkeys(islice(reversed(self._changed), count))
        blocks = self._blocks.get(broker, ())
        return tuple(name for name in names if name in blocks)

    def replace_block(
        self, name: TopicPartition, before: BlockNode | None, after: BlockNode | None
    ) -> None:
        """Note that a block was created, changed or removed."""
        if before is not None:
            self._remove(name, before)
        if after is not None:
            self._add(name, after)

    def _add(self, name: TopicPartition, block: BlockNode) -> None:
        self.sequence += 1
        self._changed.append(name)
        for broker in block.replicas:
            if (blocks := self._blocks.get(broker)) is None:
                blocks = self._blocks[broker] = Counter()
            blocks[name] = blocks.get(name, 0) + 1
            self.blocks[broker] += 1
        if block.end is None:
            for broker in block.replicas:
                self._open.setdefault(broker, {})[name] = None
            if block.leader is not None:
                self.leads[block.leader] += 1

    def _remove(self, name: TopicPartition, block: BlockNode) -> None:
        for broker in block.replicas:
            blocks = self._blocks[broker]
            blocks[name] -= 1
            self.blocks[broker] -= 1
            if not blocks[name]:
                del blocks[name]
        if block.end is None:
            for broker in block.replicas:
                del self._open[broker][name]
            if block.leader is not None:
                self.leads[block.leader] -= 1

    def replace_leaving(
        self, name: TopicPartition, before: tuple[str, ...], after: tuple[str, ...]
    ) -> None:
        """Replace the set of brokers that must remove their files of a partition."""
        if before == after:
            return
        for broker in before:
            del self._leaving[broker][name]
        for broker in after:
            self._leaving.setdefault(broker, {})[name] = None
