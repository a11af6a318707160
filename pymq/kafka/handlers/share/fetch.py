"""ShareFetch: leases records to a share session, and reads them.

1. Settle the acknowledgements that came with the request.
2. Join the group for topics that are new in the session, and leave it for topics that are gone.
3. Look up where the session's partitions end, and ask the coordinator for leases. The coordinator
   answers when it has records for this member.
4. Read the whole batches of the leased records. The client is told which of their records it has
   leased, and skips the others.

Leases of records that do not fit into the answer are returned at once, without counting a delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pymq.core.message import BEGIN, Acquire, Acquired, Fetch, Fetched, Range, Settle
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.types import TopicPartition, is_name
from pymq.core.values import Factory, define
from pymq.errors import OffsetOutOfRange, PymqError
from pymq.kafka.codes import Code
from pymq.kafka.handlers.share import dead_letters
from pymq.kafka.handlers.share.membership import LOCK_MS, ask_group, close, hastened, join
from pymq.kafka.handlers.share.reading import LeasedPart, fill, partition_code, read_leased
from pymq.kafka.handlers.share.settlement import settle
from pymq.kafka.shared.conversation import Ask, GateContext, KafkaCall, Pause, Steps
from pymq.kafka.shared.share_sessions import FINAL, INITIAL, Place, SessionMember, ShareSession
from pymq.kafka.shared.topic_cache import find_topic, id_bytes, partition_of
from pymq.kafka.wire.messages import (
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchResponseLeaderIdAndEpoch,
    ShareFetchResponsePartitionData,
    ShareFetchResponseShareFetchableTopicResponse,
)

WAIT_MAX_MS = 60_000
# How long a request may wait at the coordinator; the answer shows that the coordinator is alive.
ACQUIRE_MS = 2_000
RECORDS_MAX = 10_000  # leased in one request
PARTITION_BYTES_MIN = 64 << 10  # for a partition in an answer, however many share the answer
NOBODY = -1  # the client has to ask for the leader
RETRY_MS = 200  # after an error of the coordinator
_STALE = frozenset((Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_OR_PARTITION))


@define
class _Reading:
    """A topic of a session, and the partitions that the session reads."""

    topic: TopicMetadata
    parts: dict[str, PartitionLeader] = Factory(dict)  # by their names
    known: list[tuple[str, int, int]] = Factory(list)  # starts and ends of the partitions
    unkeyed: list[tuple[str, int, int]] = Factory(list)
    priorities: list[tuple[str, int, int, int]] = Factory(list)
    member: SessionMember | None = None


@define
class _Answer:
    """The partitions of an answer, in the order in which something was found out about them."""

    parts: dict[Place, ShareFetchResponsePartitionData] = Factory(dict)

    def part(self, place: Place) -> ShareFetchResponsePartitionData:
        """Return the part for a partition."""
        found = self.parts.get(place)
        if found is None:
            found = ShareFetchResponsePartitionData(
                place[1],
                current_leader=ShareFetchResponseLeaderIdAndEpoch(NOBODY, NOBODY),
                records=b"",
            )
            self.parts[place] = found
        return found

    @property
    def has_news(self) -> bool:
        """Whether there are records or errors."""
        return any(part.acquired_records or part.error_code for part in self.parts.values())

    def response(self) -> ShareFetchResponse:
        """Return the response."""
        topics: dict[bytes, ShareFetchResponseShareFetchableTopicResponse] = {}
        for (topic_id, _), part in self.parts.items():
            if topic_id not in topics:
                topics[topic_id] = ShareFetchResponseShareFetchableTopicResponse(topic_id)
            topics[topic_id].partitions.append(part)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=LOCK_MS, responses=list(topics.values())
        )


def share_fetch(context: GateContext, m: ShareFetchRequest, call: KafkaCall) -> Steps:
    """Settle the acknowledgements of a session, then lease and read records for it."""
    acknowledged = {
        (topic.topic_id, part.partition_index): part.acknowledgement_batches
        for topic in m.topics
        for part in topic.partitions
    }
    epoch, sessions = m.share_session_epoch, context.share.sessions
    if epoch == INITIAL and not (is_name(m.group_id) and is_name(m.member_id)):
        return _refused(Code.INVALID_REQUEST, "a group and a member need names")
    if epoch == INITIAL and any(acknowledged.values()):
        return _refused(Code.INVALID_REQUEST, "a new session has nothing to acknowledge")
    turned = sessions.turn(m.group_id or "", m.member_id or "", epoch, call.connection, context.now)
    if isinstance(turned, Code):
        return _refused(turned)
    answer = _Answer()
    codes = yield from settle(context, turned, acknowledged, renews=m.is_renew_ack)
    for place, code in codes.items():
        answer.part(place).acknowledge_error_code = int(code)
    if epoch == FINAL:
        yield from close(context, turned, list(turned.members))
        return answer.response()
    forgotten = [(each.topic_id, n) for each in m.forgotten_topics_data for n in each.partitions]
    code = sessions.change(turned, acknowledged, forgotten)
    if code:
        return _refused(code)
    if m.max_records > 0 and m.max_bytes > 0:
        yield from _fetch(context, m, call, turned, answer)
    return answer.response()


def _refused(code: Code, why: str | None = None) -> ShareFetchResponse:
    return ShareFetchResponse(0, int(code), why, LOCK_MS)


def _fetch(
    context: GateContext,
    m: ShareFetchRequest,
    call: KafkaCall,
    session: ShareSession,
    answer: _Answer,
) -> Steps:
    """Wait for records, and put them into the answer."""
    until = context.now + min(max(m.max_wait_ms, 0), WAIT_MAX_MS)
    while not session.is_over:
        readings = yield from _readings(context, session, answer)
        ready: list[_Reading] = []
        for each in readings:
            member = yield from join(context, session, each.topic, tuple(sorted(each.parts)))
            if isinstance(member, SessionMember):
                each.member = member
                ready.append(each)
        is_refused = len(ready) < len(readings) or not readings
        if ready and not session.is_over:
            wait_ms = min(max(until - context.now, 0), ACQUIRE_MS)
            if answer.has_news or call.has_more():
                wait_ms = 0
            leased, has_failed = yield from _lease(context, m, session, answer, ready, wait_ms)
            is_refused = is_refused or has_failed
            yield from _serve(context, m, session, leased)
        if answer.has_news or context.now >= until or call.has_more():
            return
        if is_refused:
            yield Pause(min(RETRY_MS, until - context.now))


def _readings(context: GateContext, session: ShareSession, answer: _Answer) -> Steps:
    """Look up the session's partitions, where they begin and end; returns those of each topic."""
    found: dict[str, _Reading] = {}
    places: dict[TopicPartition, Place] = {}
    for place in list(session.parts):
        topic = yield from find_topic(context, "", place[0])
        partition = partition_of(topic, place[1]) if isinstance(topic, TopicMetadata) else None
        if partition is None or not isinstance(topic, TopicMetadata):
            is_known = isinstance(topic, TopicMetadata)
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if is_known else Code.UNKNOWN_TOPIC_ID
            answer.part(place).error_code = int(code)
            if isinstance(topic, TopicMetadata):
                context.topics.drop(topic.topic)  # The topic may have new partitions.
            continue
        reading = found.setdefault(topic.topic, _Reading(topic))
        reading.parts[partition.partition] = partition
        places[TopicPartition(topic.topic, partition.partition)] = place
    yield from close(context, session, [name for name in session.members if name not in found])
    names = list(places)
    ends = yield Ask([(context.me, _end_request(session, found, name)) for name in names])
    for name, end in zip(names, ends, strict=True):
        reading = found[name.topic]
        if isinstance(end, Fetched) and end.error is None:
            reading.known.append((name.partition, end.log_start, end.high_watermark))
            reading.unkeyed += [(name.partition, *span) for span in end.unkeyed]
            reading.priorities += [(name.partition, *run) for run in end.priorities]
            continue
        code = partition_code(end.error)
        answer.part(places[name]).error_code = int(code)
        if code in _STALE:
            context.topics.drop(name.topic)
        member = session.members.get(name.topic)
        if member is not None and isinstance(end.error, OffsetOutOfRange):
            member.ends.pop(name.partition, None)
        reading.parts.pop(name.partition)
    return [reading for reading in found.values() if reading.parts]


