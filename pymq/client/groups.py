"""What a client can find out about consumer groups, and change."""

from __future__ import annotations

from functools import partial

from pymq.client.options import parse_offset
from pymq.client.questions import Questions
from pymq.core import message as msg
from pymq.core.message import BEGIN, END
from pymq.core.types import OFFSETS_TOPIC
from pymq.core.values import value
from pymq.errors import UnknownGroup, UnknownTopic


@value
class GroupDescription:
    """What ``describe_group`` returns; offsets and lag are by (topic, partition)."""

    name: str
    generation: int
    members: tuple[str, ...]
    assignment: dict[str, tuple[tuple[str, str], ...]]  # by member
    committed: dict[tuple[str, str], int]
    lag: dict[tuple[str, str], int]
    in_flight: dict[tuple[str, str], int]


def names(questions: Questions) -> list[str]:
    """All groups that there are."""
    if not _has_groups(questions):
        return []
    partitions = [p.partition for p in questions.topic_metadata(OFFSETS_TOPIC).partitions]
    # Whoever leads one of them tells the groups of all that it leads.
    found = questions.ask_leaders(OFFSETS_TOPIC, partitions, lambda r, _: msg.ListGroups(r))
    answers = [answer for answer in found.values() if isinstance(answer, msg.GroupNames)]
    return sorted({name for answer in answers for name in answer.groups})


def _has_groups(questions: Questions) -> bool:
    """Whether there is a topic for offsets; to ask for its metadata would make it."""
    if questions.has_seen(OFFSETS_TOPIC):
        return True
    try:
        questions.ask(lambda r: msg.DescribeTopic(r, OFFSETS_TOPIC))
    except UnknownTopic:
        return False
    return True


def describe(questions: Questions, group: str) -> GroupDescription:
    """A group's members, assignment, offsets and lag.

    Raises:
        UnknownGroup: there is none of that name.
    """
    if not _has_groups(questions):
        raise UnknownGroup(f"there is no group {group!r}")
    state = questions.group_state(group)
    by_topic: dict[str, list[str]] = {}
    for offset in state.offsets:
        by_topic.setdefault(offset.topic, []).append(offset.partition)
    ends = {
        (topic, partition): end
        for topic, partitions in by_topic.items()
        for partition, (_, end) in questions.all_bounds(topic, partitions).items()
    }
    return GroupDescription(
        group,
        state.generation,
        tuple(member.member for member in state.members),
        {m.member: tuple((m.topic, p) for p in m.partitions) for m in state.members},
        {(o.topic, o.partition): o.committed for o in state.offsets},
        {(o.topic, o.partition): ends[o.topic, o.partition] - o.committed for o in state.offsets},
        {(o.topic, o.partition): o.in_flight for o in state.offsets},
    )


def reset(questions: Questions, group: str, topic: str, offset: int | str) -> None:
    """Let a group begin anew at an offset of each partition of a topic.

    Raises:
        InvalidRequest: the group has members.
    """
    wanted = parse_offset(offset)
    partitions = [p.partition for p in questions.topic_metadata(topic).partitions]
    for name, (start, end) in questions.all_bounds(topic, partitions).items():
        at = {BEGIN: start, END: end}.get(wanted, min(max(wanted, start), end))
        commit = partial(msg.CommitOffset, group=group, topic=topic, partition=name, offset=at)
        questions.ask_group(group, commit)
