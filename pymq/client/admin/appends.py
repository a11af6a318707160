"""Appends encoded batches with given sequences, so that each batch is written once.

An ordinary producer assigns sequences itself and decides what to retry. Here the caller has
assigned and stored the sequences, so each batch is sent unchanged or not at all. After a crash the
caller (Spark's sink, or the redrive of dead letters) asks the leader for the next sequence, and so
learns how many batches were written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from pymq.client.admin.requests import Requests
from pymq.client.router import Call
from pymq.core import message as msg
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.types import AckMode
from pymq.errors import RecordTooLarge, UnknownPartition

ON_THEIR_WAY = 5  # batches in flight


def append(
    questions: Requests,
    topic: TopicMetadata,
    batches: Mapping[str, EncodedBatch],
    timeout_s: float,
    *,
    sync: bool = False,
) -> dict[str, int]:
    """Append one batch to each partition; returns their base offsets.

    Raises:
        OutOfOrderSequence, ProducerFenced: another process writes with the same producer id. The
            outcome in the other partitions is unknown.
    """

    def make(request: int, partition: str) -> msg.Message:
        acks, batch = mode(topic, partition), batches[partition]
        return _produce(questions, request, topic, partition, acks, batch, sync=sync)

    answers = questions.ask_leaders(topic.topic, list(batches), make, timeout_s)
    return {
        partition: answer.base_offset
        for partition, answer in answers.items()
        if isinstance(answer, msg.Produced)
    }


class Appends:
    """Appends batches in order, with several in flight."""

    def __init__(
        self, questions: Requests, timeout_s: float, on_their_way: int = ON_THEIR_WAY
    ) -> None:
        self._questions = questions
        self._timeout_s = timeout_s
        self._on_their_way = on_their_way
        self._sent: deque[_Sent] = deque()
        self.offsets: list[int] = []  # base offsets of the acknowledged batches, in order

    def put(self, topic: TopicMetadata, partition: str, batch: EncodedBatch) -> None:
        """Append a batch; waits for earlier answers while too many are in flight.

        Raises:
            RecordTooLarge: the topic's limit was lowered after the rows were checked.
            PymqError: this batch or one of an earlier call has failed; see :func:`append`.
        """
        if len(self._sent) >= self._on_their_way:
            self._end()
        acks = mode(topic, partition)

        def make(request: int) -> msg.Message:
            return _produce(self._questions, request, topic, partition, acks, batch, sync=False)

        call = self._questions.begin(topic.topic, partition, make)
        self._sent.append(_Sent(topic, partition, batch, call))

    def flush(self, left: int = 0) -> None:
        """Wait until all but the last *left* batches are acknowledged."""
        while len(self._sent) > left:
            self._end()

    def _end(self) -> None:
        topic, partition, batch, call = self._sent.popleft()
        answer = self._questions.end(call) if call is not None else None
        if isinstance(answer, msg.Produced):
            self.offsets.append(answer.base_offset)
            return
        # The leader has moved or does not answer. If the batch was appended after all, the broker
        # recognises the retry as a duplicate by its sequence. Later batches are retried in order.
        try:
            again = append(self._questions, topic, {partition: batch}, self._timeout_s)
        except RecordTooLarge as error:
            raise _lowered(topic.topic, partition, batch, error) from None
        self.offsets.append(again[partition])


def _lowered(
    topic: str, partition: str, batch: EncodedBatch, error: RecordTooLarge
) -> RecordTooLarge:
    """Return the error for a batch that exceeds a limit lowered after the rows were checked.

    This batch has a sequence, so the caller cannot drop it: the user has to raise the limit and can
    then retry safely.
    """
    enough = batch.header.raw_length  # upper bound for the size of the batch's records
    return RecordTooLarge(
        f"{topic}/{partition}: {error.message}; the limit was lowered after the rows were checked: "
        f"alter_topic({topic!r}, max_record_bytes={enough}) lets the batch be written, then run "
        "the query again; once the batch is written the limit may be lowered again",
        **error.details,
    )


def _produce(
    questions: Requests,
    request: int,
    topic: TopicMetadata,
    partition: str,
    acks: AckMode,
    batch: EncodedBatch,
    *,
    sync: bool,
) -> msg.Produce:
    grant = questions.identities.grant(batch.header.producer_id)
    return msg.Produce(request, topic.topic, partition, acks, batch, sync, grant=grant)


class _Sent(NamedTuple):
    topic: TopicMetadata
    partition: str
    batch: EncodedBatch
    call: Call | None


def mode(topic: TopicMetadata, partition: str) -> AckMode:
    """Return the ack mode to wait for: the partition's mode, or ``leader`` if that is stronger."""
    for known in topic.partitions:
        if known.partition == partition:
            return AckMode.RAFT if known.acks is AckMode.RAFT else AckMode.LEADER
    raise UnknownPartition(f"topic {topic.topic!r} has no partition {partition!r}")


def sequences(
    questions: Requests, topic: str, partitions: list[str], producer: int, timeout_s: float
) -> dict[str, int]:
    """Return the next sequence of a producer in each of some partitions of a topic."""
    answers = questions.ask_leaders(
        topic,
        partitions,
        lambda request, partition: msg.GetSequence(request, topic, partition, producer),
        timeout_s,
    )
    return {
        partition: answer.next_sequence
        for partition, answer in answers.items()
        if isinstance(answer, msg.Sequence)
    }
