"""Describes, resets and deletes consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from pymq.client.admin.record_counts import records_between
from pymq.client.admin.requests import Requests, raise_it
from pymq.client.options import parse_offset
from pymq.core import message as msg
from pymq.core.message import BEGIN, END
from pymq.core.types import OFFSETS_TOPIC
from pymq.core.values import Factory, value
from pymq.errors import (
    AuthorizationFailed,
    ConfigError,
    InvalidName,
    NotSubscribed,
    UnknownGroup,
    UnknownTopic,
)


@value
class MemberDescription:
    """A consumer of a group."""

    name: str
    client: str  # the client's address: ``CLIENT.c1`` is a client's first consumer
    topic: str
    partitions: tuple[str, ...]  # assigned
    assignor: str
    ack_wait_s: float
    max_deliver: int  # 0: no limit
    silent_s: float  # time since the member's last message to the coordinator
    asks: tuple[str, ...] | None  # the pending request for records, as text; None without one


@value
class LeaseDescription:
    """Consecutive records of a partition with the same state in a group."""

    start_offset: int
    end_offset: int
    state: str  # "leased", "available" (to be delivered again) or "acked"
    member: str | None  # the member that holds the lease
    delivery_count: int
    until_ms: int | None  # wall clock: when the lease ends or the records are redelivered


@value
class LeasesDescription:
    """The result of ``describe_leases``.

    All records before *committed* are acknowledged, and those from *delivered* on were never
    delivered; *leases* describes the records between.
    """

    group: str
    topic: str
    partition: str
    committed: int
    delivered: int
    known_end: int  # the partition's end, as the group's members last reported it
    leases: tuple[LeaseDescription, ...]


@value
class GroupDescription:
    """The result of ``describe_group``; offsets and lag, in records, are by (topic, partition)."""

    name: str
    generation: int
    members: tuple[str, ...]
    assignment: dict[str, tuple[tuple[str, str], ...]]  # assigned partitions, by member
    committed: dict[tuple[str, str], int]
    lag: dict[tuple[str, str], int]
    in_flight: dict[tuple[str, str], int]
    delivered: dict[tuple[str, str], int] = Factory(dict)  # the offset that is delivered next
    waiting: dict[tuple[str, str], int] = Factory(dict)  # records that wait for redelivery
    consumers: tuple[MemberDescription, ...] = ()
    end: dict[tuple[str, str], int] = Factory(dict)  # the ends of the partitions
    routes: dict[str, str] = Factory(dict)  # by topic: the topics' option ``route``


def names(questions: Requests) -> list[str]:
    """Return the names of all groups."""
    if not _has_groups(questions):
        return []
    partitions = [p.partition for p in questions.topic_metadata(OFFSETS_TOPIC).partitions]
    found = questions.ask_leaders(OFFSETS_TOPIC, partitions, msg.ListGroups)
    answers = [answer for answer in found.values() if isinstance(answer, msg.GroupNames)]
    return sorted({name for answer in answers for name in answer.groups})


def _has_groups(questions: Requests) -> bool:
    """Whether the offsets topic exists, found out without a metadata request, which would create
    the topic.
    """
    if questions.has_seen(OFFSETS_TOPIC):
        return True
    try:
        questions.ask(lambda r: msg.DescribeTopic(r, OFFSETS_TOPIC))
    except UnknownTopic:
        return False
    except AuthorizationFailed:
        # Few principals may describe that topic, but all may request its metadata, so the call
        # requests that.
        return True
    return True


def may_have_members(questions: Requests, group: str) -> bool:
    """Whether a group has members, or a new coordinator does not know yet whether it has."""
    if not _has_groups(questions):
        return False
    try:
        state = questions.group_state(group)
    except UnknownGroup as error:
        return error.details.get("is_new") is True
    return bool(state.members) or state.is_new


def describe(questions: Requests, group: str) -> GroupDescription:
    """Describe a group's members, assignment, offsets and lag.

    Raises:
        UnknownGroup: there is no group of that name.
    """
    if not _has_groups(questions):
        raise UnknownGroup(f"there is no group {group!r}")
    state = questions.group_state(group)
    by_topic: dict[str, dict[str, int]] = {}
    for offset in state.offsets:
        by_topic.setdefault(offset.topic, {})[offset.partition] = offset.committed
    ends: dict[tuple[str, str], int] = {}
    lag: dict[tuple[str, str], int] = {}
    for topic, committed in by_topic.items():
        bounds = questions.all_bounds(topic, committed)
        # Records that retention has removed are no lag.
        spans = {name: (max(committed[name], start), end) for name, (start, end) in bounds.items()}
        for name, count in records_between(questions, topic, spans).items():
            ends[topic, name], lag[topic, name] = spans[name][1], count
    return GroupDescription(
        group,
        state.generation,
        tuple(member.member for member in state.members),
        {m.member: tuple((m.topic, p) for p in m.partitions) for m in state.members},
        {(o.topic, o.partition): o.committed for o in state.offsets},
        lag,
        {(o.topic, o.partition): o.in_flight for o in state.offsets},
        {(o.topic, o.partition): o.delivered for o in state.offsets},
        {(o.topic, o.partition): o.waiting for o in state.offsets},
        tuple(_member(member) for member in state.members),
        ends,
        _routes(questions, {*by_topic, *(member.topic for member in state.members)}),
    )


def _routes(questions: Requests, topics: Iterable[str]) -> dict[str, str]:
    """The routes of topics; a topic that has been deleted has none."""
    found = {}
    for topic in sorted(topics):
        try:
            route = questions.topic_metadata(topic).config.route
        except UnknownTopic:
            continue
        if route is not None:
            found[topic] = route
    return found


def _member(member: msg.GroupMember) -> MemberDescription:
    return MemberDescription(
        member.member,
        member.source,
        member.topic,
        member.partitions,
        member.assignor,
        member.ack_wait_ms / 1000,
        member.max_deliver,
        member.silent_ms / 1000,
        member.asks,
    )


def describe_leases(
    questions: Requests,
    group: str,
    topic: str,
    partition: str,
    offset: int,
    limit: int,
    wall_ms: int,
) -> LeasesDescription:
    """Describe the states in a group of a partition's records, from an offset on.

    Raises:
        UnknownGroup: there is no group of that name.
    """
    if not _has_groups(questions):
        raise UnknownGroup(f"there is no group {group!r}")
    found = questions.ask_group(
        group, lambda r: msg.GetLeases(r, group, topic, partition, offset, limit)
    )
    assert isinstance(found, msg.GroupLeases)
    leases = tuple(
        LeaseDescription(
            span.start,
            span.end,
            span.state,
            span.member,
            span.delivery_count,
            None if span.state == "acked" else wall_ms + span.due_ms,
        )
        for span in found.spans
    )
    place = (group, topic, partition)
    return LeasesDescription(*place, found.committed, found.delivered, found.known_end, leases)


def delete(questions: Requests, group: str) -> None:
    """Delete a group with its offsets.

    Raises:
        UnknownGroup: there is no group of that name.
        InvalidRequest: the group has members.
    """
    if not _has_groups(questions):
        raise UnknownGroup(f"there is no group {group!r}")
    questions.ask_group(group, lambda r: msg.DeleteGroup(r, group), done=UnknownGroup)


def unsubscribe(questions: Requests, group: str, topics: str | Iterable[str] | None) -> list[str]:
    """End a group's consumption of topics; returns those that it was subscribed to.

    Remove the subscriptions first, so that a member that joins again does not find its own.

    Raises:
        UnknownGroup, UnknownTopic, NotSubscribed: see
        :meth:`pymq.client.admin.admin.Admin.unsubscribe`.
    """
    if topics is not None and not isinstance(topics, Iterable):
        raise InvalidName(f"topics={topics!r} must be the name of a topic, or several")
    if topics is None:
        if not _has_groups(questions):
            raise UnknownGroup(f"there is no group {group!r}")
        state = questions.group_state(group)
        found = sorted({m.topic for m in state.members} | {o.topic for o in state.offsets})
    else:
        found = list(dict.fromkeys([topics] if isinstance(topics, str) else topics))
        for topic in found:
            questions.topic_metadata(topic)
    was_subscribed = list[str]()
    for topic in found:
        ask = partial(msg.Unsubscribe, name=group, topic=topic, group=group)
        call = questions.call(ask)
        raise_it(call.error)
        # An earlier try may have ended the subscription. Older zkservers do not report which
        # subscriptions were removed.
        if call.result is not False or call.is_repeated:
            was_subscribed.append(topic)
        if _has_groups(questions):
            questions.ask_group(group, ask)
    if topics is not None and not was_subscribed:
        raise NotSubscribed(f"group {group!r} is not subscribed to {', '.join(found) or 'nothing'}")
    return was_subscribed


def reset(
    questions: Requests, group: str, topic: str, offset: int | str | Mapping[str, int | str]
) -> None:
    """Set a group's committed offset in each partition of a topic, or in some.

    Raises:
        InvalidRequest: the group has members.
    """
    if isinstance(offset, Mapping):
        if not offset:
            raise ConfigError("offset={} names no partition")
        wanted = {
            questions.partition_name(topic, name): parse_offset(at) for name, at in offset.items()
        }
    else:
        partitions = [p.partition for p in questions.topic_metadata(topic).partitions]
        wanted = dict.fromkeys(partitions, parse_offset(offset))
    for name, (start, end) in questions.all_bounds(topic, wanted).items():
        at = {BEGIN: start, END: end}.get(wanted[name], min(max(wanted[name], start), end))
        commit = partial(msg.CommitOffset, group=group, topic=topic, partition=name, offset=at)
        questions.ask_group(group, commit)
