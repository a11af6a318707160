"""One topic in a producer: its queues, the partition of a record without a key, and its route."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from pymq.client.producer.delivery import ColumnBuffer
from pymq.client.producer.partition_queue import SPREAD_BYTES, PartitionQueue
from pymq.client.producer.sender import Sender
from pymq.core.batch.columns import Headers
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.metadata.route import ROUTE, WHOLE, Route, parse_route, routed_bit
from pymq.core.metadata.topic_config import TopicConfig

SPREAD_MAX = 8  # partitions over which a burst of records without a key is spread
_STRIDE = 6_180  # golden section of WHOLE, so that producers with consecutive ids begin far apart


class ProducerTopic:
    """A producer's state of one topic."""

    __slots__ = (
        "by_name",
        "is_bulk",
        "limit",
        "metadata",
        "producer_id",
        "queues",
        "routing",
        "sticky",
        "turn",
    )

    def __init__(self, metadata: TopicMetadata, sender: Sender, turn: int) -> None:
        self.metadata = metadata
        self.queues = [
            PartitionQueue(sender, metadata.topic, p.partition) for p in metadata.partitions
        ]
        self.by_name = {queue.partition: queue for queue in self.queues}
        self.routing: Routing | None = None
        self.producer_id = sender.config.producer_id
        self.turn = turn % len(self.queues)
        self.is_bulk = False  # whether the last batch was full before its linger time ended
        self.choose()
        self.follow(metadata.config)

    def follow(self, config: TopicConfig) -> None:
        """Adopt the options of the topic."""
        self.limit = config.max_record_bytes
        known = None if self.routing is None else self.routing.text
        if config.route is None:
            self.routing = None
        elif config.route != known:
            self.routing = Routing(config.route, parse_route(config.route), self.producer_id)
        for queue in self.queues:
            queue.routing = self.routing

    def choose(self) -> None:
        """Choose the partition for records without a key."""
        # the queue that gets records without a key until the queue's batch is full
        self.sticky = self.queues[self.turn]
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
        """Begin a batch in another partition, unless enough batches have begun.

        So a burst smaller than a batch is spread over several partitions, while a steady stream
        fills one batch after the other.
        """
        if self.is_bulk:
            return
        first = self.turn - self.turn % SPREAD_MAX
        size = min(SPREAD_MAX, len(self.queues) - first)
        turn = first + (self.turn + 1 - first) % size
        if not self.queues[turn].is_armed:
            self.turn, self.sticky = turn, self.queues[turn]

    def left(self, queue: PartitionQueue) -> None:
        """Move on to another partition after a batch was closed (KIP-480); the loop calls this."""
        if queue is self.sticky:
            self.is_bulk = False
            self.rotate()


class Routing:
    """Decides, batch by batch, which records of a topic are routed to a group."""

    def __init__(self, text: str, route: Route, producer_id: int) -> None:
        self.text = text
        self._route = route
        self._header = (ROUTE, route.group.encode())
        # The start value differs between producers, since many producers with one record each must
        # not all choose the same route.
        self._credit = producer_id * _STRIDE % WHOLE

    def stamp(self, columns: ColumnBuffer) -> ColumnBuffer:
        """Return the records, with a header added to those that are routed.

        A record that already has the header keeps it, because the caller has chosen the group.
        """
        chosen = self._chosen(columns)
        if not chosen and columns.headers is None:
            return columns
        headers: list[Headers] = list(columns.headers or [()] * len(columns))
        for index in chosen:
            if not any(name == ROUTE for name, _ in headers[index]):
                headers[index] = (*headers[index], self._header)
        stamped = columns.with_headers(headers)
        stamped.attributes |= routed_bit(headers)
        return stamped

    def _chosen(self, columns: ColumnBuffer) -> list[int]:
        route, keys = self._route, columns.keys
        if route.pattern is not None:
            return self._matching(columns)
        if keys is None:
            return self._spaced(range(len(columns)))
        # The modulus differs from that of the choice of partitions, so that all partitions get the
        # same share of routed records.
        chosen = [
            index
            for index, key in enumerate(keys)
            if key is not None and crc32(key) % 999_983 % WHOLE < route.share
        ]
        return chosen + self._spaced([index for index, key in enumerate(keys) if key is None])

    def _matching(self, columns: ColumnBuffer) -> list[int]:
        empty: Sequence[None] = [None] * len(columns)
        pairs = zip(columns.keys or empty, columns.headers or empty, strict=True)
        matches = self._route.matches
        return [index for index, (key, found) in enumerate(pairs) if matches(key, found or ())]

    def _spaced(self, indexes: Sequence[int]) -> list[int]:
        """Choose a share of the records, at even distances across all batches."""
        share, credit = self._route.share, self._credit
        chosen = []
        for index in indexes:
            credit += share
            if credit >= WHOLE:
                credit -= WHOLE
                chosen.append(index)
        self._credit = credit
        return chosen
