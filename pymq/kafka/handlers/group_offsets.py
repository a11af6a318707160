"""OffsetCommit and OffsetFetch: the committed offsets of groups."""

from __future__ import annotations

from pymq.core.message import ClassicOffset, CommitClassic, GetGroup, GroupState
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.errors import PymqError, UnknownGroup
from pymq.kafka.codes import Code, group_code
from pymq.kafka.shared.conversation import GateContext, KafkaCall, Steps, ask
from pymq.kafka.shared.topic_cache import NO_ID, find_topic, id_bytes, load_topic, partition_of
from pymq.kafka.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponseOffsetCommitResponsePartition,
    OffsetCommitResponseOffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestOffsetFetchRequestGroup,
    OffsetFetchRequestOffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseOffsetFetchResponseGroup,
    OffsetFetchResponseOffsetFetchResponsePartition,
    OffsetFetchResponseOffsetFetchResponsePartitions,
    OffsetFetchResponseOffsetFetchResponseTopic,
    OffsetFetchResponseOffsetFetchResponseTopics,
)

# characters of the text that is committed with an offset, as offset.metadata.max.bytes
METADATA_MAX = 4_096
GROUPS_FROM = 8  # the version of OffsetFetch that names several groups


def offset_commit(context: GateContext, m: OffsetCommitRequest, call: KafkaCall) -> Steps:
    """Commit offsets."""
    del call
    answer = OffsetCommitResponse()
    parts: list[OffsetCommitResponseOffsetCommitResponsePartition] = []
    offsets: list[ClassicOffset] = []
    for topic in m.topics:
        found = yield from find_topic(context, topic.name, topic.topic_id)
        results: list[OffsetCommitResponseOffsetCommitResponsePartition] = []
        answer.topics.append(
            OffsetCommitResponseOffsetCommitResponseTopic(topic.name, topic.topic_id, results)
        )
        for each in topic.partitions:
            part = OffsetCommitResponseOffsetCommitResponsePartition(each.partition_index)
            results.append(part)
            partition, note = None, each.committed_metadata or ""
            if isinstance(found, TopicMetadata):
                partition = partition_of(found, each.partition_index)
            if partition is None or not isinstance(found, TopicMetadata):
                is_named = topic.topic_id == NO_ID
                code = Code.UNKNOWN_TOPIC_OR_PARTITION if is_named else Code.UNKNOWN_TOPIC_ID
                part.error_code = int(code)
            elif len(note) > METADATA_MAX:
                part.error_code = int(Code.OFFSET_METADATA_TOO_LARGE)
            elif each.committed_offset < 0:
                part.error_code = int(Code.OFFSET_OUT_OF_RANGE)
            else:
                parts.append(part)
                name = found.topic, partition.partition
                offsets.append(ClassicOffset(*name, each.committed_offset, note))
    who = m.group_id, m.member_id, m.group_instance_id, m.generation_id_or_member_epoch
    done = yield from ask(context.me, lambda r: CommitClassic(r, *who, tuple(offsets)))
    refused = done.codes[0] if done.error is None else int(group_code(done.error))
    for part in parts:
        part.error_code = refused
    return answer


def offset_fetch(context: GateContext, m: OffsetFetchRequest, call: KafkaCall) -> Steps:
    """Return the committed offsets of the named partitions, or of all."""
    if call.version >= GROUPS_FROM:
        answer = OffsetFetchResponse()
        for asked in m.groups:
            answer.groups.append((yield from _group(context, asked)))
        return answer
    topics = None
    if m.topics is not None:
        topics = [
            OffsetFetchRequestOffsetFetchRequestTopics(each.name, NO_ID, each.partition_indexes)
            for each in m.topics
        ]
    one = yield from _group(
        context, OffsetFetchRequestOffsetFetchRequestGroup(m.group_id, topics=topics)
    )
    return OffsetFetchResponse(
        0,
        [
            OffsetFetchResponseOffsetFetchResponseTopic(
                topic.name,
                [
                    OffsetFetchResponseOffsetFetchResponsePartition(
                        each.partition_index,
                        each.committed_offset,
                        -1,
                        each.metadata,
                        # Up to version 1, the answer reports an error of the group for each
                        # partition.
                        each.error_code or (one.error_code if call.version < 2 else 0),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in one.topics
        ],
        one.error_code,
    )


def _group(context: GateContext, asked: OffsetFetchRequestOffsetFetchRequestGroup) -> Steps:
    """Return the offsets of one group."""
    answer = OffsetFetchResponseOffsetFetchResponseGroup(asked.group_id)
    state = yield from ask(context.me, lambda r: GetGroup(r, asked.group_id))
    known: dict[str, dict[str, tuple[int, str]]] = {}
    if isinstance(state, GroupState) and state.error is None:
        for each in state.offsets:
            known.setdefault(each.topic, {})[each.partition] = each.committed, each.note
    elif not isinstance(state.error, UnknownGroup):
        answer.error_code = int(group_code(state.error))
    if asked.topics is not None:
        for topic in asked.topics:
            found = yield from find_topic(context, topic.name, topic.topic_id)
            answer.topics.append(_named(topic, found, known))
        return answer
    for name, partitions in known.items():
        found = yield from load_topic(context, name)
        if isinstance(found, TopicMetadata):
            indexes = [each.index for each in found.partitions if each.partition in partitions]
            topic = OffsetFetchRequestOffsetFetchRequestTopics(
                name, id_bytes(found.topic_id), indexes
            )
            answer.topics.append(_named(topic, found, known))
    return answer


def _named(
    topic: OffsetFetchRequestOffsetFetchRequestTopics,
    found: TopicMetadata | PymqError | None,
    known: dict[str, dict[str, tuple[int, str]]],
) -> OffsetFetchResponseOffsetFetchResponseTopics:
    """Return the offsets of some partitions of a topic; -1 where there is no offset."""
    results = []
    for index in topic.partition_indexes:
        committed, note = -1, ""
        if isinstance(found, TopicMetadata) and (partition := partition_of(found, index)):
            committed, note = known.get(found.topic, {}).get(partition.partition, (-1, ""))
        code = Code.UNKNOWN_TOPIC_ID if found is None else Code.NONE
        results.append(
            OffsetFetchResponseOffsetFetchResponsePartitions(index, committed, -1, note, int(code))
        )
    return OffsetFetchResponseOffsetFetchResponseTopics(topic.name, topic.topic_id, results)
