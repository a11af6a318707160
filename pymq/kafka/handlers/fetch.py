"""Fetch: reads several partitions, and waits until they have enough records."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import attrs

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.columns import Buffer
from pymq.core.batch.kafka.batch import serve
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Fetch, Fetched
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.types import TopicPartition
from pymq.errors import OffsetOutOfRange, PymqError
from pymq.kafka.codes import Code, code_of
from pymq.kafka.shared.conversation import (
    Ask,
    Doze,
    GateContext,
    KafkaCall,
    Late,
    Steps,
    ask,
    ask_holders,
    holders,
)
from pymq.kafka.shared.topic_cache import find_topic, partition_of
from pymq.kafka.wire.messages import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)

# bytes for a partition in an answer, however many partitions share the answer
PARTITION_BYTES_MIN = 64 << 10
WAIT_MAX_MS = 60_000
SESSIONS_FROM = 7  # the version with which fetch sessions came
_STALE = frozenset((Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_OR_PARTITION))


class _Place(NamedTuple):
    """A partition of a fetch that the gate requests from a broker."""

    part: FetchResponsePartitionData
    topic: TopicMetadata
    partition: PartitionLeader
    asked: FetchRequestFetchPartition

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic.topic, self.partition.partition)


def fetch(context: GateContext, m: FetchRequest, call: KafkaCall) -> Steps:
    """Read from each partition.

    1. Ask for records of all partitions.
    2. If the brokers return less than the client wants, and no partition has an error, wait until
       one of the partitions grows, and ask again.

    The partitions of a client with a session are those of the session, and its answer has only
    those with news (:mod:`pymq.kafka.shared.fetch_sessions`).
    """
    session = None
    if call.version >= SESSIONS_FROM:
        turned = context.sessions.turn(m, context.now)
        if isinstance(turned, Code):
            return FetchResponse(error_code=int(turned))
        session = turned
    topics = m.topics if session is None else session.topics()
    answer = yield from _fetch(context, m, topics)
    if session is not None:
        session.finish(answer)
    return answer


def _fetch(context: GateContext, m: FetchRequest, topics: list[FetchRequestFetchTopic]) -> Steps:
    """Read from each partition of *topics*; returns the answer with all of them."""
    answer = FetchResponse()
    places: list[_Place] = []
    is_refused = False
    for topic in topics:
        found = yield from find_topic(context, topic.topic, topic.topic_id)
        parts: list[FetchResponsePartitionData] = []
        answer.responses.append(
            FetchResponseFetchableTopicResponse(topic.topic, topic.topic_id, parts)
        )
        for asked in topic.partitions:
            part = FetchResponsePartitionData(
                asked.partition, 0, -1, -1, -1, aborted_transactions=None, records=b""
            )
            parts.append(part)
            partition = None
            if isinstance(found, TopicMetadata):
                partition = partition_of(found, asked.partition)
            if partition is not None and isinstance(found, TopicMetadata):
                places.append(_Place(part, found, partition, asked))
                continue
            is_refused = True
            if isinstance(found, TopicMetadata):
                context.topics.drop(found.topic)  # The topic may have new partitions.
            is_error = isinstance(found, PymqError | TopicMetadata)
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if is_error else Code.UNKNOWN_TOPIC_ID
            part.error_code = int(code)
    until = context.now + min(max(m.max_wait_ms, 0), WAIT_MAX_MS)
    least = max(m.min_bytes, 1)
    is_last = False
    while places:
        size, has_error = yield from _read(context, m, places)
        if is_refused or has_error or size >= least or is_last:
            break
        ends = [(place.name, place.part.high_watermark) for place in places]
        is_last = yield Doze(ends, until)
    return answer


def _read(context: GateContext, m: FetchRequest, places: list[_Place]) -> Steps:
    """Read all partitions once; return the bytes, and whether a partition has an error."""
    share = max(m.max_bytes // len(places), PARTITION_BYTES_MIN)
    requests = [_request(place, share) for place in places]
    answers = yield Ask([(context.me, make) for make in requests], WAIT_MAX_MS)
    size, has_error = 0, False
    for place, make, found in zip(places, requests, answers, strict=True):
        fetched, sound = found, _sound(found)
        if sound.error is not None and not sound.batches:
            # With verify the broker checks its disk, and then names the holders of other copies of
            # the block, or gives its leadership up.
            make = partial(make, verify=True)  # noqa: PLW2901 # the holders are asked the same
            fetched = found = yield from ask(context.me, make)  # noqa: PLW2901 # in its place
            sound = _sound(found)
        if holders(found):
            fetched = yield from ask_holders(found, partial(make, any_replica=True))
            sound = _sound(fetched)
            if isinstance(fetched, Fetched) and fetched.error is None:
                # Answer with the leader's end of the log: a holder of older records may know an
                # earlier end.
                fetched = attrs.evolve(
                    fetched, log_start=found.log_start, high_watermark=found.high_watermark
                )
        size += _note(context, place, fetched, sound)
        has_error = has_error or place.part.error_code != 0
    return size, has_error


class _SoundBatches(NamedTuple):
    """The batches of an answer, up to the first damaged one."""

    batches: list[EncodedBatch]
    error: PymqError | None = None  # of the damaged one


def _sound(found: Fetched | Late) -> _SoundBatches:
    """Check the batches of an answer.

    Some of Kafka's clients, among them librdkafka, do not check the CRC unless they are told to.
    """
    batches = list[EncodedBatch]()
    if isinstance(found, Fetched) and found.error is None:
        try:
            for batch in split(found.data):
                batches.append(batch.verify())
        except PymqError as error:
            return _SoundBatches(batches, error)
    return _SoundBatches(batches)


def _request(place: _Place, share: int) -> partial[Fetch]:
    name = place.name
    return partial(
        Fetch,
        topic=name.topic,
        partition=name.partition,
        # Treat negative offsets, which have a meaning only for pymq's brokers, as 0.
        offset=max(place.asked.fetch_offset, 0),
        max_bytes=max(min(place.asked.partition_max_bytes, share), 1),
        max_wait_ms=0,
        topic_id=place.topic.topic_id,
    )


def _note(
    context: GateContext, place: _Place, fetched: Fetched | Late, sound: _SoundBatches
) -> int:
    """Copy a broker's answer into the answer for a partition; return the bytes of its records."""
    part, error = place.part, fetched.error
    if place.asked.fetch_offset < 0:
        error = OffsetOutOfRange(f"{place.asked.fetch_offset} is no offset")
    if isinstance(fetched, Fetched):
        part.high_watermark = part.last_stable_offset = fetched.high_watermark
        part.log_start_offset = fetched.log_start
    code = code_of(error)
    parts: list[Buffer] = []
    if error is None:
        problem = sound.error
        try:
            for batch in sound.batches:
                parts += serve(batch, context.crc32c)
        except PymqError as unserved:
            problem = unserved
        # Serve the batches before the damaged one; the next fetch gets the error.
        if problem is not None and not parts:
            code = code_of(problem)
    if code in _STALE:
        context.topics.drop(place.topic.topic)
    if code and not isinstance(error, OffsetOutOfRange):
        part.high_watermark = part.last_stable_offset = -1
    part.error_code, part.records = int(code), parts
    return sum(map(len, parts))
