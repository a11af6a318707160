"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from functools import partial

from pymq.core.message import CreatePartition, DeleteTopic, ListTopics
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.types import check_name, is_internal
from pymq.errors import PymqError, TopicExists
from pymq.kafka.codes import Code, code_of
from pymq.kafka.handlers.metadata import await_leaders, create_topic, replicas_of
from pymq.kafka.shared import options
from pymq.kafka.shared.controllers import ask_controller, load_brokers
from pymq.kafka.shared.conversation import GateContext, KafkaCall, Steps
from pymq.kafka.shared.topic_cache import NO_ID, find_topic, id_bytes, load_topic
from pymq.kafka.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseCreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsResponse,
    CreateTopicsResponseCreatableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsRequestDeleteTopicState,
    DeleteTopicsResponse,
    DeleteTopicsResponseDeletableTopicResult,
)

PARTITIONS_MAX = 10_000  # partitions of a topic that one request may create
Refusal = tuple[Code, str]
_DEFAULT = -1  # stands for no number


def create_topics(context: GateContext, m: CreateTopicsRequest, call: KafkaCall) -> Steps:
    """Create topics, or only check whether they could be created."""
    del call
    answer = CreateTopicsResponse()
    yield from load_brokers(context)
    names = [topic.name for topic in m.topics]
    for topic in m.topics:
        result = CreateTopicsResponseCreatableTopicResult(topic.name, error_message=None)
        result.configs = None
        answer.topics.append(result)
        refused = _check_new(context, topic)
        if refused is None and names.count(topic.name) > 1:
            refused = Code.INVALID_REQUEST, "the request names this topic twice"
        if refused is None:
            refused = yield from _create(context, topic, result, m.validate_only)
        if refused is not None:
            result.error_code, result.error_message = int(refused[0]), refused[1]
    return answer


def _check_new(context: GateContext, topic: CreateTopicsRequestCreatableTopic) -> Refusal | None:
    """Return the reason why the request for a new topic is invalid, if it is."""
    try:
        check_name(topic.name, "topic name")
        options.read_all([(each.name, each.value) for each in topic.configs])
    except PymqError as error:
        return code_of(error), error.message
    if is_internal(topic.name):
        return Code.INVALID_TOPIC_EXCEPTION, "names with '__' are pymq's own"
    if topic.assignments:
        return Code.INVALID_REPLICA_ASSIGNMENT, "pymq chooses the brokers of a partition itself"
    if topic.num_partitions != _DEFAULT and not 1 <= topic.num_partitions <= PARTITIONS_MAX:
        return Code.INVALID_PARTITIONS, f"{topic.num_partitions} partitions"
    replicas = topic.replication_factor
    if replicas != _DEFAULT and not 1 <= replicas <= len(context.endpoints):
        return Code.INVALID_REPLICATION_FACTOR, f"there are {len(context.endpoints)} brokers"
    return None


def _create(
    context: GateContext,
    topic: CreateTopicsRequestCreatableTopic,
    result: CreateTopicsResponseCreatableTopicResult,
    validate_only: bool,
) -> Steps:
    """Create one topic; returns the error, if any."""
    partitions = topic.num_partitions
    partitions = context.default_partitions if partitions == _DEFAULT else partitions
    replicas = topic.replication_factor
    replicas = replicas_of(context) if replicas == _DEFAULT else replicas
    if validate_only:
        found = yield from ask_controller(context, ListTopics)
        error = found.error
        if error is None and topic.name in found.result:
            error = TopicExists(f"topic {topic.name!r} exists")
    else:
        config = options.read_all([(each.name, each.value) for each in topic.configs])
        error = yield from create_topic(context, topic.name, partitions, replicas, config)
    if error is not None:
        return code_of(error), error.message
    result.num_partitions, result.replication_factor = partitions, replicas
    if not validate_only:
        made = yield from await_leaders(context, topic.name)
        if isinstance(made, TopicMetadata):
            result.topic_id = id_bytes(made.topic_id)
    return None


def delete_topics(context: GateContext, m: DeleteTopicsRequest, call: KafkaCall) -> Steps:
    """Delete topics, given by name or id."""
    topics = m.topics
    if call.version < 6:
        topics = [DeleteTopicsRequestDeleteTopicState(name) for name in m.topic_names]
    answer = DeleteTopicsResponse()
    for topic in topics:
        found = yield from find_topic(context, topic.name or "", topic.topic_id)
        if found is None:
            code = Code.UNKNOWN_TOPIC_ID
        elif isinstance(found, PymqError):
            code = code_of(found)
        else:
            name = found.topic
            deleted = yield from ask_controller(
                context, partial(DeleteTopic, name=name), done="UNKNOWN_TOPIC"
            )
            code = code_of(deleted.error)
            context.topics.drop(name)
        known = found.topic if isinstance(found, TopicMetadata) else topic.name
        topic_id = id_bytes(found.topic_id) if isinstance(found, TopicMetadata) else topic.topic_id
        if topic.topic_id == NO_ID and not isinstance(found, TopicMetadata):
            topic_id = NO_ID
        answer.responses.append(
            DeleteTopicsResponseDeletableTopicResult(known, topic_id, int(code), None)
        )
    return answer


def create_partitions(context: GateContext, m: CreatePartitionsRequest, call: KafkaCall) -> Steps:
    """Add partitions to topics, up to a number."""
    del call
    answer = CreatePartitionsResponse()
    for topic in m.topics:
        refused = yield from _grow(context, topic, m.validate_only)
        code, why = refused if refused is not None else (Code.NONE, None)
        answer.results.append(
            CreatePartitionsResponseCreatePartitionsTopicResult(topic.name, int(code), why)
        )
    return answer


def _grow(
    context: GateContext, topic: CreatePartitionsRequestCreatePartitionsTopic, validate_only: bool
) -> Steps:
    found = yield from load_topic(context, topic.name)
    if isinstance(found, PymqError):
        return code_of(found), found.message
    there = len(found.partitions)
    if topic.assignments:
        return Code.INVALID_REPLICA_ASSIGNMENT, "pymq chooses the brokers of a partition itself"
    if not there < topic.count <= PARTITIONS_MAX:
        return Code.INVALID_PARTITIONS, f"the topic has {there} partitions"
    names = {each.partition for each in found.partitions}
    if validate_only:
        return None
    for index in range(there, topic.count):
        name = str(index)
        if name in names:
            return Code.INVALID_PARTITIONS, f"the topic has a partition that is named {name!r}"
        made = yield from ask_controller(
            context,
            partial(CreatePartition, topic=topic.name, partition=name),
            done="PARTITION_EXISTS",
        )
        if made.error is not None:
            return code_of(made.error), made.error.message
    yield from await_leaders(context, topic.name)
    return None
