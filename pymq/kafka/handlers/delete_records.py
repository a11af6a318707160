"""DeleteRecords: moves the start of a partition's log."""

from __future__ import annotations

from functools import partial

from pymq.core.message import BEGIN, END, DeleteRecords, Fetch
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.kafka.codes import Code, code_of
from pymq.kafka.shared.controllers import ask_controller
from pymq.kafka.shared.conversation import GateContext, KafkaCall, Pause, Steps, ask
from pymq.kafka.shared.topic_cache import find_topic, partition_of
from pymq.kafka.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResponseDeleteRecordsPartitionResult,
    DeleteRecordsResponseDeleteRecordsTopicResult,
)

TO_END = -1  # instead of an offset: the high watermark
TIMEOUT_MIN_MS, TIMEOUT_MAX_MS = 1_000, 120_000
LOOK_MS = 10  # between two looks whether the leader has the new start


def delete_records(context: GateContext, m: DeleteRecordsRequest, call: KafkaCall) -> Steps:
    """Delete the records before an offset, in each partition that this broker leads."""
    del call
    answer = DeleteRecordsResponse()
    until = context.now + min(max(m.timeout_ms, TIMEOUT_MIN_MS), TIMEOUT_MAX_MS)
    for topic in m.topics:
        found = yield from find_topic(context, topic.name)
        parts: list[DeleteRecordsResponseDeleteRecordsPartitionResult] = []
        answer.topics.append(DeleteRecordsResponseDeleteRecordsTopicResult(topic.name, parts))
        for asked in topic.partitions:
            part = DeleteRecordsResponseDeleteRecordsPartitionResult(asked.partition_index, -1)
            parts.append(part)
            partition = None
            if isinstance(found, TopicMetadata):
                partition = partition_of(found, asked.partition_index)
            if partition is None or not isinstance(found, TopicMetadata):
                part.error_code = int(Code.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            outcome = yield from _delete(context, found, partition, asked.offset, until)
            if isinstance(outcome, Code):
                part.error_code = int(outcome)
                context.topics.drop(topic.name)
            else:
                part.low_watermark = outcome
    return answer


def _delete(
    context: GateContext, topic: TopicMetadata, partition: PartitionLeader, before: int, until: int
) -> Steps:
    """Delete the records of one partition; returns the log's new start, or the code of a refusal.

    1. Ask the leader, which is this broker, for the high watermark: only committed records can be
       deleted.
    2. The zkserver commits the new start, and sends it to the replicas.
    3. Wait until the leader has it.
    """
    if topic.config.cleanup_policy == "compact":
        return Code.POLICY_VIOLATION
    where = partial(
        Fetch,
        topic=topic.topic,
        partition=partition.partition,
        max_bytes=0,
        max_wait_ms=0,
        topic_id=topic.topic_id,
    )
    end = yield from ask(context.me, partial(where, offset=END))
    if end.error is not None:
        return code_of(end.error)
    before = end.high_watermark if before == TO_END else before
    if not 0 <= before <= end.high_watermark:
        return Code.OFFSET_OUT_OF_RANGE
    changed = yield from ask_controller(
        context,
        partial(
            DeleteRecords,
            topic=topic.topic,
            partition=partition.partition,
            before=before,
            topic_id=topic.topic_id,
        ),
    )
    if changed.error is not None:
        return code_of(changed.error)
    while True:
        begin = yield from ask(context.me, partial(where, offset=BEGIN))
        if begin.error is not None:
            return code_of(begin.error)
        if begin.log_start >= before:
            return begin.log_start
        if context.now >= until:
            return Code.REQUEST_TIMED_OUT
        yield Pause(LOOK_MS)
