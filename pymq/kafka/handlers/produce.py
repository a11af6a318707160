"""Produce and InitProducerId: batches are checked, wrapped and sent to the gate's own broker."""

from __future__ import annotations

from typing import Any

from pymq.core.batch.batch_validation import BATCH_SLACK, KAFKA_SLACK
from pymq.core.batch.columns import Buffer
from pymq.core.batch.header import BATCH_BYTES_MAX
from pymq.core.batch.kafka.batch import KafkaLimits, wrapping
from pymq.core.message import Answer, InitProducer, Produce, Produced
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.metadata.nodes import ProducerIds
from pymq.core.types import AckMode
from pymq.errors import PymqError, RequestTimeout
from pymq.kafka.codes import Code, code_of, produce_code
from pymq.kafka.shared.controllers import ask_controller
from pymq.kafka.shared.conversation import (
    BREATHE,
    CLOSE,
    NO_ANSWER,
    Ask,
    GateContext,
    KafkaCall,
    Late,
    Steps,
)
from pymq.kafka.shared.topic_cache import find_topic, partition_of
from pymq.kafka.slices import SLICE
from pymq.kafka.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartitionProduceResponse,
    ProduceResponseTopicProduceResponse,
    Records,
)

_ACKS = {0: AckMode.LEADER, 1: AckMode.LEADER, -1: AckMode.RAFT}
LAST_EPOCH = 32_767
WAIT_MIN_MS, WAIT_MAX_MS = 1_000, 120_000
# Errors that mean that the cached metadata is old: another topic has this name now, or the leader
# has changed.
_STALE = frozenset(
    (Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE)
)


def produce(context: GateContext, m: ProduceRequest, call: KafkaCall) -> Steps:
    """Append a batch to each partition.

    A producer with ``acks=0`` gets no answer. If its records are refused, the gate closes the
    connection, so that the producer looks for the leaders again.
    """
    is_silent = m.acks == 0
    if is_silent:
        call.release()
    mode = _ACKS.get(m.acks)
    refused = Code.NONE if mode is not None else Code.INVALID_REQUIRED_ACKS
    if m.transactional_id is not None:
        refused = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    requests: list[Any] = []
    waiting: list[tuple[ProduceResponsePartitionProduceResponse, str]] = []
    answer = ProduceResponse()
    for topic in m.topic_data:
        found = yield from find_topic(context, topic.name, topic.topic_id)
        parts: list[ProduceResponsePartitionProduceResponse] = []
        answer.responses.append(
            ProduceResponseTopicProduceResponse(topic.name, topic.topic_id, parts)
        )
        for data in topic.partition_data:
            part = ProduceResponsePartitionProduceResponse(data.index, base_offset=-1)
            parts.append(part)
            made: Produce | Code | tuple[Code, str] = refused
            if not refused:
                made = yield from _message(context, found, data.index, data.records, mode)
            if isinstance(made, Produce):
                requests.append((context.me, _numbered(made)))
                waiting.append((part, made.topic))
            elif isinstance(made, tuple):
                code, part.error_message = made
                part.error_code = int(code)
            else:
                part.error_code = int(made)
    if requests:
        wait_ms = min(max(m.timeout_ms, WAIT_MIN_MS), WAIT_MAX_MS)
        answers = yield Ask(requests, wait_ms, frees_line=True)
        for (part, name), produced in zip(waiting, answers, strict=True):
            _note(context, part, name, produced)
    if is_silent:
        parts = [part for each in answer.responses for part in each.partition_responses]
        return CLOSE if any(part.error_code for part in parts) else NO_ANSWER
    return answer


def _numbered(m: Produce) -> Any:
    return lambda r: Produce(r, m.topic, m.partition, m.acks, m.batch, topic_id=m.topic_id)


def _message(
    context: GateContext,
    topic: TopicMetadata | PymqError | None,
    index: int,
    records: Records,
    mode: AckMode | None,
) -> Steps:
    """Make the request to the broker, or a code of refusal, perhaps with its reason."""
    if topic is None:
        return Code.UNKNOWN_TOPIC_ID
    if isinstance(topic, PymqError):
        return code_of(topic)
    partition = partition_of(topic, index)
    if partition is None:
        context.topics.drop(topic.topic)  # The topic may have new partitions.
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    if planned := context.faults.get(topic.topic):
        return planned.pop()
    assert mode is not None
    assert not isinstance(records, list)
    most = topic.config.max_record_bytes
    if len(records or b"") > most + KAFKA_SLACK:
        return Code.MESSAGE_TOO_LARGE  # before its records cost anything
    limits = KafkaLimits(context.records_max, min(most + BATCH_SLACK, BATCH_BYTES_MAX))
    try:
        batch = yield from _checked(context, records or b"", limits)
    except PymqError as error:
        if "magic" in error.details:
            return Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, error.message
        return produce_code(error), error.message
    return Produce(0, topic.topic, partition.partition, mode, batch, topic_id=topic.topic_id)


def _checked(context: GateContext, data: Buffer, limits: KafkaLimits) -> Steps:
    """Check a batch, in slices; returns it with pymq's header.

    Raises:
        PymqError: the batch is refused.
    """
    steps = wrapping(data, context.crc32c, context.wall_ms(), limits)
    while True:
        if context.spent >= SLICE:
            yield BREATHE
        try:
            context.spent += next(steps)
        except StopIteration as stop:
            return stop.value


def _note(
    context: GateContext,
    part: ProduceResponsePartitionProduceResponse,
    topic: str,
    produced: Produced | Late,
) -> None:
    """Copy a broker's answer into the answer for a partition."""
    code = produce_code(produced.error)
    if code in _STALE:
        context.topics.drop(topic)
    part.error_code = int(code)
    if isinstance(produced, Produced) and produced.error is None:
        part.base_offset = produced.base_offset
    elif produced.error is not None:
        part.error_message = produced.error.message


def _ids(request: int) -> InitProducer:
    return InitProducer(request, "", "", takes_ids=True)


def new_producer_id(context: GateContext) -> Steps:
    """Return a producer id that nobody else has, or the error."""
    if not context.ids:
        answer = yield from ask_controller(context, _ids)
        if not isinstance(answer, Answer) or not isinstance(answer.result, ProducerIds):
            return answer.error or RequestTimeout("no producer id was given")
        given = answer.result
        context.ids += range(given.first + given.count - 1, given.first - 1, -1)
    return context.ids.pop()


def init_producer_id(context: GateContext, m: InitProducerIdRequest, call: KafkaCall) -> Steps:
    """Give out a producer id, or the next epoch of the producer's present id."""
    del call
    if m.transactional_id is not None:
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return InitProducerIdResponse(0, int(code), -1, -1)
    if m.producer_id >= 0 and 0 <= m.producer_epoch < LAST_EPOCH:
        return InitProducerIdResponse(0, 0, m.producer_id, m.producer_epoch + 1)
    given = yield from new_producer_id(context)
    if isinstance(given, PymqError):
        return InitProducerIdResponse(0, int(Code.COORDINATOR_NOT_AVAILABLE), -1, -1)
    return InitProducerIdResponse(0, 0, given, 0)
