"""Where tasks put what they write until somebody decides that it counts.

It is a topic of its own for each batch of a sink, with records that look as they will look where
they go. Whoever stages remembers where; nobody else finds it. Once the batch is decided and copied,
the topic is deleted, with what the losers of a race between attempts have left in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from pymq.client.client import Client
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.nodes import TopicMetadata
from pymq.core.metadata.topic_config import RECORD_MAX
from pymq.core.values import value
from pymq.errors import UnknownTopic
from pymq.hash.partitioner import key_partition
from pymq.spark.planning import Place
from pymq.spark.write.appends import Appends

PREFIX = "pymq-spark."  # of the topics that Spark's tasks and drivers keep for themselves
PARTITIONS = 4  # of a staging topic, or as many as there are brokers, so that each leads some ...
PARTITIONS_MAX = 16  # ... up to so many
KEPT_MS = 7 * 24 * 3600 * 1000  # what nobody comes back for
REPLICAS = 3


@value
class StagedPiece:
    """One staged batch, and where it is to go."""

    staged: str  # the partition of the staging topic
    offset: int
    count: int
    place: Place


class Stage:
    """The staging topic of one batch of a sink, as one task uses it."""

    def __init__(self, client: Client, topic: str, timeout_s: float) -> None:
        self._client = client
        self._topic = topic
        self._timeout_s = timeout_s
        self._metadata: TopicMetadata | None = None
        self._appends = Appends(client.questions, timeout_s)
        self._chosen: dict[Place, str] = {}
        self._put: list[tuple[str, Place, int]] = []  # of each batch: where it is staged, and whose
        self.pieces: list[StagedPiece] = []

    def put(self, place: Place, batch: EncodedBatch) -> None:
        """Stage a batch; it is on its way with a few others when this returns.

        One that is sent twice, because an answer was lost, is there twice: only the one that was
        answered is ever told of.
        """
        if self._metadata is None:
            create(
                self._client,
                self._topic,
                PARTITIONS,
                PARTITIONS_MAX,
                retention_ms=KEPT_MS,
                # Each row was held to the limit of the topic that it is for.
                max_record_bytes=RECORD_MAX,
            )
            self._metadata = self._client.questions.topic_metadata(self._topic, self._timeout_s)
        name = self._chosen.get(place)
        if name is None:
            name = self._chosen[place] = self._near(place, self._metadata)
        self._appends.put(self._metadata, name, batch)
        self._put.append((name, place, len(batch)))

    def _near(self, place: Place, metadata: TopicMetadata) -> str:
        """The staging partition for what goes to *place*: one with the same leader, if there is.

        That broker can copy it by itself, and reads at once what several tasks have for a place.
        """
        questions, (topic, partition) = self._client.questions, place
        names = [each.partition for each in metadata.partitions]
        if questions.leader(*place) is None:
            questions.topic_metadata(topic, self._timeout_s)
        leader = questions.leader(*place)
        near = [name for name in names if questions.leader(self._topic, name) == leader]
        among = near if leader is not None and near else names
        if partition.isdecimal():  # as most are: neighbours go to different ones
            return among[int(partition) % len(among)]
        return among[key_partition(partition.encode(), len(among))]

    def flush(self) -> None:
        """Wait until all of it is staged, as safe as can be."""
        self._appends.flush()
        self.pieces = [
            StagedPiece(name, offset, count, place)
            for (name, place, count), offset in zip(self._put, self._appends.offsets, strict=True)
        ]


def create(
    client: Client, topic: str, partitions: int, partitions_max: int = 0, **config: object
) -> None:
    """Make a topic, if there is none of the name, that loses nothing but with most of a cluster.

    It has one partition for each broker, if that is more than *partitions* and not more than
    *partitions_max*.

    Of two replicas either may stop a partition: with fewer brokers than three, one is better.
    """
    alive = [each for each in client.cluster().brokers if each.alive and not each.is_draining]
    replicas = REPLICAS if len(alive) >= REPLICAS else 1
    count = max(partitions, min(len(alive), partitions_max))
    # What a record's time may be is for the topic to say that it is for: see Rows.
    client.create_topic(
        topic, count, replicas, "raft", exist_ok=True, timestamp_after_max_ms=None, **config
    )


def drop(client: Client, topic: str) -> None:
    """Delete a staging topic, if it is there."""
    try:
        client.delete_topic(topic)
    except UnknownTopic:
        pass  # Nothing was staged, or another attempt has deleted it.


def now_ms() -> int:
    """The time that records get which have none."""
    return time.time_ns() // 1_000_000


def put_all(stage: Stage, batches: Iterator[tuple[Place, EncodedBatch]]) -> None:
    """Stage some batches."""
    for place, batch in batches:
        stage.put(place, batch)
