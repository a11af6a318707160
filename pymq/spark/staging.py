"""Where tasks put what they write until somebody decides that it counts.

It is a topic of its own for each batch of a sink, with records that look as they will look where
they go. Whoever stages remembers where; nobody else finds it. Once the batch is decided and copied,
the topic is deleted, with what the losers of a race between attempts have left in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from pymq.client.client import Client
from pymq.core.metadata import TopicMetadata
from pymq.core.record import RecordBatch
from pymq.core.values import value
from pymq.errors import UnknownTopic
from pymq.spark.appends import Appends
from pymq.spark.planning import Place

PREFIX = "pymq-spark."  # of the topics that Spark's tasks and drivers keep for themselves
PARTITIONS = 4  # of a staging topic: so many appends a task are under way
KEPT_MS = 7 * 24 * 3600 * 1000  # what nobody comes back for
REPLICAS = 3


@value
class Piece:
    """One staged batch, and where it is to go."""

    staged: str  # the partition of the staging topic
    offset: int
    count: int
    place: Place


class Stage:
    """The staging topic of one batch of a sink, as one task uses it."""

    def __init__(self, client: Client, topic: str, timeout_s: float, turn: int = 0) -> None:
        self._client = client
        self._topic = topic
        self._timeout_s = timeout_s
        self._turn = turn
        self._metadata: TopicMetadata | None = None
        self._appends = Appends(client.questions, timeout_s)
        self._put: list[tuple[str, Place, int]] = []  # of each batch: where it is staged, and whose
        self.pieces: list[Piece] = []

    def put(self, place: Place, batch: RecordBatch) -> None:
        """Stage a batch; it is on its way with a few others when this returns.

        One that is sent twice, because an answer was lost, is there twice: only the one that was
        answered is ever told of.
        """
        if self._metadata is None:
            create(self._client, self._topic, PARTITIONS, retention_ms=KEPT_MS)
            self._metadata = self._client.questions.topic_metadata(self._topic, self._timeout_s)
        names = self._metadata.partitions
        name = names[(self._turn + len(self._put)) % len(names)].partition
        self._appends.put(self._metadata, name, batch)
        self._put.append((name, place, len(batch)))

    def flush(self) -> None:
        """Wait until all of it is staged, as safe as can be."""
        self._appends.flush()
        self.pieces = [
            Piece(name, offset, count, place)
            for (name, place, count), offset in zip(self._put, self._appends.offsets, strict=True)
        ]


def create(client: Client, topic: str, partitions: int, **config: object) -> None:
    """Make a topic, if there is none of the name, that loses nothing but with most of a cluster.

    Of two replicas either may stop a partition: with fewer brokers than three, one is better.
    """
    alive = [each for each in client.cluster().brokers if each.alive and not each.is_draining]
    replicas = REPLICAS if len(alive) >= REPLICAS else 1
    client.create_topic(topic, partitions, replicas, "raft", exist_ok=True, **config)


def drop(client: Client, topic: str) -> None:
    """Delete a staging topic, if it is there."""
    try:
        client.delete_topic(topic)
    except UnknownTopic:
        pass  # Nothing was staged, or another attempt has deleted it.


def now_ms() -> int:
    """The time that records get which have none."""
    return time.time_ns() // 1_000_000


def put_all(stage: Stage, batches: Iterator[tuple[Place, RecordBatch]]) -> None:
    """Stage some batches."""
    for place, batch in batches:
        stage.put(place, batch)
