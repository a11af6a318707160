"""Validation of requests to a group coordinator, and the refusals of each kind of request.

Clients choose all numbers and names in a request, so each is checked before use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, assert_never

from pymq.core.batch.priority import HIGHEST
from pymq.core.message import (
    BEGIN,
    END,
    ERROR_MAX,
    Acquire,
    Acquired,
    Answer,
    Assigned,
    BeatClassic,
    BeatReconciled,
    ClassicDone,
    ClassicState,
    CommitClassic,
    CommitOffset,
    DeleteGroup,
    DescribeClassic,
    DescribeReconciled,
    GetGroup,
    GetLeases,
    GroupLeases,
    GroupNames,
    GroupState,
    Heartbeat,
    Join,
    JoinClassic,
    JoinedClassic,
    Leave,
    LeaveClassic,
    ListGroups,
    Message,
    Range,
    Reconciled,
    ReconciledState,
    Settle,
    Settled,
    SyncClassic,
    SyncedClassic,
    Unsubscribe,
)
from pymq.core.types import check_name, check_topic_id
from pymq.errors import InvalidRequest, PymqError

SESSION_MAX_MS = 30 * 60_000  # like Kafka's group.max.session.timeout.ms
TIME_MAX = 1 << 52  # milliseconds; sums of a few of them stay below 64 bits
OFFSET_MAX = 1 << 61
RECORDS_MAX = 1 << 31  # most records in one request
PARTITIONS_MAX = 1 << 20  # most partitions of one topic
ID_MAX = 32  # hex digits of a topic's id
# most bytes of the data that a member of a classic group sends about itself ...
SUBSCRIPTION_MAX = 1 << 20
ASSIGNMENTS_MAX = 16 << 20  # ... and of the assignments that the leading member sends
HEX = frozenset("0123456789abcdef")

ClassicRequest = (
    JoinClassic | SyncClassic | BeatClassic | LeaveClassic | CommitClassic | DescribeClassic
)
KafkaRequest = ClassicRequest | BeatReconciled | DescribeReconciled
GroupRequest = (
    Join
    | Heartbeat
    | Leave
    | Acquire
    | Settle
    | CommitOffset
    | DeleteGroup
    | GetGroup
    | GetLeases
    | ListGroups
    | Unsubscribe
    | KafkaRequest
)
R = TypeVar("R", bound=GroupRequest)


def check(m: R) -> R:
    """Check a request, and return it.

    Raises:
        InvalidRequest: a number is out of its range, or a range ends before it begins.
        InvalidName: a name is not allowed.
    """
    match m:
        case Join():
            check_name(m.group, "group name")
            check_name(m.topic, "topic name")
            check_name(m.member, "member name")
            _names(m.partitions)
            _number("session_ms", m.session_ms, 1, SESSION_MAX_MS)
            _number("ack_wait_ms", m.ack_wait_ms, 1, TIME_MAX)
            _number("max_deliver", m.max_deliver, 0, TIME_MAX)
            if len(m.topic_id) > ID_MAX or not set(m.topic_id) <= HEX:
                raise InvalidRequest(f"{m.topic_id[:ID_MAX]!r} is not the id of a topic")
            _names(m.within or ())
            if m.reset not in (BEGIN, END):
                raise InvalidRequest(f"a group begins at {BEGIN} or {END}, not at {m.reset}")
        case Heartbeat():
            _names(m.partitions)
        case Acquire():
            _number("max_records", m.max_records, 0, RECORDS_MAX)
            _number("max_wait_ms", m.max_wait_ms, 0, TIME_MAX)
            _ranges([(start, end) for _, start, end in (*m.known, *m.unkeyed)])
            _ranges([(start, end) for _, start, end, _ in m.priorities])
            for _, _, _, priority in m.priorities:
                _number("a priority", priority, 1, HIGHEST)
        case Settle():
            for settled in (m.acks, m.renewals, m.unread):
                _ranges([span for _, span in settled])
            _ranges([span for _, span, _ in m.nacks])
            for _, _, delay in m.nacks:
                _number("the delay in ms", delay, 0, TIME_MAX)
            if len(m.errors) > len(m.nacks):
                raise InvalidRequest(f"{len(m.errors)} errors for {len(m.nacks)} ranges of records")
            for error in m.errors:
                if len(error.encode()) > ERROR_MAX:
                    raise InvalidRequest(
                        f"an error of {len(error.encode())} bytes: at most {ERROR_MAX}"
                    )
        case Leave():
            _ranges([span for _, span in m.unread])
        case CommitOffset():
            check_name(m.group, "group name")
            check_name(m.topic, "topic name")
            check_name(m.partition, "partition name")
            _number("the offset", m.offset, 0, OFFSET_MAX)
        case DeleteGroup():
            if m.topic:
                check_name(m.topic, "topic name")
        case Unsubscribe():
            if m.group != m.name:
                # The guard has checked access only to the group that the request names.
                raise InvalidRequest(f"{m.name!r} is not the subscription of a group")
        case _:
            _check_kafka(m)
    return m


def _check_kafka(m: GroupRequest) -> None:
    """Check a request of a Kafka client; see :func:`check`."""
    match m:
        case JoinClassic():
            check_name(m.group, "group name")
            _number("the size of subscriptions", _size(m.protocols), 0, SUBSCRIPTION_MAX)
            _number("rebalance_ms", m.rebalance_ms, 0, TIME_MAX)
        case SyncClassic():
            _number("the size of assignments", _size(m.assignments), 0, ASSIGNMENTS_MAX)
        case CommitClassic():
            check_name(m.group, "group name")
            for each in m.offsets:
                check_name(each.topic, "topic name")
                check_name(each.partition, "partition name")
                _number("the offset", each.offset, 0, OFFSET_MAX)
        case BeatReconciled():
            check_name(m.group, "group name")
            for topic, id, count in m.topics or ():
                check_name(topic, "topic name")
                check_topic_id(id)
                _number("the number of partitions", count, 0, PARTITIONS_MAX)
            for topic, found in m.owned or ():
                for index in found:
                    _number(f"a partition of {topic!r}", index, 0, PARTITIONS_MAX)
        case _:
            pass  # These requests have no numbers, and their name is only looked up.


def refusal(m: GroupRequest, error: PymqError) -> Message:
    """Return the refusal of *m* with *error*."""
    match m:
        case Acquire():
            return Acquired(m.id, error=error)
        case Settle() | Leave() | CommitOffset() | DeleteGroup():
            return Settled(m.id, error=error)
        case GetGroup():
            return GroupState(m.id, m.group, error=error)
        case GetLeases():
            return GroupLeases(m.id, error=error)
        case ListGroups():
            return GroupNames(m.id, error=error)
        case Join() | Heartbeat():
            return Assigned(m.id, error=error)
        case JoinClassic():
            return JoinedClassic(m.id, error=error)
        case SyncClassic():
            return SyncedClassic(m.id, error=error)
        case BeatClassic() | LeaveClassic() | CommitClassic():
            return ClassicDone(m.id, error=error)
        case DescribeClassic():
            return ClassicState(m.id, error=error)
        case BeatReconciled():
            return Reconciled(m.id, error=error)
        case DescribeReconciled():
            return ReconciledState(m.id, error=error)
        case Unsubscribe():
            return Answer(m.id, error=error)
        case _:
            assert_never(m)


def _names(partitions: tuple[str, ...]) -> None:
    for name in partitions:
        check_name(name, "partition name")
    if len(set(partitions)) < len(partitions):
        raise InvalidRequest("two partitions have the same name")


def _number(what: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise InvalidRequest(f"{what} is {number}; it must be from {least} to {most}")


def _ranges(ranges: Iterable[Range]) -> None:
    for start, end in ranges:
        if not 0 <= start <= end <= OFFSET_MAX:
            raise InvalidRequest(f"[{start}, {end}) is not a range of offsets")


def _size(pairs: Iterable[tuple[str, bytes]]) -> int:
    return sum(len(name) + len(data) for name, data in pairs)
