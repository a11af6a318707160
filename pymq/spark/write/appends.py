"""Whole batches, appended by what Spark runs: by number, so that each is written once.

A producer's machine decides by itself what to send again under which numbers, which is right for an
application that has nothing but its records. Here a decision says which batch has which numbers,
so they are sent as they are or not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from pymq.client.admin.requests import Requests
from pymq.client.router import Call
from pymq.core import message as msg
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.nodes import TopicMetadata
from pymq.core.types import AckMode
from pymq.errors import RecordTooLarge, UnknownPartition

ON_THEIR_WAY = 5  # batches of a task


def append(
    questions: Requests,
    topic: TopicMetadata,
    batches: Mapping[str, EncodedBatch],
    timeout_s: float,
    *,
    sync: bool = False,
) -> dict[str, int]:
    """Append one batch to each of some partitions; returns where each begins.

    Raises:
        OutOfOrderSequence, ProducerFenced: others write under the same numbers. Of the other
            partitions it is not known whether they have their batches.
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
    """Appends whole batches one after the other, with some of them on their way at a time."""

    def __init__(
        self, questions: Requests, timeout_s: float, on_their_way: int = ON_THEIR_WAY
    ) -> None:
        self._questions = questions
        self._timeout_s = timeout_s
        self._on_their_way = on_their_way
        self._sent: deque[_Sent] = deque()
        self.offsets: list[int] = []  # where the batches begin that were answered, in their order

    def put(self, topic: TopicMetadata, partition: str, batch: EncodedBatch) -> None:
        """Append a batch; others may have to be answered first.

        Raises:
            RecordTooLarge: the topic's limit was lowered after the rows were checked.
            PymqError: as :func:`append` says; also of a batch that was put before.
        """
        if len(self._sent) >= self._on_their_way:
            self._end()
        acks = mode(topic, partition)

        def make(request: int) -> msg.Message:
            return _produce(self._questions, request, topic, partition, acks, batch, sync=False)

        call = self._questions.begin(topic.topic, partition, make)
        self._sent.append(_Sent(topic, partition, batch, call))

    def flush(self, left: int = 0) -> None:
        """Wait until all are answered but the *left* last ones."""
        while len(self._sent) > left:
            self._end()

    def _end(self) -> None:
        topic, partition, batch, call = self._sent.popleft()
        answer = self._questions.end(call) if call is not None else None
        if isinstance(answer, msg.Produced):
            self.offsets.append(answer.base_offset)
            return
        # Its leader has moved, or is silent. A batch with numbers of its own is known by them if it
        # was appended after all, and those behind it come again in their order.
        try:
            again = append(self._questions, topic, {partition: batch}, self._timeout_s)
        except RecordTooLarge as error:
            raise _lowered(topic.topic, partition, batch, error) from None
        self.offsets.append(again[partition])


def _lowered(
    topic: str, partition: str, batch: EncodedBatch, error: RecordTooLarge
) -> RecordTooLarge:
    """The error for a batch whose rows were within the topic's limit when they were checked.

    What a sink has decided counts, so only the limit can give way; it is safe to go on later.
    """
    enough = batch.header.raw_length  # no record of it is larger
    return RecordTooLarge(
        f"{topic}/{partition}: {error.message}. It was lowered after the rows were checked: "
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
    """What an answer of a partition is worth waiting for; at least that its leader has it."""
    for known in topic.partitions:
        if known.partition == partition:
            return AckMode.RAFT if known.acks is AckMode.RAFT else AckMode.LEADER
    raise UnknownPartition(f"topic {topic.topic!r} has no partition {partition!r}")


def sequences(
    questions: Requests, topic: str, partitions: list[str], producer: int, timeout_s: float
) -> dict[str, int]:
    """How many records a producer has written to some partitions of a topic."""
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
