"""The queues of one topic in a producer; chooses the partition of a record without a key."""

from __future__ import annotations

from pymq.client.producer.partition_queue import SPREAD_BYTES, PartitionQueue
from pymq.client.producer.sender import Sender
from pymq.core.metadata.descriptions import TopicMetadata

SPREAD_MAX = 8  # partitions in which a burst of records without a key begins batches


class ProducerTopic:
    """A producer's state of one topic."""

    __slots__ = ("by_name", "is_bulk", "limit", "metadata", "queues", "sticky", "turn")

    def __init__(self, metadata: TopicMetadata, sender: Sender, turn: int) -> None:
        self.metadata = metadata
        self.queues = [
            PartitionQueue(sender, metadata.topic, p.partition) for p in metadata.partitions
        ]
        self.by_name = {queue.partition: queue for queue in self.queues}
        self.limit = metadata.config.max_record_bytes
        self.turn = turn % len(self.queues)
        self.is_bulk = False  # the last batch was full before its linger ended
        self.choose()

    def choose(self) -> None:
        """Return the partition for records without a key."""
        self.sticky = self.queues[self.turn]  # for one batch
        if len(self.queues) > 1:
            for queue in self.queues:
                if queue.topic_queues is None:
                    queue.limit = min(SPREAD_BYTES, queue.limit)
                queue.topic_queues = self

    def rotate(self) -> None:
        """Move on to the next partition for records without a key."""
        self.turn = (self.turn + 1) % len(self.queues)
        self.sticky = self.queues[self.turn]

    def spread(self) -> None:
        """Begin a batch in another partition, unless several batches are begun.

        A burst smaller than a batch is spread over several partitions, while a steady stream fills
        one batch after the other.
        """
        if self.is_bulk:
            return
        first = self.turn - self.turn % SPREAD_MAX
        size = min(SPREAD_MAX, len(self.queues) - first)
        turn = first + (self.turn + 1 - first) % size
        if not self.queues[turn].is_armed:
            self.turn, self.sticky = turn, self.queues[turn]

    def left(self, queue: PartitionQueue) -> None:
        """Move on to another partition after a batch was closed (KIP-480); called by the loop."""
        if queue is self.sticky:
            self.is_bulk = False
            self.rotate()
