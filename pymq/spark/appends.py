"""Whole batches, appended by what Spark runs: by number, so that each is written once.

A producer's machine decides by itself what to send again under which numbers, which is right for an
application that has nothing but its records. Here a decision says which batch has which numbers,
so they are sent as they are or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping

from pymq.client.questions import Questions
from pymq.core import message as msg
from pymq.core.metadata import TopicMetadata
from pymq.core.record import RecordBatch
from pymq.core.types import AckMode
from pymq.errors import UnknownPartition


def append(
    questions: Questions,
    topic: TopicMetadata,
    batches: Mapping[str, RecordBatch],
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
        return msg.Produce(
            request, topic.topic, partition, mode(topic, partition), batches[partition], sync
        )

    answers = questions.ask_leaders(topic.topic, list(batches), make, timeout_s)
    return {
        partition: answer.base_offset
        for partition, answer in answers.items()
        if isinstance(answer, msg.Produced)
    }


def mode(topic: TopicMetadata, partition: str) -> AckMode:
    """What an answer of a partition is worth waiting for; at least that its leader has it."""
    for known in topic.partitions:
        if known.partition == partition:
            return AckMode.RAFT if known.acks is AckMode.RAFT else AckMode.LEADER
    raise UnknownPartition(f"topic {topic.topic!r} has no partition {partition!r}")


def sequences(
    questions: Questions, topic: str, partitions: list[str], producer: int, timeout_s: float
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
