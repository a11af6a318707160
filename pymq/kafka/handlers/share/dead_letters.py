"""Dead letters of share groups: rejected records, and those that were delivered too often.

pymq's own consumer writes the dead letters of its records itself. Kafka's clients do not know dead
letters, so the gate writes those of their records: to the same topic, the name of the records'
topic with ``.dlq``, and with the same headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from pymq.core.batch.columns import Headers
from pymq.core.batch.dead_letter import (
    DEAD_LETTER,
    OBITUARY_MAX,
    headers_of_damage,
    with_obituary,
)
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.core.message import GetLeases, GroupLeases, Produce, Produced, Range
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.metadata.topic_config import RECORD_MAX, TopicConfig
from pymq.core.types import NAME_LENGTH_MAX, AckMode
from pymq.errors import PymqError, UnknownTopic
from pymq.kafka.codes import Code, group_code
from pymq.kafka.handlers.metadata import await_leaders, create_topic, replicas_of
from pymq.kafka.handlers.share.membership import ask_group
from pymq.kafka.handlers.share.reading import Counted, read, wanted
from pymq.kafka.shared.conversation import GateContext, Pause, Steps, ask
from pymq.kafka.shared.share_sessions import SessionMember, ShareSession
from pymq.kafka.shared.topic_cache import find_topic

READ_BYTES = 1 << 20
LETTERS_MAX = 1_000  # in one batch ...
LETTER_BYTES = 256 << 10  # ... which is full with so many bytes
SPANS_MAX = 1_000
TRIES = 5
RETRY_MS = 100


class _Letter(NamedTuple):
    key: bytes | None
    value: bytes
    headers: Headers


def counted(
    context: GateContext,
    session: ShareSession,
    member: SessionMember,
    partition: str,
    ranges: Sequence[Range],
) -> Steps:
    """Return ranges of leased records with their numbers of deliveries."""
    found: list[Counted] = []
    for start, end in ranges:
        reached = start
        while reached < end:
            request = partial(
                GetLeases,
                group=session.group,
                topic=member.topic,
                partition=partition,
                offset=reached,
                max_spans=SPANS_MAX,
            )
            (answer,) = yield from ask_group(context, session, [member], [request])
            before = reached
            for span in answer.spans if isinstance(answer, GroupLeases) else ():
                low, high = max(span.start, reached), min(span.end, end)
                if low < high:
                    found.append((low, high, span.delivery_count))
                    reached = high
            if reached == before:
                found.append((reached, end, 1))
                break
    return found


def bury(
    context: GateContext,
    group: str,
    topic: TopicMetadata,
    partition: str,
    ranges: Sequence[Counted],
    why: bytes | None,
) -> Steps:
    """Write the dead letters of some records; returns the code.

    *why* is the error in the letters; None: that the records were delivered too often.
    """
    letters: list[_Letter] = []
    size = 0
    for start, end, count in ranges:
        at = start
        while at < end:
            batches = yield from read(context, topic, partition, at, READ_BYTES)
            if isinstance(batches, PymqError):
                return group_code(batches)
            if not batches:
                break
            for batch in batches:
                if batch.base_offset >= end:
                    break
                view = RecordBatch(batch.at(topic.topic, partition), start, end, count)
                for letter in _letters(context, view, topic, group, why):
                    letters.append(letter)
                    size += len(letter.value)
                    if len(letters) >= LETTERS_MAX or size >= LETTER_BYTES:
                        code = yield from _write(context, topic, letters)
                        if code:
                            return code
                        letters, size = [], 0
            at = batches[-1].end_offset
    return (yield from _write(context, topic, letters)) if letters else Code.NONE


def _letters(
    context: GateContext, view: RecordBatch, topic: TopicMetadata, group: str, why: bytes | None
) -> list[_Letter]:
    if view.is_hidden or view.is_control or not len(view):
        return []
    if (fault := view.fault()) is not None:
        return [_Letter(None, b"", tuple(headers_of_damage(view, fault, group)))]
    kept = wanted(context, view, topic, group)
    return [
        _Letter(record.key, record.value, with_obituary(record, group, why))
        for record in kept.records()
    ]


def _write(context: GateContext, topic: TopicMetadata, letters: Sequence[_Letter]) -> Steps:
    """Append letters to the dead-letter topic; returns the code."""
    name = f"{topic.topic}{DEAD_LETTER}"
    if len(name) > NAME_LENGTH_MAX:
        return Code.NONE  # There can be no such topic: the records are only given up.
    batch = EncodedBatch.encode(
        [each.value for each in letters],
        timestamp_ms=context.wall_ms(),
        keys=[each.key for each in letters],
        headers=[each.headers for each in letters],
    )
    code = Code.COORDINATOR_NOT_AVAILABLE
    for _ in range(TRIES):
        found = yield from _topic(context, topic, name)
        if not isinstance(found, TopicMetadata):
            code = group_code(found)
        elif (leader := found.partitions[0].leader) is not None:
            place, mode = found.partitions[0].partition, AckMode.RAFT
            request = partial(Produce, topic=name, partition=place, acks=mode, batch=batch)
            done = yield from ask(leader, request)
            if isinstance(done, Produced) and done.error is None:
                return Code.NONE
            code = group_code(done.error)
        context.topics.drop(name)
        yield Pause(RETRY_MS)
    return code


def _topic(context: GateContext, source: TopicMetadata, name: str) -> Steps:
    """Return the dead-letter topic, which is created if it is missing."""
    found = yield from find_topic(context, name)
    if isinstance(found, UnknownTopic):
        most = min(source.config.max_record_bytes + OBITUARY_MAX, RECORD_MAX)
        config = {"max_record_bytes": max(most, TopicConfig().max_record_bytes)}
        replicas = max(1, len(source.partitions[0].replicas), replicas_of(context))
        error = yield from create_topic(context, name, 1, replicas, config)
        if error is not None and error.code != "TOPIC_EXISTS":
            return error
        found = yield from await_leaders(context, name)
    return found
