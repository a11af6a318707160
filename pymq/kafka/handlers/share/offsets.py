"""The offsets of share groups: where the first record is that a group has not finished."""

from __future__ import annotations

from functools import partial
from typing import Any

from pymq.core.message import (
    END,
    CommitOffset,
    DeleteGroup,
    Fetch,
    Fetched,
    GetGroup,
    GroupOffset,
    GroupState,
)
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.errors import InvalidRequest, UnknownGroup
from pymq.kafka.codes import Code, group_code
from pymq.kafka.shared.conversation import Ask, GateContext, KafkaCall, Steps, ask
from pymq.kafka.shared.topic_cache import find_topic, id_bytes, load_topic, partition_of
from pymq.kafka.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponseAlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseAlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseDeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestDescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestDescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseDescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponseDescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseDescribeShareGroupOffsetsResponseTopic,
)

NO_OFFSET = -1
_AskedGroup = DescribeShareGroupOffsetsRequestDescribeShareGroupOffsetsRequestGroup
_AskedTopic = DescribeShareGroupOffsetsRequestDescribeShareGroupOffsetsRequestTopic
_Group = DescribeShareGroupOffsetsResponseDescribeShareGroupOffsetsResponseGroup
_Topic = DescribeShareGroupOffsetsResponseDescribeShareGroupOffsetsResponseTopic
_Part = DescribeShareGroupOffsetsResponseDescribeShareGroupOffsetsResponsePartition
_AlteredTopic = AlterShareGroupOffsetsResponseAlterShareGroupOffsetsResponseTopic
_AlteredPart = AlterShareGroupOffsetsResponseAlterShareGroupOffsetsResponsePartition
_DeletedTopic = DeleteShareGroupOffsetsResponseDeleteShareGroupOffsetsResponseTopic


def describe_share_group_offsets(
    context: GateContext, m: DescribeShareGroupOffsetsRequest, call: KafkaCall
) -> Steps:
    """Return the offsets of the named partitions, or of all, and how many records are left."""
    del call
    response = DescribeShareGroupOffsetsResponse()
    for asked in m.groups:
        response.groups.append((yield from _described(context, asked)))
    return response


def _described(context: GateContext, asked: _AskedGroup) -> Steps:
    answer = _Group(asked.group_id)
    state = yield from ask(context.me, partial(GetGroup, group=asked.group_id))
    if not isinstance(state, GroupState) or state.error is not None:
        answer.error_code = int(_code(state.error))
        answer.error_message = state.error.message
        return answer
    known: dict[str, dict[str, GroupOffset]] = {}
    for each in state.offsets:
        known.setdefault(each.topic, {})[each.partition] = each
    topics = asked.topics
    if topics is None:
        topics = [_AskedTopic(name, []) for name in known]
    for topic in topics:
        found = yield from load_topic(context, topic.topic_name)
        if not isinstance(found, TopicMetadata):
            code = int(Code.UNKNOWN_TOPIC_OR_PARTITION)
            parts = [_Part(n, NO_OFFSET, error_code=code) for n in topic.partitions]
            answer.topics.append(_Topic(topic.topic_name, partitions=parts))
            continue
        offsets = known.get(found.topic, {})
        indexes = topic.partitions
        if asked.topics is None:
            indexes = [each.index for each in found.partitions if each.partition in offsets]
        parts = yield from _parts(context, found, indexes, offsets)
        answer.topics.append(_Topic(found.topic, id_bytes(found.topic_id), parts))
    return answer


def _parts(
    context: GateContext,
    topic: TopicMetadata,
    indexes: list[int],
    offsets: dict[str, GroupOffset],
) -> Steps:
    """Return the partitions of a topic, each with its lag."""
    parts: list[_Part] = []
    measured: list[tuple[_Part, PartitionLeader, GroupOffset]] = []
    for index in indexes:
        part = _Part(index, NO_OFFSET, 0)
        parts.append(part)
        partition = partition_of(topic, index)
        offset = offsets.get(partition.partition) if partition is not None else None
        if partition is None:
            part.error_code = int(Code.UNKNOWN_TOPIC_OR_PARTITION)
        elif offset is not None:
            part.start_offset, part.leader_epoch = offset.committed, partition.epoch
            measured.append((part, partition, offset))
    requests: list[Any] = [
        (
            each.leader or context.me,
            partial(
                Fetch,
                topic=topic.topic,
                partition=each.partition,
                offset=END,
                max_bytes=0,
                max_wait_ms=0,
                topic_id=topic.topic_id,
            ),
        )
        for _, each, _ in measured
    ]
    ends = yield Ask(requests)
    for (part, _, offset), end in zip(measured, ends, strict=True):
        if isinstance(end, Fetched) and end.error is None:
            unfinished = offset.in_flight + offset.waiting
            part.lag = max(end.high_watermark - offset.delivered, 0) + unfinished
    return parts


def alter_share_group_offsets(
    context: GateContext, m: AlterShareGroupOffsetsRequest, call: KafkaCall
) -> Steps:
    """Set the offsets of a group without members; a group that does not exist is created."""
    del call
    response = AlterShareGroupOffsetsResponse(error_message=None)
    for topic in m.topics:
        found = yield from find_topic(context, topic.topic_name)
        answer = _AlteredTopic(topic.topic_name)
        response.responses.append(answer)
        if isinstance(found, TopicMetadata):
            answer.topic_id = id_bytes(found.topic_id)
        for each in topic.partitions:
            part = _AlteredPart(each.partition_index)
            answer.partitions.append(part)
            partition = None
            if isinstance(found, TopicMetadata):
                partition = partition_of(found, each.partition_index)
            if partition is None:
                part.error_code = int(Code.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            request = partial(
                CommitOffset,
                group=m.group_id,
                topic=topic.topic_name,
                partition=partition.partition,
                offset=max(each.start_offset, 0),
            )
            done = yield from ask(context.me, request)
            if done.error is not None:
                code = _code(done.error)
                part.error_code, part.error_message = int(code), done.error.message
                if code is Code.NON_EMPTY_GROUP:
                    response.error_code = int(code)
                    response.error_message = done.error.message
    return response


def delete_share_group_offsets(
    context: GateContext, m: DeleteShareGroupOffsetsRequest, call: KafkaCall
) -> Steps:
    """Delete the offsets of topics from a group without members."""
    del call
    response = DeleteShareGroupOffsetsResponse(error_message=None)
    for topic in m.topics:
        found = yield from find_topic(context, topic.topic_name)
        answer = _DeletedTopic(topic.topic_name)
        if isinstance(found, TopicMetadata):
            answer.topic_id = id_bytes(found.topic_id)
        request = partial(DeleteGroup, group=m.group_id, topic=topic.topic_name)
        done = yield from ask(context.me, request)
        code = _code(done.error)
        if code in (Code.GROUP_ID_NOT_FOUND, Code.NON_EMPTY_GROUP, Code.NOT_COORDINATOR):
            return DeleteShareGroupOffsetsResponse(0, int(code), done.error.message)
        answer.error_code = int(code)
        answer.error_message = done.error.message if done.error is not None else None
        response.responses.append(answer)
    return response


def _code(error: Any) -> Code:
    """Return the code of a coordinator's refusal of an administrator's request."""
    if isinstance(error, UnknownGroup):
        return Code.GROUP_ID_NOT_FOUND
    if isinstance(error, InvalidRequest):
        return Code.NON_EMPTY_GROUP
    return group_code(error)
