"""ListOffsets: the ends of partitions, and offsets by time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pymq.core.batch.batch_sequence import split
from pymq.core.message import BEGIN, END, Fetch, Fetched, FindOffset, Message, OffsetFound
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.errors import PymqError
from pymq.kafka.codes import Code, code_of
from pymq.kafka.shared.conversation import GateContext, KafkaCall, Steps, ask, ask_holders
from pymq.kafka.shared.topic_cache import find_topic, partition_of
from pymq.kafka.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponseListOffsetsPartitionResponse,
    ListOffsetsResponseListOffsetsTopicResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
_ENDS = {LATEST: END, EARLIEST: BEGIN, EARLIEST_LOCAL: BEGIN}
_NONE = (-1, -1)
TIME_BITS = 62  # bits of a time in milliseconds


def list_offsets(context: GateContext, m: ListOffsetsRequest, call: KafkaCall) -> Steps:
    """Find offsets by time; some times have a special meaning."""
    del call
    answer = ListOffsetsResponse()
    for topic in m.topics:
        found = yield from find_topic(context, topic.name)
        parts: list[ListOffsetsResponseListOffsetsPartitionResponse] = []
        answer.topics.append(ListOffsetsResponseListOffsetsTopicResponse(topic.name, parts))
        for asked in topic.partitions:
            part = ListOffsetsResponseListOffsetsPartitionResponse(asked.partition_index)
            parts.append(part)
            if not isinstance(found, TopicMetadata):
                part.error_code = int(Code.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            outcome = yield from _find(context, found, asked.partition_index, asked.timestamp)
            if isinstance(outcome, Code):
                part.error_code = int(outcome)
                context.topics.drop(topic.name)
            else:
                part.timestamp, part.offset = outcome
    return answer


def _find(context: GateContext, topic: TopicMetadata, index: int, time: int) -> Steps:
    """Return time and offset of one partition, or the code of a refusal."""
    partition = partition_of(topic, index)
    if partition is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    name, topic_id = (topic.topic, partition.partition), topic.topic_id
    if (end := _ENDS.get(time)) is not None:
        answer = yield from ask(context.me, lambda r: Fetch(r, *name, end, 0, 0, topic_id=topic_id))
        return code_of(answer.error) or (-1, answer.offset)
    if time == MAX_TIMESTAMP:
        time = yield from _largest_time(context, name, topic_id)
        if isinstance(time, Code):
            return time
    elif time < 0:
        return Code.UNSUPPORTED_VERSION
    find = partial(FindOffset, topic=name[0], partition=name[1], topic_id=topic_id)
    answer = yield from _search(context, partial(find, timestamp_ms=time))
    if not isinstance(answer, OffsetFound) or answer.error is not None:
        return code_of(answer.error)
    offset = answer.offset
    # Read the record, because Kafka's answer contains its time, or -1 if there is no such record.
    read = partial(Fetch, topic=name[0], partition=name[1], topic_id=topic_id)
    record = yield from _search(context, partial(read, offset=offset, max_bytes=1, max_wait_ms=0))
    if not isinstance(record, Fetched) or record.error is not None:
        return code_of(record.error)
    try:
        return next(
            (
                (stamp, at)
                for batch in split(record.data)
                for at, stamp in zip(batch.offsets, batch.timestamps, strict=True)
                if at == offset
            ),
            _NONE,
        )
    except PymqError as error:
        return code_of(error)


def _largest_time(context: GateContext, name: tuple[str, str], topic_id: str) -> Steps:
    """Return the largest time of a partition's records, or the code of a refusal.

    The times of records need not increase with offsets. The brokers find the first record at or
    after a time by an index, so the gate finds the largest time by a binary search.
    """
    end = yield from ask(context.me, lambda r: Fetch(r, *name, END, 0, 0, topic_id=topic_id))
    if end.error is not None:
        return code_of(end.error)
    largest = 0
    find = partial(FindOffset, topic=name[0], partition=name[1], topic_id=topic_id)
    for bit in reversed(range(TIME_BITS)):
        wanted = largest | 1 << bit
        found = yield from _search(context, partial(find, timestamp_ms=wanted))
        if found.error is not None:
            return code_of(found.error)
        if found.offset < end.offset:
            largest = wanted
    return largest


def _search(context: GateContext, make: Callable[..., Message]) -> Steps:
    """Ask this broker; if it does not hold the records, ask a broker that does."""
    answer = yield from ask(context.me, make)
    found = yield from ask_holders(answer, partial(make, any_replica=True))
    return found
