"""Staging topics: hold the records of tasks until the driver commits them.

Each batch of a sink has a staging topic. Its record batches are encoded as for the target topic.
The task that staged a batch reports the batch's offset to the driver. Once all is decided and
copied, the driver deletes the topic, together with the records of attempts that do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar, Unpack

from pymq.client.admin.appends import Appends
from pymq.client.client import Client
from pymq.client.option_types import TopicOptions
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.metadata.topic_config import RECORD_MAX
from pymq.core.values import value
from pymq.errors import RequestTimeout, UnknownTopic
from pymq.hash.partitioner import key_partition
from pymq.spark.planning import Place

T = TypeVar("T")

PREFIX = "pymq-spark."  # prefix of the internal topics of Spark's tasks and drivers
PARTITIONS = 4  # partitions of a staging topic; with more brokers, one for each broker ...
PARTITIONS_MAX = 16  # ... up to this number
KEPT_MS = 7 * 24 * 3600 * 1000  # retention of abandoned stages
REPLICAS = 3


@value
class StagedPiece:
    """A staged batch and its target."""

    staged: str  # partition of the staging topic
    offset: int
    count: int
    place: Place


class Stage:
    """One task's access to the staging topic of a sink's batch."""

    def __init__(self, client: Client, topic: str, timeout_s: float) -> None:
        self._client = client
        self._topic = topic
        self._timeout_s = timeout_s
        self._metadata: TopicMetadata | None = None
        self._appends = Appends(client.questions, timeout_s)
        self._chosen: dict[Place, str] = {}
        # by batch: staging partition, target, count
        self._put: list[tuple[str, Place, int]] = []
        self.pieces: list[StagedPiece] = []

    def put(self, place: Place, batch: EncodedBatch) -> None:
        """Stage a batch without waiting for its answer; a few are in flight at a time.

        A retry after a lost answer stages the batch twice; the task reports only the acknowledged
        copy.
        """
        if self._metadata is None:
            create(
                self._client,
                self._topic,
                PARTITIONS,
                PARTITIONS_MAX,
                self._timeout_s,
                retention_ms=KEPT_MS,
                # Rows are already checked against the limit of their target topic.
                max_record_bytes=RECORD_MAX,
            )
            self._metadata = self._client.questions.topic_metadata(self._topic, self._timeout_s)
        name = self._chosen.get(place)
        if name is None:
            name = self._chosen[place] = self._near(place, self._metadata)
        self._appends.put(self._metadata, name, batch)
        self._put.append((name, place, len(batch)))

    def _near(self, place: Place, metadata: TopicMetadata) -> str:
        """Return the staging partition for a target: one with the same leader, if there is one.

        That leader copies the batches itself, and one read serves the batches of several tasks.
        """
        questions, (topic, partition) = self._client.questions, place
        names = [each.partition for each in metadata.partitions]
        if questions.leader(*place) is None:
            questions.topic_metadata(topic, self._timeout_s)
        leader = questions.leader(*place)
        near = [name for name in names if questions.leader(self._topic, name) == leader]
        among = near if leader is not None and near else names
        if partition.isdecimal():  # the usual case: neighbours get different partitions
            return among[int(partition) % len(among)]
        return among[key_partition(partition.encode(), len(among))]

    def flush(self) -> None:
        """Wait until all batches are acknowledged, and note their offsets."""
        self._appends.flush()
        self.pieces = [
            StagedPiece(name, offset, count, place)
            for (name, place, count), offset in zip(self._put, self._appends.offsets, strict=True)
        ]


def patiently(client: Client, timeout_s: float, ask: Callable[[], T]) -> T:
    """Return the result of requests to a zkserver; send them again while no zkserver answers.

    Raises:
        RequestTimeout: no zkserver has answered within *timeout_s*.
    """
    until = client.driver.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except RequestTimeout:
            if client.driver.monotonic() >= until:
                raise


def create(
    client: Client,
    topic: str,
    partitions: int,
    partitions_max: int = 0,
    timeout_s: float = 0,
    **config: Unpack[TopicOptions],
) -> None:
    """Create a topic of ack mode ``raft``, if it does not exist yet.

    It has one partition per alive broker, but at least *partitions*, and at most *partitions_max*
    if that is more. With fewer than three brokers it has one replica: with two, the loss of either
    would stop the partition. The function repeats its requests for *timeout_s* while no zkserver
    answers.
    """
    known = patiently(client, timeout_s, client.cluster)
    alive = [each for each in known.brokers if each.alive and not each.is_draining]
    replicas = REPLICAS if len(alive) >= REPLICAS else 1
    count = max(partitions, min(len(alive), partitions_max))
    # `Rows` has checked timestamps against the limits of the target topics.
    config["timestamp_after_max_ms"] = None

    def make() -> None:
        client.create_topic(topic, count, replicas, "raft", exist_ok=True, **config)

    patiently(client, timeout_s, make)


def drop(client: Client, topic: str, timeout_s: float = 0) -> None:
    """Delete a staging topic, if it exists; repeats the request as :func:`create` does."""
    try:
        patiently(client, timeout_s, lambda: client.delete_topic(topic))
    except UnknownTopic:
        pass  # Nothing was staged, or another attempt has deleted the topic.


def now_ms() -> int:
    """Return the timestamp for records without one."""
    return time.time_ns() // 1_000_000


def put_all(stage: Stage, batches: Iterator[tuple[Place, EncodedBatch]]) -> None:
    """Stage some batches."""
    for place, batch in batches:
        stage.put(place, batch)
