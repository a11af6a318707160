"""OffsetForLeaderEpoch: where the records of a leader epoch end (KIP-320)."""

from __future__ import annotations

from functools import partial

from pymq.core.message import EpochFound, FindEpoch
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.kafka.codes import Code, code_of
from pymq.kafka.shared.conversation import Ask, GateContext, KafkaCall, Steps
from pymq.kafka.shared.topic_cache import find_topic, partition_of
from pymq.kafka.wire.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderEpochResponseOffsetForLeaderTopicResult,
)


def offset_for_leader_epoch(
    context: GateContext, m: OffsetForLeaderEpochRequest, call: KafkaCall
) -> Steps:
    """Say for each partition where an epoch ends, so that a client finds what was truncated."""
    del call
    answer = OffsetForLeaderEpochResponse()
    waiting: list[tuple[OffsetForLeaderEpochResponseEpochEndOffset, str]] = []
    requests = []
    for topic in m.topics:
        found = yield from find_topic(context, topic.topic)
        parts: list[OffsetForLeaderEpochResponseEpochEndOffset] = []
        answer.topics.append(
            OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(topic.topic, parts)
        )
        for asked in topic.partitions:
            part = OffsetForLeaderEpochResponseEpochEndOffset(0, asked.partition)
            parts.append(part)
            partition = None
            if isinstance(found, TopicMetadata):
                partition = partition_of(found, asked.partition)
            if partition is None or not isinstance(found, TopicMetadata):
                part.error_code = int(Code.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            ask = partial(
                FindEpoch,
                topic=found.topic,
                partition=partition.partition,
                epoch=asked.leader_epoch,
                topic_id=found.topic_id,
            )
            requests.append((context.me, ask))
            waiting.append((part, found.topic))
    answers = yield Ask(requests)
    for (part, name), end in zip(waiting, answers, strict=True):
        code = code_of(end.error)
        part.error_code = int(code)
        if isinstance(end, EpochFound) and not code:
            part.leader_epoch, part.end_offset = end.epoch, end.end
        else:
            context.topics.drop(name)
    return answer