def _end_request(
    session: ShareSession, found: dict[str, _Reading], name: TopicPartition
) -> partial[Fetch]:
    """Return a request for the ends of a partition, and for what is new since the last one."""
    member = session.members.get(name.topic)
    offset = member.ends.get(name.partition, BEGIN) if member is not None else BEGIN
    return partial(
        Fetch,
        topic=name.topic,
        partition=name.partition,
        offset=offset,
        max_bytes=0,
        max_wait_ms=0,
        topic_id=found[name.topic].topic.topic_id,
    )


def _lease(
    context: GateContext,
    m: ShareFetchRequest,
    session: ShareSession,
    answer: _Answer,
    readings: Sequence[_Reading],
    wait_ms: int,
) -> Steps:
    """Ask the coordinator for leases; returns the partitions with leased records, and whether a
    request was refused.
    """
    count = max(min(m.max_records, RECORDS_MAX) // len(readings), 1)
    members = [each.member for each in readings if each.member is not None]
    requests = [
        partial(
            Acquire,
            group=session.group,
            member=member.name,
            known=tuple(each.known),
            max_records=count,
            max_wait_ms=wait_ms,
            unkeyed=tuple(each.unkeyed),
            shares=True,
            priorities=tuple(each.priorities),
        )
        for member, each in zip(members, readings, strict=True)
    ]
    hasten = [hastened(session, member) for member in members]
    watch = [
        (TopicPartition(each.topic.topic, name), end)
        for each in readings
        for name, _, end in each.known
    ]
    if not wait_ms:
        hasten, watch = [], []
    answers = yield from ask_group(context, session, members, requests, wait_ms, hasten, watch)
    leased: list[LeasedPart] = []
    has_failed = False
    for reading, member, found in zip(readings, members, answers, strict=True):
        if not isinstance(found, Acquired) or found.error is not None:
            has_failed = has_failed or member.is_joined
            continue
        member.is_stale = found.generation != member.generation
        member.ends |= {name: end for name, _, end in reading.known}
        by_name: dict[str, LeasedPart] = {}
        for lease in found.leases:
            part = by_name.get(lease.partition)
            if part is None:
                partition = reading.parts.get(lease.partition)
                if partition is None:
                    continue  # The lease runs out.
                place = id_bytes(reading.topic.topic_id), partition.index
                part = LeasedPart(answer.part(place), reading.topic, partition, member)
                by_name[lease.partition] = part
            part.leases.append(lease)
        for part in by_name.values():
            part.leases.sort(key=lambda lease: lease.start)
        leased += by_name.values()
    return leased, has_failed


def _serve(
    context: GateContext, m: ShareFetchRequest, session: ShareSession, leased: list[LeasedPart]
) -> Steps:
    """Read the leased records, and return or settle the leases that the client does not get."""
    share = max(m.max_bytes // max(len(leased), 1), PARTITION_BYTES_MIN)
    for part in leased:
        dead = [(each.start, each.end, each.delivery_count) for each in part.leases if each.dead]
        part.leases = [each for each in part.leases if not each.dead]
        done: list[Range] = []
        if dead:
            code = yield from dead_letters.bury(
                context, session.group, part.topic, part.name, dead, None
            )
            # If a letter could not be written, the leases run out, and the gate tries again.
            done = [(start, end) for start, end, _ in dead] if not code else []
        yield from read_leased(context, part, share)
        fill(context, part, session.group)
        error = part.problem
        if isinstance(error, PymqError) and partition_code(error) in _STALE:
            context.topics.drop(part.topic.topic)
        yield from _settle_rest(context, session, part, done)


def _settle_rest(
    context: GateContext, session: ShareSession, part: LeasedPart, done: list[Range]
) -> Steps:
    """Settle the leases of a partition that the client does not get."""
    name, unread = part.name, part.unread()
    done += part.holes
    if not (done or unread or part.broken):
        return
    request = partial(
        Settle,
        group=session.group,
        member=part.member.name,
        acks=tuple((name, span) for span in done),
        nacks=tuple((name, span, 0) for span in part.broken),
        unread=tuple((name, span) for span in unread),
    )
    yield from ask_group(context, session, [part.member], [request])
